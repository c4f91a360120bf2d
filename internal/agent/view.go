package agent

import (
	"fmt"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// view is one scan with everything that follows from it. Nothing changes it.
type view struct {
	snapshot *machine.Snapshot
	topology *topology.Topology
	pool     resourceslice.Pool
	devices  map[string]claims.Device // published ones, by name
	problems []string                 // what the API's limits made us leave out
}

func newView(s *machine.Snapshot, t *topology.Topology, o nodeslices.Options) *view {
	v := &view{snapshot: s, topology: t, devices: map[string]claims.Device{}}
	v.pool, v.problems = nodeslices.Pool(nodeslices.Build(s, t, o))
	attributes := map[string]map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for _, slice := range v.pool.Slices {
		for _, d := range slice.Devices {
			attributes[d.Name] = d.Attributes
		}
	}
	for _, g := range s.GPUs {
		placed, _ := t.GPU(g.Address)
		device := v.gpu(g, placed)
		v.add(attributes, device)
		if len(placed.Pair) == 0 {
			continue
		}
		pair := claims.Device{
			Name: nodeslices.PairName(g.Address), Type: v1alpha1.PairKind, Address: g.Address,
			Parts: []claims.Device{device}, AffinityGroup: placed.Group,
		}
		for _, addr := range placed.Pair {
			nic := v.nic(addr)
			nic.Shares = o.NICSharing
			pair.Parts = append(pair.Parts, nic)
		}
		v.add(attributes, pair)
	}
	for _, n := range s.NICs {
		v.add(attributes, v.nic(n.Address))
	}
	return v
}

func (v *view) gpu(g gpu.GPU, placed topology.GPU) claims.Device {
	return claims.Device{Name: nodeslices.GPUName(g.Address), Type: v1alpha1.GPUKind, Address: g.Address, GPU: &g, AffinityGroup: placed.Group}
}

func (v *view) nic(addr pci.Address) claims.Device {
	n, _ := v.snapshot.NIC(addr)
	placed, _ := v.topology.NIC(addr)
	n.RDMA = placed.RDMA
	distances := map[pci.Address]string{}
	for _, g := range v.snapshot.GPUs {
		if class := v.topology.Distance(g.Address, addr); class != topology.Unknown {
			distances[g.Address] = class.String()
		}
	}
	return claims.Device{
		Name: nodeslices.NICName(addr), Type: v1alpha1.NICKind, Address: addr, NIC: &n,
		AffinityGroup: placed.Group, Rail: placed.Rail, Distances: distances,
	}
}

// add takes a device in if it is published.
func (v *view) add(attributes map[string]map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, d claims.Device) {
	if a, ok := attributes[d.Name]; ok {
		d.Attributes = a
		v.devices[d.Name] = d
	}
}

// counts returns the number of published devices of every type.
func (v *view) counts() map[string]int {
	counts := map[string]int{}
	for _, kind := range v1alpha1.DeviceKinds {
		counts[string(kind)] = 0
	}
	for _, d := range v.devices {
		counts[string(d.Type)]++
	}
	return counts
}

// excluded returns the number of NICs that are never handed out.
func (v *view) excluded() int {
	n := 0
	for _, nic := range v.topology.NICs {
		if !nic.Published {
			n++
		}
	}
	return n
}

// inventory answers for claims from the newest view.
type inventory struct{ view *atomic.Pointer[view] }

// Device implements claims.Inventory.
func (i inventory) Device(name string) (claims.Device, error) {
	v := i.view.Load()
	if v == nil {
		return claims.Device{}, fmt.Errorf("device %s: the agent has just started and has not scanned this node yet", name)
	}
	if d, ok := v.devices[name]; ok {
		return d, nil
	}
	return claims.Device{}, fmt.Errorf("device %s is no longer on this node: %s", name, v.whyGone(name))
}

// whyGone says what became of a device that is not published.
func (v *view) whyGone(name string) string {
	for _, n := range v.topology.NICs {
		if nodeslices.NICName(n.Address) != name {
			continue
		}
		if n.Published {
			return notConfigured
		}
		return n.Reason
	}
	for _, g := range v.topology.GPUs {
		switch name {
		case nodeslices.GPUName(g.Address):
			return notConfigured
		case nodeslices.PairName(g.Address):
			if g.NoPair != "" {
				return g.NoPair
			}
			return notConfigured
		}
	}
	for addr := range v.snapshot.PCI.Functions {
		if name == nodeslices.GPUName(addr) || name == nodeslices.PairName(addr) {
			return "its PCI function is there, but NVML does not list it" + v.missing(machine.PartNVML)
		}
	}
	return "its PCI function has gone; delete the pod to have another device allocated"
}

const notConfigured = "the driver's configuration, or what this cluster can count, no longer lets it be published beside the others; " +
	"delete the pod to have another device allocated"

func (v *view) missing(part machine.Part) string {
	for _, m := range v.snapshot.Missing {
		if m.Part == part {
			return ": " + m.Reason
		}
	}
	return ""
}
