package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/topology"
)

// Text renders for people: the matrix of GPUs and fabric NICs, and below it what
// belongs together and what is left out. It stays within 120 columns unless Wide.
type Text struct {
	Wide  bool // every function in full
	Color bool // for a terminal
}

// meanings explain the classes, in the words of the legend.
var meanings = []struct {
	class   topology.Class
	meaning string
}{
	{topology.PIX, "PIX same switch"},
	{topology.PXB, "PXB more bridges between"},
	{topology.PHB, "PHB same host bridge"},
	{topology.NODE, "NODE same NUMA node"},
	{topology.SYS, "SYS other NUMA node"},
	{topology.Unknown, "? unknown"},
}

// legend explains the classes that occur.
func (r *Report) legend() string {
	parts := []string{"* nearest"}
	for _, m := range meanings {
		if r.occurs(m.class) {
			parts = append(parts, m.meaning)
		}
	}
	return strings.Join(parts, "   ")
}

func (r *Report) occurs(class topology.Class) bool {
	for _, n := range r.NICs {
		for _, row := range r.Distances {
			if n.Fabric() && row[n.Address] == class {
				return true
			}
		}
	}
	return false
}

// Render writes the report.
func (t Text) Render(w io.Writer, r *Report) error {
	r = r.printable()
	p := &printer{w: w, r: r, color: t.Color, letters: r.letters(), nics: r.nics(), shared: r.shared()}
	title := r.Machine
	if r.Simulated {
		title += " (simulated)"
	}
	p.printf("%s: %s\n", paint(title, strong, t.Color), r.Summary())
	if t.Wide {
		p.gpuTable()
		p.nicTable()
		p.matrix(p.columns(), 0)
	} else {
		p.matrix(p.fitting(), maxWidth)
	}
	p.groupTable()
	p.others()
	p.excluded()
	p.missing()
	return p.err
}

type printer struct {
	w       io.Writer
	r       *Report
	color   bool
	letters map[string]string
	nics    map[pci.Address]NIC
	shared  map[pci.Address]int
	err     error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) table(t *table) {
	if p.err == nil {
		p.err = t.write(p.w, p.color)
	}
}

func (p *printer) letter(group *string) string {
	if group == nil {
		return "-"
	}
	return p.letters[*group]
}

// column is one or several fabric NICs that are equally far from every GPU.
type column struct {
	group string // letter
	nics  []NIC
}

func (c column) name() string {
	if len(c.nics) == 1 {
		return c.nics[0].ShortName()
	}
	return fmt.Sprintf("%d NICs", len(c.nics))
}

// columns returns one column for each fabric NIC, those of a group side by side
// in the order of the groups: on most machines the nearest then are a diagonal.
func (p *printer) columns() []column {
	var columns []column
	for _, g := range p.r.groups() {
		for _, n := range g.nics {
			columns = append(columns, column{g.letter, []NIC{n}})
		}
	}
	for _, n := range p.r.NICs {
		if n.Fabric() && n.AffinityGroup == nil {
			columns = append(columns, column{"-", []NIC{n}})
		}
	}
	return columns
}

// fitting returns the columns, folded where they would be too many: NICs of one
// group that are equally far from every GPU then share a column.
func (p *printer) fitting() []column {
	columns := p.columns()
	if p.width(columns) <= maxWidth {
		return columns
	}
	var folded []column
	for _, c := range columns {
		i := slices.IndexFunc(folded, func(f column) bool { return f.group == c.group && p.equal(f.nics[0], c.nics[0]) })
		if i < 0 {
			folded = append(folded, c)
			continue
		}
		folded[i].nics = append(folded[i].nics, c.nics...)
	}
	return folded
}

// equal tells whether two NICs have the same distance to every GPU.
func (p *printer) equal(a, b NIC) bool {
	for _, row := range p.r.Distances {
		if row[a.Address] != row[b.Address] {
			return false
		}
	}
	return true
}

func (p *printer) width(columns []column) int {
	width := -2
	for _, w := range p.matrixTable(columns).widths() {
		width += w + 2
	}
	return width
}

// matrix writes the matrix, in several blocks where width (0: none) is exceeded.
func (p *printer) matrix(columns []column, width int) {
	if len(p.r.GPUs) == 0 {
		return
	}
	known := len(columns) > 0
	for first := true; first || len(columns) > 0; first = false {
		n := len(columns)
		for width > 0 && n > 1 && p.width(columns[:n]) > width {
			n--
		}
		p.printf("\n")
		p.table(p.matrixTable(columns[:n]))
		columns = columns[n:]
	}
	if known {
		p.printf("\n%s\n", paint(p.r.legend(), faint, p.color))
	}
}

