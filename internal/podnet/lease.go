package podnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Lease is what a DHCP server gave.
type Lease struct {
	Addresses []Address
	Routes    []Route
	Term      time.Duration // how long the address is ours; 0 for ever
	Obtained  time.Time
}

// Renewal is when a lease of a NIC in a pod is to be renewed.
type Renewal struct {
	Address  netip.Addr    `json:"address"`
	Term     time.Duration `json:"term"`
	Obtained time.Time     `json:"obtained"`
	At       time.Time     `json:"at,omitzero"` // zero while the NIC is in no pod
}

const (
	// leaseTry is how long one question waits for an answer; leaseTries bounds them.
	leaseTry   = time.Second
	leaseTries = 2
	// infinite is the lease time that never ends (RFC 2131, 3.3).
	infinite = 0xffffffff * time.Second
	// renewRetry is when a renewal that failed is tried again.
	renewRetry = 30 * time.Second
	// carrierWait bounds the wait for the link of an interface that was down.
	carrierWait = 5 * time.Second
)

// requestLease asks for an IPv4 address on the host, where the interface is during
// Prepare. An interface that was down is set up, and is so again when it comes home.
func requestLease(ctx context.Context, link netlink.Link) (Lease, error) {
	name := link.Attrs().Name
	if link.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return Lease{}, fmt.Errorf("set %s up: %w", name, err)
		}
		defer func() { _ = netlink.LinkSetDown(link) }()
		if err := waitCarrier(ctx, name); err != nil {
			return Lease{}, err
		}
	}
	client, err := nclient4.New(name, nclient4.WithTimeout(leaseTry), nclient4.WithRetry(leaseTries))
	if err != nil {
		return Lease{}, fmt.Errorf("DHCP client: %w", err)
	}
	defer client.Close()
	answer, err := client.Request(ctx)
	if err != nil {
		return Lease{}, fmt.Errorf("no DHCP server answered on %s: %w", name, err)
	}
	return leaseOf(answer.ACK)
}

func leaseOf(ack *dhcpv4.DHCPv4) (Lease, error) {
	addr := addrOf(ack.YourIPAddr)
	bits, _ := ack.SubnetMask().Size()
	if !addr.Is4() || addr.IsUnspecified() || bits == 0 {
		return Lease{}, errors.New("the DHCP server's answer has no address with a subnet mask")
	}
	lease := Lease{Addresses: []Address{{Prefix: netip.PrefixFrom(addr, bits)}}}
	if term := ack.IPAddressLeaseTime(0); term != infinite {
		lease.Term, lease.Obtained = term, time.Now()
	}
	for _, r := range ack.ClasslessStaticRoute() {
		to, ok := prefixOf(r.Dest)
		if !ok || to.Bits() == 0 {
			continue // the pod's default route stays that of its pod network
		}
		lease.Routes = append(lease.Routes, Route{To: to, Via: addrOf(r.Router), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_DHCP})
	}
	return lease, nil
}

func waitCarrier(ctx context.Context, name string) error {
	deadline := time.Now().Add(carrierWait)
	for {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if state := l.Attrs().OperState; state == netlink.OperUp || state == netlink.OperUnknown {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("interface %s has no link: check the cable and the switch port", name)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// renewLeases renews what is due and returns when to come again, the zero time for never.
func (m *Mover) renewLeases(ctx context.Context) time.Time {
	away, err := m.away()
	if err != nil {
		return time.Time{}
	}
	var next time.Time
	for _, r := range away {
		if r.Renewal == nil || r.Renewal.At.IsZero() {
			continue
		}
		at := r.Renewal.At
		if !at.After(time.Now()) {
			at = time.Now().Add(r.Renewal.Term / 2)
			if err := m.renew(ctx, r, at); err != nil {
				at = time.Now().Add(min(renewRetry, r.Renewal.Term/4))
				klog.FromContext(ctx).Error(err, "A DHCP lease could not be renewed; it is tried again", "nic", r.Address, "pod", r.where())
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// renew asks in the pod for the address that the NIC has.
func (m *Mover) renew(ctx context.Context, r *Record, next time.Time) error {
	path := m.pathOf(r)
	if path == "" {
		return errors.New("its sandbox is not known")
	}
	pod, err := podNamespace(path)
	if err != nil {
		return err
	}
	defer pod.close()
	var client *nclient4.Client
	// The client's socket is made, and stays, in the pod's namespace.
	err = pod.do(func() (err error) {
		client, err = nclient4.New(r.Interface, nclient4.WithTimeout(leaseTry), nclient4.WithRetry(leaseTries))
		return err
	})
	if err != nil {
		return fmt.Errorf("DHCP client: %w", err)
	}
	defer client.Close()
	answer, err := client.Request(ctx, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(r.Renewal.Address.AsSlice())))
	if err != nil {
		return fmt.Errorf("no DHCP server answered on %s: %w", r.Interface, err)
	}
	if got := addrOf(answer.ACK.YourIPAddr); got != r.Renewal.Address {
		return fmt.Errorf("the DHCP server has given %s to someone else, and offers %s: delete the pod", r.Renewal.Address, got)
	}
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	now, err := m.read(r.Address)
	if err != nil || now == nil || now.Inode != r.Inode {
		return err // it has left the pod meanwhile
	}
	now.Renewal.Obtained, now.Renewal.At = time.Now(), next
	return m.write(now)
}
