package report

import (
	"cmp"
	"fmt"
)

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
			published = "no: " + n.reason()
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
