package netdev

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

func TestRead(t *testing.T) {
	l := layout.Layout{}
	l.Class("net", "pci0000:10/0000:15:00.0", "eth1", layout.Layout{
		"ifindex": "7", "mtu": "9000", "address": "02:00:00:00:00:01", "flags": "0x1003", "operstate": "down", "master": "-> ../bond0",
	})
	l.Class("net", "pci0000:00/0000:00:05.0/virtio3", "eth0", layout.Layout{"flags": "0x1002", "operstate": "up"})
	l.Class("net", "virtual", "sim0", layout.Layout{"operstate": "up"}) // no flags, as in a simulated machine
	l.Class("net", "pci0000:10/0000:15:00.0", "eth2", layout.Layout{"phys_port_name": "pf0vf3"})
	l.Class("net", "pci0000:10/0000:15:00.0", "eth3", layout.Layout{"phys_port_name": "p0"})
	l.Class("net", "pci0000:10/0000:15:00.0/mlx5_core.sf.2", "eth4", layout.Layout{"flags": "0x1002"})
	l["class/net/bonding_masters"] = "bond0"

	got, errs := Read(sysfs.Dir(l.Write(t)))
	if len(errs) != 0 {
		t.Errorf("errors %v", errs)
	}
	addr := func(s string) *pci.Address { a := pci.MustParseAddress(s); return &a }
	want := []Link{
		{Name: "eth0", Address: addr("0000:00:05.0")},
		{Name: "eth1", Address: addr("0000:15:00.0"), Index: 7, MTU: 9000, HardwareAddr: "02:00:00:00:00:01", Up: true, Master: "bond0"},
		{Name: "eth2", Address: addr("0000:15:00.0"), Stands: "representor"},
		{Name: "eth3", Address: addr("0000:15:00.0")},
		{Name: "eth4", Address: addr("0000:15:00.0"), Stands: "scalable function"},
		{Name: "sim0", Up: true},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b pci.Address) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
