package topology

import (
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
)

// place is where a function sits, as far as distance is concerned.
type place struct {
	known   bool
	domain  uint32
	root    string        // unique name of the host bridge
	label   string        // what a group below that host bridge is called; empty: after the NUMA node
	maybe   bool          // the root's name is made up: it may be another root of the domain
	blank   bool          // nothing is known above the function
	bridges []pci.Address // root port first
	numa    int           // negative: unknown
}

// places finds where functions sit, by the strongest source there is.
type places struct {
	tree   *pci.Tree
	direct map[pci.Address]pci.Address // NIC to the DMA function that stands for it
	file   map[pci.Address]FilePlace   // vendor topology file
}

func newPlaces(s *machine.Snapshot, file map[pci.Address]FilePlace) places {
	return places{tree: s.PCI, direct: dataDirect(s.PCI), file: file}
}

// dataDirect finds the NICs whose data does not enter the machine where the NIC
// is, but at a DMA function next to a GPU. Both have the same VPD keyword V3
// (ConnectX-8; rdma-core's rdma_topo pairs them the same way). A keyword that two
// DMA functions have says nothing.
func dataDirect(tree *pci.Tree) map[pci.Address]pci.Address {
	const boardKey = "V3"
	dma := map[string]pci.Address{}
	ambiguous := map[string]bool{}
	for addr, fn := range tree.Functions {
		key := fn.VPD[boardKey]
		if !fn.IsDataDirect() || key == "" {
			continue
		}
		_, taken := dma[key]
		ambiguous[key] = ambiguous[key] || taken
		dma[key] = addr
	}
	direct := map[pci.Address]pci.Address{}
	for addr, fn := range tree.Functions {
		key := fn.VPD[boardKey]
		if at, ok := dma[key]; ok && !ambiguous[key] && !fn.IsDataDirect() {
			direct[addr] = at
		}
	}
	return direct
}

// of returns the place of a function in the PCI tree; Data Direct first.
func (p places) of(addr pci.Address) place {
	if at, ok := p.direct[addr]; ok {
		addr = at
	}
	fn := p.tree.Functions[addr]
	if fn == nil {
		return place{}
	}
	at := place{
		known:   true,
		domain:  addr.Domain,
		root:    fn.Prefix + "/" + fn.Root,
		label:   "root-" + strings.ReplaceAll(fn.Root, ":", "-"),
		bridges: fn.Bridges,
		numa:    fn.NUMANode,
	}
	if unknown := p.tree.Unknown; unknown != nil {
		at.blank = unknown.Chains[fn.Root]
		at.maybe = at.blank || unknown.Roots[fn.Root]
	}
	return at
}

// distance returns the class of two functions, or Unknown.
func (p places) distance(a, b pci.Address) Class {
	if lo, hi := p.bounds(a, b); lo == hi {
		return lo
	}
	return Unknown
}

// bounds returns the nearest and the farthest class that the facts allow.
func (p places) bounds(a, b pci.Address) (lo, hi Class) {
	_, aDirect := p.direct[a]
	_, bDirect := p.direct[b]
	if fa, ok := p.file[a]; ok && !aDirect && !bDirect {
		if fb, ok := p.file[b]; ok {
			return p.between(fa.place(), fb.place())
		}
	}
	pa, pb := p.of(a), p.of(b)
	if !pa.known || !pb.known {
		return PIX, SYS
	}
	return p.between(pa, pb)
}

func (p places) between(a, b place) (lo, hi Class) {
	if a.root != b.root {
		return p.acrossRoots(a, b)
	}
	common := commonPrefix(a.bridges, b.bridges)
	if common == 0 {
		if p.mayShareBridge(a, b) {
			return PIX, PHB
		}
		return PHB, PHB
	}
	na, exactA := p.count(a.bridges[common:])
	nb, exactB := p.count(b.bridges[common:])
	lo = PIX
	if na > 1 || nb > 1 {
		lo = PXB
	}
	if exactA && exactB {
		return lo, lo
	}
	return lo, PXB
}

func (p places) acrossRoots(a, b place) (lo, hi Class) {
	lo, hi = NODE, SYS
	if a.numa >= 0 && b.numa >= 0 {
		if a.numa != b.numa {
			return SYS, SYS
		}
		hi = NODE
	}
	if a.domain == b.domain && (a.maybe || b.maybe) { // two names, maybe one root
		lo = PHB
		if a.blank || b.blank {
			lo = PIX
		}
	}
	return lo, hi
}

// mayShareBridge tells whether bridges that nobody published, directly below the
// root, can be bridges that the other function is below too.
func (p places) mayShareBridge(a, b place) bool {
	return len(a.bridges) > 0 && len(b.bridges) > 0 &&
		(p.unknownBridge(a.bridges[0]) || p.unknownBridge(b.bridges[0]))
}

// count returns how many bridges there are, and whether there can be no more.
func (p places) count(bridges []pci.Address) (n int, exact bool) {
	for _, b := range bridges {
		if !p.unknownBridge(b) {
			n++
		}
	}
	return n, n == len(bridges)
}

func (p places) unknownBridge(b pci.Address) bool {
	return p.tree.Unknown != nil && p.tree.Unknown.Bridges[b]
}

func commonPrefix(a, b []pci.Address) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// FilePlace is where a vendor's NCCL topology file puts a function.
type FilePlace struct {
	NUMANode int           // numaid of the enclosing cpu element
	Bridges  []pci.Address // busid of the enclosing pci elements, outermost first
}

func (f FilePlace) place() place {
	return place{known: true, root: "cpu " + strconv.Itoa(f.NUMANode), bridges: f.Bridges, numa: f.NUMANode}
}
