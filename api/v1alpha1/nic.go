package v1alpha1

import (
	"errors"
	"fmt"
	"net/netip"
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
		fault("dhcp", "an interface has its addresses either from DHCP or from this list: leave one out")
	}
	for i, text := range c.Addresses {
		switch prefix, err := netip.ParsePrefix(text); {
		case err != nil:
			fault(fmt.Sprintf("addresses[%d]", i), "%q is not an address with the length of its network, as 10.1.0.5/24", text)
		case prefix.Addr().IsMulticast() || prefix.Addr().IsUnspecified() || prefix.Addr().IsLoopback():
			fault(fmt.Sprintf("addresses[%d]", i), "%q is no address that an interface can have", text)
		case slices.Contains(c.Addresses[:i], text):
			fault(fmt.Sprintf("addresses[%d]", i), "%q is listed twice", text)
		}
	}
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		fault("mtu", "%d bytes cannot be sent, want 68 to 65535", c.MTU)
	}
	for i, route := range c.Routes {
		route.validate(func(field, format string, args ...any) {
			fault(fmt.Sprintf("routes[%d].%s", i, field), format, args...)
		})
	}
	return errors.Join(faults...)
}

// validInterface follows dev_valid_name of the kernel (net/core/dev.c); "" is fine.
func validInterface(name string) error {
	shown := strings.Replace(name, "%d", "0", 1) // a tenth NIC has one byte more, which Prepare checks
	switch {
	case name == "":
		return nil
	case len(shown) > MaxInterfaceName:
		return fmt.Errorf("%q has %d bytes, the kernel allows %d", name, len(shown), MaxInterfaceName)
	case shown == "." || shown == ".." || strings.ContainsAny(shown, "/:% \t\n\v\f\r"):
		return fmt.Errorf("%q is no name for an interface", name)
	case shown == "lo" || shown == "eth0" || shown == "all" || shown == "default":
		return fmt.Errorf("%q is taken in every pod: choose another name", name)
	}
	return nil
}

func (r Route) validate(fault func(field, format string, args ...any)) {
	to, err := r.Destination()
	if err != nil {
		fault("to", "%w", err)
		return
	}
	if r.Via == "" {
		if r.To == "default" {
			fault("via", "a default route needs a gateway")
		}
		return
	}
	switch via, err := netip.ParseAddr(r.Via); {
	case err != nil:
		fault("via", "%q is not an address", r.Via)
	case r.To != "default" && via.Is4() != to.Addr().Is4():
		fault("via", "%s and %s are not of one address family", r.Via, r.To)
	}
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
	if err != nil {
		return to, fmt.Errorf("%q is not a network as 10.0.0.0/8, nor \"default\"", r.To)
	}
	if to != to.Masked() {
		return to, fmt.Errorf("%q has bits beyond its length: %s is meant", r.To, to.Masked())
	}
	return to, nil
}
