// Package allocation runs the allocator of the Kubernetes scheduler in this
// process, on the slices that the driver publishes for a machine of the zoo.
package allocation

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// NodeName is the node of every machine: the allocator looks at one at a time.
const NodeName = "node"

// Node is a node as the scheduler sees it, and the topology behind it, by which
// results are judged.
type Node struct {
	Topology  *topology.Topology
	Snapshot  *machine.Snapshot
	Options   slices.Options
	Inventory slices.Inventory
	Slices    []*resourceapi.ResourceSlice
}

// NewNode publishes a machine with the driver's defaults: no pair is farther
// apart than its NUMA node, and NICs with another role than compute stay out.
func NewNode(ctx context.Context, m *simulate.Machine, o slices.Options) (*Node, error) {
	s, err := m.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	n := &Node{
		Snapshot: s,
		Topology: topology.Compute(s, topology.Config{Excluded: m.Roles(), Pairs: topology.PairConfig{Farthest: topology.NODE}}),
	}
	return n.With(o), nil
}

// With returns the same node, publishing as the options say.
func (n *Node) With(o slices.Options) *Node {
	other := &Node{Snapshot: n.Snapshot, Topology: n.Topology, Options: o}
	other.Publish(slices.Build(n.Snapshot, n.Topology, o))
	return other
}

// Publish replaces what the node offers.
func (n *Node) Publish(inventory slices.Inventory) {
	n.Inventory = inventory
	pool, _ := slices.Pool(inventory)
	n.Slices = ResourceSlices(v1alpha1.Group, pool)
}

// ResourceSlices turns a pool into objects as resourceslice.Controller does. The
// allocator takes slices in the order of their names, which begin with the index.
func ResourceSlices(driver string, pool resourceslice.Pool) []*resourceapi.ResourceSlice {
	var objects []*resourceapi.ResourceSlice
	node := NodeName
	for i, slice := range pool.Slices {
		objects = append(objects, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, driver, NodeName)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:         driver,
				NodeName:       &node,
				Pool:           resourceapi.ResourcePool{Name: NodeName, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				Devices:        slice.Devices,
				SharedCounters: slice.SharedCounters,
			},
		})
	}
	return objects
}

// Device returns a published device by name, or nil.
func (n *Node) Device(name string) *resourceapi.Device {
	for i := range n.Inventory.Devices {
		if n.Inventory.Devices[i].Name == name {
			return &n.Inventory.Devices[i]
		}
	}
	return nil
}
