package slices

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/topology"
)

// pairDevice is one GPU with its share of the NICs nearest to it.
func pairDevice(s *machine.Snapshot, t *topology.Topology, g topology.GPU) resourceapi.Device {
	facts, _ := s.GPU(g.Address)
	a := attributes{}
	a.gpu(s, facts)
	a.common(s, append([]pci.Address{g.Address}, g.Pair...))
	a.text("simulated", s.Simulated)
	a.text("type", string(v1alpha1.PairKind))
	a.text("affinityGroup", g.Group)
	a.text("distance", g.Nearest.String())
	a.text("gpuUUID", facts.UUID)
	a.text("gpuBusID", g.Address.String())
	a.number("nicCount", len(g.Pair))
	var nics []string
	for _, n := range g.Pair {
		nics = append(nics, n.String())
	}
	// More than five addresses are longer than the API takes; nicCount tells.
	if list := strings.Join(nics, ","); len(list) <= resourceapi.DeviceAttributeMaxValueLength {
		a.text("nics", list)
	}
	a.rails(t, g.Pair)
	return resourceapi.Device{Name: PairName(g.Address), Attributes: a, Capacity: memory(facts)}
}

// common adds the standard attributes that are true for every part.
func (a attributes) common(s *machine.Snapshot, parts []pci.Address) {
	shared := attributes{}
	shared.standard(s.PCI, parts[0])
	for _, part := range parts[1:] {
		other := attributes{}
		other.standard(s.PCI, part)
		for name, value := range shared {
			if !equal(value, other[name]) {
				delete(shared, name)
			}
		}
	}
	for name, value := range shared {
		a[name] = value
	}
}

func equal(a, b resourceapi.DeviceAttribute) bool {
	same := func(x, y *string) bool { return x == y || (x != nil && y != nil && *x == *y) }
	return same(a.StringValue, b.StringValue) && (a.IntValue == b.IntValue || (a.IntValue != nil && b.IntValue != nil && *a.IntValue == *b.IntValue))
}

// rails adds the rail of a pair where its NICs are on one.
func (a attributes) rails(t *topology.Topology, nics []pci.Address) {
	first, _ := t.NIC(nics[0])
	for _, addr := range nics {
		if n, _ := t.NIC(addr); n.Rail == nil || first.Rail == nil || *n.Rail != *first.Rail {
			return
		}
	}
	a.number("rail", *first.Rail)
	a.text("railSource", string(first.RailSource))
}

// counters are the parts that devices of this node share: a counter for every
// GPU and NIC, in one set for the pairs that have parts in common.
type counters struct {
	sets    []resourceapi.CounterSet
	setOf   map[pci.Address]string
	sharing int64
	// crowded tells the sets in which more pairs have a NIC than may share it.
	crowded map[string]bool
}

// newCounters makes the counter sets of a topology. Pairs that share no part are
// in different sets, so no set is larger than the pairs around one NIC need, and
// a busy set keeps the scheduler from looking at nothing else.
func newCounters(t *topology.Topology, sharing int) *counters {
	c := &counters{setOf: map[pci.Address]string{}, sharing: int64(max(sharing, 1)), crowded: map[string]bool{}}
	for _, component := range t.PairComponents() {
		name := PairName(component[0].Address)
		set := resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{}}
		users := map[pci.Address]int64{}
		for _, g := range component {
			c.setOf[g.Address] = name
			set.Counters[GPUName(g.Address)] = counter(1)
			for _, n := range g.Pair {
				c.setOf[n] = name
				users[n]++
				set.Counters[NICName(n)] = counter(c.sharing)
				c.crowded[name] = c.crowded[name] || users[n] > c.sharing
			}
		}
		c.sets = append(c.sets, set)
	}
	return c
}

func counter(n int64) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(n, resource.DecimalSI)}
}

// pair makes a device use one share of each part.
func (c *counters) pair(d *resourceapi.Device, g topology.GPU) {
	use := map[string]resourceapi.Counter{GPUName(g.Address): counter(1)}
	for _, n := range g.Pair {
		use[NICName(n)] = counter(1)
	}
	d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: c.setOf[g.Address], Counters: use}}
}

// single makes a device use all of one part, if that is a part of a pair.
func (c *counters) single(d *resourceapi.Device, addr pci.Address, shares int64) {
	if set, ok := c.setOf[addr]; ok {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: map[string]resourceapi.Counter{d.Name: counter(shares)}}}
	}
}

// packed orders functions so that first-fit, which is what the scheduler does,
// fills one group before the next, one host bridge before the next, and one NUMA
// node before the next. Small claims then leave large groups whole. groups names
// what belongs together: for pairs those that exclude each other.
func packed(s *machine.Snapshot, groups map[pci.Address]string) func(a, b pci.Address) int {
	type key struct {
		numa        int
		root, group string
		at          pci.Address
	}
	keyOf := func(addr pci.Address) key {
		k := key{at: addr, group: groups[addr]}
		if fn := s.PCI.Functions[addr]; fn != nil {
			k.numa, k.root = fn.NUMANode, fn.Prefix+fn.Root
		}
		return k
	}
	return func(a, b pci.Address) int {
		x, y := keyOf(a), keyOf(b)
		return cmp.Or(cmp.Compare(x.numa, y.numa), cmp.Compare(x.root, y.root), cmp.Compare(x.group, y.group), x.at.Compare(y.at))
	}
}

// withoutCounters keeps the pairs that exclude each other only by sharing a NIC
// down to those that can all be used at once, for clusters that cannot count.
func withoutCounters(gpus []topology.GPU, sharing int) (kept []topology.GPU, dropped []string) {
	users := map[pci.Address]int{}
	for _, g := range gpus {
		full := slices.ContainsFunc(g.Pair, func(n pci.Address) bool { return users[n] >= max(sharing, 1) })
		if full {
			dropped = append(dropped, fmt.Sprintf("device %s is not published: it shares a NIC with another pair, and this cluster has no partitionable devices to count it with", PairName(g.Address)))
			continue
		}
		for _, n := range g.Pair {
			users[n]++
		}
		kept = append(kept, g)
	}
	return kept, dropped
}
