package topology

import (
	"strings"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
)

// cards groups the functions of one physical card: ports, virtual functions, and
// cards that are attached to two sockets. It returns the lowest address of each
// function's card.
func cards(s *machine.Snapshot) map[pci.Address]pci.Address {
	u := newUnion[pci.Address](pci.Address.Compare)
	byMark := map[string]pci.Address{}
	for _, n := range s.NICs {
		u.add(n.Address)
		fn := s.PCI.Functions[n.Address]
		for _, mark := range cardMarks(n, fn) {
			if other, ok := byMark[mark]; ok {
				u.join(other, n.Address)
			} else {
				byMark[mark] = n.Address
			}
		}
	}
	cards := map[pci.Address]pci.Address{}
	for _, n := range s.NICs {
		cards[n.Address] = u.find(n.Address)
	}
	return cards
}

// cardMarks are facts that only functions of one card have in common.
func cardMarks(n machine.NIC, fn *pci.Function) []string {
	var marks []string
	if n.RDMA != nil && !isZeroGUID(n.RDMA.SysImageGUID) {
		marks = append(marks, "guid "+n.RDMA.SysImageGUID)
	}
	if fn == nil {
		return marks
	}
	if sn := fn.VPD["SN"]; sn != "" {
		marks = append(marks, "serial "+sn)
	}
	if board := fn.VPD["V3"]; board != "" {
		marks = append(marks, "board "+board)
	}
	if fn.PhysFn != nil { // with ARI a VF can be in another slot than its PF
		return append(marks, "slot "+slot(*fn.PhysFn))
	}
	return append(marks, "slot "+slot(n.Address))
}

// slot names the device that functions 0 to 7 belong to.
func slot(a pci.Address) string {
	text := a.String()
	return text[:strings.LastIndexByte(text, '.')]
}

func isZeroGUID(guid string) bool { return strings.Trim(guid, "0:") == "" }