func (p *printer) matrixTable(columns []column) *table {
	t := &table{}
	groups := make([]cell, 5, 5+len(columns))
	names := []string{"GPU", "ADDRESS", "MODEL", "NUMA", "GROUP"}
	for _, c := range columns {
		groups = append(groups, cell{text: c.group, style: faint})
		names = append(names, c.name())
	}
	if len(columns) > 0 {
		t.row(groups...)
	}
	t.heading(names...)
	for _, g := range p.r.GPUs {
		row := []cell{
			{text: fmt.Sprint(g.Index), right: true},
			text(g.Address.String()),
			text(cut(g.model(), 16)),
			{text: number(g.NUMANode), right: true},
			text(p.letter(g.AffinityGroup)),
		}
		for _, c := range columns {
			row = append(row, p.distance(g, c.nics[0]))
		}
		t.row(row...)
	}
	return t
}

func (p *printer) distance(g GPU, n NIC) cell {
	class := p.r.Distances[g.Address][n.Address]
	switch {
	case g.Nearest != nil && slices.Contains(g.Nearest.NICs, n.Address):
		return cell{text: class.String() + "*", style: near}
	case class == topology.Unknown:
		return cell{text: "?", style: faint}
	default:
		return cell{text: class.String(), style: faint}
	}
}

// groupTable says for each GPU which group it is in and which NICs are its own.
func (p *printer) groupTable() {
	t := &table{}
	source, one := p.railSource()
	rail := "RAIL"
	if one {
		rail = "RAIL BY " + strings.ToUpper(source)
	}
	t.heading("GROUP", "NAME", "GPU", "NEAREST", "PAIRED WITH", rail)
	pairs := p.r.pairs()
	for _, g := range p.r.groups() {
		group := []cell{{text: g.letter, style: strong}, text(g.name)}
		line := func(gpu, nearest cell, nics []NIC, note string) {
			for i, names := range wrap(collapse(shortNames(nics)), ", ", 50) {
				if i > 0 {
					t.row(cell{}, cell{}, cell{}, cell{}, text(names))
					continue
				}
				t.row(append(group, gpu, nearest, text(names+note), text(rails(nics)))...)
				group = []cell{{}, {}}
			}
		}
		for _, gpu := range g.gpus {
			pair, ok := pairs[gpu.Address]
			if !ok {
				t.row(append(group, text(fmt.Sprint(gpu.Index)), text(gpu.Nearest.Distance.String()), text("none left"))...)
				group = []cell{{}, {}}
				continue
			}
			note := ""
			if n := p.shared[pair.NICs[0]]; n > 1 {
				note = fmt.Sprintf(" (shared by %d GPUs)", n)
			}
			line(text(fmt.Sprint(gpu.Index)), text(pair.Distance.String()), p.all(pair.NICs), note)
		}
		var spare []NIC
		for _, n := range g.nics {
			if p.shared[n.Address] == 0 {
				spare = append(spare, n)
			}
		}
		line(text("-"), cell{}, spare, " (in no pair)")
	}
	if len(t.rows) > 1 {
		p.printf("\n")
		p.table(t)
	}
	p.lonely()
}

// lonely lists the GPUs without a group, with what is known about the reason.
func (p *printer) lonely() {
	var gpus []string
	for _, gpu := range p.r.GPUs {
		if gpu.AffinityGroup == nil {
			gpus = append(gpus, fmt.Sprint(gpu.Index))
		}
	}
	if len(gpus) == 0 {
		return
	}
	why := "No fabric NIC on this machine"
	if slices.ContainsFunc(p.r.NICs, NIC.Fabric) {
		why = "What is known of this machine does not tell which NIC is nearest"
	}
	p.printf("\n%s GPU %s\n", paint(why+":", strong, p.color), strings.Join(collapse(gpus), ", "))
}

// railSource returns the source of all rail numbers, if it is one.
func (p *printer) railSource() (source string, one bool) {
	for _, n := range p.r.NICs {
		if n.RailSource == nil {
			continue
		}
		if source != "" && source != *n.RailSource {
			return "", false
		}
		source = *n.RailSource
	}
	return source, source != ""
}

func (p *printer) all(addresses []pci.Address) []NIC {
	var nics []NIC
	for _, a := range addresses {
		nics = append(nics, p.nics[a])
	}
	return nics
}

