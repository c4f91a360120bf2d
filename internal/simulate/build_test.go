package simulate_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/testing/golden"
)

// Machines whose whole tree is kept as text: a plain one, VMBus roots, VPD and
// placeholders, a five-digit domain. Of the others a checksum is kept.
var spelledOut = []string{"a100pcie-2-bf3", "azure-nd-gb300-v6", "gb300-cx8-datadirect", "vm-domain-10000"}

func TestSysfsIsAsExpected(t *testing.T) {
	var sums strings.Builder
	for _, slug := range simulatetest.Slugs(t) {
		got, err := simulatetest.Load(t, slug).Listing("sys")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(got)), slug)
		if slices.Contains(spelledOut, slug) {
			golden.Expect(t, "testdata/"+slug+".sysfs", got)
		}
	}
	golden.Expect(t, "testdata/sysfs.sha256", sums.String())
}

// TestBuildWritesWhatItLists checks the files on disk against the lists that
// other tests look at.
func TestBuildWritesWhatItLists(t *testing.T) {
	for _, slug := range spelledOut {
		m := simulatetest.Load(t, slug)
		root, err := m.Build(t.TempDir(), os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		for part, dir := range map[string]string{"sys": root.Sysfs, "driver": root.DriverRoot, "dev": root.DevRoot} {
			want, err := m.Listing(part)
			if err != nil {
				t.Fatal(err)
			}
			if os.Geteuid() != 0 {
				want = regexp.MustCompile("(?m)^.* device\n").ReplaceAllString(want, "")
			}
			if diff := cmp.Diff(want, listing(t, dir)); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", slug, part, diff)
			}
		}
	}
}

// listing describes a directory as Machine.Listing does.
func listing(t *testing.T, dir string) string {
	t.Helper()
	lines := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		switch entry.Type() {
		case fs.ModeSymlink:
			target, err := os.Readlink(name)
			lines[rel] = fmt.Sprintf("%s -> %s\n", rel, target)
			return err
		case 0:
			data, err := os.ReadFile(name)
			lines[rel] = fmt.Sprintf("%s = %q\n", rel, data)
			return err
		}
		lines[rel] = rel + " device\n"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(lines[name])
	}
	return b.String()
}

