package claims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/testing/golden"
)

func expectJSON(t *testing.T, name string, compact []byte) {
	t.Helper()
	var got bytes.Buffer
	if err := json.Indent(&got, compact, "", "  "); err != nil {
		t.Fatalf("%v in %q", err, compact)
	}
	got.WriteByte('\n')
	golden.Expect(t, filepath.Join("testdata", name), got.String())
}

func TestCDIFile(t *testing.T) {
	shared := types.UID("share-1")
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"pair":     pair("uid", 0),
		"four":     claim("uid", []string{"gpu=" + gpuName(0), "gpu=" + gpuName(1), "nic=" + nicName(0), "nic=" + nicName(1)}),
		"nic-only": claim("uid", []string{"nic=" + nicName(3)}),
		"no-rdma":  pair("uid", 0, withConfig(resourceapi.AllocationConfigSourceClaim, `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"none"}`, "nic")),
		"twice": claim("uid", []string{"a=" + nicName(0), "b=" + nicName(0)}, func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[1].ShareID = &shared
		}),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := mustPrepare(t, n.manager(), c)
			content, err := os.ReadFile(n.store().Path("uid"))
			if err != nil {
				t.Fatal(err)
			}
			expectJSON(t, name+".cdi.json", content)
			seen := map[string]bool{}
			for _, d := range p.Devices {
				if seen[d.CDIDeviceIDs[0]] {
					t.Errorf("first CDI ID %s is not unique; the kubelet tells devices apart by it", d.CDIDeviceIDs[0])
				}
				seen[d.CDIDeviceIDs[0]] = true
			}
		})
	}
}

// TestContainersGetTheirRequestsOnly looks at what the CDI devices of one request
// bring. That a runtime applies them is tested in package cdi.
func TestContainersGetTheirRequestsOnly(t *testing.T) {
	n := newNode(t)
	p := mustPrepare(t, n.manager(), pair("uid", 0))
	content, err := os.ReadFile(n.store().Path("uid"))
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Kind    string
		Devices []struct {
			Name           string
			ContainerEdits cdi.Edits
		}
	}
	if err := json.Unmarshal(content, &spec); err != nil {
		t.Fatal(err)
	}
	for request, want := range map[string][]string{
		"gpu": {"/dev/nvidia0", "/dev/nvidiactl", "NVIDIA_VISIBLE_DEVICES", "TOPODRA_GPU_0000_01_00_0"},
		"nic": {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "NCCL_IB_HCA", "TOPODRA_GPU_NICS", "TOPODRA_NIC_0000_02_00_0", "UCX_NET_DEVICES"},
	} {
		var got []string
		for _, prepared := range p.Devices {
			for _, device := range spec.Devices {
				if prepared.Request != request || !slices.Contains(prepared.CDIDeviceIDs, spec.Kind+"="+device.Name) {
					continue
				}
				for _, env := range device.ContainerEdits.Env {
					key, _, _ := strings.Cut(env, "=")
					got = append(got, key)
				}
				for _, node := range device.ContainerEdits.DeviceNodes {
					got = append(got, node.Path)
				}
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request %s gets (-want +got):\n%s", request, diff)
		}
	}
}

func TestPrepareTellsPlacement(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	p := mustPrepare(t, m, pair("uid", 2))
	want := []v1alpha1.DevicePlacement{
		{Name: gpuName(2), Type: "gpu", Request: "gpu", PCIAddress: "0000:21:00.0", AffinityGroup: "pcie-0000-20-00-0", GPUUUID: "GPU-2"},
		{Name: nicName(2), Type: "nic", Request: "nic", PCIAddress: "0000:22:00.0", AffinityGroup: "pcie-0000-20-00-0",
			NICGUID: "guid-2", IfName: "eth2", RDMADevice: "mlx5_2", Rail: "2", Distances: map[string]string{gpuName(2): "PIX"}},
	}
	got := m.Placements("pod-uid")
	if len(got) != 1 || got[0].Name != "claim-uid" {
		t.Fatalf("placements %+v, want one of claim-uid", got)
	}
	if diff := cmp.Diff(want, got[0].Devices); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := p.Devices[1].Attributes["topodra.dev/rail"]; !ok {
		t.Errorf("attributes %v lack topodra.dev/rail", p.Devices[1].Attributes)
	}
	mustUnprepare(t, m, pair("uid", 2))
	if got := m.Placements("pod-uid"); len(got) != 0 {
		t.Errorf("placements after Unprepare: %+v", got)
	}
}

