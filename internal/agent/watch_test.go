package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/metrics"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/policy"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
	"github.com/topodra/topodra/internal/uevent"
)

type gpuList struct{ list []gpu.GPU }

func (g *gpuList) List(context.Context) (gpu.Driver, []gpu.GPU, []error) {
	return gpu.Driver{}, g.list, nil
}

// newWatcher watches a small machine in a directory: a GPU and a NIC of one switch.
func newWatcher(t *testing.T) (w *watcher, root string, gpus *gpuList) {
	t.Helper()
	l := layout.Layout{}
	const port = "pci0000:10/0000:10:01.0/0000:11:00.0"
	l.PCI(port+"/0000:12:00.0/0000:13:00.0", layout.Layout{"class": "0x030200", "vendor": "0x10de", "numa_node": "0"})
	const nic = port + "/0000:12:01.0/0000:14:00.0"
	l.PCI(nic, layout.Layout{"class": "0x020000", "vendor": "0x15b3", "numa_node": "0"})
	l.Class("net", nic, "rdma0", layout.Layout{"operstate": "up"})
	l.Class("infiniband", nic, "mlx5_0", layout.Layout{"node_guid": "a:1"})
	root = l.Write(t)
	rules, err := policy.New(v1alpha1.DefaultDriverConfig(), nil, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	gpus = &gpuList{[]gpu.GPU{{Address: pci.MustParseAddress("0000:13:00.0"), UUID: "GPU-1"}}}
	w = &watcher{
		machine: Machine{Scanner: &machine.Scanner{Sysfs: sysfs.Dir(root), GPUs: gpus}},
		policy:  rules, metrics: metrics.New(), events: make(chan struct{}, 1),
		counters: countersQuestion{answered: true},
	}
	return w, root, gpus
}

func names(v *view) []string {
	var names []string
	for _, s := range v.pool.Slices {
		for _, d := range s.Devices {
			names = append(names, d.Name)
		}
	}
	return names
}

// The view follows the machine: VFs that are made, a GPU that NVML sees late, a
// device that goes.
func TestViewFollowsTheMachine(t *testing.T) {
	w, root, gpus := newWatcher(t)
	all := []string{"pair-0000-13-00-0", "gpu-0000-13-00-0", "nic-0000-14-00-0"}
	if diff := cmp.Diff(all, names(w.scan(t.Context()))); diff != "" {
		t.Errorf("at start (-want +got):\n%s", diff)
	}

	late := gpus.list
	gpus.list = nil
	v := w.scan(t.Context())
	if diff := cmp.Diff([]string{"nic-0000-14-00-0"}, names(v)); diff != "" {
		t.Errorf("without NVML (-want +got):\n%s", diff)
	}
	gpus.list = late

	vf := layout.Layout{}
	const path = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.2"
	vf.PCI(path, layout.Layout{"class": "0x020000", "vendor": "0x15b3", "numa_node": "0", "physfn": "-> ../0000:14:00.0"})
	vf.Class("infiniband", path, "mlx5_2", layout.Layout{"node_guid": "a:2"})
	if err := os.CopyFS(root, os.DirFS(vf.Write(t))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append(all, "nic-0000-14-00-2"), names(w.scan(t.Context()))); diff != "" {
		t.Errorf("with a VF (-want +got):\n%s", diff)
	}

	for _, link := range []string{"bus/pci/devices/0000:14:00.2", "class/infiniband/mlx5_2"} {
		if err := os.Remove(filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(all, names(w.scan(t.Context()))); diff != "" {
		t.Errorf("without the VF (-want +got):\n%s", diff)
	}
}

// As long as nobody could tell whether the cluster counts, a pair and its parts are
// not offered side by side.
func TestUnansweredQuestion(t *testing.T) {
	w, _, _ := newWatcher(t)
	client := fake.NewClientset()
	fail := true
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if fail {
			return true, nil, errors.New("webhook does not support dry run")
		}
		return true, action.(clienttesting.CreateAction).GetObject(), nil
	})
	w.counters = countersQuestion{client: client, node: "node-1", events: record.NewFakeRecorder(10)}
	parts := []string{"gpu-0000-13-00-0", "nic-0000-14-00-0"}
	w.askCounters(t.Context())
	if diff := cmp.Diff(parts, names(w.scan(t.Context()))); diff != "" {
		t.Errorf("without an answer (-want +got):\n%s", diff)
	}
	fail = false
	w.askCounters(t.Context())
	all := append([]string{"pair-0000-13-00-0"}, parts...)
	if diff := cmp.Diff(all, names(w.scan(t.Context()))); diff != "" {
		t.Errorf("with the answer yes (-want +got):\n%s", diff)
	}
	// Dropped fields raise the question again, and a failure does not lose it.
	w.droppedFields.Store(true)
	fail = true
	w.askCounters(t.Context())
	if diff := cmp.Diff(parts, names(w.scan(t.Context()))); diff != "" {
		t.Errorf("in doubt (-want +got):\n%s", diff)
	}
	fail = false
	w.askCounters(t.Context())
	if diff := cmp.Diff(all, names(w.scan(t.Context()))); diff != "" {
		t.Errorf("after the doubt (-want +got):\n%s", diff)
	}
}

// A claim for a device that is not there (any more) is told what became of it.
func TestInventory(t *testing.T) {
	w, _, gpus := newWatcher(t)
	var current atomic.Pointer[view]
	devices := inventory{&current}
	says := func(name, want string) {
		t.Helper()
		if _, err := devices.Device(name); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	says("gpu-0000-13-00-0", "has not scanned this node yet")

	current.Store(w.scan(t.Context()))
	pair, err := devices.Device("pair-0000-13-00-0")
	if err != nil || len(pair.Parts) != 2 || pair.Parts[0].GPU.UUID != "GPU-1" || pair.Parts[1].NIC.RDMAName() != "mlx5_0" || len(pair.Attributes) == 0 {
		t.Errorf("pair %+v, %v", pair, err)
	}
	if got := pair.Parts[1].Distances[pair.Parts[0].Address]; got != "PIX" {
		t.Errorf("distance %q, want PIX", got)
	}
	says("gpu-0000-99-00-0", "its PCI function has gone")
	w.policy.Publish.Kinds = []v1alpha1.DeviceKind{v1alpha1.PairKind}
	current.Store(w.scan(t.Context()))
	says("nic-0000-14-00-0", "the driver's configuration")
	says("gpu-0000-13-00-0", "the driver's configuration")
	w.policy.Publish.Kinds = v1alpha1.DeviceKinds

	gpus.list = nil
	current.Store(w.scan(t.Context()))
	says("gpu-0000-13-00-0", "NVML does not list it")
	says("pair-0000-13-00-0", "NVML does not list it")
}

func TestConcerns(t *testing.T) {
	for e, want := range map[uevent.Event]bool{
		{}: true, // events were lost
		{Subsystem: "pci", Action: "bind", DevPath: "/devices/pci0000:10/0000:10:01.0"}:               true,
		{Subsystem: "infiniband", Action: "add", DevPath: "/devices/virtual/infiniband/rxe0"}:         true,
		{Subsystem: "net", Action: "add", DevPath: "/devices/pci0000:10/0000:10:01.0/net/eth1"}:       true,
		{Subsystem: "net", Action: "add", DevPath: "/devices/virtual/net/veth12345"}:                  false,
		{Subsystem: "module", Action: "add", DevPath: "/module/nvidia"}:                               true,
		{Subsystem: "module", Action: "add", DevPath: "/module/zram"}:                                 false,
		{Subsystem: "block", Action: "change", DevPath: "/devices/pci0000:00/0000:00:01.0/block/sda"}: false,
		{Subsystem: "queues", Action: "add", DevPath: "/devices/virtual/net/veth1/queues/rx-0"}:       false,
	} {
		if got := concerns(e); got != want {
			t.Errorf("%+v: %v, want %v", e, got, want)
		}
	}
}

// A burst of events is one scan, and events without end do not put it off for ever.
func TestSettle(t *testing.T) {
	events := make(chan struct{}, 1)
	stop := make(chan struct{})
	go func() {
		for range 20 {
			select {
			case events <- struct{}{}:
			case <-stop:
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	defer close(stop)
	if !settle(t.Context(), events) {
		t.Error("settle gave up although the context lives")
	}
	select {
	case <-events:
		t.Error("events of the burst are left over")
	default:
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if settle(ctx, make(chan struct{})) {
		t.Error("settle goes on although the context has ended")
	}
}
