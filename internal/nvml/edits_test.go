package nvml_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/nvml"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o644) }

// needDeviceNodes skips: nvcdi gives out only device nodes that exist, and only
// root can make them.
func needDeviceNodes(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
}

func nodes(edits *cdispec.ContainerEdits) []string {
	var all []string
	for _, n := range edits.DeviceNodes {
		host := n.HostPath
		if host == "" {
			host = n.Path
		}
		all = append(all, host+" as "+n.Path)
	}
	slices.Sort(all)
	return all
}

func TestEdits(t *testing.T) {
	needDeviceNodes(t)
	root := simulatetest.BuildDriver(t, "h200-4cx7-snc-baremetal")
	gpus := list(t, root.DriverRoot)
	editor := nvml.NewEditor(nvml.New(root.DriverRoot), nvml.EditorOptions{})
	perDevice, common, err := editor.Edits(t.Context(), []string{gpus[2].UUID, gpus[5].UUID})
	if err != nil {
		t.Fatal(err)
	}
	if len(perDevice) != 2 {
		t.Errorf("edits for %d GPUs, want 2", len(perDevice))
	}
	for _, g := range []gpu.GPU{gpus[2], gpus[5]} {
		want := []string{fmt.Sprintf("%s/dev/nvidia%d as /dev/nvidia%[2]d", root.DriverRoot, g.Minor)}
		if diff := cmp.Diff(want, nodes(perDevice[g.UUID])); diff != "" {
			t.Errorf("device nodes of %s (-want +got):\n%s", g.UUID, diff)
		}
	}
	want := []string{
		root.DriverRoot + "/dev/nvidia-uvm as /dev/nvidia-uvm",
		root.DriverRoot + "/dev/nvidia-uvm-tools as /dev/nvidia-uvm-tools",
		root.DriverRoot + "/dev/nvidiactl as /dev/nvidiactl",
	}
	if diff := cmp.Diff(want, nodes(common)); diff != "" {
		t.Errorf("common device nodes (-want +got):\n%s", diff)
	}
	var mounts []string
	for _, m := range common.Mounts {
		mounts = append(mounts, filepath.Base(m.ContainerPath))
		if _, err := os.Stat(m.HostPath); err != nil {
			t.Error(err)
		}
	}
	for _, file := range []string{"libcuda.so." + simulate.DriverVersion, "libnvidia-ml.so." + simulate.DriverVersion, "nvidia-smi"} {
		if !slices.Contains(mounts, file) {
			t.Errorf("%s is not among the mounts %v", file, mounts)
		}
	}
	if !slices.Contains(common.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("environment %v lets a legacy runtime add devices", common.Env)
	}
	if len(common.Hooks) > 0 {
		t.Errorf("hooks %+v without a hook program", common.Hooks)
	}
}

