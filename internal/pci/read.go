package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/topodra/topodra/internal/sysfs"
)

// devicesDir is where the kernel links every PCI function.
const devicesDir = "bus/pci/devices"

// Base classes of the PCI code and id assignment specification.
const (
	baseNetwork     = 0x02
	baseDisplay     = 0x03
	baseBridge      = 0x06
	baseAccelerator = 0x12
)

// Reader reads PCI trees from one sysfs root. It remembers vital product data,
// which never changes and takes the hardware tens of milliseconds to tell.
type Reader struct {
	fs  sysfs.FS
	vpd map[Address]VPD
}

// NewReader returns a reader of a sysfs root. It is not safe for concurrent use.
func NewReader(root sysfs.FS) *Reader {
	return &Reader{fs: root, vpd: map[Address]VPD{}}
}

// Read returns the tree. Functions that cannot be read are left out, each with
// one error that names it; the tree is valid without them. A machine without a
// PCI bus has an empty tree.
func (r *Reader) Read() (*Tree, []error) {
	tree := &Tree{Functions: map[Address]*Function{}}
	names, err := r.fs.List(devicesDir)
	if err != nil {
		return tree, []error{fmt.Errorf("list PCI functions: %w", err)}
	}
	var errs []error
	for _, name := range names {
		fn, err := r.function(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("PCI function %s left out: %w", name, err))
			continue
		}
		tree.Functions[fn.Address] = fn
	}
	for addr := range r.vpd {
		if tree.Functions[addr] == nil { // unplugged: another card may come to this slot
			delete(r.vpd, addr)
		}
	}
	return tree, errs
}

func (r *Reader) function(name string) (*Function, error) {
	addr, err := ParseAddress(name)
	if err != nil {
		return nil, err
	}
	target, err := r.fs.Link(devicesDir, name)
	if err != nil {
		return nil, fmt.Errorf("its link is unreadable: %w", err)
	}
	fn := &Function{Address: addr, NUMANode: -1}
	if err := fn.place(target); err != nil {
		return nil, err
	}
	class, err := r.fs.Uint(24, devicesDir, name, "class")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) { // unplugged between listing and reading
			return nil, errors.New("it has no class attribute")
		}
		return nil, err
	}
	fn.Class = uint32(class)

	// From here on an attribute that is absent or odd leaves its field unset:
	// a device is worth publishing without its link speed.
	fn.Vendor = r.id(name, "vendor")
	fn.Device = r.id(name, "device")
	if fn.IsBridge() {
		return fn, nil
	}
	if node, err := r.fs.Int(devicesDir, name, "numa_node"); err == nil {
		fn.NUMANode = node
	}
	if !fn.interesting() {
		return fn, nil
	}
	fn.SubsystemVendor = r.id(name, "subsystem_vendor")
	fn.SubsystemDevice = r.id(name, "subsystem_device")
	fn.LinkSpeed, _ = r.fs.Attr(devicesDir, name, "current_link_speed")
	fn.LinkWidth, _ = r.fs.Int(devicesDir, name, "current_link_width")
	fn.MaxLinkSpeed, _ = r.fs.Attr(devicesDir, name, "max_link_speed")
	fn.MaxLinkWidth, _ = r.fs.Int(devicesDir, name, "max_link_width")
	fn.Driver = lastElement(r.link(name, "driver"))
	fn.IOMMUGroup = lastElement(r.link(name, "iommu_group"))
	if pf, err := ParseAddress(lastElement(r.link(name, "physfn"))); err == nil {
		fn.PhysFn = &pf
	}
	fn.VFs = r.virtualFunctions(name)
	if fn.hasPairingVPD() {
		fn.VPD = r.readVPD(addr, name)
	}
	return fn, nil
}

// interesting tells whether the driver looks beyond the place of a function.
func (f *Function) interesting() bool {
	switch f.BaseClass() {
	case baseNetwork, baseDisplay, baseAccelerator:
		return true
	}
	// A Data Direct function has class 0801, a bridge chip of the vendor a class of its own.
	return f.Vendor == VendorMellanox || f.Vendor == VendorNVIDIA
}

// hasPairingVPD tells whether vital product data can say what a function belongs
// to. Only NVIDIA's network cards are known to; reading it elsewhere costs time
// and wakes devices for nothing. A guest's VF has none.
func (f *Function) hasPairingVPD() bool {
	return f.Vendor == VendorMellanox && f.PhysFn == nil
}

func (r *Reader) readVPD(addr Address, name string) VPD {
	if vpd, ok := r.vpd[addr]; ok {
		return vpd
	}
	raw, err := r.fs.Bytes(maxVPD, devicesDir, name, "vpd")
	if err != nil {
		return nil // no VPD, or not readable without root; asked again at the next scan
	}
	vpd := ParseVPD(raw)
	r.vpd[addr] = vpd
	return vpd
}

func (r *Reader) virtualFunctions(name string) []Address {
	// sriov_numvfs exists on physical functions only and says how many links to expect.
	n, err := r.fs.Uint(16, devicesDir, name, "sriov_numvfs")
	if err != nil {
		return nil
	}
	var vfs []Address
	for i := range n {
		target, err := r.fs.Link(devicesDir, name, fmt.Sprintf("virtfn%d", i))
		if err != nil {
			break
		}
		if vf, err := ParseAddress(lastElement(target)); err == nil {
			vfs = append(vfs, vf)
		}
	}
	return vfs
}

func (r *Reader) id(name, attr string) uint16 {
	v, _ := r.fs.Uint(16, devicesDir, name, attr)
	return uint16(v)
}

func (r *Reader) link(name, attr string) string {
	target, _ := r.fs.Link(devicesDir, name, attr)
	return target
}

// hostBridge is how the kernel names the directory of a host bridge
// (drivers/pci/probe.c, pci_register_host_bridge).
var hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// maxDepth bounds the bridges above a function. PCI allows 256 buses per domain.
const maxDepth = 256

// place reads the position of a function from its link in bus/pci/devices, such as
// ../../../devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0.
func (f *Function) place(target string) error {
	_, path, ok := strings.Cut(target, "devices/")
	if !ok {
		return fmt.Errorf("its link %q does not lead below devices/", target)
	}
	elements := strings.Split(path, "/")
	root := -1
	for i, element := range elements {
		switch {
		case root < 0 && hostBridge.MatchString(element):
			root = i
			f.Root, f.Prefix = element, strings.Join(elements[:i], "/")
		case root >= 0 && i < len(elements)-1:
			// What is no address here is a host bridge inside a function: Intel VMD
			// makes a domain below one of its functions. It is not a place of its own.
			if bridge, err := ParseAddress(element); err == nil {
				f.Bridges = append(f.Bridges, bridge)
			}
		}
	}
	if root < 0 {
		return fmt.Errorf("its link %q names no host bridge", target)
	}
	if len(f.Bridges) > maxDepth {
		return fmt.Errorf("it has %d bridges above it, more than a PCI domain can have", len(f.Bridges))
	}
	return nil
}

func lastElement(path string) string {
	return path[strings.LastIndexByte(path, '/')+1:]
}

// Enclosing returns the PCI function that a device path lies below, the innermost
// one: ".../0000:15:00.0/virtio3/net/eth1" is below 0000:15:00.0.
func Enclosing(path string) (Address, bool) {
	elements := strings.Split(path, "/")
	for i := len(elements) - 1; i >= 0; i-- {
		if strings.Count(elements[i], ":") == 2 {
			if addr, err := ParseAddress(elements[i]); err == nil {
				return addr, true
			}
		}
	}
	return Address{}, false
}
