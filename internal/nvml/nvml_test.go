package nvml_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/nvml"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
)

// These tests go through go-nvml's dlopen of the double. One process can use
// one machine at a time, so none of them is parallel.

func list(t *testing.T, driverRoot string) []gpu.GPU {
	t.Helper()
	driver, gpus, errs := nvml.New(driverRoot).List(t.Context())
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	if want := (gpu.Driver{Version: simulate.DriverVersion, CUDAVersion: simulate.CUDAVersion}); driver != want {
		t.Errorf("driver %+v, want %+v", driver, want)
	}
	return gpus
}

// TestListEqualsMachineFile compares what NVML tells with what the file says.
func TestListEqualsMachineFile(t *testing.T) {
	for _, slug := range simulatetest.Slugs(t) {
		t.Run(slug, func(t *testing.T) {
			snapshot, err := simulatetest.Load(t, slug).Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := snapshot.GPUs
			root := simulatetest.BuildDriver(t, slug)
			if len(want) == 0 {
				if _, _, errs := nvml.New(root.DriverRoot).List(t.Context()); len(errs) != 1 || !errors.Is(errs[0], nvml.ErrNoDriver) {
					t.Errorf("errors %v, want %v", errs, nvml.ErrNoDriver)
				}
				return
			}
			// NVML counts only GPUs that it lists; the file also those without an address.
			slices.SortFunc(want, func(a, b gpu.GPU) int { return a.Index - b.Index })
			for i := range want {
				want[i].Index = i
			}
			slices.SortFunc(want, func(a, b gpu.GPU) int { return a.Address.Compare(b.Address) })
			if diff := cmp.Diff(want, list(t, root.DriverRoot)); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestListProducts(t *testing.T) {
	for slug, want := range map[string]gpu.GPU{
		"h200-hgx-cx7-baremetal":   {Architecture: "Hopper", ComputeCapability: "9.0", MemoryBytes: 143771 << 20},
		"ibm-ac922-lassen":         {Architecture: "Volta", ComputeCapability: "7.0", MemoryBytes: 16384 << 20},
		"workstation-gtx1070-vega": {Architecture: "Pascal", ComputeCapability: "6.1", MemoryBytes: 8192 << 20},
		"rtxpro6000-gpu-vfs":       {Architecture: "Blackwell", ComputeCapability: "12.0", MemoryBytes: 97887 << 20},
		// No name was published, so nothing follows from it.
		"gb300-cx8-datadirect": {},
	} {
		g := list(t, simulatetest.BuildDriver(t, slug).DriverRoot)[0]
		got := gpu.GPU{Architecture: g.Architecture, ComputeCapability: g.ComputeCapability, MemoryBytes: g.MemoryBytes}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", slug, diff)
		}
	}
}

func TestListFabric(t *testing.T) {
	domain := func(slug string) map[gpu.Fabric]int {
		domains := map[gpu.Fabric]int{}
		for _, g := range list(t, simulatetest.BuildDriver(t, slug).DriverRoot) {
			if g.Fabric != nil {
				domains[*g.Fabric]++
			}
		}
		return domains
	}
	if got := domain("h200-4cx7-snc-baremetal"); len(got) != 0 {
		t.Errorf("an HGX machine is in domains %v", got)
	}
	rack, other := domain("azure-nd-gb300-v6"), domain("gb200-nvl72-baremetal")
	for f := range rack {
		if len(f.ClusterUUID) != 36 || f.CliqueID != 32766 || other[f] != 0 {
			t.Errorf("domain %+v, other rack %v", f, other)
		}
	}
	if len(rack) != 1 || len(other) != 1 {
		t.Errorf("domains %v and %v, want one for each rack", rack, other)
	}
	if diff := cmp.Diff(rack, domain("azure-nd-gb300-v6")); diff != "" {
		t.Errorf("a second node of the rack is in another domain:\n%s", diff)
	}
}

// replaceFacts edits the file that the double reads.
func replaceFacts(t *testing.T, root simulate.Root, from, to string) {
	t.Helper()
	data, err := os.ReadFile(root.NVMLFacts)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(data, []byte(from), []byte(to), 1)
	if bytes.Equal(data, changed) {
		t.Fatalf("%q is not in the facts:\n%s", from, data)
	}
	if err := os.WriteFile(root.NVMLFacts, changed, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestListDriverFailures(t *testing.T) {
	for name, c := range map[string]struct {
		init string
		kind error
		says string
	}{
		"driver not loaded": {"init 9", nvml.ErrDriverNotLoaded, "nvidia-modprobe"},
		"version mismatch":  {"init 18", nvml.ErrVersionMismatch, "restart this process"},
		"another error":     {"init 999", nvml.ErrNVML, "dmesg"},
		"no permission":     {"init 4", nvml.ErrNVML, "dmesg"},
	} {
		t.Run(name, func(t *testing.T) {
			root := simulatetest.BuildDriver(t, "gke-a3-ultra-h200")
			reader := nvml.New(root.DriverRoot)
			replaceFacts(t, root, "gpu\n", c.init+"\ngpu\n")
			_, gpus, errs := reader.List(t.Context())
			if len(gpus) > 0 || len(errs) != 1 || !errors.Is(errs[0], c.kind) || !strings.Contains(errs[0].Error(), c.says) {
				t.Errorf("got %v, %v; want %v that says %q", gpus, errs, c.kind, c.says)
			}
			// The next rescan sees the driver when it has come up.
			replaceFacts(t, root, c.init+"\n", "")
			if _, gpus, errs := reader.List(t.Context()); len(gpus) != 1 || len(errs) > 0 {
				t.Errorf("after recovery: %v, %v", gpus, errs)
			}
		})
	}
}

func TestListWithoutUsableLibrary(t *testing.T) {
	empty := t.TempDir()
	_, _, errs := nvml.New(empty).List(t.Context())
	if len(errs) != 1 || !errors.Is(errs[0], nvml.ErrNoDriver) || !strings.Contains(errs[0].Error(), empty) {
		t.Errorf("no library: %v", errs)
	}

	for name, content := range map[string]string{"text": "not a library", "empty": ""} {
		root := t.TempDir()
		dir := filepath.Join(root, "usr/lib64")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "libnvidia-ml.so.1"), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, _, errs := nvml.New(root).List(t.Context()); len(errs) != 1 || !errors.Is(errs[0], nvml.ErrNVML) || !strings.Contains(errs[0].Error(), "architecture") {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestListLeavesOutFailingGPU(t *testing.T) {
	root := simulatetest.BuildDriver(t, "dgx-a100")
	all := list(t, root.DriverRoot)
	lost := all[3]
	replaceFacts(t, root, "uuid "+lost.UUID+"\n", "uuid "+lost.UUID+"\nerror 15\n")
	_, gpus, errs := nvml.New(root.DriverRoot).List(t.Context())
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "GPU is lost") {
		t.Errorf("errors %v", errs)
	}
	if diff := cmp.Diff(slices.Delete(all, 3, 4), gpus); diff != "" {
		t.Errorf("other GPUs (-want +got):\n%s", diff)
	}
}

func TestListMIG(t *testing.T) {
	root := simulatetest.BuildDriver(t, "dgx-a100")
	replaceFacts(t, root, "mig 0", "mig 1")
	enabled := 0
	for _, g := range list(t, root.DriverRoot) {
		if g.MIGEnabled {
			enabled++
		}
	}
	if enabled != 1 {
		t.Errorf("%d GPUs in MIG mode, want 1", enabled)
	}
}

// A process that used one machine sees the next one, and the first one again.
func TestListAnotherMachine(t *testing.T) {
	a, b := simulatetest.BuildDriver(t, "gke-a3-ultra-h200"), simulatetest.BuildDriver(t, "dgx-2")
	for _, c := range []struct {
		root simulate.Root
		want int
	}{{a, 1}, {b, 16}, {a, 1}, {b, 16}} {
		if got := len(list(t, c.root.DriverRoot)); got != c.want {
			t.Errorf("%d GPUs, want %d", got, c.want)
		}
	}
}

func TestListFactsFromEnvironment(t *testing.T) {
	a, b := simulatetest.BuildDriver(t, "gke-a3-ultra-h200"), simulatetest.BuildDriver(t, "dgx-2")
	t.Setenv("TOPODRA_NVML_FACTS", b.NVMLFacts)
	if got := len(list(t, a.DriverRoot)); got != 16 {
		t.Errorf("%d GPUs, want the 16 of the other file", got)
	}
}

func TestListFindsDriverContainer(t *testing.T) {
	host := t.TempDir()
	root := simulatetest.BuildDriver(t, "gke-a3-ultra-h200")
	if err := os.MkdirAll(filepath.Join(host, "run/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root.DriverRoot, filepath.Join(host, "run/nvidia/driver")); err != nil {
		t.Fatal(err)
	}
	if got := list(t, host); len(got) != 1 {
		t.Errorf("GPUs %v, want one", got)
	}
}

func TestListConcurrently(t *testing.T) {
	root := simulatetest.BuildDriver(t, "dgx-a100")
	one, two := nvml.New(root.DriverRoot), nvml.New(root.DriverRoot)
	var wg sync.WaitGroup
	for range 8 {
		for _, reader := range []*nvml.Reader{one, two} {
			wg.Go(func() {
				if _, gpus, errs := reader.List(t.Context()); len(gpus) != 8 || len(errs) > 0 {
					t.Errorf("%d GPUs, %v", len(gpus), errs)
				}
			})
		}
	}
	wg.Wait()
}

func TestListEndsWithContext(t *testing.T) {
	root := simulatetest.BuildDriver(t, "dgx-a100")
	// A driver that hangs: reading the facts blocks until somebody writes them.
	if err := os.Remove(root.NVMLFacts); err != nil {
		t.Fatal(err)
	}
	if err := mkfifo(root.NVMLFacts); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"in time", "earlier call"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, _, errs := nvml.New(root.DriverRoot).List(ctx)
		cancel()
		if len(errs) != 1 || !errors.Is(errs[0], nvml.ErrNVML) || !errors.Is(errs[0], context.DeadlineExceeded) || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("errors %v, want one with %q", errs, want)
		}
	}
	// It wakes up, and so does the reader.
	writer, err := os.OpenFile(root.NVMLFacts, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	other := simulatetest.BuildDriver(t, "gke-a3-ultra-h200")
	if got := list(t, other.DriverRoot); len(got) != 1 {
		t.Errorf("GPUs %v, want one", got)
	}
}
