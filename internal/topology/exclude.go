package topology

import (
	"fmt"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// exclusions returns why NICs must not be handed out. A NIC without a reason may be.
func exclusions(s *machine.Snapshot, c Config) map[pci.Address]string {
	reasons := uplinks(s)
	for _, n := range s.NICs {
		if reasons[n.Address] != "" {
			continue
		}
		fn := s.PCI.Functions[n.Address]
		switch {
		// NVSwitch boards since Blackwell are managed through ConnectX-7 functions
		// that look like compute NICs; their VPD is marked (NVIDIA Fabric Manager
		// user guide).
		case fn != nil && fn.VPD.Mentions("SW_MNG"):
			reasons[n.Address] = "NVLink management: its VPD says SW_MNG"
		case s.UplinkUnknown && len(n.Links) > 0:
			reasons[n.Address] = "it could be the uplink: netlink does not tell which interface has the default route"
		case c.Excluded[n.Address] != "":
			reasons[n.Address] = c.Excluded[n.Address]
		case len(n.Links) == 0 && !hasRDMA(s, n, c):
			reasons[n.Address] = "no network interface and no RDMA device: is its driver loaded?"
		}
	}
	return reasons
}

// uplinks finds the functions that carry the node's own traffic: those of an
// interface with a default route and of everything that interface stands on or
// is enslaved with. Taking one away would cut the node off.
func uplinks(s *machine.Snapshot) map[pci.Address]string {
	used := map[string]string{} // interface to the one with the default route
	for _, l := range s.Links {
		if l.DefaultRoute {
			used[l.Name] = l.Name
		}
	}
	// Up to the masters and down to their members and lower interfaces. Each round
	// adds at least one of finitely many interfaces.
	for changed := true; changed; {
		changed = false
		add := func(name, uplink string) {
			if name != "" && uplink != "" && used[name] == "" {
				used[name], changed = uplink, true
			}
		}
		for _, l := range s.Links {
			add(l.Master, used[l.Name])
			add(l.Parent, used[l.Name])
			add(l.Name, used[l.Master])
		}
	}
	reasons := map[pci.Address]string{}
	exclude := func(addr pci.Address, format string, args ...any) {
		if reasons[addr] == "" {
			reasons[addr] = fmt.Sprintf(format, args...)
		}
	}
	for _, n := range s.NICs {
		for _, l := range n.Links {
			uplink := used[l.Name]
			if uplink == "" {
				continue
			}
			if l.Name == uplink {
				exclude(n.Address, "uplink: the default route leaves through %s", l.Name)
			} else {
				exclude(n.Address, "uplink: %s belongs to %s, which carries the default route", l.Name, uplink)
			}
			fn := s.PCI.Functions[n.Address]
			if fn == nil {
				continue
			}
			if fn.PhysFn != nil {
				exclude(*fn.PhysFn, "uplink: its virtual function %s carries the default route", n.Address)
			}
			for _, vf := range fn.VFs {
				exclude(vf, "uplink: its physical function %s carries the default route", n.Address)
			}
		}
	}
	return reasons
}

// rdmaOf returns the RDMA device that a NIC offers, and whether it is software.
func rdmaOf(s *machine.Snapshot, n machine.NIC, c Config) (device *rdma.Device, software bool) {
	if n.RDMA != nil {
		return n.RDMA, false
	}
	if !c.AllowSoftwareRDMA {
		return nil, false
	}
	for _, l := range n.Links {
		for i := range s.SoftwareRDMA {
			if s.SoftwareRDMA[i].Netdev == l.Name {
				return &s.SoftwareRDMA[i], true
			}
		}
	}
	return nil, false
}

func hasRDMA(s *machine.Snapshot, n machine.NIC, c Config) bool {
	device, _ := rdmaOf(s, n, c)
	return device != nil
}
