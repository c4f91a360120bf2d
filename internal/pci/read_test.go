package pci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

func TestRead(t *testing.T) {
	files := layout.Layout{}
	bridge := layout.Layout{"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}
	files.PCI("pci0000:10/0000:10:01.0", bridge)
	files.PCI("pci0000:10/0000:10:01.0/0000:11:00.0", bridge)
	files.PCI("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0", bridge)
	files.PCI("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", layout.Layout{
		"class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "numa_node": "1",
		"subsystem_vendor": "0x15b3", "subsystem_device": "0x0023",
		"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
		"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
		"driver": "-> ../../../../../../bus/pci/drivers/mlx5_core", "iommu_group": "-> ../../../kernel/iommu_groups/7",
		"sriov_numvfs": "1", "virtfn0": "-> ../0000:13:00.2",
		"vpd": "\x82\x03\x00CX7\x90\x08\x00SN\x05AB123\x78",
	})
	files.PCI("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.2", layout.Layout{
		"class": "0x020000", "vendor": "0x15b3", "device": "0x101e", "numa_node": "1", "physfn": "-> ../0000:13:00.0",
	})
	// Hyper-V: below a VMBus path; VMD: a domain below a function of another.
	files.PCI("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/00000101-0003/pci0101:00/0101:00:00.0",
		layout.Layout{"class": "0x020700", "vendor": "0x15b3", "numa_node": "0"})
	files.PCI("pci0000:64/0000:64:00.5/pci10000:00/10000:00:04.0",
		layout.Layout{"class": "0x010802", "vendor": "0x8086", "numa_node": "-1"})
	// odd ones: no class, an impossible NUMA id, no attributes at all
	files.PCI("pci0000:20/0000:20:00.0", layout.Layout{"vendor": "0x10de"})
	files.PCI("pci0000:20/0000:20:01.0", layout.Layout{"class": "0x030200", "vendor": "0x10de", "numa_node": "no"})
	files["bus/pci/devices/0000:21:00.0"] = "-> ../../../elsewhere/0000:21:00.0"
	files["bus/pci/devices/nonsense"] = "-> ../../../devices/pci0000:20/nonsense"

	tree, errs := NewReader(sysfs.Dir(files.Write(t))).Read()

	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	if diff := cmp.Diff([]string{
		"PCI function 0000:20:00.0 left out: it has no class attribute",
		`PCI function 0000:21:00.0 left out: its link "../../../elsewhere/0000:21:00.0" does not lead below devices/`,
		`PCI function nonsense left out: PCI address "nonsense": want DDDD:BB:DD.F`,
	}, texts); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}

	pf, vf := MustParseAddress("0000:13:00.0"), MustParseAddress("0000:13:00.2")
	bridges := []Address{MustParseAddress("0000:10:01.0"), MustParseAddress("0000:11:00.0"), MustParseAddress("0000:12:00.0")}
	for _, want := range []*Function{
		{
			Address: pf, Class: 0x020000, Vendor: 0x15b3, Device: 0x1021, SubsystemVendor: 0x15b3, SubsystemDevice: 0x23,
			Driver: "mlx5_core", IOMMUGroup: "7", NUMANode: 1, Root: "pci0000:10", Bridges: bridges,
			LinkSpeed: "32.0 GT/s PCIe", LinkWidth: 16, MaxLinkSpeed: "32.0 GT/s PCIe", MaxLinkWidth: 16,
			VFs: []Address{vf}, VPD: VPD{"": "CX7", "SN": "AB123"},
		},
		{Address: vf, Class: 0x020000, Vendor: 0x15b3, Device: 0x101e, NUMANode: 1, Root: "pci0000:10", Bridges: bridges, PhysFn: &pf},
		{
			Address: MustParseAddress("0101:00:00.0"), Class: 0x020700, Vendor: 0x15b3, NUMANode: 0, Root: "pci0101:00",
			Prefix: "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/00000101-0003",
		},
		{
			Address: MustParseAddress("10000:00:04.0"), Class: 0x010802, Vendor: 0x8086, NUMANode: -1, Root: "pci0000:64",
			Bridges: []Address{MustParseAddress("0000:64:00.5")},
		},
		{Address: MustParseAddress("0000:20:01.0"), Class: 0x030200, Vendor: 0x10de, NUMANode: -1, Root: "pci0000:20"},
	} {
		if diff := cmp.Diff(want, tree.Functions[want.Address]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Address, diff)
		}
	}
	if sw, ok := tree.Functions[pf].Switch(); !ok || sw != bridges[1] {
		t.Errorf("Switch = %v, %v, want the upstream port %v", sw, ok, bridges[1])
	}
}

