// Package podnet moves NICs into the network namespaces of pods and brings them home. It
// plans in Prepare, executes when the container runtime starts or stops a sandbox (NRI), and
// finds NICs again by their parent device wherever they are. docs/podnet.md tells what
// moves.
package podnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// Plan is what Prepare decided about one NIC of a claim. It is part of the claims'
// journal; when a sandbox starts nothing is looked up any more.
type Plan struct {
	Device  string      `json:"device"` // as published; a part of a pair has its own name
	Address pci.Address `json:"address"`

	// Parent is the interface that moves, see ParentOf; "" when none does.
	Parent string `json:"parent,omitempty"`
	// Pod is how the interface is set up in the pod.
	Pod          State  `json:"pod,omitzero"`
	HardwareAddr string `json:"hardwareAddr,omitempty"`

	// RDMA is the RDMA device that moves; "" when none does.
	RDMA     string `json:"rdma,omitempty"`
	RDMAGUID string `json:"rdmaGUID,omitempty"`

	// Uses is the RDMA device that containers get, moved or not; "" for none.
	Uses   string `json:"uses,omitempty"`
	Uverbs string `json:"uverbs,omitempty"` // its character device below /dev/infiniband
	Port   int    `json:"port,omitempty"`   // its first Ethernet port, 0 for none
	// GIDIndex says that containers want the index of a RoCEv2 GID.
	GIDIndex bool `json:"gidIndex,omitempty"`

	// Stays says why the interface stays on the host; "" when it moves or there is none.
	Stays string `json:"stays,omitempty"`
}

// Moves tells whether anything of the NIC goes into the pod's network namespace.
func (p Plan) Moves() bool { return p.Parent != "" || p.RDMA != "" }

// Request is a NIC that a claim asks for.
type Request struct {
	Device string // as published
	NIC    machine.NIC
	Config v1alpha1.NICConfig
	Path   string // of the configuration in the claim, for errors; "" without one
	Shared bool   // other claims may have the NIC at the same time
}

// AwayError says that a NIC is not home yet. It goes away by itself.
type AwayError struct {
	Device, Pod string
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("NIC %s is still on its way back from pod %s: its network namespace has not ended, see that no process or mount holds it", e.Device, e.Pod)
}

// ConfigError is a fault of the user's configuration. Trying again does not help.
type ConfigError struct{ Fault error }

func (e ConfigError) Error() string { return e.Fault.Error() }
func (e ConfigError) Unwrap() error { return e.Fault }

// Plan decides how NICs get into the pods of a claim, and writes down where they are at
// home. It changes no interface. An *AwayError or a netlink error may go away by
// itself, a ConfigError does not.
func (m *Mover) Plan(ctx context.Context, claim Claim, requests []Request) ([]Plan, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	host, err := hostNamespace()
	if err != nil {
		return nil, err
	}
	defer host.close()
	p := planning{Mover: m, host: host, claim: claim, numbered: map[string]int{}, leases: map[pci.Address]Lease{}}
	if p.exclusive, err = exclusive(host); err != nil {
		return nil, err
	}
	// A DHCP server takes its time, and sandboxes must not wait for the lock meanwhile.
	if err := p.lease(ctx, requests); err != nil {
		return nil, err
	}
	plans, err := p.all(requests)
	if err == nil {
		err = namesDiffer(requests, plans)
	}
	if err == nil && m.Ready != nil && slices.ContainsFunc(plans, Plan.Moves) {
		err = m.Ready()
	}
	return plans, err
}

