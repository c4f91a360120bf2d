package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

// DOT writes the machine as a Graphviz graph: NUMA nodes as clusters, affinity
// groups by color, pairs as thick lines. "dot -Tsvg" draws it.
func DOT(w io.Writer, r *Report) error {
	r = r.printable()
	d := &dot{picture: newPicture(r), ids: map[pci.Address]string{}}
	d.line("graph topology {")
	d.line("  rankdir=LR; label=%s; labelloc=t; fontname=Helvetica;", quote(r.Machine+": "+r.Summary()))
	d.line("  node [shape=box, style=filled, fillcolor=white, fontname=Helvetica, fontsize=11];")
	for i, n := range r.tree() {
		d.line("  subgraph cluster_%d {", i)
		d.line("    label=%s; style=rounded; color=gray;", quote(n.label()))
		for _, root := range n.roots {
			d.part(root)
		}
		d.line("  }")
	}
	for _, pair := range r.Pairs {
		c, _ := d.band(d.groupOf(pair.GPU))
		for _, n := range pair.NICs {
			d.line("  %s -- %s [color=%s, penwidth=3, constraint=false, tooltip=%s];",
				d.ids[pair.GPU], d.ids[n], quote(c.line().String()), quote(pair.Name+": "+pair.Distance.String()))
		}
	}
	d.line("}")
	_, err := io.WriteString(w, d.b.String())
	return err
}

type dot struct {
	*picture
	b   strings.Builder
	n   int
	ids map[pci.Address]string // of leaves
}

func (d *dot) line(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n", args...) }

func (d *dot) groupOf(gpu pci.Address) *string {
	for _, g := range d.r.GPUs {
		if g.Address == gpu {
			return g.AffinityGroup
		}
	}
	return nil
}

// part writes a part and everything below it, and returns its identifier.
func (d *dot) part(t *part) string {
	id := fmt.Sprintf("n%d", d.n)
	d.n++
	switch {
	case t.gpu != nil:
		d.ids[t.address] = id
		c, letter := d.band(t.gpu.AffinityGroup)
		d.leaf(id, c.tint(45), letter, fmt.Sprintf("GPU %d", t.gpu.Index), t.gpu.model(), t.address.String())
	case len(t.nics) > 0 && t.nics[0].Fabric():
		d.ids[t.address] = id
		n := t.nics[0]
		c, letter := d.band(n.AffinityGroup)
		rail := ""
		if n.Rail != nil {
			rail = fmt.Sprintf("rail %d", *n.Rail)
		}
		d.leaf(id, c.tint(18), letter, n.ShortName(), rail, n.Address.String())
	case len(t.nics) > 0:
		d.line("    %s [label=%s, color=gray, fontcolor=gray40, style=dashed];",
			id, quote(strings.Join(collapse(shortNames(t.nics)), ", ")+"\n"+t.nics[0].reason()))
	case len(t.switches) > 0:
		d.line("    %s [label=%s, tooltip=%s];", id, quote(t.name()+"\n"+t.address.String()), quote(t.title()))
	default:
		d.line("    %s [label=%s, fillcolor=gray90];", id, quote(t.name()))
	}
	for _, below := range t.parts {
		d.line("    %s -- %s;", id, d.part(below))
	}
	return id
}

func (d *dot) leaf(id string, fill color, letter, name, detail, address string) {
	if letter != "" {
		letter += ": "
	}
	first := strings.TrimSpace(letter + name + "  " + detail)
	d.line("    %s [label=%s, fillcolor=%s];", id, quote(first+"\n"+address), quote(fill.String()))
}

// quote makes a string of the DOT language. Only the quote is special in it; a
// backslash would begin an escape in labels.
func quote(s string) string {
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, "\n", `\n`).Replace(s) + `"`
}
