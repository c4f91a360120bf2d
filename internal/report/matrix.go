package report

import (
	"fmt"
	"slices"

	"github.com/topodra/topodra/internal/topology"
)

// column is one or several fabric NICs that are equally far from every GPU.
type column struct {
	group string // letter
	nics  []NIC
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
