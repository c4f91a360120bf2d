package topology

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
)

// RailSource says where a rail number is from.
type RailSource string

// Sources of rail numbers, strongest first.
const (
	RailFromConfig RailSource = "config" // the driver's configuration
	RailFromLLDP   RailSource = "lldp"   // a record that a cabling discovery wrote
	RailFromSubnet RailSource = "subnet" // IP subnets of the fabric NICs, in order
	RailFromOrder  RailSource = "order"  // fabric NICs by PCI address
)

// RailConfig numbers rails. An absolute rail number is equal on all machines for
// NICs that are cabled to the same rail.
type RailConfig struct {
	// Rules are the administrator's; the first that fits a NIC decides.
	Rules []RailRule
	// Discovered are rails from a cabling discovery such as topograph's.
	Discovered map[pci.Address]int
}

// RailRule puts the NICs that fit it on a rail. One of its conditions is set.
type RailRule struct {
	Rail      int
	Address   *pci.Address
	Interface string
	Subnet    netip.Prefix // contains an address of the NIC
}

func (r RailRule) fits(n machine.NIC) bool {
	if r.Address != nil {
		return *r.Address == n.Address
	}
	return slices.ContainsFunc(n.Links, func(l netdev.Link) bool {
		if r.Interface != "" {
			return l.Name == r.Interface
		}
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return r.Subnet.Contains(p.Addr()) })
	})
}

func (c RailConfig) configured(n machine.NIC) (int, bool) {
	for _, r := range c.Rules {
		if r.fits(n) {
			return r.Rail, true
		}
	}
	return 0, false
}

// numberRails gives every fabric NIC a rail. Configuration and discovery speak
// for single NICs; subnets and order number the machine as a whole, so they are
// used only where nothing stronger speaks for any NIC.
func (t *Topology) numberRails(s *machine.Snapshot, c RailConfig) {
	var nics []machine.NIC
	strong := false
	for i := range t.NICs {
		n := &t.NICs[i]
		if !n.Fabric {
			continue
		}
		facts, _ := s.NIC(n.Address)
		nics = append(nics, facts)
		if rail, ok := c.configured(facts); ok {
			n.Rail, n.RailSource, strong = &rail, RailFromConfig, true
		} else if rail, ok := c.Discovered[n.Address]; ok {
			n.Rail, n.RailSource, strong = &rail, RailFromLLDP, true
		}
	}
	if strong {
		return
	}
	rails, source := subnetRails(nics), RailFromSubnet
	if rails == nil {
		rails, source = orderRails(s, nics), RailFromOrder
	}
	for addr, rail := range rails {
		n := t.nic(addr)
		n.Rail, n.RailSource = &rail, source
	}
}

// subnetRails numbers the subnets of the fabric NICs in address order. It needs
// an address on every one and at least two subnets: one flat network says nothing
// about rails. IPv4 counts where all have it, else routed IPv6.
func subnetRails(nics []machine.NIC) map[pci.Address]int {
	for _, family := range []func(netip.Addr) bool{
		netip.Addr.Is4,
		func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() },
	} {
		subnetOf := map[pci.Address]netip.Prefix{}
		var subnets []netip.Prefix
		for _, n := range nics {
			if p, ok := firstSubnet(n, family); ok {
				subnetOf[n.Address] = p
				subnets = append(subnets, p)
			}
		}
		slices.SortFunc(subnets, comparePrefix)
		subnets = slices.Compact(subnets)
		if len(subnetOf) != len(nics) || len(subnets) < 2 {
			continue
		}
		rails := map[pci.Address]int{}
		for addr, p := range subnetOf {
			rails[addr], _ = slices.BinarySearchFunc(subnets, p, comparePrefix)
		}
		return rails
	}
	return nil
}

func firstSubnet(n machine.NIC, family func(netip.Addr) bool) (netip.Prefix, bool) {
	for _, l := range n.Links {
		for _, a := range l.Addrs {
			if family(a.Addr()) {
				return a.Masked(), true
			}
		}
	}
	return netip.Prefix{}, false
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// orderRails numbers fabric NICs by address. A virtual function is on the rail of
// its physical function.
func orderRails(s *machine.Snapshot, nics []machine.NIC) map[pci.Address]int {
	port := func(addr pci.Address) pci.Address {
		if fn := s.PCI.Functions[addr]; fn != nil && fn.PhysFn != nil {
			return *fn.PhysFn
		}
		return addr
	}
	var ports []pci.Address
	for _, n := range nics {
		ports = append(ports, port(n.Address))
	}
	slices.SortFunc(ports, pci.Address.Compare)
	ports = slices.Compact(ports)
	rails := map[pci.Address]int{}
	for _, n := range nics {
		rails[n.Address], _ = slices.BinarySearchFunc(ports, port(n.Address), pci.Address.Compare)
	}
	return rails
}
