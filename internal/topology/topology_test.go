package topology

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// builder makes snapshots by hand: one line per function.
type builder struct{ machine.Snapshot }

func newBuilder() *builder {
	return &builder{machine.Snapshot{PCI: &pci.Tree{Functions: map[pci.Address]*pci.Function{}}}}
}

// function places a function at "pci0000:10/0000:10:01.0/.../0000:15:00.0".
func (b *builder) function(path string, numa int) *pci.Function {
	elements := strings.Split(path, "/")
	fn := &pci.Function{Root: elements[0], NUMANode: numa, Address: pci.MustParseAddress(elements[len(elements)-1])}
	for _, e := range elements[1 : len(elements)-1] {
		fn.Bridges = append(fn.Bridges, pci.MustParseAddress(e))
	}
	b.PCI.Functions[fn.Address] = fn
	return fn
}

func (b *builder) gpu(path string, numa int) pci.Address {
	fn := b.function(path, numa)
	fn.Class, fn.Vendor = 0x030200, pci.VendorNVIDIA
	b.GPUs = append(b.GPUs, gpu.GPU{Address: fn.Address, UUID: "GPU-" + fn.Address.String()})
	return fn.Address
}

func (b *builder) nic(path string, numa int) *machine.NIC {
	fn := b.function(path, numa)
	fn.Class, fn.Vendor = 0x020000, pci.VendorMellanox
	name := "eth" + strings.NewReplacer(":", "", ".", "").Replace(fn.Address.String())
	addr := fn.Address
	link := netdev.Link{Name: name, Address: &addr}
	b.Links = append(b.Links, link)
	b.NICs = append(b.NICs, machine.NIC{
		Address: addr,
		Links:   []netdev.Link{link},
		RDMA:    &rdma.Device{Name: "mlx5_" + fn.Address.DNSLabel(), Address: &addr},
	})
	return &b.NICs[len(b.NICs)-1]
}

// setLinks gives a NIC and the list of links the same interfaces.
func (b *builder) setLinks(n *machine.NIC, links ...netdev.Link) {
	b.Links = slices.DeleteFunc(b.Links, func(l netdev.Link) bool { return l.Address != nil && *l.Address == n.Address })
	n.Links = nil
	for _, l := range links {
		l.Address = &n.Address
		n.Links = append(n.Links, l)
		b.Links = append(b.Links, l)
	}
}

func at(s string) pci.Address { return pci.MustParseAddress(s) }

func TestDistance(t *testing.T) {
	b := newBuilder()
	const sw = "pci0000:10/0000:10:01.0/0000:11:00.0"
	b.gpu(sw+"/0000:12:00.0/0000:13:00.0", 0)
	b.nic(sw+"/0000:12:01.0/0000:14:00.0", 0)                           // next port of the same switch
	b.nic(sw+"/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0", 0) // behind a second switch
	b.nic("pci0000:10/0000:10:02.0/0000:18:00.0", 0)                    // another root port
	b.nic("pci0000:30/0000:30:01.0/0000:31:00.0", 0)                    // another host bridge of the node
	b.nic("pci0000:80/0000:80:01.0/0000:81:00.0", 1)                    // another NUMA node
	b.nic("pci0000:a0/0000:a0:01.0/0000:a1:00.0", -1)                   // firmware does not tell
	b.function("pci0000:10/0000:10:03.0", 0)                            // on the root bus
	topo := Compute(&b.Snapshot, Config{})
	for other, want := range map[string]Class{
		"0000:14:00.0": PIX, "0000:17:00.0": PXB, "0000:18:00.0": PHB, "0000:31:00.0": NODE,
		"0000:81:00.0": SYS, "0000:a1:00.0": Unknown, "0000:10:03.0": PHB, "0000:ff:00.0": Unknown,
	} {
		if got := topo.Distance(at("0000:13:00.0"), at(other)); got != want {
			t.Errorf("to %s: %v, want %v", other, got, want)
		}
	}
}

