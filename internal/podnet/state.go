package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/topodra/topodra/internal/netdev"
)

// State is how an interface is set up in one network namespace: what a change of the
// namespace loses.
type State struct {
	Name      string            `json:"name"`
	MTU       int               `json:"mtu,omitempty"`
	Up        bool              `json:"up,omitempty"`
	Addresses []Address         `json:"addresses,omitempty"`
	Routes    []Route           `json:"routes,omitempty"`
	Rules     []Rule            `json:"rules,omitempty"`
	Neighbors []Neighbor        `json:"neighbors,omitempty"`
	Sysctls   map[string]string `json:"sysctls,omitempty"` // "ipv4/rp_filter" to its value
}

// Address is an address of an interface.
type Address struct {
	Prefix netip.Prefix `json:"prefix"`
	Label  string       `json:"label,omitempty"` // what follows the interface's name, ":1"
	Scope  int          `json:"scope,omitempty"`
	// NoPrefixRoute says that whoever set the address sets its connected route, too.
	NoPrefixRoute bool `json:"noPrefixRoute,omitempty"`
	// ValidSeconds and PreferredSeconds bound an address that somebody renews, such
	// as a DHCP client of the host; 0 means for ever.
	ValidSeconds     int `json:"validSeconds,omitempty"`
	PreferredSeconds int `json:"preferredSeconds,omitempty"`
}

