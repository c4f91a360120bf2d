package netdev

import (
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNetns runs the test in a network namespace of its own. The thread is not
// given back: it ends with the goroutine, and the namespace with it.
func inNetns(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: making a network namespace needs root")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("unshare network namespace: %v", err)
	}
}

// links gives what the tests say of links: must ends the test on an
// error, link finds one by name.
func links(t *testing.T) (must func(error), link func(string) netlink.Link) {
	must = func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link = func(name string) netlink.Link {
		t.Helper()
		l, err := netlink.LinkByName(name)
		must(err)
		return l
	}
	return must, link
}

func TestHost(t *testing.T) {
	inNetns(t)
	must, link := links(t)
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "peer0"}))
	must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	must(netlink.LinkSetMaster(link("up0"), link("br0")))
	must(netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mv0", ParentIndex: link("peer0").Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}))
	for _, name := range []string{"lo", "up0", "peer0", "br0"} {
		must(netlink.LinkSetUp(link(name)))
	}
	addr, err := netlink.ParseAddr("198.51.100.7/24")
	must(err)
	must(netlink.AddrAdd(link("br0"), addr))
	must(netlink.RouteAdd(&netlink.Route{LinkIndex: link("br0").Attrs().Index, Gw: net.ParseIP("198.51.100.1")}))

	// What sysfs said before: it knows br0 already, and one that is gone by now.
	got, err := Host([]Link{{Name: "br0", Index: 99}, {Name: "gone", Index: 98}})
	must(err)
	byName := map[string]Link{}
	for _, l := range got {
		l.Addrs = nil
		byName[l.Name] = l
	}
	want := map[string]Link{
		"br0":   {Name: "br0", Kind: "bridge", Up: true, DefaultRoute: true, MTU: 1500},
		"up0":   {Name: "up0", Kind: "veth", Up: true, Master: "br0", MTU: 1500},
		"peer0": {Name: "peer0", Kind: "veth", Up: true, MTU: 1500},
		"mv0":   {Name: "mv0", Kind: "macvlan", Parent: "peer0", MTU: 1500},
		"gone":  {Name: "gone"},
		"lo":    {Name: "lo", Up: true, MTU: 65536},
	}
	if diff := cmp.Diff(want, byName, cmpopts.IgnoreFields(Link{}, "Index", "HardwareAddr")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, l := range got {
		if l.Name == "br0" && (len(l.Addrs) == 0 || l.Addrs[0].String() != "198.51.100.7/24") {
			t.Errorf("addresses of br0: %v", l.Addrs)
		}
	}
}