// What nobody published must not become a guess.
func TestUnknownParts(t *testing.T) {
	b := newBuilder()
	b.gpu("pci0000:10/0000:10:01.0/0000:11:00.0", 0)
	b.nic("pci0000:10/0000:10:01.0/0000:12:00.0", 0)
	b.nic("pci0000:10/0000:fe:00.0/0000:13:00.0", 0) // fe stands for any number of bridges
	b.nic("pci0000:fd/0000:fd:01.0/0000:14:00.0", 0) // fd is a made-up root of the same domain
	b.nic("pci0000:fd/0000:fd:01.0/0000:15:00.0", 1)
	b.nic("pci0001:fc/0001:fc:01.0/0001:16:00.0", 0) // a made-up root of another domain is another root
	b.PCI.Unknown = &pci.Unknown{
		Bridges: map[pci.Address]bool{at("0000:fe:00.0"): true},
		Roots:   map[string]bool{"pci0000:fd": true, "pci0001:fc": true},
	}
	topo := Compute(&b.Snapshot, Config{})
	for other, want := range map[string]Class{
		"0000:12:00.0": PIX, "0000:13:00.0": Unknown, "0000:14:00.0": Unknown, "0000:15:00.0": SYS, "0001:16:00.0": NODE,
	} {
		if got := topo.Distance(at("0000:11:00.0"), at(other)); got != want {
			t.Errorf("to %s: %v, want %v", other, got, want)
		}
	}
	// 13 may be as near as 12, so the nearest set is not known either.
	g, _ := topo.GPU(at("0000:11:00.0"))
	if g.Nearest != Unknown || g.NearestNICs != nil || g.Group != "" {
		t.Errorf("nearest %v %v in group %q, want unknown", g.Nearest, g.NearestNICs, g.Group)
	}
}

