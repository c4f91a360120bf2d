package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

// part is a piece of the machine in a picture: a host bridge, a switch or one of
// the leaves, which are a GPU, a NIC or several NICs of no interest.
type part struct {
	address  pci.Address // of a leaf or of the last of the switches
	root     string      // name of a host bridge
	guessed  bool        // the host bridge may be another, and bridges may be missing below it
	switches []pci.Address
	gpu      *GPU
	nics     []NIC
	parts    []*part

	y int // of its middle, once laid out
}

func (p *part) isLeaf() bool { return p.gpu != nil || len(p.nics) > 0 }

// node holds the host bridges of one NUMA node.
type node struct {
	numa  *int
	roots []*part
}

func (n *node) label() string {
	if n.numa == nil {
		return "NUMA node not known"
	}
	return fmt.Sprintf("NUMA node %d", *n.numa)
}

// machineTree draws together what the places of GPUs and NICs have in common.
type machineTree struct {
	nodes    []*node
	isSwitch map[pci.Address]bool
	parts    map[string]*part // of host bridges and switches, by path
}

// tree returns the NUMA nodes by number, the unknown one last.
func (r *Report) tree() []*node {
	t := &machineTree{isSwitch: map[pci.Address]bool{}, parts: map[string]*part{}}
	for _, g := range r.GPUs {
		t.findSwitches(g.Bridges)
	}
	for _, n := range r.NICs {
		t.findSwitches(n.Bridges)
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		t.add(g.Place, &part{address: g.Address, gpu: g})
	}
	for _, n := range r.NICs {
		t.add(n.Place, &part{address: n.Address, nics: []NIC{n}})
	}
	slices.SortStableFunc(t.nodes, func(a, b *node) int {
		switch {
		case a.numa == nil || b.numa == nil:
			return boolInt(a.numa == nil) - boolInt(b.numa == nil)
		default:
			return cmp.Compare(*a.numa, *b.numa)
		}
	})
	owners := r.owners()
	for _, n := range t.nodes {
		for _, root := range n.roots {
			root.tidy(owners)
		}
		sortParts(n.roots, owners)
	}
	return t.nodes
}

// findSwitches tells switches from ports: going up from a device, every second
// bridge is the upstream port of a switch; the others are its downstream ports
// and, last, the root port.
func (t *machineTree) findSwitches(bridges []pci.Address) {
	for i := len(bridges) - 2; i >= 0; i -= 2 {
		t.isSwitch[bridges[i]] = true
	}
}

func (t *machineTree) add(at Place, leaf *part) {
	parent := t.root(at, leaf.address)
	path := ""
	for _, b := range at.Bridges {
		if !t.isSwitch[b] {
			continue // a port: the line to what is below it stands for it
		}
		path += " " + b.String()
		sw := t.parts[path]
		if sw == nil {
			sw = &part{address: b, switches: []pci.Address{b}}
			t.parts[path] = sw
			parent.parts = append(parent.parts, sw)
		}
		parent = sw
	}
	parent.parts = append(parent.parts, leaf)
}

func (t *machineTree) root(at Place, leaf pci.Address) *part {
	key, label := deref(at.PCIeRoot), deref(at.PCIeRoot)
	if label == "" {
		// Functions below one bridge have one host bridge, whatever it is called.
		key, label = "without a name, above "+leaf.String(), "host bridge ?"
		if len(at.Bridges) > 0 {
			key = "without a name, above " + at.Bridges[0].String()
		}
	}
	numa := "?"
	if at.NUMANode != nil {
		numa = number(at.NUMANode)
	}
	key = numa + " " + key
	if t.parts[key] == nil {
		root := &part{root: label, guessed: at.PCIeRoot == nil}
		t.parts[key] = root
		i := slices.IndexFunc(t.nodes, func(n *node) bool { return number(n.numa) == numa })
		if i < 0 {
			i = len(t.nodes)
			t.nodes = append(t.nodes, &node{numa: at.NUMANode})
		}
		t.nodes[i].roots = append(t.nodes[i].roots, root)
	}
	return t.parts[key]
}

