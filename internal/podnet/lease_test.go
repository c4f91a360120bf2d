package podnet_test

import (
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/simulate/links"
)

// serveDHCP answers on the bridge that all NICs are plugged into, and counts ACKs.
func serveDHCP(t *testing.T, term time.Duration) *atomic.Int32 {
	t.Helper()
	ip(t, "addr", "add", "10.50.0.1/24", "dev", links.Fabric)
	acks := &atomic.Int32{}
	server, err := server4.NewServer(links.Fabric, &net.UDPAddr{Port: dhcpv4.ServerPort}, func(conn net.PacketConn, _ net.Addr, m *dhcpv4.DHCPv4) {
		kind := dhcpv4.MessageTypeOffer
		if m.MessageType() == dhcpv4.MessageTypeRequest {
			kind = dhcpv4.MessageTypeAck
			acks.Add(1)
		}
		answer, err := dhcpv4.NewReplyFromRequest(m,
			dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(net.IPv4(10, 50, 0, 77)), dhcpv4.WithServerIP(net.IPv4(10, 50, 0, 1)),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 50, 0, 1))), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
			dhcpv4.WithLeaseTime(uint32(term/time.Second)), dhcpv4.WithRouter(net.IPv4(10, 50, 0, 1)))
		if err == nil {
			_, err = conn.WriteTo(answer.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort})
		}
		if err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve() }()
	return acks
}

// TestDHCP: the pod has the address that the server gave, and keeps it beyond its term.
func TestDHCP(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	before := []*podnet.State{h.home(h.nics[0])}
	acks := serveDHCP(t, 2*time.Second)
	plans, err := h.mover.Plan(ctx, claim("claim"), []podnet.Request{request(h.nics[0], v1alpha1.NICConfig{DHCP: true})})
	if err != nil {
		t.Fatal(err)
	}
	go h.mover.Run(ctx)
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{{Claim: claim("claim"), Plans: plans}}); err != nil {
		t.Fatal(err)
	}
	if in := h.in(pod, h.nics[0]); len(in.Addresses) != 1 || in.Addresses[0].Prefix.String() != "10.50.0.77/24" {
		t.Errorf("in the pod: %+v", in)
	}
	eventually(t, func() string {
		if acks.Load() < 3 { // one in Prepare, two renewals
			return "the lease is not renewed"
		}
		return ""
	})
	if err := errors.Join(h.mover.Detach(ctx, pod), h.mover.Release(ctx, claim("claim").UID)); err != nil {
		t.Fatal(err)
	}
	h.allHome(before)
}

// TestNoDHCPServer: the sentence names the interface.
func TestNoDHCPServer(t *testing.T) {
	h := newHost(t, 1)
	_, err := h.mover.Plan(t.Context(), claim("claim"), []podnet.Request{request(h.nics[0], v1alpha1.NICConfig{DHCP: true})})
	if err == nil || !strings.Contains(err.Error(), "config.dhcp: no address for fabric0: no DHCP server answered on fabric0") {
		t.Errorf("got %v", err)
	}
}