// TestSysfsAgreesWithPublishedRoots checks the trees against facts that were
// published apart from the tree.
func TestSysfsAgreesWithPublishedRoots(t *testing.T) {
	checked := 0
	for _, slug := range simulatetest.Slugs(t) {
		data, err := os.ReadFile(filepath.Join(simulatetest.ModuleRoot(t), "testdata/machines", slug, "expected.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var expected struct {
			PCIeRoot map[string]*string `json:"pcieRoot"`
		}
		if err := yaml.Unmarshal(data, &expected); err != nil {
			t.Fatal(err)
		}
		m := simulatetest.Load(t, slug)
		for address, root := range expected.PCIeRoot {
			if root == nil || !strings.HasPrefix(*root, "pci") {
				continue
			}
			dir, err := m.SysfsDir(address)
			if err != nil || !strings.Contains(dir, "/"+*root+"/") {
				t.Errorf("%s: %s is at %q (%v), want it below %s", slug, address, dir, err, *root)
			}
			checked++
		}
	}
	if checked < 200 {
		t.Errorf("only %d roots checked", checked)
	}
}

func TestPaths(t *testing.T) {
	for _, slug := range simulatetest.Slugs(t) {
		if err := simulatetest.Load(t, slug).CheckPaths(); err != nil {
			t.Errorf("%s: %v", slug, err)
		}
	}
}

func TestBuildAgainChangesNothing(t *testing.T) {
	m, double, dir := simulatetest.Load(t, "h200-4cx7-snc-baremetal"), simulatetest.NVMLDouble(t), t.TempDir()
	build := func() map[string]string {
		t.Helper()
		if _, err := m.Build(dir, double); err != nil {
			t.Fatal(err)
		}
		return identities(t, dir)
	}
	first := build()
	if diff := cmp.Diff(first, build()); diff != "" {
		t.Errorf("the second build replaced files:\n%s", diff)
	}

	// What a run that was killed, or another machine, left behind is put right
	// without touching the rest.
	smi := filepath.Join(dir, "driver/usr/bin/nvidia-smi")
	class := filepath.Join(dir, "sys/class/infiniband")
	for _, err := range []error{
		os.WriteFile(smi, []byte("half"), 0o644),
		os.WriteFile(filepath.Join(dir, "driver/usr/bin/.next"), []byte("half"), 0o644),
		os.RemoveAll(class),
		os.WriteFile(class, []byte("a file where a directory belongs"), 0o644),
		os.MkdirAll(filepath.Join(dir, "sys/devices/pci0000:ff/0000:ff:00.0"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again := build()
	for name := range first {
		if again[name] == "" {
			t.Errorf("%s is missing", name)
		}
		if rel := strings.TrimPrefix(name, dir+"/"); first[name] != again[name] && name != smi && !strings.HasPrefix(rel, "sys/class/infiniband/") {
			t.Errorf("%s was replaced", rel)
		}
	}
	if len(again) != len(first) {
		t.Errorf("%d entries, want %d", len(again), len(first))
	}
}

// identities maps each file to its inode and time of change.
func identities(t *testing.T, dir string) map[string]string {
	t.Helper()
	ids := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var st unix.Stat_t
		err = unix.Lstat(name, &st)
		ids[name] = fmt.Sprint(st.Ino, st.Ctim)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestDeviceNodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	root := simulatetest.Build(t, "azure-nd-gb300-v6")
	if len(root.Notes) > 0 {
		t.Errorf("notes %q", root.Notes)
	}
	var got []string
	for _, pattern := range []string{root.DriverRoot + "/dev/*", root.DevRoot + "/infiniband/*"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			got = append(got, filepath.Base(name))
			var st unix.Stat_t
			if err := unix.Stat(name, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3) || st.Mode&0o777 != 0o666 {
				t.Errorf("%s: mode %o, device %x, %v", name, st.Mode, st.Rdev, err)
			}
		}
	}
	want := strings.Fields("nvidia-uvm nvidia-uvm-tools nvidia0 nvidia1 nvidia2 nvidia3 nvidiactl" +
		" issm0 issm1 issm2 issm3 rdma_cm umad0 umad1 umad2 umad3 uverbs0 uverbs1 uverbs2 uverbs3")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
}

func TestBuildWithoutRightToMakeDeviceNodes(t *testing.T) {
	m, double, dir := simulatetest.Load(t, "azure-nd-gb300-v6"), simulatetest.NVMLDouble(t), t.TempDir()
	var root simulate.Root
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Capabilities belong to the thread; this one ends with the goroutine.
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err = unix.Capget(&header, &data[0]); err != nil {
			return
		}
		data[0].Effective &^= 1 << unix.CAP_MKNOD
		if err = unix.Capset(&header, &data[0]); err != nil {
			return
		}
		root, err = m.Build(dir, double)
	}()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if len(root.Notes) != 1 || !strings.Contains(root.Notes[0], "20 device nodes are missing") {
		t.Errorf("notes %q", root.Notes)
	}
	if _, err := os.Stat(root.NVMLFacts); err != nil {
		t.Error(err)
	}
}

func TestBuildNotesGPUsWithoutAddress(t *testing.T) {
	root := simulatetest.Build(t, "gcp-a3-h100")
	if want := "2 GPUs are missing: the machine file has no PCI address for them"; !strings.Contains(strings.Join(root.Notes, "\n"), want) {
		t.Errorf("notes %q, want %q", root.Notes, want)
	}
}

func TestBuildFails(t *testing.T) {
	m := simulatetest.Load(t, "vm-domain-10000")
	if _, err := m.Build(t.TempDir(), "/nonexistent.so"); err == nil || !strings.Contains(err.Error(), "build.sh") {
		t.Errorf("missing double: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Build(file, simulatetest.NVMLDouble(t)); err == nil {
		t.Error("no error for a file in place of the directory")
	}
}