// tidy brings what hangs below a part into reading order and shortens it.
func (p *part) tidy(owners map[pci.Address]pci.Address) {
	p.foldNICs()
	for _, below := range p.parts {
		below.tidy(owners)
	}
	// Switches in a row become one part.
	if len(p.switches) > 0 && len(p.parts) == 1 && len(p.parts[0].switches) > 0 {
		only := p.parts[0]
		p.switches = append(p.switches, only.switches...)
		p.address, p.parts = only.address, only.parts
	}
	sortParts(p.parts, owners)
}

// foldNICs makes one leaf of the NICs that carry no jobs for the same reason.
func (p *part) foldNICs() {
	var kept []*part
	folded := map[string]*part{}
	for _, leaf := range p.parts {
		if len(leaf.nics) == 0 || leaf.nics[0].Fabric() {
			kept = append(kept, leaf)
			continue
		}
		reason := deref(leaf.nics[0].Reason)
		if first := folded[reason]; first != nil {
			first.nics = append(first.nics, leaf.nics...)
			continue
		}
		folded[reason] = leaf
		kept = append(kept, leaf)
	}
	p.parts = kept
}

// anchor is what orders parts: first those with GPUs, by address, each followed
// by what it is paired with; then fabric NICs of no GPU; then other NICs.
type anchor struct {
	rank int
	near pci.Address // a GPU, or without one the function itself
	own  bool        // near is below the part
}

func (a anchor) compare(b anchor) int {
	return cmp.Or(a.rank-b.rank, a.near.Compare(b.near), boolInt(b.own)-boolInt(a.own))
}

// anchor returns the first anchor of what is below a part. owners maps NICs to
// the GPU that they are nearest to in a pair.
func (p *part) anchor(owners map[pci.Address]pci.Address) anchor {
	switch owner, owned := owners[p.address]; {
	case p.gpu != nil:
		return anchor{rank: 0, near: p.address, own: true}
	case owned && len(p.nics) > 0:
		return anchor{rank: 0, near: owner}
	case len(p.nics) > 0 && p.nics[0].Fabric():
		return anchor{rank: 1, near: p.address, own: true}
	case len(p.nics) > 0:
		return anchor{rank: 2, near: p.address, own: true}
	}
	first := p.parts[0].anchor(owners)
	for _, below := range p.parts[1:] {
		if a := below.anchor(owners); a.compare(first) < 0 {
			first = a
		}
	}
	return first
}

func sortParts(parts []*part, owners map[pci.Address]pci.Address) {
	slices.SortStableFunc(parts, func(a, b *part) int {
		return cmp.Or(a.anchor(owners).compare(b.anchor(owners)), a.address.Compare(b.address))
	})
}

// owners maps each NIC of a pair to the nearest GPU that has it in its pair.
func (r *Report) owners() map[pci.Address]pci.Address {
	owners := map[pci.Address]pci.Address{}
	for _, p := range r.Pairs {
		for _, n := range p.NICs {
			owner, taken := owners[n]
			if !taken || r.Distances[p.GPU][n] < r.Distances[owner][n] {
				owners[n] = p.GPU
			}
		}
	}
	return owners
}

// depth counts the levels of switches below a part.
func (p *part) depth() int {
	deepest := 0
	for _, below := range p.parts {
		if !below.isLeaf() {
			deepest = max(deepest, 1+below.depth())
		}
	}
	return deepest
}

func (p *part) leaves() []*part {
	if p.isLeaf() {
		return []*part{p}
	}
	var leaves []*part
	for _, below := range p.parts {
		leaves = append(leaves, below.leaves()...)
	}
	return leaves
}

// name is what a picture writes on a host bridge or switch.
func (p *part) name() string {
	switch len(p.switches) {
	case 0:
		return p.root
	case 1:
		return "switch"
	}
	return fmt.Sprintf("%d switches", len(p.switches))
}

func (p *part) title() string {
	var addresses []string
	for _, s := range p.switches {
		addresses = append(addresses, s.String())
	}
	if len(addresses) == 0 {
		return p.name()
	}
	return p.name() + ", upstream at " + strings.Join(addresses, ", ")
}

// reason says why a NIC carries no jobs.
func (n NIC) reason() string {
	return cmp.Or(deref(n.Reason), "no RDMA device")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