// A machine without PCI is no error: s390x, or a container without /sys.
func TestReadNothing(t *testing.T) {
	tree, errs := NewReader(sysfs.Dir(t.TempDir())).Read()
	if len(tree.Functions) != 0 || len(errs) != 0 {
		t.Errorf("got %v, %v", tree.Functions, errs)
	}
}

// The vital product data of a card is read once, and again after another card
// came to the slot.
func TestVPDIsRemembered(t *testing.T) {
	files := layout.Layout{}
	path := "pci0000:10/0000:10:01.0"
	files.PCI(path, layout.Layout{"class": "0x020000", "vendor": "0x15b3", "vpd": "\x82\x03\x00one\x78"})
	root := files.Write(t)
	link := filepath.Join(root, "bus/pci/devices/0000:10:01.0")
	r := NewReader(sysfs.Dir(root))
	read := func() string {
		tree, _ := r.Read()
		if fn := tree.Functions[MustParseAddress("0000:10:01.0")]; fn != nil {
			return fn.VPD[""]
		}
		return "gone"
	}
	got := []string{read()}
	if err := os.WriteFile(filepath.Join(root, "devices", path, "vpd"), []byte("\x82\x03\x00two\x78"), 0o644); err != nil {
		t.Fatal(err)
	}
	got = append(got, read())
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	got = append(got, read())
	if err := os.Symlink("../../../devices/"+path, link); err != nil {
		t.Fatal(err)
	}
	got = append(got, read())
	if diff := cmp.Diff([]string{"one", "one", "gone", "two"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEnclosing(t *testing.T) {
	for path, want := range map[string]string{
		"../../devices/pci0000:10/0000:10:01.0/0000:15:00.0/infiniband/mlx5_0":   "0000:15:00.0",
		"../../devices/pci0000:00/0000:00:05.0/virtio3/net/eth1":                 "0000:00:05.0",
		"../../devices/pci0000:10/0000:15:00.0/mlx5_core.sf.4/infiniband/mlx5_9": "0000:15:00.0",
	} {
		if got, ok := Enclosing(path); !ok || got.String() != want {
			t.Errorf("Enclosing(%q) = %v, %v, want %s", path, got, ok, want)
		}
	}
	if got, ok := Enclosing("../../devices/virtual/net/lo"); ok {
		t.Errorf("a virtual device lies below %v", got)
	}
}

func FuzzParseVPD(f *testing.F) {
	f.Add([]byte("\x82\x03\x00CX7\x90\x08\x00SN\x05AB123\x78"))
	f.Add([]byte("\x90\xff\xffSN\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for key, value := range ParseVPD(raw) {
			if len(key) > 2 || len(value) > len(raw)*3 {
				t.Errorf("keyword %q = %q from %d bytes", key, value, len(raw))
			}
		}
	})
}

func FuzzPlace(f *testing.F) {
	f.Add("../../../devices/pci0000:10/0000:10:01.0/0000:11:00.0")
	f.Add("../../../devices/LNX/pci0101:00/pci0102:00/0101:00:00.0")
	f.Fuzz(func(t *testing.T, target string) {
		var fn Function
		if err := fn.place(target); err == nil && (fn.Root == "" || len(fn.Bridges) > maxDepth) {
			t.Errorf("%q gives %+v", target, fn)
		}
	})
}