func TestUnknownFactsAreSaidToBeUnknown(t *testing.T) {
	n := newNode(t)
	d, _ := n.devices.Device(nicName(0))
	d.AffinityGroup, d.Rail, d.Distances, d.NIC.RDMA.NodeGUID = "", nil, nil, ""
	n.devices.add(d)
	p := mustPrepare(t, n.manager(), pair("uid", 0)).Devices[1].Placements[0]
	if p.AffinityGroup != "unknown" || p.Rail != "unknown" || p.NICGUID != "unknown" || p.Distances[gpuName(0)] != "unknown" {
		t.Errorf("%+v", p)
	}
}

// TestRDMAEnvironmentSpansThePod: four claims of one GPU and one NIC each in one
// pod. Every NIC must carry the list of all, as the last list wins.
func TestRDMAEnvironmentSpansThePod(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	batch := []*resourceapi.ResourceClaim{pair("a", 0), pair("b", 1)}
	for _, c := range batch {
		mustPrepare(t, m, c, batch...)
		content, err := os.ReadFile(n.store().Path(c.UID))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1"`, `"NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"`} {
			if !strings.Contains(string(content), want) {
				t.Errorf("claim %s lacks %s:\n%s", c.UID, want, content)
			}
		}
	}
}

func TestPrepareIsIdempotent(t *testing.T) {
	c := pair("uid", 0)
	for name, disturb := range map[string]func(n *node, m *Manager) *Manager{
		"same process":       func(_ *node, m *Manager) *Manager { return m },
		"after restart":      func(n *node, _ *Manager) *Manager { return n.manager() },
		"CDI file deleted":   func(n *node, m *Manager) *Manager { os.Remove(n.store().Path("uid")); return m },
		"CDI folder deleted": func(n *node, m *Manager) *Manager { os.RemoveAll(n.store().Dir); return m },
		"CDI file changed": func(n *node, m *Manager) *Manager {
			if err := os.WriteFile(n.store().Path("uid"), []byte(`{"devices":[]}`), 0o600); err != nil {
				n.t.Fatal(err)
			}
			return m
		},
		// The device is in use, so it may well look different, or be hidden.
		"device vanished": func(n *node, m *Manager) *Manager { n.devices.remove(nicName(0)); return m },
		"GPU driver gone": func(n *node, m *Manager) *Manager { n.gpus.fail(errors.New("no NVML")); return n.manager() },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			m := n.manager()
			first := mustPrepare(t, m, c)
			content, err := os.ReadFile(n.store().Path("uid"))
			if err != nil {
				t.Fatal(err)
			}
			m = disturb(n, m)
			if diff := cmp.Diff(first, mustPrepare(t, m, c)); diff != "" {
				t.Errorf("the answer changed (-first +second):\n%s", diff)
			}
			again, err := os.ReadFile(n.store().Path("uid"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(content, again) {
				t.Errorf("CDI file changed from\n%s\nto\n%s", content, again)
			}
			mustUnprepare(t, m, c)
			if got := append(n.files("claims"), n.files("cdi")...); len(got) > 0 {
				t.Errorf("left after Unprepare: %v", got)
			}
		})
	}
}

func TestRecoverWritesMissingCDIFile(t *testing.T) {
	n := newNode(t)
	mustPrepare(t, n.manager(), pair("uid", 0))
	want, _ := os.ReadFile(n.store().Path("uid"))
	os.RemoveAll(n.store().Dir)
	n.gpus.fail(errors.New("no NVML"))
	n.devices.remove(gpuName(0))
	n.manager()
	if got, err := os.ReadFile(n.store().Path("uid")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("CDI file after start: %v\n%s", err, got)
	}
	if n.metrics.prepared != 1 {
		t.Errorf("metric says %d prepared claims, want 1", n.metrics.prepared)
	}
}

