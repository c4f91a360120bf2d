package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

// Sizes inside a box, in pixels.
const (
	boxPad    = 14
	boxTitleH = 30
	inner     = 108 // width of host bridges and switches
	innerH    = 32
	step      = inner + 26 // from one level of the tree to the next
	leafW     = 258
	gpuH      = 38
	nicH      = 22
	leafGap   = 5
	rootGap   = 10
	bandW     = 22 // colored band with the letter of the group
	laneW     = 11 // between the lines of pairs
)

// box is a NUMA node laid out: y of its parts are relative to its top.
type box struct {
	label  string
	roots  []*part
	height int
	depth  int // levels of switches
	lanes  int
	links  []link
	leaves map[pci.Address]*part
}

// link is the line that joins a GPU and the NICs of its pair in this box.
type link struct {
	pair   Pair
	ends   []*part // from top to bottom
	lane   int
	length int
}

func (b *box) layOut(pairs []Pair) {
	b.leaves = map[pci.Address]*part{}
	y := boxTitleH
	for _, root := range b.roots {
		b.depth = max(b.depth, root.depth())
		for _, leaf := range root.leaves() {
			b.leaves[leaf.address] = leaf
		}
		y = root.layOut(y) + rootGap
	}
	b.height = y - rootGap + boxPad - leafGap
	b.findLinks(pairs)
}

// layOut sets y of a part and of everything below it, and returns where it ends.
func (p *part) layOut(y int) int {
	if p.isLeaf() {
		p.y = y + p.height()/2
		return y + p.height() + leafGap
	}
	end := y
	for _, below := range p.parts {
		end = below.layOut(end)
	}
	p.y = (p.parts[0].y + p.parts[len(p.parts)-1].y) / 2
	if short := innerH + leafGap - (end - y); short > 0 {
		p.move(short / 2)
		end += short
	}
	return end
}

func (p *part) move(y int) {
	p.y += y
	for _, below := range p.parts {
		below.move(y)
	}
}

func (p *part) height() int {
	if p.gpu != nil {
		return gpuH
	}
	return nicH
}

func rootsHeight(roots []*part) int {
	y := 0
	for _, root := range roots {
		y = root.layOut(y) + rootGap
	}
	return y
}

// findLinks gives every pair a lane, so that no two lines lie on each other.
// Short lines come first and stay close to the leaves.
func (b *box) findLinks(pairs []Pair) {
	for _, pair := range pairs {
		l := link{pair: pair}
		for _, addr := range append([]pci.Address{pair.GPU}, pair.NICs...) {
			if leaf := b.leaves[addr]; leaf != nil {
				l.ends = append(l.ends, leaf)
			}
		}
		if len(l.ends) < 2 {
			continue
		}
		slices.SortFunc(l.ends, func(a, b *part) int { return cmp.Compare(a.y, b.y) })
		l.length = l.ends[len(l.ends)-1].y - l.ends[0].y
		b.links = append(b.links, l)
	}
	slices.SortStableFunc(b.links, func(x, y link) int {
		return cmp.Or(cmp.Compare(x.length, y.length), cmp.Compare(x.ends[0].y, y.ends[0].y))
	})
	for i := range b.links {
		l := &b.links[i]
		for slices.ContainsFunc(b.links[:i], l.collides) {
			l.lane++
		}
		b.lanes = max(b.lanes, l.lane+1)
	}
}

func (l *link) collides(other link) bool {
	top, bottom := l.ends[0].y, l.ends[len(l.ends)-1].y
	return other.lane == l.lane && other.ends[0].y <= bottom && top <= other.ends[len(other.ends)-1].y
}

func (p *picture) boxWidth() int { return p.leafX() + leafW + laneW*p.lanes + 2*boxPad }

// leafX is where all leaves of a box begin.
func (p *picture) leafX() int { return boxPad + step*(1+p.depth) }