func TestGroupsAndPairs(t *testing.T) {
	b := newBuilder()
	// one NIC for two GPUs: PIX for one, PXB for the other
	b.gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", 0)
	b.gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:15:00.0/0000:16:00.0/0000:17:00.0", 0)
	b.nic("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:14:00.0", 0)
	// four NICs for two GPUs below one root port
	b.gpu("pci0000:20/0000:20:01.0/0000:21:00.0", 0)
	b.gpu("pci0000:20/0000:20:01.0/0000:22:00.0", 0)
	for _, bus := range []string{"23", "24", "25", "26"} {
		b.nic("pci0000:20/0000:20:01.0/0000:"+bus+":00.0", 0)
	}
	// no NIC on this host bridge: the nearest is on the next of the NUMA node
	b.gpu("pci0000:80/0000:80:01.0/0000:81:00.0", 1)
	b.nic("pci0000:90/0000:90:01.0/0000:91:00.0", 1)
	// a GPU without any near NIC would be SYS to all of them
	topo := Compute(&b.Snapshot, Config{})

	type row struct {
		Group   string
		Nearest Class
		Pair    []string
	}
	got := map[string]row{}
	for _, g := range topo.GPUs {
		r := row{Group: g.Group, Nearest: g.Nearest}
		for _, n := range g.Pair {
			r.Pair = append(r.Pair, n.String())
		}
		got[g.Address.String()] = r
	}
	want := map[string]row{
		"0000:13:00.0": {"pcie-0000-11-00-0", PIX, []string{"0000:14:00.0"}},
		"0000:17:00.0": {"pcie-0000-11-00-0", PXB, []string{"0000:14:00.0"}},
		"0000:21:00.0": {"pcie-0000-20-01-0", PIX, []string{"0000:23:00.0", "0000:24:00.0"}},
		"0000:22:00.0": {"pcie-0000-20-01-0", PIX, []string{"0000:25:00.0", "0000:26:00.0"}},
		"0000:81:00.0": {"numa-1", NODE, []string{"0000:91:00.0"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The second GPU can have one card only; the first must leave it that one.
func TestPairsMakeWay(t *testing.T) {
	m := matching{wants: [][]pci.Address{{at("0000:01:00.0"), at("0000:02:00.0")}, {at("0000:01:00.0")}}}
	owned, all := m.solve(1, 1)
	if !all || owned[0][0] != at("0000:02:00.0") || owned[1][0] != at("0000:01:00.0") {
		t.Errorf("owned %v, all %v", owned, all)
	}
}

func TestDataDirect(t *testing.T) {
	b := newBuilder()
	b.gpu("pci0009:00/0009:00:00.0/0009:01:00.0/0009:02:01.0/0009:06:00.0", 0)
	dma := b.function("pci0009:00/0009:00:00.0/0009:01:00.0/0009:02:00.0/0009:03:00.0", 0)
	dma.Vendor, dma.Device, dma.VPD = pci.VendorMellanox, 0x2100, pci.VPD{"V3": "board"}
	n := b.nic("pci0000:00/0000:00:00.0/0000:03:00.0", 0)
	b.PCI.Functions[n.Address].VPD = pci.VPD{"V3": "board"}
	other := b.nic("pci0002:00/0002:00:00.0/0002:03:00.0", 0).Address
	topo := Compute(&b.Snapshot, Config{})
	g, _ := topo.GPU(at("0009:06:00.0"))
	if g.Nearest != PIX || len(g.NearestNICs) != 1 || g.NearestNICs[0] != at("0000:03:00.0") {
		t.Errorf("nearest %v %v, want the NIC of the DMA function", g.Nearest, g.NearestNICs)
	}
	if got := topo.Distance(g.Address, other); got != NODE {
		t.Errorf("the other NIC is %v, want NODE", got)
	}
}

func TestFileCorrectsTheTree(t *testing.T) {
	b := newBuilder()
	for i := range 2 { // every function alone in its domain, as on Azure
		b.gpu(fmt.Sprintf("pci000%d:00/000%d:00:00.0", i+1, i+1), 0)
		b.nic(fmt.Sprintf("pci010%d:00/010%d:00:00.0", i+1, i+1), 0)
	}
	plain := Compute(&b.Snapshot, Config{})
	if g, _ := plain.GPU(at("0001:00:00.0")); g.Nearest != NODE || len(g.NearestNICs) != 2 || g.Group != "numa-0" {
		t.Errorf("without a file: %+v, want both NICs at NODE", g)
	}
	file := map[pci.Address]FilePlace{}
	for i := range 2 {
		bridge := []pci.Address{{Domain: 0xffff, Bus: 0xff, Device: uint8(i + 1)}}
		file[at(fmt.Sprintf("000%d:00:00.0", i+1))] = FilePlace{Bridges: bridge}
		file[at(fmt.Sprintf("010%d:00:00.0", 2-i))] = FilePlace{Bridges: bridge} // crosswise
	}
	topo := Compute(&b.Snapshot, Config{File: file})
	g, _ := topo.GPU(at("0001:00:00.0"))
	if g.Nearest != PIX || len(g.NearestNICs) != 1 || g.NearestNICs[0] != at("0102:00:00.0") || g.Group != "pcie-ffff-ff-01-0" {
		t.Errorf("with a file: %+v, want 0102:00:00.0 at PIX", g)
	}
}

func TestExclusions(t *testing.T) {
	b := newBuilder()
	path := func(bus string) string { return "pci0000:00/0000:00:01.0/0000:" + bus + ":00.0" }
	bond := b.nic(path("01"), 0)
	b.setLinks(bond, netdev.Link{Name: "eno1", Master: "bond0"})
	other := b.nic(path("02"), 0)
	b.setLinks(other, netdev.Link{Name: "eno2", Master: "bond0"})
	b.Links = append(b.Links,
		netdev.Link{Name: "bond0", Kind: "bond"},
		netdev.Link{Name: "bond0.100", Kind: "vlan", Parent: "bond0", DefaultRoute: true})
	mng := b.nic(path("03"), 0)
	b.PCI.Functions[mng.Address].VPD = pci.VPD{"V0": "x SW_MNG y"}
	bare := b.nic(path("04"), 0)
	b.setLinks(bare)
	bare.RDMA = nil
	storage := b.nic(path("05"), 0)
	b.nic(path("06"), 0)
	pf := b.nic(path("07"), 0).Address
	b.setLinks(&b.NICs[len(b.NICs)-1], netdev.Link{Name: "eno7", DefaultRoute: true})
	vf := b.nic("pci0000:00/0000:00:01.0/0000:07:00.1", 0).Address
	b.PCI.Functions[pf].VFs, b.PCI.Functions[vf].PhysFn = []pci.Address{vf}, &pf
	ethernet := b.nic(path("08"), 0)
	ethernet.RDMA = nil

	topo := Compute(&b.Snapshot, Config{Excluded: map[pci.Address]string{storage.Address: "role: storage"}})
	got := map[string]string{}
	fabric := map[string]bool{}
	for _, n := range topo.NICs {
		got[n.Address.String()] = n.Reason
		if n.Fabric {
			fabric[n.Address.String()] = true
		}
	}
	want := map[string]string{
		"0000:01:00.0": "uplink: eno1 belongs to bond0.100, which carries the default route",
		"0000:02:00.0": "uplink: eno2 belongs to bond0.100, which carries the default route",
		"0000:03:00.0": "NVLink management: its VPD says SW_MNG",
		"0000:04:00.0": "no network interface and no RDMA device: is its driver loaded?",
		"0000:05:00.0": "role: storage",
		"0000:06:00.0": "",
		"0000:07:00.0": "uplink: the default route leaves through eno7",
		"0000:07:00.1": "uplink: its physical function 0000:07:00.0 carries the default route",
		"0000:08:00.0": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"0000:06:00.0": true}, fabric); diff != "" {
		t.Errorf("fabric (-want +got):\n%s", diff)
	}
}

// Where nobody can tell the uplink, no interface may be taken away.
func TestUplinkUnknown(t *testing.T) {
	b := newBuilder()
	b.nic("pci0000:00/0000:00:05.0", 0)
	b.UplinkUnknown = true
	topo := Compute(&b.Snapshot, Config{})
	if topo.NICs[0].Published || !strings.Contains(topo.NICs[0].Reason, "could be the uplink") {
		t.Errorf("%+v", topo.NICs[0])
	}
}

func TestSoftwareRDMA(t *testing.T) {
	b := newBuilder()
	n := b.nic("pci0000:00/0000:00:05.0", 0)
	n.RDMA = nil
	b.SoftwareRDMA = []rdma.Device{{Name: "rxe0", Netdev: n.IfName()}}
	for _, allow := range []bool{false, true} {
		topo := Compute(&b.Snapshot, Config{AllowSoftwareRDMA: allow})
		if topo.NICs[0].Fabric != allow || topo.NICs[0].Software != allow || (topo.NICs[0].RDMA != nil) != allow {
			t.Errorf("allowed %v: %+v", allow, topo.NICs[0])
		}
	}
}

func TestCards(t *testing.T) {
	b := newBuilder()
	guid := func(n *machine.NIC, g string) { n.RDMA.SysImageGUID = g }
	b.nic("pci0000:00/0000:00:01.0/0000:01:00.0", 0)
	b.nic("pci0000:00/0000:00:01.0/0000:01:00.1", 0)              // second port
	guid(b.nic("pci0000:00/0000:00:02.0/0000:02:00.0", 0), "a:1") // attached to two sockets
	guid(b.nic("pci0001:00/0001:00:02.0/0001:02:00.0", 1), "a:1")
	guid(b.nic("pci0000:00/0000:00:03.0/0000:03:00.0", 0), "0000:0000:0000:0000") // EFA
	guid(b.nic("pci0000:00/0000:00:03.0/0000:04:00.0", 0), "0000:0000:0000:0000")
	pf := b.nic("pci0000:00/0000:00:05.0/0000:05:00.0", 0).Address
	vf := b.nic("pci0000:00/0000:00:05.0/0000:05:01.2", 0).Address
	b.PCI.Functions[vf].PhysFn = &pf
	topo := Compute(&b.Snapshot, Config{})
	got := map[string]string{}
	for _, n := range topo.NICs {
		got[n.Address.String()] = n.Card.String()
	}
	want := map[string]string{
		"0000:01:00.0": "0000:01:00.0", "0000:01:00.1": "0000:01:00.0",
		"0000:02:00.0": "0000:02:00.0", "0001:02:00.0": "0000:02:00.0",
		"0000:03:00.0": "0000:03:00.0", "0000:04:00.0": "0000:04:00.0",
		"0000:05:00.0": "0000:05:00.0", "0000:05:01.2": "0000:05:00.0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRails(t *testing.T) {
	build := func(addrs ...string) *machine.Snapshot {
		b := newBuilder()
		for i, a := range addrs {
			n := b.nic(fmt.Sprintf("pci0000:00/0000:00:01.0/0000:%02x:00.0", i+1), 0)
			link := netdev.Link{Name: fmt.Sprintf("eth%d", i)}
			if a != "" {
				link.Addrs = []netip.Prefix{netip.MustParsePrefix(a)}
			}
			b.setLinks(n, link)
		}
		return &b.Snapshot
	}
	first := at("0000:01:00.0")
	for name, c := range map[string]struct {
		snapshot *machine.Snapshot
		config   RailConfig
		want     []string
	}{
		"order":           {build("", "", ""), RailConfig{}, []string{"0 order", "1 order", "2 order"}},
		"subnets":         {build("192.168.3.2/24", "192.168.1.2/24", "192.168.3.9/24"), RailConfig{}, []string{"1 subnet", "0 subnet", "1 subnet"}},
		"one flat subnet": {build("10.0.0.1/16", "10.0.0.2/16"), RailConfig{}, []string{"0 order", "1 order"}},
		"one without":     {build("10.1.0.1/16", ""), RailConfig{}, []string{"0 order", "1 order"}},
		"IPv6":            {build("fd00:2::1/64", "fd00:1::1/64"), RailConfig{}, []string{"1 subnet", "0 subnet"}},
		"link local":      {build("fe80::1/64", "fe80::2/64"), RailConfig{}, []string{"0 order", "1 order"}},
		"config": {build("10.1.0.1/16", "10.2.0.1/16", "10.3.0.1/16", ""), RailConfig{
			Rules: []RailRule{
				{Rail: 7, Address: &first},
				{Rail: 6, Interface: "eth1"},
				{Rail: 5, Subnet: netip.MustParsePrefix("10.3.0.0/16")},
				{Rail: 1, Subnet: netip.MustParsePrefix("10.0.0.0/8")},
			},
		}, []string{"7 config", "6 config", "5 config", "-"}},
		"discovered": {build("", ""), RailConfig{
			Rules: []RailRule{{Rail: 3, Interface: "eth0"}}, Discovered: map[pci.Address]int{at("0000:01:00.0"): 9, at("0000:02:00.0"): 2},
		}, []string{"3 config", "2 lldp"}},
	} {
		var got []string
		for _, n := range Compute(c.snapshot, Config{Rails: c.config}).NICs {
			if n.Rail == nil {
				got = append(got, "-")
			} else {
				got = append(got, fmt.Sprintf("%d %s", *n.Rail, n.RailSource))
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// random makes a machine of switches, host bridges and NUMA nodes.
func random(r *rand.Rand) *builder {
	b := newBuilder()
	bus := 0
	next := func(domain int) string { bus++; return fmt.Sprintf("%04x:%02x:00.0", domain, bus%256) }
	for root := range 1 + r.IntN(4) {
		numa := r.IntN(3) - 1
		for range 1 + r.IntN(3) {
			path := fmt.Sprintf("pci%04x:00", root)
			for range r.IntN(4) {
				path += "/" + next(root)
				for range r.IntN(3) {
					if r.IntN(2) == 0 {
						b.gpu(path+"/"+next(root), numa)
					} else {
						b.nic(path+"/"+next(root), numa)
					}
				}
			}
		}
	}
	return b
}

func TestProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := random(r)
		topo := Compute(&b.Snapshot, Config{})
		groups := map[pci.Address]string{}
		users := map[pci.Address]int{}
		for _, g := range topo.GPUs {
			groups[g.Address] = g.Group
			for _, n := range topo.NICs {
				d := topo.Distance(g.Address, n.Address)
				if topo.Distance(n.Address, g.Address) != d {
					t.Fatalf("seed %d: distance of %s and %s is not symmetric", seed, g.Address, n.Address)
				}
				if g.Nearest != Unknown && d != Unknown && d < g.Nearest {
					t.Fatalf("seed %d: %s is nearer to %s than its nearest", seed, n.Address, g.Address)
				}
			}
			for _, n := range g.Pair {
				users[n]++
				if !slices.Contains(g.NearestNICs, n) {
					t.Fatalf("seed %d: %s has %s in its pair, which is not a nearest", seed, g.Address, n)
				}
			}
			if (len(g.NearestNICs) > 0) != (len(g.Pair) > 0) {
				t.Fatalf("seed %d: %s has nearest NICs %v and pair %v", seed, g.Address, g.NearestNICs, g.Pair)
			}
		}
		// Nobody shares while a nearest NIC is free, and shares differ by one at most.
		for _, g := range topo.GPUs {
			for _, n := range g.NearestNICs {
				if nic, _ := topo.NIC(n); nic.Group != g.Group {
					t.Fatalf("seed %d: %s and its nearest %s are in groups %q and %q", seed, g.Address, n, g.Group, nic.Group)
				}
				for _, mine := range g.Pair {
					if users[mine] > users[n]+1 {
						t.Fatalf("seed %d: %s is shared by %d while %s has %d", seed, mine, users[mine], n, users[n])
					}
				}
			}
		}
		// Order of input does not matter, nor do unrelated devices.
		shuffled := b.Snapshot
		shuffled.GPUs, shuffled.NICs = slices.Clone(b.GPUs), slices.Clone(b.NICs)
		r.Shuffle(len(shuffled.GPUs), func(i, j int) { shuffled.GPUs[i], shuffled.GPUs[j] = shuffled.GPUs[j], shuffled.GPUs[i] })
		r.Shuffle(len(shuffled.NICs), func(i, j int) { shuffled.NICs[i], shuffled.NICs[j] = shuffled.NICs[j], shuffled.NICs[i] })
		again := Compute(&shuffled, Config{})
		if diff := cmp.Diff(topo.GPUs, again.GPUs); diff != "" {
			t.Fatalf("seed %d: shuffled input changes GPUs:\n%s", seed, diff)
		}
		if diff := cmp.Diff(topo.NICs, again.NICs); diff != "" {
			t.Fatalf("seed %d: shuffled input changes NICs:\n%s", seed, diff)
		}
	}
}

// Renumbering the buses changes no class: addresses are names, not places.
func TestRenumbering(t *testing.T) {
	for seed := range uint64(100) {
		b := random(rand.New(rand.NewPCG(seed, 2)))
		perm := rand.New(rand.NewPCG(seed, 3)).Perm(256)
		renumber := func(a pci.Address) pci.Address { a.Bus = uint8(perm[a.Bus]); return a }
		c := newBuilder()
		for a, fn := range b.PCI.Functions {
			moved := *fn
			moved.Address, moved.Bridges = renumber(a), nil
			for _, bridge := range fn.Bridges {
				moved.Bridges = append(moved.Bridges, renumber(bridge))
			}
			c.PCI.Functions[moved.Address] = &moved
		}
		for _, g := range b.GPUs {
			g.Address = renumber(g.Address)
			c.GPUs = append(c.GPUs, g)
		}
		for _, n := range b.NICs {
			n.Address = renumber(n.Address)
			c.NICs = append(c.NICs, n)
		}
		before, after := Compute(&b.Snapshot, Config{}), Compute(&c.Snapshot, Config{})
		for _, g := range b.GPUs {
			for _, n := range b.NICs {
				if x, y := before.Distance(g.Address, n.Address), after.Distance(renumber(g.Address), renumber(n.Address)); x != y {
					t.Fatalf("seed %d: %s to %s was %v, renumbered %v", seed, g.Address, n.Address, x, y)
				}
			}
		}
	}
}
