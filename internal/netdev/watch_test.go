package netdev

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A new default route, an address and a new master are noticed; what pods' own
// interfaces do is not.
func TestWatch(t *testing.T) {
	inNetns(t)
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ns)
	ctx, cancel := context.WithCancel(t.Context())
	var count atomic.Int32
	ready, done := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // sockets belong to the namespace of the thread that opens them
		err := unix.Setns(ns, unix.CLONE_NEWNET)
		ready <- err
		if err == nil {
			err = Watch(ctx, func() { count.Add(1) })
		}
		done <- err
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	must, link := links(t)
	// until repeats a change until it is noticed: the watch may just have begun.
	until := func(what string, do, undo func()) {
		t.Helper()
		for start := time.Now(); ; {
			before := count.Load()
			do()
			time.Sleep(50 * time.Millisecond)
			if count.Load() > before {
				return
			}
			select {
			case err := <-done:
				t.Fatalf("the watch ended before %s was noticed: %v", what, err)
			default:
			}
			if time.Since(start) > 30*time.Second {
				t.Fatalf("%s is not noticed", what)
			}
			undo()
		}
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	until("an interface", func() { must(netlink.LinkAdd(bridge)) }, func() { must(netlink.LinkDel(link("br0"))) })
	must(netlink.LinkSetUp(link("br0")))
	addr, err := netlink.ParseAddr("198.51.100.7/24")
	must(err)
	until("an address", func() { must(netlink.AddrAdd(link("br0"), addr)) }, func() { must(netlink.AddrDel(link("br0"), addr)) })
	route := &netlink.Route{LinkIndex: link("br0").Attrs().Index, Gw: net.ParseIP("198.51.100.1")}
	until("a default route", func() { must(netlink.RouteAdd(route)) }, func() { must(netlink.RouteDel(route)) })

	time.Sleep(200 * time.Millisecond)
	before := count.Load()
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod0"}, PeerName: "pod1"}))
	must(netlink.LinkSetUp(link("pod0")))
	must(netlink.LinkDel(link("pod0")))
	time.Sleep(200 * time.Millisecond)
	if got := count.Load(); got != before {
		t.Errorf("a pod's interface was noticed %d times", got-before)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch ended with %v", err)
	}
}
