package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
	"github.com/topodra/topodra/internal/topology"
)

// replay writes a recording, reads it back and scans it.
func replay(t *testing.T, r *Recording) (*machine.Snapshot, []byte) {
	t.Helper()
	var file bytes.Buffer
	if err := r.Write(&file); err != nil {
		t.Fatal(err)
	}
	again, err := Read(bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return again.Scanner().Scan(t.Context()), file.Bytes()
}

// A machine seen through its archive is the same but for what identifies it.
func TestReplayEqualsTheMachine(t *testing.T) {
	for _, slug := range simulatetest.Slugs(t) {
		m := simulatetest.Load(t, slug)
		want, err := m.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		scanner, err := m.Scanner()
		if err != nil {
			t.Fatal(err)
		}
		recording := Capture(t.Context(), scanner)
		got, file := replay(t, recording)
		t.Logf("%s: %d bytes", slug, len(file))
		if diff := cmp.Diff(want, got,
			cmpopts.IgnoreFields(machine.Snapshot{}, "Taken"),
			cmpopts.IgnoreFields(gpu.GPU{}, "UUID", "Fabric"),
			cmpopts.IgnoreFields(rdma.Device{}, "NodeGUID", "SysImageGUID"),
			cmpopts.IgnoreFields(netdev.Link{}, "HardwareAddr"),
			cmpopts.IgnoreFields(pci.Function{}, "VPD"),
		); diff != "" {
			t.Errorf("%s (-want +got):\n%s", slug, diff)
		}
		before, after := topology.Compute(want, topology.Config{}), topology.Compute(got, topology.Config{})
		if diff := cmp.Diff(before, after, cmpopts.IgnoreUnexported(topology.Topology{}), cmpopts.IgnoreFields(rdma.Device{}, "NodeGUID", "SysImageGUID")); diff != "" {
			t.Errorf("topology of %s (-want +got):\n%s", slug, diff)
		}
	}
}

// Nothing that identifies a machine is in the archive; what counts is.
func TestPseudonyms(t *testing.T) {
	l := layout.Layout{}
	for _, bus := range []string{"11", "12"} {
		path := "pci0000:10/0000:" + bus + ":00.0"
		l.PCI(path, layout.Layout{
			"class": "0x020000", "vendor": "0x15b3",
			"vpd": string(pci.VPD{"": "ConnectX-7", "PN": "MCX750", "SN": "SECRET-SERIAL-" + bus, "V3": "SECRET-BOARD", "VB": "x SW_MNG"}.Bytes()),
		})
		l.Class("net", path, "eth"+bus, layout.Layout{"address": "a0:88:c2:0e:ee:" + bus})
		l.Class("infiniband", path, "mlx5_"+bus, layout.Layout{"node_guid": "a088:c203:00ee:00" + bus, "sys_image_guid": "a088:c203:00ee:0000"})
	}
	scanner := &machine.Scanner{
		Sysfs: sysfs.Dir(l.Write(t)),
		GPUs:  listed(simpleGPUs),
		Host: func(links []netdev.Link) ([]netdev.Link, error) {
			for i := range links {
				links[i].Addrs = []netip.Prefix{netip.MustParsePrefix("192.168." + links[i].Name[3:] + ".7/24"), netip.MustParsePrefix("fe80::1/64")}
			}
			return links, nil
		},
	}
	recording := Capture(t.Context(), scanner)
	snapshot, file := replay(t, recording)
	zip, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var plain bytes.Buffer
	if _, err := plain.ReadFrom(zip); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"SECRET", "a0:88", "a088", "192.168", "GPU-secret", "cluster-secret"} {
		if strings.Contains(plain.String(), secret) {
			t.Errorf("the archive contains %q", secret)
		}
	}
	one, two := snapshot.NICs[0], snapshot.NICs[1]
	if one.RDMA.SysImageGUID != two.RDMA.SysImageGUID || one.RDMA.NodeGUID == two.RDMA.NodeGUID {
		t.Errorf("GUIDs %+v and %+v: equal ones must stay equal, others different", one.RDMA, two.RDMA)
	}
	vpd := snapshot.PCI.Functions[one.Address].VPD
	if vpd["PN"] != "MCX750" || vpd[""] != "ConnectX-7" || !vpd.Mentions("SW_MNG") || vpd["V3"] == "" {
		t.Errorf("vital product data %v", vpd)
	}
	if a, b := one.Links[0].Addrs[0], two.Links[0].Addrs[0]; a.Masked() == b.Masked() || a.Bits() != 24 || a.Addr().Compare(b.Addr()) > 0 {
		t.Errorf("addresses %v and %v: subnets, their lengths and their order must stay", a, b)
	}
	if snapshot.GPUs[0].UUID != "GPU-00000000-0000-4000-8000-000000000001" || snapshot.GPUs[0].Fabric.CliqueID != 7 {
		t.Errorf("GPU %+v", snapshot.GPUs[0])
	}
}

