// Package podnet moves NICs into the network namespaces of pods and brings them home. It
// plans in Prepare, executes when the container runtime starts or stops a sandbox (NRI), and
// finds NICs again by their parent device wherever they are. docs/podnet.md tells what
// moves.
package podnet

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	if p.links, err = netdev.Whole(p.host.LinkList); err != nil {
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

func linkOf(nic machine.NIC) *netdev.Link {
	if len(nic.Links) == 0 {
		return nil
	}
	return &nic.Links[0]
}

func ethernetPort(d *rdma.Device) int {
	for _, p := range d.Ports {
		if p.LinkLayer == "Ethernet" {
			return p.Number
		}
	}
	return 0
}
