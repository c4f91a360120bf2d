package report

import (
	"fmt"
	"io"

	"github.com/topodra/topodra/internal/pci"
)

// Sizes of the picture, in pixels.
const (
	margin   = 24
	headerH  = 64
	boxGap   = 16
	tallBox  = 620 // a single NUMA node higher than this is drawn in two columns
	minWidth = 640
	legendW  = 264 // one entry of the legend
	legendH  = 24
)

// SVG draws the machine: NUMA nodes as boxes, in each the tree from host bridges
// over switches to GPUs and NICs, affinity groups by color and letter, and pairs
// as lines on the right.
func SVG(w io.Writer, r *Report) error {
	r = r.printable()
	p := newPicture(r)
	boxes := p.boxes()
	for _, b := range boxes {
		b.layOut(r.Pairs)
		p.depth, p.lanes = max(p.depth, b.depth), max(p.lanes, b.lanes)
	}
	left := leftColumn(boxes)
	x, width, bottom := margin, minWidth, headerH
	for _, column := range [][]*box{boxes[:left], boxes[left:]} {
		y := headerH
		for _, b := range column {
			p.box(b, x, y)
			y += b.height + boxGap
		}
		if len(column) > 0 {
			x += p.boxWidth() + boxGap
			width, bottom = max(width, x-boxGap+margin), max(bottom, y)
		}
	}
	if len(boxes) == 0 {
		p.text(margin, headerH+margin, "Nothing to draw: no GPU and no NIC with a known PCI address.")
		bottom += 2 * margin
	}
	p.header()
	height := p.legend(bottom, width) + margin/2
	_, err := io.WriteString(w, p.document(width, height))
	return err
}

// picture is an SVG being drawn.
type picture struct {
	canvas
	r       *Report
	letters map[string]string
	colors  map[string]color // of groups, by name
	pairs   map[pci.Address]Pair
	nics    map[pci.Address]NIC

	depth int // levels of switches, at most in one box
	lanes int // side by side for the lines of pairs, at most in one box
}

func newPicture(r *Report) *picture {
	p := &picture{r: r, letters: r.letters(), colors: map[string]color{}, pairs: r.pairs(), nics: r.nics()}
	for i, g := range r.groups() {
		p.colors[g.name] = palette[i%len(palette)]
	}
	return p
}

// band returns color and letter of a group; grey and none without one.
func (p *picture) band(group *string) (color, string) {
	if group == nil {
		return grey, ""
	}
	return p.colors[*group], p.letters[*group]
}

// boxes returns one box for each NUMA node. A single one that is too tall is
// drawn in two.
func (p *picture) boxes() []*box {
	nodes := p.r.tree()
	if len(nodes) == 1 && rootsHeight(nodes[0].roots) > tallBox && len(nodes[0].roots) > 1 {
		one := nodes[0]
		half := 1
		for half < len(one.roots)-1 && 2*rootsHeight(one.roots[:half]) < rootsHeight(one.roots) {
			half++
		}
		return []*box{
			{label: one.label(), roots: one.roots[:half]},
			{label: one.label() + ", continued", roots: one.roots[half:]},
		}
	}
	var boxes []*box
	for _, n := range nodes {
		boxes = append(boxes, &box{label: n.label(), roots: n.roots})
	}
	return boxes
}

// leftColumn tells how many boxes go to the left, so that the picture is as low
// as can be with the boxes in their order.
func leftColumn(boxes []*box) int {
	if len(boxes) < 2 {
		return len(boxes)
	}
	best, lowest := 0, 0
	for left := len(boxes) - 1; left >= 1; left-- {
		var heights [2]int
		for i, b := range boxes {
			heights[boolInt(i >= left)] += b.height + boxGap
		}
		if h := max(heights[0], heights[1]); best == 0 || h <= lowest {
			best, lowest = left, h
		}
	}
	return best
}

func (p *picture) document(width, height int) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="Helvetica, Arial, 'Liberation Sans', sans-serif" font-size="12" fill="#222222">
<title>%[3]s</title>
<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>
%[4]s</svg>
`, width, height, escape("Topology of "+p.r.Machine), p.canvas.String())
}

func (p *picture) header() {
	title := p.r.Machine
	if p.r.Simulated {
		title += " (simulated)"
	}
	p.text(margin, 32, title, "font-size", 19, "font-weight", "bold")
	summary := p.r.Summary()
	if len(p.r.Missing) > 0 {
		summary += "; some facts could not be read"
	}
	p.text(margin, 51, summary, "fill", "#555555")
}

// legend explains colors and lines below y, and returns where it ends.
func (p *picture) legend(y, width int) int {
	columns := max(1, (width-2*margin)/legendW)
	entry := 0
	next := func() (int, int) {
		x := margin + entry%columns*legendW
		at := y + entry/columns*legendH
		entry++
		return x, at
	}
	for _, g := range p.r.groups() {
		x, at := next()
		c := p.colors[g.name]
		p.chip(x, at, c, g.letter)
		p.text(x+bandW+8, at+13, g.name)
	}
	if len(p.r.Pairs) > 0 {
		x, at := next()
		p.line(fmt.Sprintf("M%d %dH%d", x, at+9, x+bandW), "stroke", "#444444", "stroke-width", 2.5)
		p.dot(x, at+9, "#444444")
		p.dot(x+bandW, at+9, "#444444")
		p.text(x+bandW+8, at+13, "pair: a GPU and its NICs")
	}
	for _, n := range p.r.NICs {
		if !n.Fabric() {
			x, at := next()
			p.rect(x, at, bandW, 18, "rx", 3, "fill", "#f2f2f2", "stroke", "#b5b5b5", "stroke-dasharray", "3 2")
			p.text(x+bandW+8, at+13, "carries no jobs, with the reason")
			break
		}
	}
	return y + (entry+columns-1)/columns*legendH
}

func (p *picture) chip(x, y int, c color, letter string) {
	p.rect(x, y, bandW, 18, "rx", 3, "fill", c)
	p.text(x+bandW/2, y+13, letter, "text-anchor", "middle", "font-weight", "bold", "fill", c.ink())
}
