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
)

// Lease is what a DHCP server gave.
type Lease struct {
	Addresses []Address
	Routes    []Route
}

const (
	// leaseTry is how long one question waits for an answer; leaseTries bounds them.
	leaseTry   = time.Second
	leaseTries = 4
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
