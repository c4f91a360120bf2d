package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/topodra/topodra/internal/pci"
)

// Fabric tells whether the NIC carries the traffic of jobs: such NICs count as
// near, get a rail and go into pairs.
func (n NIC) Fabric() bool {
	return n.Published && (n.RDMADevice != nil || n.Rail != nil || n.AffinityGroup != nil)
}

// ShortName is what people call the NIC: its RDMA device, else its interface,
// else its address.
func (n NIC) ShortName() string {
	return cmp.Or(deref(n.RDMADevice), deref(n.IfName), n.Address.String())
}

// printable returns the report with names that are safe to show: control
// characters, which a terminal or a parser could obey, are replaced.
func (r *Report) printable() *Report {
	safe := *r
	safe.Machine = clean(r.Machine)
	safe.GPUs, safe.NICs, safe.Missing = slices.Clone(r.GPUs), slices.Clone(r.NICs), slices.Clone(r.Missing)
	for i := range safe.GPUs {
		g := &safe.GPUs[i]
		g.UUID, g.Name = cleaned(g.UUID), cleaned(g.Name)
		g.PCIeRoot, g.AffinityGroup = cleaned(g.PCIeRoot), cleaned(g.AffinityGroup)
	}
	for i := range safe.NICs {
		n := &safe.NICs[i]
		n.IfName, n.RDMADevice, n.Reason, n.RailSource = cleaned(n.IfName), cleaned(n.RDMADevice), cleaned(n.Reason), cleaned(n.RailSource)
		n.PCIeRoot, n.AffinityGroup = cleaned(n.PCIeRoot), cleaned(n.AffinityGroup)
	}
	for i, m := range safe.Missing {
		safe.Missing[i] = clean(m)
	}
	return &safe
}

func cleaned(s *string) *string {
	if s == nil {
		return nil
	}
	c := clean(*s)
	return &c
}

func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\ufffd'
	}, s)
}

// group is an affinity group with a letter that fits into small places.
type group struct {
	letter string
	name   string
	gpus   []GPU // by index
	nics   []NIC // by address
}

// groups returns the affinity groups in the order of their first GPU.
func (r *Report) groups() []*group {
	var groups []*group
	byName := map[string]*group{}
	of := func(name *string) *group {
		if name == nil {
			return nil
		}
		if byName[*name] == nil {
			g := &group{name: *name, letter: letter(len(groups))}
			byName[*name] = g
			groups = append(groups, g)
		}
		return byName[*name]
	}
	for _, gpu := range r.GPUs {
		if g := of(gpu.AffinityGroup); g != nil {
			g.gpus = append(g.gpus, gpu)
		}
	}
	for _, nic := range r.NICs {
		if g := of(nic.AffinityGroup); g != nil {
			g.nics = append(g.nics, nic)
		}
	}
	return groups
}

// letters maps the names of groups to their letters.
func (r *Report) letters() map[string]string {
	letters := map[string]string{}
	for _, g := range r.groups() {
		letters[g.name] = g.letter
	}
	return letters
}

// letter numbers as spreadsheets do: A to Z, AA, AB.
func letter(i int) string {
	text := ""
	for i++; i > 0; i = (i - 1) / 26 {
		text = string(rune('A'+(i-1)%26)) + text
	}
	return text
}

func (r *Report) nics() map[pci.Address]NIC {
	nics := map[pci.Address]NIC{}
	for _, n := range r.NICs {
		nics[n.Address] = n
	}
	return nics
}

func (r *Report) pairs() map[pci.Address]Pair {
	pairs := map[pci.Address]Pair{}
	for _, p := range r.Pairs {
		pairs[p.GPU] = p
	}
	return pairs
}

// shared counts for each NIC the pairs that it is in.
func (r *Report) shared() map[pci.Address]int {
	shared := map[pci.Address]int{}
	for _, p := range r.Pairs {
		for _, n := range p.NICs {
			shared[n]++
		}
	}
	return shared
}

// Summary is the first line of every picture: "8 GPUs, 32 fabric NICs, 8 affinity groups".
func (r *Report) Summary() string {
	fabric := 0
	for _, n := range r.NICs {
		if n.Fabric() {
			fabric++
		}
	}
	parts := []string{
		plural(len(r.GPUs), "GPU"),
		fmt.Sprintf("%d fabric of %s", fabric, plural(len(r.NICs), "NIC")),
		plural(len(r.groups()), "affinity group"),
	}
	if fabric == len(r.NICs) {
		parts[1] = plural(fabric, "fabric NIC")
	}
	return strings.Join(parts, ", ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// model shortens what every GPU of a machine begins its name with.
func (g GPU) model() string {
	name := deref(g.Name)
	for _, prefix := range []string{"NVIDIA ", "Tesla ", "GeForce "} {
		name = strings.TrimPrefix(name, prefix)
	}
	return name
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// number returns a number as text, "?" for nil.
func number(n *int) string {
	if n == nil {
		return "?"
	}
	return strconv.Itoa(*n)
}