func (p *picture) box(b *box, x, y int) {
	p.open("", "transform", fmt.Sprintf("translate(%d %d)", x, y))
	p.rect(0, 0, p.boxWidth(), b.height, "rx", 8, "fill", "#f6f7f9", "stroke", "#c9ced6")
	p.text(boxPad, 20, b.label, "font-weight", "bold", "fill", "#444b57")
	for _, root := range b.roots {
		p.wires(root, boxPad)
	}
	for _, root := range b.roots {
		p.part(root, boxPad)
	}
	for _, l := range b.links {
		p.link(l)
	}
	p.close()
}

// wires draws the lines below a part.
func (p *picture) wires(t *part, x int) {
	bend := x + inner + (step-inner)/2
	for _, below := range t.parts {
		to := x + step
		if below.isLeaf() {
			to = p.leafX()
		}
		wire := []any{"stroke", "#98a1ad", "stroke-width", 1.5}
		if t.guessed {
			wire = append(wire, "stroke-dasharray", "2 4")
		}
		p.line(fmt.Sprintf("M%d %dH%dV%dH%d", x+inner, t.y, bend, below.y, to), wire...)
		if !below.isLeaf() {
			p.wires(below, x+step)
		}
	}
}

func (p *picture) part(t *part, x int) {
	switch {
	case t.gpu != nil:
		p.gpu(t)
		return
	case len(t.nics) > 0 && t.nics[0].Fabric():
		p.nic(t)
		return
	case len(t.nics) > 0:
		p.other(t)
		return
	}
	p.open(t.title())
	top := t.y - innerH/2
	if len(t.switches) > 0 {
		p.rect(x, top, inner, innerH, "rx", 4, "fill", "#ffffff", "stroke", "#5f6874", "stroke-width", 1.2)
		p.text(x+inner/2, top+13, t.name(), "text-anchor", "middle", "font-size", 11)
		p.text(x+inner/2, top+26, t.address.String(), "text-anchor", "middle", "font-size", 10, "fill", "#666666")
	} else {
		p.rect(x, top, inner, innerH, "rx", 4, "fill", "#dfe3e8", "stroke", "#5f6874", "stroke-width", 1.2)
		p.text(x+inner/2, top+20, t.name(), "text-anchor", "middle")
	}
	p.close()
	for _, below := range t.parts {
		p.part(below, x+step)
	}
}

func (p *picture) gpu(t *part) {
	g := t.gpu
	c, letter := p.band(g.AffinityGroup)
	x, top := p.leafX(), t.y-gpuH/2
	p.open(gpuTitle(g))
	p.rect(x, top, leafW, gpuH, "rx", 4, "fill", c.tint(32), "stroke", c.line(), "stroke-width", 1.5)
	p.letterBand(x, top, gpuH, c, letter)
	p.text(x+bandW+8, top+16, fmt.Sprintf("GPU %d", g.Index), "font-size", 13, "font-weight", "bold")
	p.text(x+leafW-8, top+16, cut(g.model(), 24), "text-anchor", "end")
	p.text(x+bandW+8, top+31, g.Address.String(), "font-size", 10.5, "fill", "#444444")
	p.text(x+leafW-8, top+31, p.nearest(g), "text-anchor", "end", "font-size", 10.5, "fill", "#444444")
	p.close()
}

// nearest says what a line cannot show.
func (p *picture) nearest(g *GPU) string {
	if g.Nearest == nil {
		if !slices.ContainsFunc(p.r.NICs, NIC.Fabric) {
			return "no fabric NIC"
		}
		return "nearest NIC not known"
	}
	text := "nearest " + g.Nearest.Distance.String()
	var elsewhere []string
	for _, addr := range p.pairs[g.Address].NICs {
		if n := p.nics[addr]; !sameNode(n.NUMANode, g.NUMANode) {
			elsewhere = append(elsewhere, n.ShortName())
		}
	}
	if len(elsewhere) > 0 {
		text += ": " + strings.Join(collapse(elsewhere), ", ")
	}
	return text
}

