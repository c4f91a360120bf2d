package topology

import (
	"fmt"
	"slices"

	"github.com/topodra/topodra/internal/pci"
)

// findGroups makes the connected components of GPUs and their nearest NICs the
// affinity groups: devices with an equal group are as near as this machine allows.
func (t *Topology) findGroups() {
	u := newUnion[pci.Address](pci.Address.Compare)
	for _, g := range t.GPUs {
		for _, n := range g.NearestNICs {
			u.join(g.Address, n)
		}
	}
	members := map[pci.Address][]pci.Address{}
	for addr := range u.parent {
		top := u.find(addr)
		members[top] = append(members[top], addr)
	}
	tops := make([]pci.Address, 0, len(members))
	for top := range members {
		tops = append(tops, top)
	}
	slices.SortFunc(tops, pci.Address.Compare)

	names := map[pci.Address]string{}
	used := map[string]bool{}
	for _, top := range tops {
		name := t.groupName(members[top])
		if used[name] {
			// Several groups can meet only above what names them, such as two pairs of
			// one host bridge that a vendor file tells apart.
			name += "-" + top.DNSLabel()
		}
		used[name] = true
		names[top] = name
	}
	for i := range t.GPUs {
		if g := &t.GPUs[i]; len(g.NearestNICs) > 0 {
			g.Group = names[u.find(g.Address)]
		}
	}
	for i := range t.NICs {
		if n := &t.NICs[i]; u.has(n.Address) {
			n.Group = names[u.find(n.Address)]
		}
	}
}

// groupName names a group after what its members have in common: the deepest
// bridge, else the host bridge, else the NUMA node, else the machine.
func (t *Topology) groupName(members []pci.Address) string {
	var shared place
	for i, addr := range members {
		p := t.places.of(addr)
		if f, ok := t.places.file[addr]; ok {
			p = f.place()
		}
		if i == 0 {
			shared = p
			continue
		}
		if p.root != shared.root {
			shared.root, shared.label, shared.bridges = "", "", nil
		}
		shared.bridges = shared.bridges[:commonPrefix(shared.bridges, p.bridges)]
		if p.numa != shared.numa {
			shared.numa = -1
		}
	}
	switch {
	case len(shared.bridges) > 0:
		return "pcie-" + shared.bridges[len(shared.bridges)-1].DNSLabel()
	case shared.label != "":
		return shared.label
	case shared.numa >= 0:
		return fmt.Sprintf("numa-%d", shared.numa)
	default:
		return "machine"
	}
}
