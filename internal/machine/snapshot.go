// Package machine joins what PCI, NVML, RDMA and netlink say about a node into
// one immutable snapshot.
package machine

import (
	"time"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// Snapshot is what one scan saw. Nothing changes it afterwards; readers may
// share it freely.
type Snapshot struct {
	// Simulated names the machine file behind a simulated node; empty on hardware.
	Simulated string
	Taken     time.Time

	PCI    *pci.Tree
	Driver gpu.Driver
	GPUs   []gpu.GPU // by address
	NICs   []NIC     // by address

	// SoftwareRDMA are RDMA devices without hardware (rxe, siw), by name.
	SoftwareRDMA []rdma.Device

	// Links are the host's network interfaces, with and without hardware.
	Links []netdev.Link

	// UplinkUnknown says that nobody could tell which interfaces carry the node's
	// own traffic.
	UplinkUnknown bool

	// Missing names the parts that could not be read, with the reason. The
	// rest of the snapshot is valid without them.
	Missing []Missing
}

// NIC is one PCI network function with what belongs to it. A function may have
// an RDMA device without a network interface (InfiniBand only) and the reverse.
type NIC struct {
	Address pci.Address
	Links   []netdev.Link // by name; several for multi-port functions
	RDMA    *rdma.Device  // nil when the function has no RDMA device
}

// IfName returns the name of the first network interface, or "".
func (n NIC) IfName() string {
	if len(n.Links) == 0 {
		return ""
	}
	return n.Links[0].Name
}

// RDMAName returns the name of the RDMA device, or "".
func (n NIC) RDMAName() string {
	if n.RDMA == nil {
		return ""
	}
	return n.RDMA.Name
}

// Part is one source of a snapshot.
type Part string

// The parts a snapshot is joined from.
const (
	PartPCI    Part = "pci"
	PartNVML   Part = "nvml"
	PartRDMA   Part = "rdma"
	PartNetdev Part = "netdev"
)

// Parts lists all parts in a fixed order.
var Parts = []Part{PartPCI, PartNVML, PartRDMA, PartNetdev}

// Missing says why a part is absent or incomplete.
type Missing struct {
	Part   Part
	Reason string
}

// GPU returns the GPU at an address.
func (s *Snapshot) GPU(a pci.Address) (gpu.GPU, bool) {
	for _, g := range s.GPUs {
		if g.Address == a {
			return g, true
		}
	}
	return gpu.GPU{}, false
}

// NIC returns the NIC at an address.
func (s *Snapshot) NIC(a pci.Address) (NIC, bool) {
	for _, n := range s.NICs {
		if n.Address == a {
			return n, true
		}
	}
	return NIC{}, false
}
