package report

import (
	"strings"

	"github.com/topodra/topodra/internal/topology"
)

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