func sameNode(a, b *int) bool { return number(a) == number(b) }

func gpuTitle(g *GPU) string {
	return strings.TrimSpace(fmt.Sprintf("GPU %d %s %s %s", g.Index, g.Address, deref(g.Name), deref(g.UUID)))
}

func (p *picture) nic(t *part) {
	n := t.nics[0]
	c, letter := p.band(n.AffinityGroup)
	x, top := p.leafX(), t.y-nicH/2
	p.open(nicTitle(n))
	p.rect(x, top, leafW, nicH, "rx", 4, "fill", c.tint(12), "stroke", c.line())
	p.letterBand(x, top, nicH, c, letter)
	p.text(x+bandW+8, top+15, cut(n.ShortName(), 16))
	if n.ShortName() != n.Address.String() {
		p.text(x+leafW-58, top+15, n.Address.String(), "text-anchor", "end", "font-size", 10.5, "fill", "#444444")
	}
	if n.Rail != nil {
		p.text(x+leafW-8, top+15, fmt.Sprintf("rail %d", *n.Rail), "text-anchor", "end", "font-size", 10.5, "fill", "#444444")
	}
	p.close()
}

func nicTitle(n NIC) string {
	parts := []string{n.Address.String(), deref(n.RDMADevice), deref(n.IfName)}
	if n.Rail != nil {
		parts = append(parts, fmt.Sprintf("rail %d by %s", *n.Rail, deref(n.RailSource)))
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

// other draws NICs that carry no jobs.
func (p *picture) other(t *part) {
	x, top := p.leafX(), t.y-nicH/2
	reason := t.nics[0].reason()
	p.open(strings.Join(shortNames(t.nics), ", ") + ": " + reason)
	p.rect(x, top, leafW, nicH, "rx", 4, "fill", "#f2f2f2", "stroke", "#b5b5b5", "stroke-dasharray", "3 2")
	name := t.nics[0].ShortName()
	if len(t.nics) > 1 {
		name = fmt.Sprintf("%d NICs", len(t.nics))
	}
	p.text(x+8, top+15, cut(name, 14), "fill", "#666666")
	p.text(x+leafW-8, top+15, cut(reason, 44-min(len(name), 14)), "text-anchor", "end", "font-size", 10.5, "fill", "#666666")
	p.close()
}

// letterBand colors the left end of a leaf.
func (p *picture) letterBand(x, top, height int, c color, letter string) {
	p.line(fmt.Sprintf("M%d %dH%dV%dH%dQ%d %d %d %dV%dQ%d %d %d %dZ",
		x+4, top, x+bandW, top+height, x+4, x, top+height, x, top+height-4, top+4, x, top, x+4, top), "fill", c)
	p.text(x+bandW/2, top+height/2+4, letter, "text-anchor", "middle", "font-weight", "bold", "fill", c.ink())
}

func (p *picture) link(l link) {
	gpu := l.ends[slices.IndexFunc(l.ends, func(e *part) bool { return e.gpu != nil })].gpu
	c, _ := p.band(gpu.AffinityGroup)
	c = c.line()
	right := p.leafX() + leafW
	x := right + laneW*(l.lane+1)
	var path strings.Builder
	for _, end := range l.ends {
		fmt.Fprintf(&path, "M%d %dH%d", right, end.y, x)
	}
	fmt.Fprintf(&path, "M%d %dV%d", x, l.ends[0].y, l.ends[len(l.ends)-1].y)
	p.open(fmt.Sprintf("%s: %s", l.pair.Name, l.pair.Distance))
	p.line(path.String(), "stroke", c, "stroke-width", 2.5, "stroke-linecap", "round")
	for _, end := range l.ends {
		p.dot(right, end.y, c.String())
	}
	p.close()
}

func (p *picture) dot(x, y int, fill string) {
	p.element("circle", "", "cx", x, "cy", y, "r", 3.5, "fill", fill)
}
