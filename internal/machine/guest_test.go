package machine_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/topology"
)

// pcieSwitch is one switch of the guest that hack/vm/machine wires; each is below
// a host bridge of its own.
type pcieSwitch struct {
	numa int
	gpus []string
	nics []string // physical functions
	vfs  []string // of its NICs, two of each where there are any
}

var guestSwitches = []pcieSwitch{
	{0, []string{"13:00.0", "14:00.0"}, []string{"15:00.0", "16:00.0"}, []string{"15:10.0", "15:10.2", "16:10.0", "16:10.2"}},
	{0, []string{"33:00.0", "34:00.0"}, []string{"35:00.0", "36:00.0"}, nil},
	{1, []string{"83:00.0", "84:00.0"}, []string{"85:00.0", "86:00.0"}, []string{"85:10.0", "85:10.2", "86:10.0", "86:10.2"}},
	{1, []string{"a3:00.0", "a4:00.0"}, []string{"a5:00.0", "a6:00.0"}, nil},
}

// Hardware-like RDMA devices, SR-IOV and two NUMA nodes on a real sysfs.
func TestGuestPatched(t *testing.T) {
	s := scanGuest(t, "patched")

	var got []string
	for _, n := range s.NICs {
		fn := s.PCI.Functions[n.Address]
		if fn.Vendor == pci.VendorMellanox {
			physfn := "-"
			if fn.PhysFn != nil {
				physfn = fn.PhysFn.String()
			}
			got = append(got, fmt.Sprintf("%s %s %s numa=%d physfn=%s vfs=%v", n.Address, n.IfName(), n.RDMAName(), fn.NUMANode, physfn, fn.VFs))
		}
	}
	want := []string{
		"0000:15:00.0 enp21s0np0 mlx5_0 numa=0 physfn=- vfs=[0000:15:10.0 0000:15:10.2]",
		"0000:15:10.0 enp21s0f0v0 mlx5_8 numa=0 physfn=0000:15:00.0 vfs=[]",
		"0000:15:10.2 enp21s0f0v1 mlx5_9 numa=0 physfn=0000:15:00.0 vfs=[]",
		"0000:16:00.0 enp22s0np0 mlx5_1 numa=0 physfn=- vfs=[0000:16:10.0 0000:16:10.2]",
		"0000:16:10.0 enp22s0f0v0 mlx5_10 numa=0 physfn=0000:16:00.0 vfs=[]",
		"0000:16:10.2 enp22s0f0v1 mlx5_11 numa=0 physfn=0000:16:00.0 vfs=[]",
		"0000:35:00.0 enp53s0np0 mlx5_2 numa=0 physfn=- vfs=[]",
		"0000:36:00.0 enp54s0np0 mlx5_3 numa=0 physfn=- vfs=[]",
		"0000:85:00.0 enp133s0np0 mlx5_4 numa=1 physfn=- vfs=[0000:85:10.0 0000:85:10.2]",
		"0000:85:10.0 enp133s0f0v0 mlx5_12 numa=1 physfn=0000:85:00.0 vfs=[]",
		"0000:85:10.2 enp133s0f0v1 mlx5_13 numa=1 physfn=0000:85:00.0 vfs=[]",
		"0000:86:00.0 enp134s0np0 mlx5_5 numa=1 physfn=- vfs=[0000:86:10.0 0000:86:10.2]",
		"0000:86:10.0 enp134s0f0v0 mlx5_14 numa=1 physfn=0000:86:00.0 vfs=[]",
		"0000:86:10.2 enp134s0f0v1 mlx5_15 numa=1 physfn=0000:86:00.0 vfs=[]",
		"0000:a5:00.0 enp165s0np0 mlx5_6 numa=1 physfn=- vfs=[]",
		"0000:a6:00.0 enp166s0np0 mlx5_7 numa=1 physfn=- vfs=[]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NICs (-want +got):\n%s", diff)
	}
	if len(s.SoftwareRDMA) != 0 {
		t.Errorf("RDMA devices below PCI functions were taken for software: %v", s.SoftwareRDMA)
	}

	for addr, fn := range s.PCI.Functions {
		if fn.Vendor == pci.VendorNVIDIA && fn.Class == 0x030200 {
			s.GPUs = append(s.GPUs, gpu.GPU{Address: addr})
		}
	}
	topo := topology.Compute(s, topology.Config{})
	checkGuestTopology(t, topo, func(sw pcieSwitch) []string { return slices.Concat(sw.nics, sw.vfs) })
	for _, sw := range guestSwitches {
		for _, vf := range sw.vfs {
			nic, _ := topo.NIC(guestAddress(vf))
			if physfn := *s.PCI.Functions[nic.Address].PhysFn; nic.Card != physfn {
				t.Errorf("VF %s is on card %s, want that of its PF %s", vf, nic.Card, physfn)
			}
		}
	}
}

