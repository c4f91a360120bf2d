package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

// groupTable says for each GPU which group it is in and which NICs are its own.
func (p *printer) groupTable() {
	t := &table{}
	source, one := p.railSource()
	rail := "RAIL"
	if one {
		rail = "RAIL BY " + strings.ToUpper(source)
	}
	pairs := p.r.pairs()
	if len(pairs) > 0 {
		t.heading("GROUP", "NAME", "GPU", "NEAREST", "PAIRED WITH", rail)
	} else {
		t.heading("GROUP", "NAME", "GPU", "", "NICS", rail)
	}
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
		if len(pairs) == 0 { // not published
			var indexes []string
			for _, gpu := range g.gpus {
				indexes = append(indexes, fmt.Sprint(gpu.Index))
			}
			line(text(strings.Join(collapse(indexes), ", ")), cell{}, g.nics, "")
			continue
		}
		for _, gpu := range g.gpus {
			pair, ok := pairs[gpu.Address]
			if !ok {
				nearest := "?"
				if gpu.Nearest != nil {
					nearest = gpu.Nearest.Distance.String()
				}
				t.row(append(group, text(fmt.Sprint(gpu.Index)), text(nearest), text("no pair"))...)
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
