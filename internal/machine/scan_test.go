package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

type gpus struct {
	list []gpu.GPU
	errs []error
}

func (g gpus) List(context.Context) (gpu.Driver, []gpu.GPU, []error) {
	return gpu.Driver{Version: "580.65.06"}, g.list, g.errs
}

func at(s string) pci.Address { return pci.MustParseAddress(s) }

func TestScanJoins(t *testing.T) {
	l := layout.Layout{}
	nic := layout.Layout{"class": "0x020000", "vendor": "0x15b3", "numa_node": "0"}
	const root = "pci0000:10/"
	l.PCI(root+"0000:10:01.0", nic)
	l.Class("net", root+"0000:10:01.0", "eth1", nil)["devices/"+root+"0000:10:01.0/net/eth1/mtu"] = "9000"
	l.Class("infiniband", root+"0000:10:01.0", "mlx5_0", layout.Layout{"ports/1/state": "4: ACTIVE", "ports/1/rate": "400 Gb/sec (4X NDR)"})
	l.PCI(root+"0000:10:02.0", layout.Layout{"class": "0x020700", "vendor": "0x15b3"}) // InfiniBand only, no interface
	l.Class("infiniband", root+"0000:10:02.0", "mlx5_1", layout.Layout{"ports/1/state": "1: DOWN", "ports/1/rate": "10 Gb/sec (4X SDR)"})
	l.PCI(root+"0000:10:03.0", nic) // network controller without a driver
	// virtio-net: its PCI class is 0200, the interface one level below the function
	l.PCI(root+"0000:10:04.0", layout.Layout{"class": "0x020000", "vendor": "0x1af4"})
	l.Class("net", root+"0000:10:04.0/virtio0", "eth0", nil)["devices/"+root+"0000:10:04.0/virtio0/net/eth0/mtu"] = "1500"
	l.Class("infiniband", "virtual", "rxe0", layout.Layout{"parent": "eth0"})
	l.PCI(root+"0000:10:05.0", layout.Layout{"class": "0x030200", "vendor": "0x10de"})

	scanner := &Scanner{
		Sysfs: sysfs.Dir(l.Write(t)),
		GPUs:  gpus{list: []gpu.GPU{{Address: at("0000:10:05.0"), UUID: "GPU-1"}}},
		Host: func(links []netdev.Link) ([]netdev.Link, error) {
			return append(links, netdev.Link{Name: "bond0", DefaultRoute: true}), nil
		},
	}
	s := scanner.Scan(t.Context())
	if len(s.Missing) != 0 {
		t.Errorf("missing: %v", s.Missing)
	}
	type row struct{ IfName, RDMA string }
	got := map[string]row{}
	for _, n := range s.NICs {
		got[n.Address.String()] = row{n.IfName(), n.RDMAName()}
	}
	want := map[string]row{
		"0000:10:01.0": {"eth1", "mlx5_0"},
		"0000:10:02.0": {"", "mlx5_1"},
		"0000:10:03.0": {},
		"0000:10:04.0": {"eth0", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NICs (-want +got):\n%s", diff)
	}
	if len(s.SoftwareRDMA) != 1 || s.SoftwareRDMA[0].Netdev != "eth0" {
		t.Errorf("software RDMA: %+v", s.SoftwareRDMA)
	}
	if len(s.Links) != 3 || s.Links[0].Name != "bond0" {
		t.Errorf("links: %+v", s.Links)
	}
	if g, ok := s.GPU(at("0000:10:05.0")); !ok || g.UUID != "GPU-1" || s.Driver.Version == "" {
		t.Errorf("GPU %+v, driver %+v", g, s.Driver)
	}
}

// Each part can be absent; the others are there all the same.
func TestScanWithoutParts(t *testing.T) {
	empty := (&Scanner{Sysfs: sysfs.Dir(t.TempDir())}).Scan(t.Context())
	if len(empty.GPUs)+len(empty.NICs)+len(empty.Missing) != 0 {
		t.Errorf("an empty machine: %+v", empty)
	}
	l := layout.Layout{}
	l.PCI("pci0000:10/0000:10:01.0", layout.Layout{"class": "0x020000"})
	l.PCI("pci0000:10/0000:10:02.0", layout.Layout{"class": "broken"})
	scanner := &Scanner{
		Sysfs: sysfs.Dir(l.Write(t)),
		GPUs:  gpus{list: []gpu.GPU{{UUID: "GPU-1"}}, errs: []error{errors.New("GPU 1 is lost")}},
		Host:  func(l []netdev.Link) ([]netdev.Link, error) { return l, errors.New("no netlink") },
	}
	s := scanner.Scan(t.Context())
	if len(s.NICs) != 1 || len(s.GPUs) != 1 {
		t.Errorf("%d NICs and %d GPUs, want one each", len(s.NICs), len(s.GPUs))
	}
	parts := map[Part]string{}
	for _, m := range s.Missing {
		parts[m.Part] = m.Reason
	}
	if parts[PartNVML] != "GPU 1 is lost" || parts[PartNetdev] != "no netlink" || parts[PartPCI] == "" || parts[PartRDMA] != "" {
		t.Errorf("missing: %v", parts)
	}
}

// Without netlink nobody knows the uplink: the links of the last answer are used, or
// none may be handed out.
func TestScanWithoutNetlink(t *testing.T) {
	l := layout.Layout{}
	l.PCI("pci0000:10/0000:10:01.0", layout.Layout{"class": "0x020000"})
	l.Class("net", "pci0000:10/0000:10:01.0", "eth0", layout.Layout{"mtu": "1500"})
	broken := true
	scanner := &Scanner{Sysfs: sysfs.Dir(l.Write(t)), Host: func(links []netdev.Link) ([]netdev.Link, error) {
		if broken {
			return nil, errors.New("dump interrupted")
		}
		links[0].DefaultRoute = true
		return links, nil
	}}
	if s := scanner.Scan(t.Context()); !s.UplinkUnknown || len(s.Missing) != 1 {
		t.Errorf("never answered: uplink unknown %t, missing %v", s.UplinkUnknown, s.Missing)
	}
	broken = false
	if s := scanner.Scan(t.Context()); s.UplinkUnknown || !s.NICs[0].Links[0].DefaultRoute {
		t.Errorf("answered: uplink unknown %t, links %+v", s.UplinkUnknown, s.Links)
	}
	broken = true
	if s := scanner.Scan(t.Context()); s.UplinkUnknown || !s.NICs[0].Links[0].DefaultRoute || len(s.Missing) != 1 {
		t.Errorf("not answered again: uplink unknown %t, links %+v, missing %v", s.UplinkUnknown, s.Links, s.Missing)
	}
}

// A port that goes down shows another rate; what is published must not follow.
func TestRateIsKept(t *testing.T) {
	const nic = "pci0000:10/0000:10:01.0"
	l := layout.Layout{}
	l.PCI(nic, layout.Layout{"class": "0x020700"})
	l.Class("infiniband", nic, "mlx5_0", layout.Layout{"ports/1/state": "1: DOWN", "ports/1/rate": "10 Gb/sec (4X SDR)"})
	root := l.Write(t)
	scanner := &Scanner{Sysfs: sysfs.Dir(root)}
	rate := func(state, rate string) int {
		for name, text := range map[string]string{"state": state, "rate": rate} {
			if err := os.WriteFile(filepath.Join(root, "devices", nic, "infiniband/mlx5_0/ports/1", name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return scanner.Scan(t.Context()).NICs[0].RDMA.Ports[0].RateGbps
	}
	got := []int{rate("1: DOWN", "10 Gb/sec (4X SDR)"), rate("4: ACTIVE", "400 Gb/sec (4X NDR)"), rate("1: DOWN", "10 Gb/sec (4X SDR)")}
	if diff := cmp.Diff([]int{0, 400, 400}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
