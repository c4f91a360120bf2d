// Package slices turns a snapshot and its topology into the devices of a
// ResourceSlice pool. Its functions are pure: equal facts give equal slices, so
// nothing is written while nothing changes.
package slices

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/topology"
)

// attributes collects the attributes of one device. An unknown value is left
// out: an empty one would match another empty one.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func (a attributes) text(name, value string) {
	if value != "" {
		a[qualified(name)] = resourceapi.DeviceAttribute{StringValue: &value}
	}
}

func (a attributes) number(name string, value int) {
	v := int64(value)
	a[qualified(name)] = resourceapi.DeviceAttribute{IntValue: &v}
}

func (a attributes) yes(name string) {
	v := true
	a[qualified(name)] = resourceapi.DeviceAttribute{BoolValue: &v}
}

func (a attributes) version(name, value string) {
	if v, ok := semver(value); ok {
		a[qualified(name)] = resourceapi.DeviceAttribute{VersionValue: &v}
	}
}

func qualified(name string) resourceapi.QualifiedName {
	return resourceapi.QualifiedName(v1alpha1.Group + "/" + name)
}

// semver makes a version that NVML tells fit the API, which wants three numbers
// without leading zeros: "580.65.06" is 580.65.6, "9.0" is 9.0.0.
func semver(version string) (string, bool) {
	parts := strings.Split(version, ".")
	if version == "" || len(parts) > 3 {
		return "", false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return "", false
		}
		parts[i] = strconv.FormatUint(n, 10)
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return strings.Join(parts, "."), true
}

// standard adds the attributes that Kubernetes defines for PCI devices, as far as
// its own helper can tell them for this function.
func (a attributes) standard(tree *pci.Tree, addr pci.Address) {
	bdf := addr.String()
	sysfs := deviceattribute.WithFS(treeFS{tree})
	add := func(attr deviceattribute.DeviceAttribute, err error) {
		if err == nil { // an error means that this machine cannot tell; absent is right
			a[attr.Name] = attr.Value
		}
	}
	add(deviceattribute.GetPCIBusIDAttribute(bdf))
	if fn := tree.Functions[addr]; fn == nil || tree.Unknown == nil || !tree.Unknown.Names[fn.Root] {
		add(deviceattribute.GetPCIeRootAttributeByPCIBusID(bdf, sysfs))
	}
	add(deviceattribute.GetNUMANodeAttributeByPCIBusID(bdf, deviceattribute.ScalarAttribute, sysfs))
}

func (a attributes) place(s *machine.Snapshot, addr pci.Address) {
	a.standard(s.PCI, addr)
	a.text("simulated", s.Simulated)
	if fn := s.PCI.Functions[addr]; fn != nil {
		if sw, ok := fn.Switch(); ok {
			a.text("pcieSwitch", sw.String())
		}
	}
}

func gpuDevice(s *machine.Snapshot, g gpu.GPU, t topology.GPU) resourceapi.Device {
	a := attributes{}
	a.place(s, g.Address)
	a.gpu(s, g)
	a.text("type", string(v1alpha1.GPUKind))
	a.text("affinityGroup", t.Group)
	return resourceapi.Device{Name: GPUName(g.Address), Attributes: a, Capacity: memory(g)}
}

// gpu adds what NVML says about a GPU.
func (a attributes) gpu(s *machine.Snapshot, g gpu.GPU) {
	a.text("uuid", g.UUID)
	a.text("productName", g.Name)
	a.text("architecture", g.Architecture)
	a.version("cudaComputeCapability", g.ComputeCapability)
	a.version("driverVersion", s.Driver.Version)
	a.version("cudaDriverVersion", s.Driver.CUDAVersion)
	if g.Fabric != nil {
		a.text("nvlinkDomain", fmt.Sprintf("%s.%d", g.Fabric.ClusterUUID, g.Fabric.CliqueID))
	}
}

func memory(g gpu.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	if g.MemoryBytes == 0 {
		return nil
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		qualified("memory"): {Value: *resource.NewQuantity(int64(g.MemoryBytes), resource.BinarySI)},
	}
}

// nicFacts are the attributes of a NIC that do not depend on the rest of the
// machine. A nicSelector sees these.
func nicFacts(s *machine.Snapshot, n machine.NIC) attributes {
	a := attributes{}
	a.place(s, n.Address)
	a.text("type", string(v1alpha1.NICKind))
	a.text("ifName", n.IfName())
	if fn := s.PCI.Functions[n.Address]; fn != nil {
		a.text("vendor", hex(fn.Vendor))
		a.text("device", hex(fn.Device))
		if fn.PhysFn != nil {
			a.yes("virtualFunction")
			a.text("physfn", fn.PhysFn.String())
		}
	}
	if n.RDMA != nil {
		a.rdma(n.RDMA)
	}
	return a
}

func (a attributes) rdma(d *rdma.Device) {
	a.text("rdmaDevice", d.Name)
	a.text("firmware", d.Firmware)
	if len(d.Ports) == 0 {
		return
	}
	port := d.Ports[0]
	a.text("linkLayer", port.LinkLayer)
	if port.RateGbps > 0 {
		a.number("rateGbps", port.RateGbps)
	}
}

func nicDevice(s *machine.Snapshot, n machine.NIC, t topology.NIC) resourceapi.Device {
	a := nicFacts(s, n)
	a.text("affinityGroup", t.Group)
	a.text("card", t.Card.String())
	if t.Rail != nil {
		a.number("rail", *t.Rail)
		a.text("railSource", string(t.RailSource))
	}
	return resourceapi.Device{Name: NICName(n.Address), Attributes: a}
}

// hex is how sysfs prints vendor and device ids; 0 is not one.
func hex(id uint16) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("0x%04x", id)
}

// GPUName returns the name of a GPU's device.
func GPUName(a pci.Address) string { return "gpu-" + a.DNSLabel() }

// NICName returns the name of a NIC's device.
func NICName(a pci.Address) string { return "nic-" + a.DNSLabel() }

// PairName returns the name of the device that a GPU and its NICs make.
func PairName(gpu pci.Address) string { return "pair-" + gpu.DNSLabel() }