// Soft-RoCE as distributions ship it has no PCI function. It counts as the RDMA
// device of its interface's NIC only where the administrator allows it.
func TestGuestStock(t *testing.T) {
	s := scanGuest(t, "stock")

	var software, want []string
	for _, d := range s.SoftwareRDMA {
		if d.Address != nil {
			t.Errorf("software RDMA device %s has the PCI function %s", d.Name, *d.Address)
		}
		software = append(software, fmt.Sprintf("%s on %s, %s", d.Name, d.Netdev, portStates(d)))
	}
	for i, netdev := range []string{"enp21s0np0", "enp22s0np0", "enp53s0np0", "enp54s0np0", "enp133s0np0", "enp134s0np0", "enp165s0np0", "enp166s0np0"} {
		want = append(want, fmt.Sprintf("rxe%d on %s, ACTIVE", i, netdev))
	}
	if diff := cmp.Diff(want, software); diff != "" {
		t.Errorf("software RDMA devices (-want +got):\n%s", diff)
	}
	for _, n := range s.NICs {
		if n.RDMA != nil {
			t.Errorf("NIC %s has the RDMA device %s, want none", n.Address, n.RDMA.Name)
		}
	}

	// Their stand-ins are not masked here, so nothing in the tree says that they are GPUs.
	for _, sw := range guestSwitches {
		for _, addr := range sw.gpus {
			s.GPUs = append(s.GPUs, gpu.GPU{Address: guestAddress(addr)})
		}
	}
	for _, g := range topology.Compute(s, topology.Config{}).GPUs {
		if len(g.NearestNICs) != 0 {
			t.Errorf("GPU %s has nearest NICs %v though software RDMA is not allowed", g.Address, g.NearestNICs)
		}
	}
	topo := topology.Compute(s, topology.Config{AllowSoftwareRDMA: true})
	checkGuestTopology(t, topo, func(sw pcieSwitch) []string { return sw.nics })
}

func portStates(d rdma.Device) string {
	var states []string
	for _, p := range d.Ports {
		states = append(states, p.State)
	}
	return strings.Join(states, " ")
}

// checkGuestTopology compares with what "nvidia-smi topo -m" would print from the
// wiring: PIX to a NIC under the same switch, NODE to one of the same NUMA node,
// else SYS.
func checkGuestTopology(t *testing.T, topo *topology.Topology, near func(pcieSwitch) []string) {
	t.Helper()
	if len(topo.GPUs) != 8 {
		t.Fatalf("%d GPUs, want 8", len(topo.GPUs))
	}
	for i, sw := range guestSwitches {
		for _, address := range sw.gpus {
			g, _ := topo.GPU(guestAddress(address))
			var want []pci.Address
			for _, nic := range near(sw) {
				want = append(want, guestAddress(nic))
			}
			slices.SortFunc(want, pci.Address.Compare)
			if diff := cmp.Diff(want, g.NearestNICs); diff != "" || g.Nearest != topology.PIX {
				t.Errorf("GPU %s: nearest is %s, want PIX (-want +got):\n%s", address, g.Nearest, diff)
			}
			for j, other := range guestSwitches {
				want := topology.SYS
				switch {
				case i == j:
					want = topology.PIX
				case sw.numa == other.numa:
					want = topology.NODE
				}
				for _, nic := range other.nics {
					if got := topo.Distance(g.Address, guestAddress(nic)); got != want {
						t.Errorf("distance of %s and %s is %s, want %s", address, nic, got, want)
					}
				}
			}
		}
	}
}

func guestAddress(s string) pci.Address { return pci.MustParseAddress("0000:" + s) }

func scanGuest(t *testing.T, name string) *machine.Snapshot {
	t.Helper()
	root := t.TempDir()
	archive := filepath.Join("..", "..", "testdata", "guest", "sysfs-"+name+".tar.gz")
	if err := unpack(archive, name+"/sys", root); err != nil {
		t.Fatalf("%s: %v", archive, err)
	}
	s := (&machine.Scanner{Sysfs: sysfs.Dir(root)}).Scan(t.Context())
	if len(s.Missing) != 0 {
		t.Errorf("missing: %v", s.Missing)
	}
	return s
}

// Bounds of an archive. Those of the guest have 5000 entries and 8 MB.
const (
	maxUnpackedEntries = 20_000
	maxUnpackedBytes   = 64 << 20
)

// unpack writes what an archive has below a folder to root. Nothing is written
// outside of root, whatever names and links the archive holds.
func unpack(archive, folder, root string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	to, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer to.Close()
	limited := &io.LimitedReader{R: unzipped, N: maxUnpackedBytes}
	entries := tar.NewReader(limited)
	for range maxUnpackedEntries {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) && limited.N > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		name, ok := strings.CutPrefix(path.Clean(header.Name), folder+"/")
		if !ok {
			continue
		}
		if err := unpackEntry(to, name, header, entries); err != nil {
			return err
		}
	}
	return fmt.Errorf("more than %d entries", maxUnpackedEntries)
}

func unpackEntry(to *os.Root, name string, header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeDir {
		return to.MkdirAll(name, 0o755)
	}
	if err := to.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeSymlink:
		return to.Symlink(header.Linkname, name)
	case tar.TypeReg:
		bytes, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		return to.WriteFile(name, bytes, 0o644)
	}
	return fmt.Errorf("%s is neither a file, a directory nor a link", header.Name)
}
