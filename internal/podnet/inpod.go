package podnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/pci"
)

// inPod decides how the interface is set up in the pod.
func (p *planning) inPod(r Request, record *Record) (State, error) {
	home, c := record.Home, r.Config
	s := State{Name: p.name(c.Interface, home.Name), MTU: home.MTU, Up: true, Sysctls: map[string]string{}}
	for key, value := range home.Sysctls {
		s.Sysctls[key] = value
	}
	// Several NICs may be on one segment: each answers for its own addresses only, and
	// speaks with them.
	s.Sysctls["ipv4/arp_ignore"], s.Sysctls["ipv4/arp_announce"] = "1", "2"
	if len(s.Name) > v1alpha1.MaxInterfaceName {
		return s, ConfigError{r.fault("interface", "%q has %d bytes, the kernel allows %d", s.Name, len(s.Name), v1alpha1.MaxInterfaceName)}
	}
	if c.MTU > home.MTU {
		return s, ConfigError{r.fault("mtu", "%d is more than the %d bytes of %s on the host: set the MTU there first", c.MTU, home.MTU, home.Name)}
	}
	if c.MTU > 0 {
		s.MTU = c.MTU
	}
	switch {
	case c.DHCP:
		lease, ok := p.leases[r.NIC.Address]
		if !ok {
			return s, fmt.Errorf("interface %s of NIC %s was not on the host to ask for an address by DHCP", home.Name, r.Device)
		}
		s.Addresses, s.Routes = lease.Addresses, lease.Routes
		if lease.Term > 0 {
			record.Renewal = &Renewal{Address: lease.Addresses[0].Prefix.Addr(), Term: lease.Term, Obtained: lease.Obtained}
		}
	case len(c.Addresses) > 0:
		for _, text := range c.Addresses {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return s, ConfigError{err} // has been validated
			}
			s.Addresses = append(s.Addresses, Address{Prefix: prefix})
		}
	default:
		s.Addresses, s.Routes, s.Rules = slices.Clone(home.Addresses), slices.Clone(home.Routes), slices.Clone(home.Rules)
	}
	s.Neighbors = home.Neighbors
	for i, route := range c.Routes {
		if err := s.addRoute(r, i, route); err != nil {
			return s, ConfigError{err}
		}
	}
	s.answerWhereAsked(tableOf(r.NIC.Address))
	return s, nil
}

// name returns the interface's name in the pod.
func (p *planning) name(pattern, home string) string {
	switch {
	case pattern == "" && home != "eth0": // eth0 is the pod's own
		return home
	case pattern == "":
		pattern = "nic%d"
	}
	number := p.numbered[pattern]
	p.numbered[pattern]++
	return strings.Replace(pattern, "%d", strconv.Itoa(number), 1)
}

// addRoute adds a route of the configuration. A default route serves what is sent from
// the NIC's own addresses; the pod's default route stays that of its pod network.
func (s *State) addRoute(r Request, i int, route v1alpha1.Route) error {
	to, err := route.Destination()
	if err != nil {
		return err // has been validated
	}
	out := Route{To: to, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC, Scope: unix.RT_SCOPE_LINK}
	if route.Via != "" {
		if out.Via, err = netip.ParseAddr(route.Via); err != nil {
			return err
		}
		out.Scope = unix.RT_SCOPE_UNIVERSE
		if !s.reaches(out.Via) {
			return r.fault(fmt.Sprintf("routes[%d].via", i), "%s is in no network of %s, which has %s: give it an address in the gateway's network", route.Via, s.Name, s.networks())
		}
	}
	s.Routes = append(s.Routes, out)
	return nil
}

func (s *State) reaches(via netip.Addr) bool {
	return via.Is6() && via.IsLinkLocalUnicast() ||
		slices.ContainsFunc(s.Addresses, func(a Address) bool { return a.Prefix.Contains(via) })
}

func (s *State) networks() string {
	var out []string
	for _, a := range s.Addresses {
		out = append(out, a.Prefix.String())
	}
	if len(out) == 0 {
		return "no address"
	}
	return strings.Join(out, " and ")
}

// answerWhereAsked gives the interface a routing table for what is sent from its
// addresses, so that of several NICs in one network each answers through itself.
func (s *State) answerWhereAsked(table int) {
	var own []Route
	for _, a := range s.Addresses {
		own = append(own, Route{To: a.Prefix.Masked(), Source: a.Prefix.Addr(), Table: table, Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_STATIC})
		s.Rules = append(s.Rules, Rule{Priority: rulePriority, Table: table, From: netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen()), IPv6: a.Prefix.Addr().Is6()})
	}
	var others []Route
	for _, r := range s.Routes {
		if r.Table == unix.RT_TABLE_MAIN {
			copied := r
			copied.Table = table
			own = append(own, copied)
			if r.To.Bits() == 0 {
				continue
			}
		}
		others = append(others, r)
	}
	s.Routes = slices.Concat(others, own)
}

// rulePriority of the rules for a NIC's own addresses: after "local", before "main".
const rulePriority = 1000

// tableOf is the routing table of a NIC in its pod. Its number is the PCI address, so no
// two NICs of a pod share one, whichever claims they come from.
func tableOf(a pci.Address) int {
	return 1<<30 | int(a.Domain&0x3fff)<<16 | int(a.Bus)<<8 | int(a.Device)<<3 | int(a.Function)
}

// namesDiffer refuses a claim whose NICs would have one name or one address.
func namesDiffer(requests []Request, plans []Plan) error {
	names, addresses := map[string]string{}, map[netip.Addr]string{}
	for i, p := range plans {
		if p.Parent == "" {
			continue
		}
		if other := names[p.Pod.Name]; other != "" {
			return ConfigError{requests[i].fault("interface", "%q would be the name of %s and of %s: put %%d into it", p.Pod.Name, other, p.Device)}
		}
		names[p.Pod.Name] = p.Device
		for _, a := range p.Pod.Addresses {
			if other := addresses[a.Prefix.Addr()]; other != "" {
				return ConfigError{requests[i].fault("addresses", "%s would be the address of %s and of %s: give each NIC a request and a configuration of its own", a.Prefix, other, p.Device)}
			}
			addresses[a.Prefix.Addr()] = p.Device
		}
	}
	return nil
}

func on(switched *bool) bool { return switched == nil || *switched }
