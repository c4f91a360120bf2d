package slices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/topology"
)

// Options say what to publish.
type Options struct {
	// Kinds of devices. Pairs and their parts exclude each other by shared counters.
	Kinds []v1alpha1.DeviceKind
	// NICSharing is how many pairs may use one NIC at a time; 0 means 1.
	NICSharing int
	// NoCounters says that the cluster has no partitionable devices. Then there
	// are pairs only where they are the only kind.
	NoCounters bool
}

// Inventory is what a node offers, in the order in which the scheduler tries it.
type Inventory struct {
	Devices  []resourceapi.Device
	Counters []resourceapi.CounterSet
	LeftOut  []string // one sentence for each thing that could be offered but is not
}

// Build describes the devices of a node: pairs, then GPUs, then NICs. The
// scheduler takes the first that fits, so pairs come before the parts that would
// break them up, and each kind is packed, see packed.
func Build(s *machine.Snapshot, t *topology.Topology, o Options) Inventory {
	b := builder{s: s, t: t, counters: newCounters(t, o.NICSharing)}
	gpus, nics := slices.Clone(t.GPUs), slices.Clone(t.NICs)
	order := packed(s, b.counters.setOf)
	slices.SortFunc(gpus, func(x, y topology.GPU) int {
		if set := b.counters.setOf[x.Address]; set != "" && set == b.counters.setOf[y.Address] && x.Nearest != y.Nearest {
			return cmp.Compare(x.Nearest, y.Nearest) // of pairs that exclude each other the nearer first
		}
		return order(x.Address, y.Address)
	})
	slices.SortFunc(nics, func(x, y topology.NIC) int { return order(x.Address, y.Address) })

	wants := func(kind v1alpha1.DeviceKind) bool { return slices.Contains(o.Kinds, kind) }
	singles := wants(v1alpha1.GPUKind) || wants(v1alpha1.NICKind)
	if wants(v1alpha1.PairKind) && !(o.NoCounters && singles) {
		b.pairs(gpus, singles, o)
	} else {
		b.counters.sets = nil
		b.counters.setOf = nil
	}
	if wants(v1alpha1.GPUKind) {
		for _, g := range gpus {
			b.gpu(g)
		}
	}
	if wants(v1alpha1.NICKind) {
		for _, n := range nics {
			if n.Published {
				b.nic(n)
			}
		}
	}
	b.inventory.Counters = b.counters.sets
	return b.inventory
}

type builder struct {
	s         *machine.Snapshot
	t         *topology.Topology
	counters  *counters
	inventory Inventory
}

// pairs adds the pairs. Counters are used only where something has to be
// excluded: they make the scheduler work more.
func (b *builder) pairs(gpus []topology.GPU, singles bool, o Options) {
	gpus = slices.DeleteFunc(slices.Clone(gpus), func(g topology.GPU) bool { return len(g.Pair) == 0 })
	if o.NoCounters {
		gpus, b.inventory.LeftOut = withoutCounters(gpus, o.NICSharing)
	}
	b.counters.sets = slices.DeleteFunc(b.counters.sets, func(set resourceapi.CounterSet) bool {
		return o.NoCounters || !(singles || b.counters.crowded[set.Name])
	})
	counted := map[string]bool{}
	for _, set := range b.counters.sets {
		counted[set.Name] = true
	}
	for _, g := range gpus {
		d := pairDevice(b.s, b.t, g)
		if counted[b.counters.setOf[g.Address]] {
			b.counters.pair(&d, g)
		}
		b.inventory.Devices = append(b.inventory.Devices, d)
	}
}

func (b *builder) gpu(g topology.GPU) {
	facts, _ := b.s.GPU(g.Address)
	d := gpuDevice(b.s, facts, g)
	b.counters.single(&d, g.Address, 1)
	b.inventory.Devices = append(b.inventory.Devices, d)
}

func (b *builder) nic(n topology.NIC) {
	facts, _ := b.s.NIC(n.Address)
	facts.RDMA = n.RDMA
	d := nicDevice(b.s, facts, n)
	b.counters.single(&d, n.Address, b.counters.sharing)
	b.inventory.Devices = append(b.inventory.Devices, d)
}

// Pool makes the pool of a node: devices and counter sets within the limits of
// the API, split over as many slices as it takes. It returns one sentence for
// each thing that the limits made it leave out. A node without devices has one
// empty slice, which tells "nothing here" apart from "not published yet".
func Pool(inventory Inventory) (resourceslice.Pool, []string) {
	devices, problems := withinLimits(inventory.Devices)
	sets, devices, more := countersWithinLimits(inventory.Counters, devices)
	problems = append(append(inventory.LeftOut, problems...), more...)
	pool := resourceslice.Pool{}
	for chunk := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{SharedCounters: chunk})
	}
	for chunk := range slices.Chunk(devices, maxDevices) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: chunk})
	}
	if len(pool.Slices) == 0 {
		pool.Slices = []resourceslice.Slice{{}}
	}
	return pool, problems
}

// countersWithinLimits drops counter sets that are too large, with the pairs that
// need them: better no pair than one that its parts do not know of.
func countersWithinLimits(sets []resourceapi.CounterSet, devices []resourceapi.Device) ([]resourceapi.CounterSet, []resourceapi.Device, []string) {
	var problems []string
	dropped := map[string]bool{}
	sets = slices.DeleteFunc(slices.Clone(sets), func(set resourceapi.CounterSet) bool {
		if len(set.Counters) <= resourceapi.ResourceSliceMaxCountersPerCounterSet {
			return false
		}
		dropped[set.Name] = true
		problems = append(problems, fmt.Sprintf("the pairs around %s are not published: they share %d GPUs and NICs, the API counts %d in a set",
			set.Name, len(set.Counters), resourceapi.ResourceSliceMaxCountersPerCounterSet))
		return true
	})
	var kept []resourceapi.Device
	for _, d := range devices {
		if len(d.ConsumesCounters) > 0 && dropped[d.ConsumesCounters[0].CounterSet] {
			if len(d.ConsumesCounters[0].Counters) > 1 {
				continue
			}
			d.ConsumesCounters = nil
		}
		kept = append(kept, d)
	}
	return sets, kept, problems
}