func TestNewPodOfASharedClaimIsRecorded(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	c := pair("uid", 0)
	mustPrepare(t, m, c)
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "second", UID: "second"})
	mustPrepare(t, m, c)
	for _, m := range []*Manager{m, n.manager()} {
		if got := m.Placements("second"); len(got) != 1 {
			t.Errorf("placements of the second pod: %+v", got)
		}
	}
}

func TestReallocatedClaimIsPreparedAnew(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	mustPrepare(t, m, pair("uid", 0))
	p := mustPrepare(t, m, pair("uid", 1))
	if p.Devices[0].Name != gpuName(1) {
		t.Errorf("got %s after reallocation, want %s", p.Devices[0].Name, gpuName(1))
	}
	mustPrepare(t, m, pair("other", 0)) // the old devices are free
	if err := m.index.held("third", []string{gpuName(1)}); err == nil {
		t.Error("the new devices are not held")
	}
}

func TestBadConfigurations(t *testing.T) {
	const head = `"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig"`
	class, fromClaim := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	for name, test := range map[string]struct {
		option claimOption
		want   string // "" for success
	}{
		"unknown field":      {withConfig(fromClaim, `{`+head+`,"rdmaa":"none"}`, "nic"), `status.allocation.devices.config[0] (FromClaim).opaque.parameters.rdmaa: unknown field`},
		"repeated field":     {withConfig(fromClaim, `{`+head+`,"rdma":"none","rdma":"none"}`, "nic"), `parameters.rdma: duplicate field`},
		"wrong case":         {withConfig(fromClaim, `{`+head+`,"RDMA":"none"}`, "nic"), `parameters.RDMA: unknown field`},
		"bad value":          {withConfig(fromClaim, `{`+head+`,"rdma":"host"}`, "nic"), `parameters.rdma: "host" is not known, want exclusive, shared or none`},
		"bad type":           {withConfig(fromClaim, `{`+head+`,"rdma":1}`, "nic"), `rdma`},
		"wrong kind":         {withConfig(fromClaim, `{"apiVersion":"topodra.dev/v1alpha1","kind":"Config"}`, "nic"), `parameters.kind: "Config" is not known, want GPUConfig or NICConfig`},
		"wrong version":      {withConfig(fromClaim, `{"apiVersion":"topodra.dev/v2","kind":"NICConfig"}`, "nic"), `parameters.apiVersion: "topodra.dev/v2" is not known, want "topodra.dev/v1alpha1"`},
		"not an object":      {withConfig(fromClaim, `[]`, "nic"), `opaque.parameters: not a JSON object`},
		"other device kind":  {withConfig(fromClaim, `{`+head+`}`, "gpu"), `a configuration for a nic does not fit request "gpu", which got the gpu ` + gpuName(0)},
		"all requests":       {withConfig(fromClaim, `{`+head+`}`), `does not fit request "gpu"`},
		"from class":         {withConfig(class, `{`+head+`,"x":1}`, "nic"), `config[0] (FromClass).opaque.parameters.x: unknown field`},
		"applies to nothing": {withConfig(fromClaim, `{`+head+`,"x":1}`, "elsewhere"), `parameters.x: unknown field`},
		"good":               {withConfig(fromClaim, `{`+head+`,"rdma":"none"}`, "nic"), ``},
		"good for GPU":       {withConfig(fromClaim, `{"apiVersion":"topodra.dev/v1alpha1","kind":"GPUConfig"}`, "gpu"), ``},
		"of another driver": {func(c *resourceapi.ResourceClaim) {
			withConfig(fromClaim, `{"x":1}`)(c)
			c.Status.Allocation.Devices.Config[0].Opaque.Driver = "other.example"
		}, ``},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			m := n.manager()
			m.retry = Retry{Budget: time.Hour, First: time.Hour} // a retry would hang
			_, err := m.Prepare(context.Background(), pair("uid", 0, test.option))
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if got := append(n.files("claims"), n.files("cdi")...); len(got) > 0 {
				t.Errorf("left behind: %v", got)
			}
			mustPrepare(t, m, pair("other", 0))
		})
	}
}

