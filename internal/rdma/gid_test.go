package rdma

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/topodra/topodra/internal/sysfs"
)

var compareAddrs = cmpopts.EquateComparable(netip.Addr{})

func TestGIDs(t *testing.T) {
	const port = "class/infiniband/mlx5_0/ports/1/"
	file := func(text string) sysfs.Node { return sysfs.Node{Data: []byte(text + "\n")} }
	const zero = "0000:0000:0000:0000:0000:0000:0000:0000"
	nodes := map[string]sysfs.Node{
		port + "gids/0":             file("fe80:0000:0000:0000:a288:c2ff:feab:cdef"),
		port + "gid_attrs/types/0":  file("IB/RoCE v1"),
		port + "gid_attrs/ndevs/0":  file("eth1"),
		port + "gids/1":             file(zero), // the kernel answers EINVAL for its attributes
		port + "gids/2":             file("0000:0000:0000:0000:0000:ffff:0a09:0001"),
		port + "gid_attrs/types/2":  file("RoCE v2"),
		port + "gids/10":            file("fd00:0000:0000:0000:0000:0000:0000:0001"),
		port + "gid_attrs/types/10": file("RoCE v2"),
		port + "gid_attrs/ndevs/10": file("eth1.7"),
	}
	want := []GID{
		{Index: 0, Address: netip.MustParseAddr("fe80::a288:c2ff:feab:cdef"), Type: "IB/RoCE v1", Netdev: "eth1"},
		{Index: 2, Address: netip.MustParseAddr("::ffff:10.9.0.1"), Type: RoCEv2},
		{Index: 10, Address: netip.MustParseAddr("fd00::1"), Type: RoCEv2, Netdev: "eth1.7"},
	}
	got, err := GIDs(sysfs.Memory(nodes), "mlx5_0", 1)
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	nodes[port+"gids/3"] = file("nonsense")
	got, err = GIDs(sysfs.Memory(nodes), "mlx5_0", 1)
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" || err == nil {
		t.Errorf("an entry that is no GID: %v (-want +got):\n%s", err, diff)
	}
	if got, err := GIDs(sysfs.Memory(nodes), "mlx5_0", 2); err == nil {
		t.Errorf("a port without a table has %v", got)
	}
}

func TestBestRoCEv2(t *testing.T) {
	gid := func(index int, addr, kind, netdev string) GID {
		return GID{Index: index, Address: netip.MustParseAddr(addr), Type: kind, Netdev: netdev}
	}
	const v1 = "IB/RoCE v1"
	// as mlx5 fills its table: each address twice, the default GIDs first
	full := []GID{
		gid(0, "fe80::1", v1, "eth1"), gid(1, "fe80::1", RoCEv2, "eth1"),
		gid(2, "fd00::1", v1, "eth1"), gid(3, "fd00::1", RoCEv2, "eth1"),
		gid(4, "::ffff:10.9.0.1", v1, "eth1"), gid(5, "::ffff:10.9.0.1", RoCEv2, "eth1"),
		gid(6, "::ffff:10.9.0.2", RoCEv2, "eth1"), gid(7, "::ffff:10.1.0.1", RoCEv2, "eth1.7"),
	}
	for name, test := range map[string]struct {
		gids  []GID
		addrs []string
		want  int // -1: none
	}{
		"none":                               {want: -1},
		"RoCE v1 alone":                      {gids: full[:1], want: -1},
		"link-local alone":                   {gids: full[:2], want: 1},
		"global IPv6 before link-local":      {gids: full[:4], want: 3},
		"IPv4 before IPv6":                   {gids: full, want: 5},
		"the interface's own IPv4":           {gids: full, addrs: []string{"fe80::1%eth1", "10.9.0.2"}, want: 6},
		"an own address before a foreign":    {gids: full, addrs: []string{"fd00::1"}, want: 3},
		"no address that has a GID":          {gids: full, addrs: []string{"10.8.0.1"}, want: 5},
		"another interface's":                {gids: full[7:], want: -1},
		"an interface that nobody tells":     {gids: []GID{gid(3, "::ffff:10.9.0.1", RoCEv2, "")}, want: 3},
		"an address that is IPv4 in IPv6":    {gids: full, addrs: []string{"::ffff:10.9.0.2"}, want: 6},
		"IPv6 and IPv4 of the interface":     {gids: full, addrs: []string{"fd00::1", "10.9.0.1"}, want: 5},
		"link-local and global of interface": {gids: full[:4], addrs: []string{"fe80::1", "fd00::1"}, want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			var addrs []netip.Addr
			for _, text := range test.addrs {
				addrs = append(addrs, netip.MustParseAddr(text))
			}
			got, ok := BestRoCEv2(test.gids, "eth1", addrs)
			if !ok {
				got = -1
			}
			if got != test.want {
				t.Errorf("index %d, want %d", got, test.want)
			}
		})
	}
}
