// Package links gives simulated NICs network interfaces on this kernel, so that what moves
// NICs into pods has something real to move. They carry Ethernet, not RDMA.
//
// Each is one end of a veth pair whose other end is plugged into a bridge on the host. A
// veth differs from hardware in one thing: the kernel destroys it together with its
// network namespace, where it would return hardware. So it is made anew then, as hardware
// comes back: down, without addresses, under a name that the kernel makes up.
package links

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
)

const (
	// Fabric is the bridge that all interfaces of a node are plugged into.
	Fabric = "topodra-fabric"
	// MTU of the interfaces in bytes; no default of the kernel, so that a lost one shows.
	MTU = 4200
)

// NIC is one interface to make.
type NIC struct {
	Address pci.Address
	Name    string
}

// Addresses of the NIC with a number on a node: one IPv4 and one IPv6 network for all.
func Addresses(node string, number int) []netip.Prefix {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	third := byte(h.Sum32())
	v6 := netip.MustParseAddr("fd00:198:18::").As16()
	v6[14], v6[15] = third, byte(number+1)
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, third, byte(number + 1)}), 16), // RFC 2544: for benchmarks
		netip.PrefixFrom(netip.AddrFrom16(v6), 64),
	}
}

// Make makes what is missing. An interface that has the name of a NIC already and is not
// ours is an error: it may be the node's own.
func Make(node string, nics []NIC) error {
	bridge, err := fabric()
	if err != nil {
		return err
	}
	for i, n := range nics {
		if _, err := netlink.LinkByName(plug(n.Address)); err == nil {
			continue // it is there, or in a pod
		}
		if _, err := netlink.LinkByName(n.Name); err == nil {
			return fmt.Errorf("interface %s exists on this node: a simulated NIC of that name cannot have one (simulate.links=false does without)", n.Name)
		}
		if err := add(bridge, n, n.Name); err != nil {
			return err
		}
		if err := setUp(n.Name, Addresses(node, i)); err != nil {
			return err
		}
	}
	return nil
}

// Keep makes an interface anew that the kernel destroyed, until the context ends.
func Keep(ctx context.Context, nics []NIC) {
	logger := klog.FromContext(ctx)
	updates := make(chan netlink.LinkUpdate, 64)
	failed := func(err error) {
		if ctx.Err() == nil {
			logger.Error(err, "Simulated NICs are not watched any more: one that ends with a pod does not come back")
		}
	}
	if err := netlink.LinkSubscribeWithOptions(updates, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: failed}); err != nil {
		failed(err)
		return
	}
	byPlug := map[string]NIC{}
	for _, n := range nics {
		byPlug[plug(n.Address)] = n
	}
	for u := range updates {
		// The bridge announces with its own family that a port leaves it.
		if u.Header.Type != unix.RTM_DELLINK || u.Link == nil || u.IfInfomsg.Family != unix.AF_UNSPEC {
			continue
		}
		n, ours := byPlug[u.Attrs().Name]
		if !ours {
			continue
		}
		bridge, err := fabric()
		if err == nil {
			err = comeBack(bridge, n)
		}
		if err != nil {
			logger.Error(err, "A simulated NIC does not come back", "nic", n.Address)
			continue
		}
		logger.V(2).Info("A simulated NIC came back from a network namespace that ended", "nic", n.Address)
	}
}

// comeBack makes an interface that ended. The new name comes last: the kernel announces it,
// but not the alias of an interface that is down.
func comeBack(bridge netlink.Link, n NIC) error {
	name := "n" + plug(n.Address)
	if err := add(bridge, n, name); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetName(link, "dev%d")
	}
	return err
}

func fabric() (netlink.Link, error) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Fabric, MTU: MTU}}
	if err := netlink.LinkAdd(bridge); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("bridge %s for simulated NICs: %w", Fabric, err)
	}
	link, err := netlink.LinkByName(Fabric)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s for simulated NICs: %w", Fabric, err)
	}
	return link, nil
}

// plug is the name of the end on the bridge. It exists as long as the NIC does.
func plug(a pci.Address) string {
	return fmt.Sprintf("tpf%x%02x%02x%x", a.Domain, a.Bus, a.Device, a.Function)
}

// add makes an interface that is down.
func add(bridge netlink.Link, n NIC, name string) error {
	mac := net.HardwareAddr{0x02, byte(n.Address.Domain >> 8), byte(n.Address.Domain), n.Address.Bus, n.Address.Device, n.Address.Function}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: MTU, HardwareAddr: mac}, PeerName: plug(n.Address), PeerMTU: MTU}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("interface of simulated NIC %s: %w", n.Address, err)
	}
	peer, err := netlink.LinkByName(plug(n.Address))
	if err != nil {
		return fmt.Errorf("interface of simulated NIC %s: %w", n.Address, err)
	}
	link, err := netlink.LinkByIndex(peer.Attrs().ParentIndex)
	if err == nil {
		err = errors.Join(
			netlink.LinkSetMaster(peer, bridge), netlink.LinkSetUp(peer),
			netlink.LinkSetAlias(link, podnet.SimulatedAlias(n.Address.String())),
		)
	}
	if err != nil {
		return fmt.Errorf("interface of simulated NIC %s: %w", n.Address, err)
	}
	return nil
}

func setUp(name string, addresses []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	for _, p := range addresses {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		// A kernel without IPv6 has no such addresses.
		if err := netlink.AddrReplace(link, a); err != nil && !p.Addr().Is6() {
			return fmt.Errorf("address %s of %s: %w", p, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