// TestConfigPrecedence covers the four ways of naming requests, and that the
// claim wins over the class wherever the two stand.
func TestConfigPrecedence(t *testing.T) {
	const none = `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"none"}`
	const shared = `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"shared"}`
	class, fromClaim := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	for name, test := range map[string]struct {
		options []claimOption
		rdma    bool
	}{
		"default":               {nil, true},
		"all requests":          {[]claimOption{withConfig(class, none)}, false},
		"main request":          {[]claimOption{withConfig(class, none, "nic")}, false},
		"subrequest":            {[]claimOption{withConfig(class, none, "nic/preferred")}, false},
		"other subrequest":      {[]claimOption{withConfig(class, none, "nic/other")}, true},
		"claim over class":      {[]claimOption{withConfig(class, none), withConfig(fromClaim, shared)}, true},
		"claim listed first":    {[]claimOption{withConfig(fromClaim, shared), withConfig(class, none)}, true},
		"last one of the claim": {[]claimOption{withConfig(fromClaim, shared), withConfig(fromClaim, none)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			mustPrepare(t, n.manager(), claim("uid", []string{"nic/preferred=" + nicName(0)}, test.options...))
			content, _ := os.ReadFile(n.store().Path("uid"))
			if got := strings.Contains(string(content), "uverbs"); got != test.rdma {
				t.Errorf("RDMA given: %v, want %v\n%s", got, test.rdma, content)
			}
		})
	}
}

func TestConflicts(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	first := pair("first", 0)
	mustPrepare(t, m, first)

	second := pair("second", 0)
	check := func(m *Manager) {
		t.Helper()
		_, err := m.Prepare(context.Background(), second)
		for _, want := range []string{gpuName(0), "ns/claim-first (first)", "delete that pod"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("got %v, want %q in it", err, want)
			}
		}
	}
	check(m)
	m = n.manager()
	check(m)
	// A refused claim must not keep what it got before it was refused.
	mixed := claim("mixed", []string{"gpu=" + gpuName(5), "gpu=" + gpuName(0)})
	if _, err := m.Prepare(context.Background(), mixed); err == nil {
		t.Fatal("a held device was given away")
	}
	mustPrepare(t, m, claim("free", []string{"gpu=" + gpuName(5)}))

	mustPrepare(t, m, pair("admin", 0, withAdminAccess))
	check(m)
	mustUnprepare(t, m, first)
	mustPrepare(t, m, second) // adminAccess holds nothing
}

func TestSharesOfOneDevice(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	share := func(uid string) claimOption {
		return func(c *resourceapi.ResourceClaim) {
			u := types.UID(uid)
			c.Status.Allocation.Devices.Results[0].ShareID = &u
		}
	}
	devices := []string{"nic=" + nicName(0)}
	mustPrepare(t, m, claim("a", devices, share("s1")))
	mustPrepare(t, m, claim("b", devices, share("s2")))
	if _, err := m.Prepare(context.Background(), claim("c", devices, share("s1"))); err == nil {
		t.Error("one share was given to two claims")
	}
}

func TestConflictIsWaitedFor(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	m.retry = Retry{Held: 10 * time.Second, First: time.Millisecond, Max: 5 * time.Millisecond}
	first := pair("first", 0)
	mustPrepare(t, m, first)
	go func() {
		time.Sleep(20 * time.Millisecond)
		mustUnprepare(t, m, first)
	}()
	mustPrepare(t, m, pair("second", 0))
}

func TestTemporaryFaults(t *testing.T) {
	for name, test := range map[string]struct {
		before, after func(*node)
		want          string
	}{
		"device vanished": {
			func(n *node) { n.devices.remove(nicName(0)) },
			func(n *node) { d, _ := newNode(t).devices.Device(nicName(0)); n.devices.add(d) },
			"device " + nicName(0) + " is no longer on this node",
		},
		"NVML fails": {
			func(n *node) { n.gpus.fail(errors.New("driver not loaded")) },
			func(n *node) { n.gpus.fail(nil) },
			"driver not loaded",
		},
		"uverbs missing": {
			func(n *node) { os.Remove(filepath.Join(n.dir, "root/dev/infiniband/uverbs0")) },
			func(n *node) { n.node("uverbs0") },
			"/dev/infiniband/uverbs0 does not exist: load the kernel module ib_uverbs",
		},
		"rdma_cm missing": {
			func(n *node) { os.Remove(filepath.Join(n.dir, "root/dev/infiniband/rdma_cm")) },
			func(n *node) { n.node("rdma_cm") },
			"/dev/infiniband/rdma_cm does not exist: load the kernel module rdma_ucm",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			m := n.manager()
			test.before(n)
			_, err := m.Prepare(context.Background(), pair("uid", 0))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if got := append(n.files("claims"), n.files("cdi")...); len(got) > 0 {
				t.Errorf("left behind: %v", got)
			}
			m.retry = Retry{Budget: 10 * time.Second, First: time.Millisecond, Max: 5 * time.Millisecond}
			time.AfterFunc(20*time.Millisecond, func() { test.after(n) })
			mustPrepare(t, m, pair("uid", 0))
		})
	}
}