// others lists the NICs that are published but nearest to no GPU.
func (p *printer) others() {
	var far, open, slow []NIC
	for _, n := range p.r.NICs {
		switch {
		case !n.Published || n.AffinityGroup != nil:
		case !n.Fabric():
			slow = append(slow, n)
		case p.open(n):
			open = append(open, n)
		default:
			far = append(far, n)
		}
	}
	title := "Nearest to no GPU"
	if len(p.r.GPUs) == 0 {
		title = "Fabric NICs"
	}
	p.list(title, far)
	p.list("Perhaps nearest to a GPU, not known", open)
	p.list("Not fabric, no RDMA device", slow)
}

// open tells whether the distance of a NIC to some GPU is unknown.
func (p *printer) open(n NIC) bool {
	for _, row := range p.r.Distances {
		if row[n.Address] == topology.Unknown {
			return true
		}
	}
	return false
}

func (p *printer) list(title string, nics []NIC) {
	if len(nics) == 0 {
		return
	}
	p.printf("\n%s\n", paint(title+":", strong, p.color))
	for _, line := range wrap(collapse(shortNames(nics)), ", ", maxWidth-2) {
		p.printf("  %s\n", line)
	}
}

// excluded lists the NICs that are never handed out, those of one reason together.
func (p *printer) excluded() {
	t := &table{}
	var reasons []string
	nics := map[string][]NIC{}
	for _, n := range p.r.NICs {
		if n.Published {
			continue
		}
		reason := deref(n.Reason)
		if nics[reason] == nil {
			reasons = append(reasons, reason)
		}
		nics[reason] = append(nics[reason], n)
	}
	for _, reason := range reasons {
		names := wrap(collapse(shortNames(nics[reason])), ", ", 40)
		why := wrap(strings.Fields(reason), "", maxWidth-44)
		for i := range max(len(names), len(why)) {
			t.row(indented(at(names, i)), text(at(why, i)))
		}
	}
	if len(reasons) > 0 {
		p.printf("\n%s\n", paint("Never handed out:", strong, p.color))
		p.table(t)
	}
}

func (p *printer) missing() {
	if len(p.r.Missing) == 0 {
		return
	}
	p.printf("\n%s\n", paint("Not read:", strong, p.color))
	for _, m := range p.r.Missing {
		for i, line := range wrap(strings.Fields(m), "", maxWidth-4) {
			indent := "  "
			if i > 0 {
				indent = "    "
			}
			p.printf("%s%s\n", indent, line)
		}
	}
}

func indented(s string) cell {
	if s == "" {
		return cell{}
	}
	return text("  " + s)
}

// at returns a line, "" after the last one.
func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

func shortNames(nics []NIC) []string {
	var names []string
	for _, n := range nics {
		names = append(names, n.ShortName())
	}
	return names
}

func cut(s string, width int) string {
	if runes := []rune(s); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return s
}

// gpuTable lists every GPU in full.
func (p *printer) gpuTable() {
	t := &table{}
	t.heading("GPU", "ADDRESS", "NAME", "UUID", "NUMA", "PCIE ROOT", "PCIE SWITCH", "GROUP")
	for _, g := range p.r.GPUs {
		t.row(append([]cell{text(fmt.Sprint(g.Index)), text(g.Address.String()), text(orNone(g.Name)), text(orNone(g.UUID))}, p.place(g.Place)...)...)
	}
	p.printf("\n")
	p.table(t)
}

// nicTable lists every network function in full.
func (p *printer) nicTable() {
	t := &table{}
	t.heading("NIC", "RDMA", "INTERFACE", "CARD", "NUMA", "PCIE ROOT", "PCIE SWITCH", "GROUP", "RAIL", "HANDED OUT")
	for _, n := range p.r.NICs {
		rail := "-"
		if n.Rail != nil {
			rail = fmt.Sprintf("%d (%s)", *n.Rail, deref(n.RailSource))
		}
		published := "yes"
		if !n.Published {
			published = cmp.Or("no: "+deref(n.Reason), "no")
		}
		row := append([]cell{text(n.Address.String()), text(orNone(n.RDMADevice)), text(orNone(n.IfName)), text(n.Card.String())}, p.place(n.Place)...)
		t.row(append(row, text(rail), text(published))...)
	}
	p.printf("\n")
	p.table(t)
}

func (p *printer) place(at Place) []cell {
	sw := "-"
	if at.PCIeSwitch != nil {
		sw = at.PCIeSwitch.String()
	}
	return []cell{text(number(at.NUMANode)), text(orNone(at.PCIeRoot)), text(sw), text(p.letter(at.AffinityGroup))}
}

func orNone(s *string) string { return cmp.Or(deref(s), "-") }
