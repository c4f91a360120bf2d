package rdma

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

func TestRead(t *testing.T) {
	const nic = "pci0000:10/0000:15:00.0"
	l := layout.Layout{}
	l.Class("infiniband", nic, "mlx5_0", layout.Layout{
		"node_guid": "a088:c203:00ab:cdef", "sys_image_guid": "a088:c203:00ab:cde0", "fw_ver": "28.41.1000",
		"ports/1/state": "4: ACTIVE", "ports/1/link_layer": "InfiniBand", "ports/1/rate": "400 Gb/sec (4X NDR)",
	})
	l.Class("infiniband_verbs", nic, "uverbs0", layout.Layout{"ibdev": "mlx5_0"})
	l.Class("infiniband_mad", nic, "umad0", layout.Layout{"ibdev": "mlx5_0"})
	l.Class("infiniband_mad", nic, "issm0", layout.Layout{"ibdev": "mlx5_0"})
	// a scalable function lies below an auxiliary device of the PCI function
	l.Class("infiniband", nic+"/mlx5_core.sf.4", "mlx5_9", layout.Layout{"ports/1/state": "1: DOWN"})
	// software RDMA as Debian's kernel shows it
	l.Class("infiniband", "virtual", "rxe0", layout.Layout{"parent": "eth1", "ports/1/link_layer": "Ethernet"})
	l.Class("infiniband_verbs", "virtual", "uverbs2", layout.Layout{"ibdev": "rxe0"})
	l["class/infiniband_verbs/abi_version"] = "6"
	// EFA of the first generation: all-zero GUID, no link layer that says anything
	l.Class("infiniband", "pci0000:00/0000:00:1b.0", "rdmap0s27", layout.Layout{
		"node_guid": "0000:0000:0000:0000", "ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Unspecified", "ports/1/rate": "2.5 Gb/sec (1X SDR)",
	})
	// one that vanishes while it is read leaves the others
	l["class/infiniband/mlx5_gone"] = "not a link"

	devices, errs := Read(sysfs.Dir(l.Write(t)))
	if len(errs) != 1 {
		t.Errorf("errors %v, want one for mlx5_gone", errs)
	}
	addr := func(s string) *pci.Address { a := pci.MustParseAddress(s); return &a }
	want := []Device{
		{
			Name: "mlx5_0", Address: addr("0000:15:00.0"), NodeGUID: "a088:c203:00ab:cdef", SysImageGUID: "a088:c203:00ab:cde0", Firmware: "28.41.1000",
			Ports:  []Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", RateGbps: 400}},
			Uverbs: "uverbs0", Umad: []string{"umad0"}, Issm: []string{"issm0"},
		},
		{Name: "mlx5_9", Address: addr("0000:15:00.0"), Ports: []Port{{Number: 1, State: "DOWN"}}},
		{
			Name: "rdmap0s27", Address: addr("0000:00:1b.0"), NodeGUID: "0000:0000:0000:0000",
			Ports: []Port{{Number: 1, State: "ACTIVE", LinkLayer: "Unspecified", RateGbps: 2}},
		},
		{Name: "rxe0", Netdev: "eth1", Ports: []Port{{Number: 1, LinkLayer: "Ethernet"}}, Uverbs: "uverbs2"},
	}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadWithoutRDMA(t *testing.T) {
	devices, errs := Read(sysfs.Dir(t.TempDir()))
	if len(devices) != 0 || len(errs) != 0 {
		t.Errorf("got %v, %v", devices, errs)
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]int{
		"400 Gb/sec (4X NDR)": 400, "2.5 Gb/sec (1X SDR)": 2, "100 Gb/sec": 100, "": 0, "fast": 0, "-1 Gb/sec": 0, "NaN Gb/sec": 0, "1e300 Gb/sec": 0,
	} {
		if got := ParseRate(text); got != want {
			t.Errorf("ParseRate(%q) = %d, want %d", text, got, want)
		}
	}
}