func (p *planning) all(requests []Request) ([]Plan, error) {
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.look(); err != nil {
		return nil, err
	}
	plans := make([]Plan, len(requests))
	for i, r := range requests {
		if plans[i], err = p.plan(r); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

func (p *planning) look() (err error) {
	if p.links, err = whole(p.host.LinkList); err != nil {
		return fmt.Errorf("list interfaces of the host: %w", err)
	}
	return nil
}

// lease asks for the addresses of NICs that are on the host and want them by DHCP.
func (p *planning) lease(ctx context.Context, requests []Request) error {
	for _, r := range requests {
		if !r.Config.DHCP {
			continue
		}
		if err := p.look(); err != nil {
			return err
		}
		link := p.link(r.NIC)
		if link == nil || p.stays(r, link) != "" {
			continue // what is wrong is said later
		}
		lease, err := p.Lease(ctx, link)
		if err != nil {
			return r.fault("dhcp", "no address for %s: %w", link.Attrs().Name, err)
		}
		p.leases[r.NIC.Address] = lease
	}
	return nil
}

// RDMANetnsMode returns the mode of the node's RDMA subsystem, "shared" or "exclusive".
func RDMANetnsMode() (string, error) { return netlink.RdmaSystemGetNetnsMode() }

// exclusive tells whether RDMA devices belong to network namespaces, as interfaces do.
func exclusive(host *namespace) (bool, error) {
	mode, err := host.RdmaSystemGetNetnsMode()
	switch {
	case err == nil:
		return mode == "exclusive", nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ECONNREFUSED):
		return false, nil // no RDMA in this kernel, or one older than 5.2
	case host.SupportsNetlinkFamily(unix.NETLINK_RDMA):
		return false, fmt.Errorf("mode of the RDMA subsystem: %w", err)
	}
	return false, nil
}

// planning is one call of Plan.
type planning struct {
	*Mover
	host      *namespace
	links     []netlink.Link
	claim     Claim
	exclusive bool
	numbered  map[string]int // NICs per pattern of names
	leases    map[pci.Address]Lease
}

func (p *planning) plan(r Request) (Plan, error) {
	plan := Plan{Device: r.Device, Address: r.NIC.Address}
	if r.NIC.RDMA != nil && r.Config.RDMA != v1alpha1.RDMANone {
		plan.Uses, plan.Uverbs = r.NIC.RDMA.Name, r.NIC.RDMA.Uverbs
		plan.GIDIndex = on(r.Config.Environment.GIDIndex)
		if !p.Simulated { // which has no GIDs
			plan.Port = ethernetPort(r.NIC.RDMA)
		}
	}
	record, err := p.record(r)
	if err != nil {
		return plan, err
	}
	link := p.link(r.NIC)
	if link == nil && record == nil && len(r.NIC.Links) > 0 && !p.Simulated {
		return plan, fmt.Errorf("interface %s of NIC %s is not on the host: is its driver being reloaded?", r.NIC.IfName(), r.Device)
	}
	if err := p.notUplink(r, link); err != nil {
		return plan, err
	}
	plan.Stays = p.stays(r, link)
	moves := (link != nil || record != nil && record.Parent != "") && plan.Stays == ""
	if err := r.needs(plan, moves, p.exclusive); err != nil {
		return plan, ConfigError{err}
	}
	if record == nil {
		record = &Record{Address: r.NIC.Address, Device: r.NIC.RDMA, Claim: p.claim}
		if moves {
			if record.Home, err = p.host.capture(link); err != nil {
				return plan, err
			}
			record.Parent = ParentOf(link)
			record.HardwareAddr = link.Attrs().HardwareAddr.String()
			record.Link = linkOf(r.NIC)
		}
	}
	if moves {
		plan.Parent, plan.HardwareAddr = record.Parent, record.HardwareAddr
		if plan.Pod, err = p.inPod(r, record); err != nil {
			return plan, err
		}
	}
	if plan.Uses != "" && p.exclusive && r.NIC.RDMA.Address != nil {
		plan.RDMA = plan.Uses
		if record.RDMAGUID == "" {
			device, err := p.host.rdma(plan.RDMA, "")
			if err != nil {
				return plan, err
			}
			if device == nil {
				return plan, fmt.Errorf("RDMA device %s of NIC %s is not on the host: is its driver being reloaded?", plan.RDMA, r.Device)
			}
			record.RDMAGUID = device.Attrs.NodeGuid
		}
		record.RDMA, plan.RDMAGUID = plan.RDMA, record.RDMAGUID
	}
	if !plan.Moves() {
		return plan, nil
	}
	return plan, p.write(record)
}

// record returns the record of a NIC that the claim has already, nil for a NIC that
// nobody has. A NIC that is on its way back from another claim is an *AwayError.
func (p *planning) record(r Request) (*Record, error) {
	record, err := p.read(r.NIC.Address)
	if err != nil || record == nil || record.BootID != p.BootID {
		return nil, err
	}
	if record.Claim.UID == p.claim.UID && !record.Released {
		return record, nil
	}
	away := record.Away
	home, err := p.home(p.host, record)
	switch {
	case err != nil:
		return nil, err
	case !home:
		return nil, &AwayError{r.Device, record.where()}
	case away:
		return nil, p.look() // it has just been restored
	}
	return nil, nil
}

// link returns the interface of a NIC on the host, nil for none.
func (p *planning) link(nic machine.NIC) netlink.Link {
	for _, l := range p.links {
		switch {
		case ParentOf(l) == SimulatedAlias(nic.Address.String()) && p.Simulated:
			return l
		case l.Attrs().Name == nic.IfName() && ParentOf(l) != "" && !p.Simulated:
			return l
		}
	}
	return nil
}

// notUplink looks once more at what the newest scan has ruled out: taking the uplink away
// would cut the node off.
func (p *planning) notUplink(r Request, link netlink.Link) error {
	if link == nil {
		return nil
	}
	routes, err := whole(func() ([]netlink.Route, error) { return p.host.RouteList(nil, netlink.FAMILY_ALL) })
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

func linkOf(nic machine.NIC) *netdev.Link {
	if len(nic.Links) == 0 {
		return nil
	}
	return &nic.Links[0]
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

// isEFA tells by the link layer that no other device has.
func isEFA(d *rdma.Device) bool {
	return slices.ContainsFunc(d.Ports, func(p rdma.Port) bool { return p.LinkLayer == "Unspecified" })
}

func ethernetPort(d *rdma.Device) int {
	for _, p := range d.Ports {
		if p.LinkLayer == "Ethernet" {
			return p.Number
		}
	}
	return 0
}

func on(switched *bool) bool { return switched == nil || *switched }