func TestGPUWithoutDeviceNodeIsRefused(t *testing.T) {
	n := newNode(t)
	n.gpus.noNodes = map[string]bool{"GPU-0": true}
	_, err := n.manager().Prepare(context.Background(), pair("uid", 0))
	if err == nil || !strings.Contains(err.Error(), "no device node") {
		t.Errorf("got %v", err)
	}
}

func TestForeignResultsAndPools(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	foreign := pair("uid", 0, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results[0].Driver = "gpu.example"
	})
	if p := mustPrepare(t, m, foreign); len(p.Devices) != 1 || p.Devices[0].Name != nicName(0) {
		t.Errorf("prepared %+v, want the NIC alone", p.Devices)
	}
	elsewhere := pair("elsewhere", 1, func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "node-2" })
	if _, err := m.Prepare(context.Background(), elsewhere); err == nil || !strings.Contains(err.Error(), `pool "node-2"`) {
		t.Errorf("got %v", err)
	}
	if err := m.Unprepare(context.Background(), "never-prepared", types.NamespacedName{}); err != nil {
		t.Error(err)
	}
	if err := m.Unprepare(context.Background(), "../../etc/passwd", types.NamespacedName{}); err == nil {
		t.Error("a path was taken for a UID")
	}
}

func TestConcurrentCalls(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	var wg sync.WaitGroup
	for i := range 8 {
		for range 4 {
			wg.Go(func() { mustPrepare(t, m, pair(fmt.Sprintf("uid-%d", i), i)) })
		}
	}
	wg.Wait()
	if got := n.files("claims"); len(got) != 8 {
		t.Errorf("journal has %v, want 8 files", got)
	}
	for i := range 8 {
		wg.Go(func() { mustUnprepare(t, m, pair(fmt.Sprintf("uid-%d", i), i)) })
	}
	wg.Wait()
	if got := append(n.files("claims"), n.files("cdi")...); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
	if len(m.locks.claims) != 0 {
		t.Errorf("%d locks are left", len(m.locks.claims))
	}
}

// TestSyncsPerPrepare counts what reaches the disk: one synced write, and none
// for a claim that is prepared already.
func TestSyncsPerPrepare(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	files := m.journal.(journal)
	syncs, write := 0, files.writeSynced
	files.writeSynced = func(path string, content []byte) error {
		syncs++
		return write(path, content)
	}
	m.journal = files
	c := claim("uid", []string{"gpu=" + gpuName(0), "gpu=" + gpuName(1), "nic=" + nicName(0), "nic=" + nicName(1)})
	mustPrepare(t, m, c)
	mustPrepare(t, m, c)
	mustUnprepare(t, m, c)
	if syncs != 1 {
		t.Errorf("%d synced writes, want 1", syncs)
	}
}

// BenchmarkPrepare shows that other claims cost nothing. It leaves the sync out,
// whose time depends on what else the disk has to do.
func BenchmarkPrepare(b *testing.B) {
	for _, others := range []int{0, 200} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			n := newNode(b)
			m := n.manager()
			files := m.journal.(journal)
			files.writeSynced = func(path string, content []byte) error { return os.WriteFile(path, content, 0o600) }
			m.journal = files
			for i := range others {
				mustPrepare(b, m, pair(fmt.Sprintf("other-%d", i), i%8, withAdminAccess))
			}
			c := pair("uid", 0)
			start := cpuTime(b)
			for b.Loop() {
				mustPrepare(b, m, c)
				mustUnprepare(b, m, c)
			}
			b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is what this process has used of the CPUs, in nanoseconds: unlike the
// clock it tells the same on a busy machine.
func cpuTime(b *testing.B) int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
