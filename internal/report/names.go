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

// collapse shortens a list of names by writing counting ones as a range:
// mlx5_0, mlx5_1, mlx5_2, mlx5_3 become mlx5_0..3, rdmap79s0, rdmap80s0,
// rdmap81s0 become rdmap79s0..81s0. The order is kept.
func collapse(names []string) []string {
	var out []string
	for len(names) > 0 {
		run := 1
		at := -1
		for run < len(names) {
			i := counts(names[run-1], names[run])
			if i < 0 || at >= 0 && i != at {
				break
			}
			at = i
			run++
		}
		if run < 3 {
			out = append(out, names[0])
			names = names[1:]
			continue
		}
		out = append(out, names[0]+".."+strings.Join(digits(names[run-1])[at:], ""))
		names = names[run:]
	}
	return out
}

// counts tells in which part b is one more than a where all else is equal; -1 if none.
func counts(a, b string) int {
	as, bs := digits(a), digits(b)
	if len(as) != len(bs) {
		return -1
	}
	at := -1
	for i := range as {
		if as[i] == bs[i] {
			continue
		}
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		if at >= 0 || errX != nil || errY != nil || y != x+1 {
			return -1
		}
		at = i
	}
	return at
}

// digits cuts a name where digits begin or end: "rdmap79s0" is rdmap, 79, s, 0.
func digits(name string) []string {
	var parts []string
	start := 0
	for i := 1; i <= len(name); i++ {
		if i == len(name) || unicode.IsDigit(rune(name[i])) != unicode.IsDigit(rune(name[i-1])) {
			parts = append(parts, name[start:i])
			start = i
		}
	}
	return parts
}

// rails writes rail numbers with ranges: "0-3", "0, 2". Unknown ones are left out.
func rails(nics []NIC) string {
	var known []int
	for _, n := range nics {
		if n.Rail != nil {
			known = append(known, *n.Rail)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	var parts []string
	for i := 0; i < len(known); {
		j := i
		for j+1 < len(known) && known[j+1] == known[j]+1 {
			j++
		}
		switch {
		case i == j:
			parts = append(parts, strconv.Itoa(known[i]))
		case i+1 == j:
			parts = append(parts, strconv.Itoa(known[i]), strconv.Itoa(known[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", known[i], known[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