func TestEditsHooks(t *testing.T) {
	needDeviceNodes(t)
	root := simulatetest.BuildDriver(t, "gke-a3-ultra-h200")
	uuid := list(t, root.DriverRoot)[0].UUID
	editor := nvml.NewEditor(nvml.New(root.DriverRoot), nvml.EditorOptions{HookPath: "/opt/nvidia-cdi-hook"})
	perDevice, common, err := editor.Edits(t.Context(), []string{uuid})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range append(common.Hooks, perDevice[uuid].Hooks...) {
		if h.Path != "/opt/nvidia-cdi-hook" {
			t.Errorf("hook %+v", h)
		}
		names = append(names, h.HookName+" "+h.Args[1])
	}
	slices.Sort(names)
	want := []string{
		"createContainer create-symlinks",
		"createContainer disable-device-node-modification",
		"createContainer enable-cuda-compat",
		"createContainer update-application-profile",
		"createContainer update-ldcache",
		"createRuntime apply-cuda-memory-limits",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestEditsForHost has the agent see the host's root at another path than the
// container runtime does.
func TestEditsForHost(t *testing.T) {
	needDeviceNodes(t)
	root := simulatetest.BuildDriver(t, "gke-a3-ultra-h200")
	uuid := list(t, root.DriverRoot)[0].UUID
	for _, host := range []string{"/", "/run/nvidia/driver"} {
		editor := nvml.NewEditor(nvml.New(root.DriverRoot), nvml.EditorOptions{HostRoot: host})
		perDevice, common, err := editor.Edits(t.Context(), []string{uuid})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := nodes(perDevice[uuid]), filepath.Join(host, "dev/nvidia0")+" as /dev/nvidia0"; got[0] != want {
			t.Errorf("device node %q, want %q", got, want)
		}
		for _, m := range common.Mounts {
			if strings.HasPrefix(m.HostPath, root.DriverRoot) {
				t.Errorf("mount %+v has the path of the agent", m)
			}
		}
	}
}

func TestEditsAreKeptUntilSomethingChanges(t *testing.T) {
	needDeviceNodes(t)
	root := simulatetest.BuildDriver(t, "dgx-a100")
	reader := nvml.New(root.DriverRoot)
	editor := nvml.NewEditor(reader, nvml.EditorOptions{})
	_, gpus, _ := reader.List(t.Context())
	var uuids []string
	for _, g := range gpus {
		uuids = append(uuids, g.UUID)
	}
	first, _, err := editor.Edits(t.Context(), uuids)
	if err != nil {
		t.Fatal(err)
	}

	const rounds = 100
	start := time.Now()
	for range rounds {
		again, _, err := editor.Edits(t.Context(), uuids)
		if err != nil || again[uuids[0]] != first[uuids[0]] {
			t.Fatalf("not kept: %v", err)
		}
	}
	if each := time.Since(start) / rounds; each > time.Millisecond {
		t.Errorf("%v for edits that are kept, want at most 1 ms", each)
	}

	// A rescan that sees the same leaves them, one that sees a change does not.
	reader.List(t.Context())
	if again, _, _ := editor.Edits(t.Context(), uuids); again[uuids[0]] != first[uuids[0]] {
		t.Error("an unchanged rescan dropped the edits")
	}
	replaceFacts(t, root, "minor 0\n", "minor 9\n")
	if err := os.Rename(filepath.Join(root.DriverRoot, "dev/nvidia0"), filepath.Join(root.DriverRoot, "dev/nvidia9")); err != nil {
		t.Fatal(err)
	}
	reader.List(t.Context())
	again, _, err := editor.Edits(t.Context(), uuids)
	if err != nil {
		t.Fatal(err)
	}
	if got := nodes(again[gpus[0].UUID])[0]; !strings.HasSuffix(got, "/dev/nvidia9") {
		t.Errorf("after the change: %s", got)
	}
}

func TestEditsFail(t *testing.T) {
	root := simulatetest.BuildDriver(t, "gke-a3-ultra-h200")
	uuid := list(t, root.DriverRoot)[0].UUID
	edits := func(uuid string) error {
		_, _, err := nvml.NewEditor(nvml.New(root.DriverRoot), nvml.EditorOptions{}).Edits(t.Context(), []string{uuid})
		return err
	}
	says := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	if os.Geteuid() == 0 {
		says(edits("GPU-00000000-0000-4000-8000-ffffffffffff"), "GPU GPU-00000000-0000-4000-8000-ffffffffffff: NVML does not know it")
		if err := os.Remove(filepath.Join(root.DriverRoot, "dev/nvidia0")); err != nil {
			t.Fatal(err)
		}
		says(edits(uuid), "/dev/nvidia0 is missing")
	}
	if err := os.RemoveAll(filepath.Join(root.DriverRoot, "dev")); err != nil {
		t.Fatal(err)
	}
	says(edits(uuid), "/dev/nvidiactl is missing")
	if err := os.RemoveAll(filepath.Join(root.DriverRoot, "usr")); err != nil {
		t.Fatal(err)
	}
	says(edits(uuid), nvml.ErrNoDriver.Error())
}
