// Package report describes a node's topology for people and programs: the JSON
// that "kubectl topodra topo -o json" prints, and everything drawn from it.
package report

import (
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// Report is the stable form. Unknown values are null, unknown distances the word
// "unknown". docs/topo.md documents it.
type Report struct {
	Machine   string                                         `json:"machine"` // node, file or host name
	Simulated bool                                           `json:"simulated"`
	GPUs      []GPU                                          `json:"gpus"`
	NICs      []NIC                                          `json:"nics"`
	Distances map[pci.Address]map[pci.Address]topology.Class `json:"distances"` // GPU to NIC
	Pairs     []Pair                                         `json:"pairs"`

	// Missing says which sources of facts could not be read, and why.
	Missing []string `json:"missing,omitempty"`
}

// Place is where a function sits in the machine.
type Place struct {
	NUMANode      *int         `json:"numaNode"`
	PCIeRoot      *string      `json:"pcieRoot"`
	PCIeSwitch    *pci.Address `json:"pcieSwitch"`
	AffinityGroup *string      `json:"affinityGroup"`

	// Bridges are the PCI bridges above the function, the root port first.
	Bridges []pci.Address `json:"bridges,omitempty"`
}

// GPU is one GPU.
type GPU struct {
	Index   int         `json:"index"` // of NVML; not stable over reboots
	Address pci.Address `json:"address"`
	UUID    *string     `json:"uuid"`
	Name    *string     `json:"name"`
	Place
	Nearest *Nearest `json:"nearest"` // null when no fabric NIC is known to be near

	// NoPair says why this GPU makes no pair.
	NoPair *string `json:"noPair,omitempty"`
}

// Nearest are the fabric NICs nearest to a GPU.
type Nearest struct {
	Distance topology.Class `json:"distance"`
	NICs     []pci.Address  `json:"nics"`
}

// NIC is one network function.
type NIC struct {
	Address    pci.Address `json:"address"`
	IfName     *string     `json:"ifName"`
	RDMADevice *string     `json:"rdmaDevice"`
	Card       pci.Address `json:"card"`
	Place
	Rail       *int    `json:"rail"`
	RailSource *string `json:"railSource"`
	Published  bool    `json:"published"`
	Reason     *string `json:"reason"` // why it is not published
}

// Pair is one GPU with its share of the NICs nearest to it.
type Pair struct {
	Name     string         `json:"name"`
	GPU      pci.Address    `json:"gpu"`
	NICs     []pci.Address  `json:"nics"`
	Distance topology.Class `json:"distance"`
}

// New describes a snapshot and its topology. name is what the user calls the machine.
func New(name string, s *machine.Snapshot, t *topology.Topology) *Report {
	r := &Report{
		Machine:   name,
		Simulated: s.Simulated != "",
		GPUs:      []GPU{},
		NICs:      []NIC{},
		Distances: map[pci.Address]map[pci.Address]topology.Class{},
		Pairs:     []Pair{},
	}
	for _, g := range s.GPUs {
		placed, _ := t.GPU(g.Address)
		r.addGPU(s, t, placed)
		last := &r.GPUs[len(r.GPUs)-1]
		last.Index, last.UUID, last.Name = g.Index, known(g.UUID), known(g.Name)
	}
	for _, n := range s.NICs {
		placed, _ := t.NIC(n.Address)
		r.NICs = append(r.NICs, NIC{
			Address:    n.Address,
			IfName:     known(n.IfName()),
			RDMADevice: known(n.RDMAName()),
			Card:       placed.Card,
			Place:      place(s, n.Address, placed.Group),
			Rail:       placed.Rail,
			RailSource: known(string(placed.RailSource)),
			Published:  placed.Published,
			Reason:     known(placed.Reason),
		})
	}
	for _, m := range s.Missing {
		for reason := range strings.Lines(m.Reason) {
			r.Missing = append(r.Missing, string(m.Part)+": "+strings.TrimSpace(reason))
		}
	}
	slices.SortFunc(r.GPUs, func(a, b GPU) int { return a.Index - b.Index })
	return r
}

func (r *Report) addGPU(s *machine.Snapshot, t *topology.Topology, g topology.GPU) {
	out := GPU{Address: g.Address, Place: place(s, g.Address, g.Group)}
	out.NoPair = known(g.NoPair)
	if len(g.NearestNICs) > 0 {
		out.Nearest = &Nearest{Distance: g.Nearest, NICs: g.NearestNICs}
	}
	if len(g.Pair) > 0 {
		r.Pairs = append(r.Pairs, Pair{Name: nodeslices.PairName(g.Address), GPU: g.Address, NICs: g.Pair, Distance: g.Nearest})
	}
	row := map[pci.Address]topology.Class{}
	for _, n := range s.NICs {
		row[n.Address] = t.Distance(g.Address, n.Address)
	}
	r.Distances[g.Address] = row
	r.GPUs = append(r.GPUs, out)
}

func place(s *machine.Snapshot, addr pci.Address, group string) Place {
	p := Place{AffinityGroup: known(group)}
	fn := s.PCI.Functions[addr]
	if fn == nil {
		return p
	}
	if fn.NUMANode >= 0 {
		p.NUMANode = &fn.NUMANode
	}
	unknown := s.PCI.Unknown
	if unknown == nil || !unknown.Names[fn.Root] {
		p.PCIeRoot = known(fn.Root)
	}
	if sw, ok := fn.Switch(); ok {
		p.PCIeSwitch = &sw
	}
	p.Bridges = fn.Bridges
	return p
}

func known(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
