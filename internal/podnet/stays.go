package podnet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/rdma"
)

// notUplink looks once more at what the newest scan has ruled out: taking the uplink away
// would cut the node off.
func (p *planning) notUplink(r Request, link netlink.Link) error {
	if link == nil {
		return nil
	}
	routes, err := netdev.Whole(func() ([]netlink.Route, error) { return p.host.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("routes of the host: %w", err)
	}
	index := link.Attrs().Index
	for _, route := range routes {
		to, known := prefixOf(route.Dst)
		through := route.LinkIndex == index ||
			slices.ContainsFunc(route.MultiPath, func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == index })
		if through && (!known || to.Bits() == 0) {
			return fmt.Errorf("NIC %s is the node's uplink, the default route leaves through %s: it is never moved into a pod", r.Device, link.Attrs().Name)
		}
	}
	return nil
}

// stays says why the interface of a NIC must stay on the host, "" when it can move:
// what the kernel would break or refuse. docs/podnet.md has it as a table.
func (p *planning) stays(r Request, link netlink.Link) string {
	switch {
	case p.Simulated && link == nil && len(r.NIC.Links) > 0:
		return "the NIC is simulated and has no interface on this kernel"
	case r.Shared:
		return "the NIC is shared by several claims (nicSharing)"
	case r.NIC.RDMA != nil && r.NIC.RDMA.Address == nil && link != nil:
		return "its RDMA device is made in software, and the kernel deletes that when its interface moves"
	case len(r.NIC.Links) > 1 && r.NIC.Links[len(r.NIC.Links)-1].Stands != "":
		last := r.NIC.Links[len(r.NIC.Links)-1]
		return fmt.Sprintf("its PCI function carries the %s %s too, which would lose its way to the network", last.Stands, last.Name)
	case len(r.NIC.Links) > 1:
		return fmt.Sprintf("its PCI function has %d interfaces (%s), and they cannot be told apart in a pod", len(r.NIC.Links), interfaceNames(r.NIC))
	case link == nil:
		return ""
	}
	for _, other := range p.links {
		a := other.Attrs()
		switch {
		case a.Index == link.Attrs().MasterIndex:
			return fmt.Sprintf("its interface %s belongs to the %s %s of the host", link.Attrs().Name, other.Type(), a.Name)
		case a.ParentIndex == link.Attrs().Index && other.Type() != "veth" && a.Index != a.ParentIndex:
			return fmt.Sprintf("the %s %s of the host stands on its interface %s", other.Type(), a.Name, link.Attrs().Name)
		}
	}
	return ""
}

func interfaceNames(nic machine.NIC) string {
	var names []string
	for _, l := range nic.Links {
		names = append(names, l.Name)
	}
	return strings.Join(names, ", ")
}

// needs refuses a configuration that asks for what cannot be.
func (r Request) needs(plan Plan, moves, exclusive bool) error {
	asked := ""
	switch {
	case r.Config.Interface != "":
		asked = "interface"
	case len(r.Config.Addresses) > 0:
		asked = "addresses"
	case r.Config.DHCP:
		asked = "dhcp"
	case len(r.Config.Routes) > 0:
		asked = "routes"
	case r.Config.MTU != 0:
		asked = "mtu"
	}
	why := plan.Stays
	if why == "" {
		why = "the NIC has no network interface"
	}
	switch {
	case asked != "" && !moves && !strings.Contains(why, "simulated"):
		return r.fault(asked, "%s has no interface in the pod, because %s", r.Device, why)
	case exclusive && plan.Uses != "" && ethernetPort(r.NIC.RDMA) == 0 && r.NIC.IfName() != "":
		// ipoib gives up its interface and makes another one when the RDMA device moves.
		return r.fault("rdma", "%s is InfiniBand with the IPoIB interface %s, which the kernel makes anew when the RDMA device moves: take the interface away on the node, set 'rdma system set netns shared' there, or ask for rdma: none", r.Device, r.NIC.IfName())
	case exclusive && plan.Uses != "" && isEFA(r.NIC.RDMA):
		return r.fault("rdma", "%s is an EFA device, which the kernel cannot move: set 'rdma system set netns shared' on the node", r.Device)
	case plan.Stays != "" && exclusive && plan.Uses != "":
		return r.fault("rdma", "%s stays on the host, because %s; with the node's RDMA subsystem in exclusive mode its RDMA device would not work in a pod: set 'rdma system set netns shared' on the node, or ask for rdma: none", r.Device, why)
	}
	return nil
}

func (r Request) fault(field, format string, args ...any) error {
	text := fmt.Errorf(format, args...)
	if r.Path == "" {
		return text
	}
	return fmt.Errorf("%s.%s: %w", r.Path, field, text)
}

// isEFA tells by the link layer that no other device has.
func isEFA(d *rdma.Device) bool {
	return slices.ContainsFunc(d.Ports, func(p rdma.Port) bool { return p.LinkLayer == "Unspecified" })
}