func TestMadeUpAddress(t *testing.T) {
	for _, text := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/24", "192.168.0.0/31", "192.0.2.1/32", "2001:db8::/32", "2001:db8::/64", "2001:db8::/127"} {
		p := netip.MustParsePrefix(text)
		seen := map[netip.Prefix]bool{}
		for n := 1; n <= 20; n++ {
			seen[madeUpAddress(p, n, 1).Masked()] = true
		}
		if len(seen) != 20 {
			t.Errorf("%s: 20 subnets became %d", text, len(seen))
		}
	}
}

func TestReadRefuses(t *testing.T) {
	make := func(entries ...[2]string) []byte {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		out := tar.NewWriter(zip)
		for _, e := range entries {
			header := &tar.Header{Typeflag: tar.TypeReg, Name: e[0], Size: int64(len(e[1])), Mode: 0o644}
			if strings.HasPrefix(e[1], "-> ") {
				header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, e[1][3:], 0
			}
			if err := out.WriteHeader(header); err != nil {
				t.Fatal(err)
			}
			if header.Size > 0 {
				if _, err := out.Write([]byte(e[1])); err != nil {
					t.Fatal(err)
				}
			}
		}
		out.Close()
		zip.Close()
		return b.Bytes()
	}
	good := [2]string{"topodra.json", `{"format":1,"driver":{},"gpus":null,"links":null}`}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"text":          {[]byte("hello"), "not an archive of topodra snapshot"},
		"empty":         {make(), "it has no topodra.json"},
		"truncated":     {make(good, [2]string{"sys/a", strings.Repeat("x", 4096)})[:60], "archive entry"},
		"outside":       {make(good, [2]string{"sys/../../etc/passwd", "x"}), `archive entry "sys/../../etc/passwd": invalid argument`},
		"absolute":      {make(good, [2]string{"/etc/passwd", "x"}), `archive entry "/etc/passwd": invalid argument`},
		"link":          {make(good, [2]string{"sys/a", "-> /etc/passwd"}), `archive entry "sys/a": it is no regular file`},
		"unknown field": {make([2]string{"topodra.json", "{\"format\":1,\n\"color\":2}"}), `archive entry "topodra.json": line 2: json: unknown field "color"`},
		"newer":         {make([2]string{"topodra.json", `{"format":2}`}), "format 2, this program reads format 1"},
		"large file":    {make(good, [2]string{"sys/a", strings.Repeat("x", maxFile+1)}), "more than 4194304"},
	} {
		if _, err := Read(bytes.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	// A small file can be a lot of content.
	bomb := make(good, [2]string{"sys/a", strings.Repeat("x", maxFile)}, [2]string{"sys/b", strings.Repeat("x", maxFile)})
	if len(bomb) > 100_000 {
		t.Fatalf("%d bytes", len(bomb))
	}
	if _, err := Read(bytes.NewReader(bomb)); err != nil {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	m := simulatetest.Load(f, "kvm-8xh200-pxb-switch")
	scanner, err := m.Scanner()
	if err != nil {
		f.Fatal(err)
	}
	recording := Capture(f.Context(), scanner)
	var file bytes.Buffer
	if err := recording.Write(&file); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data))
		if err == nil {
			topology.Compute(r.Scanner().Scan(t.Context()), topology.Config{})
		}
	})
}