// Route is a route that leaves through an interface.
type Route struct {
	To       netip.Prefix `json:"to"`
	Via      netip.Addr   `json:"via,omitzero"`
	Source   netip.Addr   `json:"source,omitzero"`
	Table    int          `json:"table,omitempty"`
	Scope    int          `json:"scope,omitempty"`
	Type     int          `json:"type,omitempty"`
	Protocol int          `json:"protocol,omitempty"`
	Metric   int          `json:"metric,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
	OnLink   bool         `json:"onLink,omitempty"`
}

// Rule is a routing rule that belongs to an interface, by its name or by one of its
// addresses.
type Rule struct {
	Priority int          `json:"priority"`
	Table    int          `json:"table"`
	From     netip.Prefix `json:"from,omitzero"`
	To       netip.Prefix `json:"to,omitzero"`
	IPv6     bool         `json:"ipv6,omitempty"`
	In       bool         `json:"in,omitempty"`  // packets that came in through the interface
	Out      bool         `json:"out,omitempty"` // packets bound to the interface
}

// Neighbor is a permanent entry of the ARP or neighbour table.
type Neighbor struct {
	Address      netip.Addr `json:"address"`
	HardwareAddr string     `json:"hardwareAddr"`
}

// capture reads how an interface is set up. What the kernel makes by itself, link-local
// addresses and connected routes, is left out: it will make it again.
func (n *namespace) capture(l netlink.Link) (State, error) {
	a := l.Attrs()
	s := State{Name: a.Name, MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0}
	var err error
	if s.Addresses, err = n.addresses(l); err != nil {
		return s, fmt.Errorf("addresses of %s: %w", a.Name, err)
	}
	if s.Routes, err = n.routes(l, slices.ContainsFunc(s.Addresses, func(a Address) bool { return a.NoPrefixRoute })); err != nil {
		return s, fmt.Errorf("routes of %s: %w", a.Name, err)
	}
	if s.Rules, err = n.rules(a.Name, s.Addresses); err != nil {
		return s, fmt.Errorf("routing rules of %s: %w", a.Name, err)
	}
	if s.Neighbors, err = n.neighbors(a.Index); err != nil {
		return s, fmt.Errorf("neighbours of %s: %w", a.Name, err)
	}
	if s.Sysctls, err = n.readSysctls(a.Name); err != nil {
		return s, fmt.Errorf("sysctls of %s: %w", a.Name, err)
	}
	return s, nil
}

func (n *namespace) addresses(l netlink.Link) ([]Address, error) {
	found, err := netdev.Whole(func() ([]netlink.Addr, error) { return n.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	var out []Address
	for _, a := range found {
		prefix, ok := prefixOf(a.IPNet)
		if !ok || prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		address := Address{Prefix: prefix, Label: strings.TrimPrefix(a.Label, l.Attrs().Name), Scope: a.Scope, NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0}
		if a.Flags&unix.IFA_F_PERMANENT == 0 {
			address.ValidSeconds, address.PreferredSeconds = a.ValidLft, a.PreferedLft
		}
		out = append(out, address)
	}
	return out, nil
}

// routes leaves out connected routes unless somebody else than the kernel makes them.
func (n *namespace) routes(l netlink.Link, connected bool) ([]Route, error) {
	filter := &netlink.Route{LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_UNSPEC}
	found, err := netdev.Whole(func() ([]netlink.Route, error) {
		return n.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, r := range found {
		// Connected, local and multicast routes come with addresses, those of router
		// advertisements with the next one.
		own := r.Protocol == unix.RTPROT_KERNEL && (!connected || r.Table != unix.RT_TABLE_MAIN)
		if own || r.Protocol == unix.RTPROT_RA || len(r.MultiPath) > 0 {
			continue
		}
		to, ok := prefixOf(r.Dst)
		if !ok {
			to = everything(r.Family == unix.AF_INET6)
		}
		out = append(out, Route{
			To: to, Via: addrOf(r.Gw), Source: addrOf(r.Src), Table: r.Table, Scope: int(r.Scope), Type: r.Type,
			Protocol: int(r.Protocol), Metric: r.Priority, MTU: r.MTU, OnLink: r.Flags&unix.RTNH_F_ONLINK != 0,
		})
	}
	return out, nil
}

// rules returns the rules that name the interface or one of its addresses alone.
func (n *namespace) rules(ifName string, addresses []Address) ([]Rule, error) {
	var out []Rule
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := netdev.Whole(func() ([]netlink.Rule, error) { return n.RuleList(family) })
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // the kernel has no such family, or no policy routing
		}
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			from, _ := prefixOf(r.Src)
			to, _ := prefixOf(r.Dst)
			if r.Mark != 0 || r.Mask != nil || r.Invert || r.IPProto != 0 || r.Dport != nil || r.Sport != nil || r.UIDRange != nil ||
				r.Tos != 0 || r.Goto >= 0 || r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0 || r.Table == 0 {
				continue // says more than a Rule can: a copy would catch too much
			}
			own := slices.ContainsFunc(addresses, func(a Address) bool { return from.IsSingleIP() && a.Prefix.Addr() == from.Addr() })
			if r.IifName != ifName && r.OifName != ifName && !own {
				continue
			}
			out = append(out, Rule{
				Priority: r.Priority, Table: r.Table, From: from, To: to, IPv6: family == netlink.FAMILY_V6,
				In: r.IifName == ifName, Out: r.OifName == ifName,
			})
		}
	}
	return out, nil
}

func (n *namespace) neighbors(index int) ([]Neighbor, error) {
	found, err := netdev.Whole(func() ([]netlink.Neigh, error) { return n.NeighList(index, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	var out []Neighbor
	for _, e := range found {
		if e.State&netlink.NUD_PERMANENT != 0 && e.IP != nil {
			out = append(out, Neighbor{Address: addrOf(e.IP), HardwareAddr: e.HardwareAddr.String()})
		}
	}
	return out, nil
}

// apply makes an interface be set up as s says, whatever is done already. It does all that
// can be done: the error joins what could not.
func (n *namespace) apply(l netlink.Link, s State) error {
	var errs []error
	try := func(err error, format string, args ...any) {
		if err != nil {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, err)...))
		}
	}
	if l.Attrs().Name != s.Name {
		if err := n.rename(l, s.Name); err != nil {
			errs = append(errs, err)
		} else {
			l.Attrs().Name = s.Name
		}
	}
	name := l.Attrs().Name
	if s.MTU > 0 && l.Attrs().MTU != s.MTU {
		try(n.LinkSetMTU(l, s.MTU), "MTU %d of %s", s.MTU, name)
	}
	// Before the interface is up: accept_ra and addr_gen_mode count at that moment.
	errs = append(errs, n.writeSysctls(name, s.Sysctls))
	for _, a := range s.Addresses {
		try(n.AddrReplace(l, a.netlink(name)), "address %s of %s", a.Prefix, name)
	}
	if !s.Up {
		return errors.Join(errs...) // routes go with an interface that is down
	}
	try(n.LinkSetUp(l), "set %s up", name)
	for _, a := range s.Addresses {
		// An IPv6 address with a lifetime gets its connected route only on an interface
		// that is up.
		if a.ValidSeconds > 0 {
			try(n.AddrReplace(l, a.netlink(name)), "address %s of %s", a.Prefix, name)
		}
	}
	for _, e := range s.Neighbors {
		mac, err := net.ParseMAC(e.HardwareAddr)
		if err == nil {
			err = n.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: e.Address.AsSlice(), HardwareAddr: mac})
		}
		try(err, "neighbour %s of %s", e.Address, name)
	}
	for _, r := range inOrder(s.Routes) {
		try(n.RouteReplace(r.netlink(l.Attrs().Index)), "route to %s through %s", r.To, name)
	}
	for _, r := range s.Rules {
		if err := n.RuleAdd(r.netlink(name)); !errors.Is(err, unix.EEXIST) {
			try(err, "routing rule %d of %s", r.Priority, name)
		}
	}
	return errors.Join(errs...)
}

// rename gives an interface its name. One that is up may keep the kernel from it.
func (n *namespace) rename(l netlink.Link, name string) error {
	err := n.LinkSetName(l, name)
	if errors.Is(err, unix.EBUSY) {
		if err := n.LinkSetDown(l); err != nil {
			return fmt.Errorf("set %s down: %w", l.Attrs().Name, err)
		}
		err = n.LinkSetName(l, name)
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", l.Attrs().Name, name, err)
	}
	return nil
}

// inOrder puts routes to the link before those that need it to reach their gateway.
func inOrder(routes []Route) []Route {
	sorted := slices.Clone(routes)
	slices.SortStableFunc(sorted, func(a, b Route) int {
		switch {
		case a.Via.IsValid() == b.Via.IsValid():
			return 0
		case b.Via.IsValid():
			return -1
		default:
			return 1
		}
	})
	return sorted
}

func (a Address) netlink(ifName string) *netlink.Addr {
	out := &netlink.Addr{IPNet: ipNet(a.Prefix), Scope: a.Scope, ValidLft: a.ValidSeconds, PreferedLft: a.PreferredSeconds}
	if a.Label != "" {
		out.Label = ifName + a.Label
	}
	if a.NoPrefixRoute {
		out.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	if a.Prefix.Addr().Is6() {
		// It has been in use, or is the user's word: there is no duplicate to wait for.
		out.Flags |= unix.IFA_F_NODAD
	}
	return out
}

func (r Route) netlink(index int) *netlink.Route {
	out := &netlink.Route{
		LinkIndex: index, Dst: ipNet(r.To), Table: r.Table, Scope: netlink.Scope(r.Scope), Type: r.Type,
		Protocol: netlink.RouteProtocol(r.Protocol), Priority: r.Metric, MTU: r.MTU,
		Gw: ip(r.Via), Src: ip(r.Source),
	}
	if r.OnLink {
		out.Flags = unix.RTNH_F_ONLINK
	}
	return out
}

func (r Rule) netlink(ifName string) *netlink.Rule {
	out := netlink.NewRule()
	out.Priority, out.Table, out.Family = r.Priority, r.Table, netlink.FAMILY_V4
	if r.IPv6 {
		out.Family = netlink.FAMILY_V6
	}
	if r.From.IsValid() {
		out.Src = ipNet(r.From)
	}
	if r.To.IsValid() {
		out.Dst = ipNet(r.To)
	}
	if r.In {
		out.IifName = ifName
	}
	if r.Out {
		out.OifName = ifName
	}
	return out
}

// --- between net and net/netip

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr := addrOf(n.IP)
	ones, bits := n.Mask.Size()
	if !addr.IsValid() || bits == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, ones), true
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

func ip(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: ip(p.Addr()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func everything(ipv6 bool) netip.Prefix {
	if ipv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func (s State) addrs() []netip.Addr {
	var out []netip.Addr
	for _, a := range s.Addresses {
		out = append(out, a.Prefix.Addr())
	}
	return out
}
