package pci

// Tree is the set of PCI functions of a machine with the bridges above each.
type Tree struct {
	Functions map[Address]*Function

	// Unknown is nil for what sysfs shows. Machine files and snapshots made from
	// publications can lack parts of the tree; they are named here.
	Unknown *Unknown
}

// Unknown names the parts of a tree that stand for something nobody published.
type Unknown struct {
	// Bridges stand for an unknown number of bridges.
	Bridges map[Address]bool
	// Roots have a made-up name: two of them in one PCI domain may be one.
	Roots map[string]bool
	// Chains are roots that stand for everything above a function: all of its
	// bridges and the real root.
	Chains map[string]bool
	// Names are all roots with a made-up name, also those known to be distinct.
	Names map[string]bool
}

// Function is one PCI function. Fields hold what sysfs says; a nil pointer, a
// zero number or an empty string means that sysfs does not tell.
type Function struct {
	Address         Address
	Class           uint32 // class: base class, subclass and programming interface in 24 bits
	Vendor          uint16 // vendor
	Device          uint16 // device
	SubsystemVendor uint16 // subsystem_vendor
	SubsystemDevice uint16 // subsystem_device
	Driver          string // base name of the driver link
	IOMMUGroup      string // base name of the iommu_group link

	// NUMANode is numa_node as the kernel prints it; -1 where firmware does not
	// tell. It is not read for bridges.
	NUMANode int

	// Root is the name of the host bridge, "pci0000:10", and Prefix the path
	// between /sys/devices and it: empty on most machines, an ACPI or VMBus path
	// on Hyper-V, "platform/..." on some Arm systems.
	Root   string
	Prefix string

	// Bridges are the bridges above the function, the root port first.
	Bridges []Address

	LinkSpeed    string // current_link_speed, "32.0 GT/s PCIe"
	LinkWidth    int    // current_link_width, lanes
	MaxLinkSpeed string // max_link_speed
	MaxLinkWidth int    // max_link_width

	PhysFn *Address  // physfn: the physical function of a VF; guests do not see it
	VFs    []Address // virtfnN in their order

	VPD VPD // read for NVIDIA network functions only
}

// Vendor ids of the PCI SIG.
const (
	VendorNVIDIA   = 0x10de
	VendorMellanox = 0x15b3
	VendorAmazon   = 0x1d0f
)

// deviceDataDirect is the DMA function of a ConnectX-8 that sits next to the GPU.
const deviceDataDirect = 0x2100

// BaseClass returns the upper byte of the class code.
func (f *Function) BaseClass() uint8 { return uint8(f.Class >> 16) }

// IsBridge tells whether other functions can sit below this one.
func (f *Function) IsBridge() bool { return f.BaseClass() == baseBridge }

// IsNetwork tells whether this is a network controller: Ethernet 0200, InfiniBand
// 0207 or another of base class 02.
func (f *Function) IsNetwork() bool { return f.BaseClass() == baseNetwork }

// IsDataDirect tells whether this is the DMA function of a network card: the NIC
// itself sits elsewhere in the tree and has the same VPD keyword V3.
func (f *Function) IsDataDirect() bool {
	return f.Vendor == VendorMellanox && f.Device == deviceDataDirect
}

// Switch returns the upstream port of the nearest PCIe switch above the
// function: the bridge that has a port on the way down to it. Functions that sit
// at a root port or on the root bus have none.
func (f *Function) Switch() (Address, bool) {
	if len(f.Bridges) < 2 {
		return Address{}, false
	}
	return f.Bridges[len(f.Bridges)-2], true
}
