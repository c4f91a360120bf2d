package allocation

import (
	"fmt"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// Ledger counts the parts of a machine that devices use. It is made from the
// topology and never looks at counters, so that it can find fault with them.
type Ledger struct {
	node    *Node
	used    map[pci.Address]int
	devices map[string]map[pci.Address]int // parts of each published device, with shares
}

// NewLedger knows the devices that a node publishes, none of them in use.
func NewLedger(n *Node) *Ledger {
	l := &Ledger{node: n, used: map[pci.Address]int{}, devices: map[string]map[pci.Address]int{}}
	add := func(name string, parts map[pci.Address]int) {
		if n.Device(name) != nil {
			l.devices[name] = parts
		}
	}
	for _, g := range n.Topology.GPUs {
		add(slices.GPUName(g.Address), map[pci.Address]int{g.Address: 1})
		parts := map[pci.Address]int{g.Address: 1}
		for _, nic := range g.Pair {
			parts[nic] = 1
		}
		add(slices.PairName(g.Address), parts)
	}
	for _, nic := range n.Topology.NICs {
		add(slices.NICName(nic.Address), map[pci.Address]int{nic.Address: l.places(nic.Address)})
	}
	return l
}

// places is how many pairs can use a part at a time.
func (l *Ledger) places(part pci.Address) int {
	if _, isNIC := l.node.Topology.NIC(part); isNIC {
		return max(l.node.Options.NICSharing, 1)
	}
	return 1
}

// Fits tells whether all parts of a device are free.
func (l *Ledger) Fits(device string) bool {
	for part, shares := range l.devices[device] {
		if l.used[part]+shares > l.places(part) {
			return false
		}
	}
	return true
}

// Take marks the parts of a device as used, or says which is not free.
func (l *Ledger) Take(device string) error {
	parts, ok := l.devices[device]
	if !ok {
		return fmt.Errorf("%s is not published", device)
	}
	for part, shares := range parts {
		if l.used[part] += shares; l.used[part] > l.places(part) {
			return fmt.Errorf("%s uses %s, which is used %d times of %d", device, part, l.used[part], l.places(part))
		}
	}
	return nil
}

// Release undoes Take.
func (l *Ledger) Release(device string) {
	for part, shares := range l.devices[device] {
		l.used[part] -= shares
	}
}

// MostPairs returns how many published pairs can be taken together, of those that
// all conditions are true for. It tries all sets: machines have 16 GPUs at most.
func (l *Ledger) MostPairs(conditions ...func(topology.GPU) bool) int {
	var free []string
next:
	for _, g := range l.node.Topology.GPUs {
		for _, holds := range conditions {
			if !holds(g) {
				continue next
			}
		}
		if name := slices.PairName(g.Address); l.devices[name] != nil && l.Fits(name) {
			free = append(free, name)
		}
	}
	return l.most(free)
}

func (l *Ledger) most(free []string) int {
	if len(free) == 0 {
		return 0
	}
	without := l.most(free[1:])
	if !l.Fits(free[0]) {
		return without
	}
	if err := l.Take(free[0]); err != nil {
		panic(err) // it fits
	}
	defer l.Release(free[0])
	return max(without, 1+l.most(free[1:]))
}

// MostMatched returns how many GPUs can be taken, each with a NIC of its group.
func (l *Ledger) MostMatched() int {
	gpus, nics := map[string]int{}, map[string]int{}
	for _, g := range l.node.Topology.GPUs {
		if name := slices.GPUName(g.Address); g.Group != "" && l.devices[name] != nil && l.Fits(name) {
			gpus[g.Group]++
		}
	}
	for _, n := range l.node.Topology.NICs {
		if name := slices.NICName(n.Address); n.Group != "" && l.devices[name] != nil && l.Fits(name) {
			nics[n.Group]++
		}
	}
	most := 0
	for group := range gpus {
		most += min(gpus[group], nics[group])
	}
	return most
}

// Free returns how many GPUs, or NICs, can be taken as single devices.
func (l *Ledger) Free() (gpus, nics int) {
	for _, g := range l.node.Topology.GPUs {
		if name := slices.GPUName(g.Address); l.devices[name] != nil && l.Fits(name) {
			gpus++
		}
	}
	for _, n := range l.node.Topology.NICs {
		if name := slices.NICName(n.Address); l.devices[name] != nil && l.Fits(name) {
			nics++
		}
	}
	return gpus, nics
}

// Near tells the class of the GPU and its NICs in a pair, by the PCI tree.
func (n *Node) Near(g topology.GPU) topology.Class {
	worst := topology.Unknown
	for _, nic := range g.Pair {
		worst = max(worst, n.Topology.Distance(g.Address, nic))
	}
	return worst
}
