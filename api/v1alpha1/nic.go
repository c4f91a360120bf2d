package v1alpha1

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxInterfaceName is the longest name of an interface in bytes (IFNAMSIZ less the
// final NUL, include/uapi/linux/if.h).
const MaxInterfaceName = 15

// validate returns one error per fault, each with the path of the field.
func (c *NICConfig) validate(path string) error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %w", join(path, field), fmt.Errorf(format, args...)))
	}
	if err := validInterface(c.Interface); err != nil {
		fault("interface", "%w", err)
	}
	if modes := []RDMAMode{"", RDMAExclusive, RDMAShared, RDMANone}; !slices.Contains(modes, c.RDMA) {
		fault("rdma", "%q is not known, want %s, %s or %s", c.RDMA, RDMAExclusive, RDMAShared, RDMANone)
	}
	if c.DHCP && len(c.Addresses) > 0 {
		fault("dhcp", "an interface has its addresses either by DHCP or from addresses: leave one out")
	}
	seen := map[netip.Addr]bool{}
	for i, text := range c.Addresses {
		prefix, err := validAddress(text)
		if err == nil && seen[prefix.Addr()] {
			err = fmt.Errorf("%q is listed twice", text)
		}
		if err != nil {
			fault(fmt.Sprintf("addresses[%d]", i), "%w", err)
			continue
		}
		seen[prefix.Addr()] = true
	}
	switch {
	case c.MTU == 0:
	case c.MTU < minMTU || c.MTU > maxMTU:
		fault("mtu", "%d bytes cannot be sent, want %d to %d", c.MTU, minMTU, maxMTU)
	case c.MTU < minMTU6 && c.hasIPv6():
		fault("mtu", "%d bytes are too few for IPv6, want %d or more", c.MTU, minMTU6)
	}
	routes := map[netip.Prefix]bool{}
	for i, route := range c.Routes {
		to, ok := route.validate(func(field, format string, args ...any) {
			fault(fmt.Sprintf("routes[%d].%s", i, field), format, args...)
		})
		if ok && routes[to] {
			fault(fmt.Sprintf("routes[%d].to", i), "%q is listed twice", route.To)
		}
		routes[to] = routes[to] || ok
	}
	return errors.Join(faults...)
}

// What the kernel allows: ETH_MIN_MTU, IPV6_MIN_MTU (it takes IPv6 from interfaces
// with less) and the largest IP packet.
const (
	minMTU  = 68
	minMTU6 = 1280
	maxMTU  = 65535
)

// hasIPv6 tells whether the configuration speaks of IPv6; addresses of the host are
// not known here.
func (c *NICConfig) hasIPv6() bool {
	is6 := func(text string) bool { return strings.Contains(text, ":") }
	return slices.ContainsFunc(c.Addresses, is6) ||
		slices.ContainsFunc(c.Routes, func(r Route) bool { return is6(r.To) || is6(r.Via) })
}

// interfaceName is stricter than dev_valid_name of the kernel (net/core/dev.c), which
// lets control characters and commas through: a name is also in variables and lists.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

func validInterface(name string) error {
	shown := strings.Replace(name, "%d", "0", 1) // a tenth NIC has one byte more, which Prepare checks
	switch {
	case name == "":
		return nil
	case len(shown) > MaxInterfaceName:
		return fmt.Errorf("%q has %d bytes, the kernel allows %d", name, len(shown), MaxInterfaceName)
	case shown == "." || shown == ".." || !interfaceName.MatchString(shown):
		return fmt.Errorf("%q is no name for an interface, want letters, digits, dots, dashes and underscores, and %%d once at most", name)
	case slices.Contains([]string{"lo", "eth0", "all", "default"}, shown):
		return fmt.Errorf("%q is taken in every pod: choose another name", name)
	}
	return nil
}

func validAddress(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	address := prefix.Addr()
	switch {
	case err != nil || address.Is4In6():
		return prefix, fmt.Errorf("%q is not an address with the length of its network, as 10.1.0.5/24", text)
	case !isUnicast(address):
		return prefix, fmt.Errorf("%q is no address that an interface can have", text)
	case prefix == prefix.Masked() && prefix.Bits() < address.BitLen()-1: // RFC 3021 and 6164: both addresses of a link of two count
		return prefix, fmt.Errorf("%q is the network itself, want an address in it", text)
	}
	return prefix, nil
}

func isUnicast(address netip.Addr) bool {
	return !address.IsMulticast() && !address.IsUnspecified() && !address.IsLoopback()
}

// validate returns the destination, and whether the route has no fault.
func (r Route) validate(fault func(field, format string, args ...any)) (netip.Prefix, bool) {
	to, err := r.Destination()
	if err != nil {
		fault("to", "%w", err)
		return to, false
	}
	if r.Via == "" {
		if to.Bits() == 0 {
			fault("via", "a default route needs a gateway")
			return to, false
		}
		return to, true
	}
	switch via, err := netip.ParseAddr(r.Via); {
	case err != nil || via.Zone() != "" || via.Is4In6():
		fault("via", "%q is not an address, as 10.1.0.1", r.Via)
	case !isUnicast(via):
		fault("via", "%q is no address that a gateway can have", r.Via)
	case via.Is4() != to.Addr().Is4():
		fault("via", "%q and %q are not of one address family", r.Via, r.To)
	default:
		return to, true
	}
	return to, false
}

// Destination returns the network of a route; that of "default" has the family of
// its gateway.
func (r Route) Destination() (netip.Prefix, error) {
	if r.To == "default" {
		if via, err := netip.ParseAddr(r.Via); err == nil && via.Is6() {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0), nil
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), nil
	}
	to, err := netip.ParsePrefix(r.To)
	if err != nil || to.Addr().Is4In6() {
		return to, fmt.Errorf("%q is not a network as 10.0.0.0/8, nor \"default\"", r.To)
	}
	if to != to.Masked() {
		return to, fmt.Errorf("%q has bits beyond its length: %s is meant", r.To, to.Masked())
	}
	return to, nil
}
