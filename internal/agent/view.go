package agent

import (
	"fmt"
	"slices"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
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
		place, _ := t.GPU(g.Address)
		v.add(attributes, claims.Device{
			Name: nodeslices.GPUName(g.Address), Type: v1alpha1.GPUKind, Address: g.Address, GPU: &g, AffinityGroup: place.Group,
		})
	}
	for _, n := range s.NICs {
		place, _ := t.NIC(n.Address)
		distances := map[pci.Address]string{}
		for _, g := range s.GPUs {
			if class := t.Distance(g.Address, n.Address); class != topology.Unknown {
				distances[g.Address] = class.String()
			}
		}
		v.add(attributes, claims.Device{
			Name: nodeslices.NICName(n.Address), Type: v1alpha1.NICKind, Address: n.Address, NIC: &n,
			AffinityGroup: place.Group, Rail: place.Rail, Distances: distances,
		})
	}
	return v
}

func (v *view) add(attributes map[string]map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, d claims.Device) {
	if a, ok := attributes[d.Name]; ok {
		d.Attributes = a
		v.devices[d.Name] = d
	}
}

// counts returns the number of published devices of every type.
func (v *view) counts() map[string]int {
	counts := map[string]int{string(v1alpha1.GPUKind): 0, string(v1alpha1.NICKind): 0}
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
		if nodeslices.NICName(n.Address) == name && !n.Published {
			return n.Reason
		}
	}
	present := slices.ContainsFunc(v.snapshot.NICs, func(n machine.NIC) bool { return nodeslices.NICName(n.Address) == name })
	for addr := range v.snapshot.PCI.Functions {
		present = present || nodeslices.GPUName(addr) == name
	}
	switch {
	case present && len(v.snapshot.Missing) > 0:
		return v.snapshot.Missing[0].Reason
	case present:
		return "its PCI function is there, but NVML does not list it"
	default:
		return "its PCI function has gone; delete the pod to have another device allocated"
	}
}
