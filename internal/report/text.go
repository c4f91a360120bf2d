package report

import (
	"fmt"
	"io"
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

func (c column) name() string {
	if len(c.nics) == 1 {
		return c.nics[0].ShortName()
	}
	return fmt.Sprintf("%d NICs", len(c.nics))
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
