package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
	_ "k8s.io/klog/v2/ktesting/init"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/testing/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// writes counts the requests of a client that change something.
type writes struct {
	http.RoundTripper
	mu   sync.Mutex
	list []string
}

func (w *writes) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		w.mu.Lock()
		w.list = append(w.list, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
	}
	return w.RoundTripper.RoundTrip(r)
}

func (w *writes) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

// node is an agent that runs for a test against a real API server.
type node struct {
	name   string
	admin  kubernetes.Interface
	writes *writes
	dir    string // kubelet's
	agent  *Agent
}

func startNode(t *testing.T, slug string) *node {
	t.Helper()
	return startNodeAt(t, apiserver.Shared(t), slug, v1alpha1.DefaultDriverConfig())
}

func startNodeAt(t *testing.T, server *apiserver.Server, slug string, driverConfig v1alpha1.DriverConfig) *node {
	t.Helper()
	// Socket paths are short, t.TempDir is not.
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{name: slug, admin: kubernetes.NewForConfigOrDie(server.Config), dir: dir}
	if _, err := n.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: slug}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(server.Config)
	config.QPS, config.Burst = 200, 400
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		n.writes = &writes{RoundTripper: rt}
		return n.writes
	})
	m, err := Simulated(simulatetest.ModuleRoot(t)+"/testdata/machines/"+slug+"/machine.yaml", DataDir(dir), t.TempDir(), simulatetest.NVMLDouble(t), "")
	if err != nil {
		t.Fatal(err)
	}
	n.agent, err = New(Options{
		NodeName: slug, KubeClient: kubernetes.NewForConfigOrDie(config), Config: driverConfig,
		KubeletDir: dir, CDIDir: filepath.Join(dir, "cdi"), HTTPSocket: filepath.Join(dir, "http.sock"), Machine: m,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "plugins_registry"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- n.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("agent ended with %v", err)
		}
		_ = os.RemoveAll(dir)
	})
	return n
}

// slices returns the node's slices once they are a complete pool.
func (n *node) slices(t *testing.T) []resourceapi.ResourceSlice {
	t.Helper()
	start := time.Now()
	for {
		list, err := n.admin.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) > 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount {
			t.Logf("complete pool of %s after %v", n.name, time.Since(start).Round(10*time.Millisecond))
			return list.Items
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("no complete pool of %s: %d slices", n.name, len(list.Items))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestPublish(t *testing.T) {
	n := startNode(t, "aws-p5-48xl")
	devices := map[string]int{}
	for _, s := range n.slices(t) {
		if s.Spec.Driver != "topodra.dev" || *s.Spec.NodeName != n.name || s.Spec.Pool.Name != n.name {
			t.Errorf("slice %s: driver %s, node %v, pool %s", s.Name, s.Spec.Driver, s.Spec.NodeName, s.Spec.Pool.Name)
		}
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "Node" || s.OwnerReferences[0].Name != n.name {
			t.Errorf("slice %s belongs to %v", s.Name, s.OwnerReferences)
		}
		for _, d := range s.Spec.Devices {
			kind, _, _ := strings.Cut(d.Name, "-")
			devices[kind]++
			if a := d.Attributes["topodra.dev/simulated"]; a.StringValue == nil || *a.StringValue != "aws-p5-48xl" {
				t.Errorf("device %s does not say that it is simulated", d.Name)
			}
		}
	}
	if devices["pair"] != 8 || devices["gpu"] != 8 || devices["nic"] != 64 {
		t.Errorf("devices %v, want 8 pairs, 8 GPUs and 64 NICs", devices)
	}

	// What the kubelet does when it starts: every slice of the node goes.
	if err := n.admin.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name}); err != nil {
		t.Fatal(err)
	}
	if got := n.slices(t); len(got) != 3 {
		t.Errorf("%d slices after a foreign delete, want one with counters and two with devices", len(got))
	}
	// A scan that finds nothing new writes nothing.
	n.writes.take()
	before := n.agent.view.Load()
	n.agent.watcher.wake()
	for n.agent.view.Load() == before {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(time.Second)
	if got := n.writes.take(); len(got) != 0 {
		t.Errorf("a scan that found nothing new wrote %v", got)
	}
	checkHealth(t, n)
}

// checkHealth asks the agent through its socket. Without a kubelet it never
// registers, and says so.
func checkHealth(t *testing.T, n *node) {
	t.Helper()
	client := unixClient(filepath.Join(n.dir, "http.sock"))
	get := func(path string) (int, string) {
		resp, err := client.Get("http://agent" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body := make([]byte, 1<<16)
		k, _ := resp.Body.Read(body)
		for {
			m, err := resp.Body.Read(body[k:])
			k += m
			if err != nil {
				return resp.StatusCode, string(body[:k])
			}
		}
	}
	if status, text := get("/livez"); status != http.StatusOK {
		t.Errorf("/livez: %d %s", status, text)
	}
	if status, text := get("/healthz"); status != http.StatusServiceUnavailable || !strings.Contains(text, "not registered with the kubelet") {
		t.Errorf("/healthz: %d %s", status, text)
	}
	_, text := get("/metrics")
	for _, want := range []string{
		`topodra_published_devices{type="gpu"} 8`, `topodra_published_devices{type="nic"} 64`, "topodra_excluded_nics 0",
		`topodra_discovery_missing{part="nvml"} 0`, `topodra_requests_total{method="prepare",result="error"} 0`, "topodra_last_publish_timestamp_seconds 1.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// A node without NVIDIA GPUs publishes its NICs, one without NICs its GPUs, one
// with neither an empty slice.
func TestPublishParts(t *testing.T) {
	for slug, want := range map[string]string{
		"nec-8ve-2cx4": "gpu 0 nic 2", "rtxpro6000-gpu-vfs": "gpu 1 nic 0", "vm-domain-10000": "gpu 0 nic 0",
	} {
		t.Run(slug, func(t *testing.T) {
			n := startNode(t, slug)
			gpus, nics := 0, 0
			for _, s := range n.slices(t) {
				for _, d := range s.Spec.Devices {
					switch {
					case strings.HasPrefix(d.Name, "gpu-"):
						gpus++
					case strings.HasPrefix(d.Name, "nic-"):
						nics++
					}
				}
			}
			if got := fmt.Sprintf("gpu %d nic %d", gpus, nics); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// The agent at rest writes nothing.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: watches an idle agent for 60 s")
	}
	n := startNode(t, "dgx-a100")
	n.slices(t)
	n.writes.take()
	time.Sleep(60 * time.Second)
	if got := n.writes.take(); len(got) != 0 {
		t.Errorf("an idle agent wrote: %v", got)
	}
}

// kinds counts the devices of a node's pool by kind, and its counter sets.
func (n *node) kinds(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, s := range n.slices(t) {
		counts["counters"] += len(s.Spec.SharedCounters)
		for _, d := range s.Spec.Devices {
			kind, _, _ := strings.Cut(d.Name, "-")
			counts[kind]++
			counts["consuming"] += len(d.ConsumesCounters)
		}
	}
	return counts
}

// A cluster without partitionable devices gets GPUs and NICs, or pairs alone, and
// one event that says so; never pairs beside parts that do not know of them.
func TestWithoutPartitionableDevices(t *testing.T) {
	server := apiserver.Start(t, apiserver.WithFeatureGate("DRAPartitionableDevices", false))
	n := startNodeAt(t, server, "kvm-8xh200-pxb-switch", v1alpha1.DefaultDriverConfig())
	if diff := cmp.Diff(map[string]int{"gpu": 8, "nic": 8, "counters": 0, "consuming": 0}, n.kinds(t)); diff != "" {
		t.Errorf("all kinds (-want +got):\n%s", diff)
	}
	n.event(t, "PairsNotPublished")

	pairsAlone := v1alpha1.DefaultDriverConfig()
	pairsAlone.Devices = []v1alpha1.DeviceKind{v1alpha1.PairKind}
	alone := startNodeAt(t, server, "dgx-a100", pairsAlone)
	if got := alone.kinds(t); got["counters"] != 0 || got["gpu"]+got["nic"] != 0 {
		t.Errorf("pairs alone: %v", got)
	}
	// One NIC for two GPUs: without counters only one of the two pairs can be offered.
	sharing := startNodeAt(t, server, "h200-4cx7-snc-baremetal", pairsAlone)
	if diff := cmp.Diff(map[string]int{"pair": 4, "counters": 0, "consuming": 0}, sharing.kinds(t)); diff != "" {
		t.Errorf("pairs that share NICs (-want +got):\n%s", diff)
	}
}

// The same as above with counters: pairs that share a NIC are all there.
func TestPairsAloneWithCounters(t *testing.T) {
	pairsAlone := v1alpha1.DefaultDriverConfig()
	pairsAlone.Devices = []v1alpha1.DeviceKind{v1alpha1.PairKind}
	n := startNodeAt(t, apiserver.Shared(t), "h200-4cx7-snc-baremetal", pairsAlone)
	if diff := cmp.Diff(map[string]int{"pair": 8, "counters": 4, "consuming": 8}, n.kinds(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Pairs appear when the cluster gets the feature while the agent runs.
func TestPartitionableDevicesSwitchedOn(t *testing.T) {
	var off atomic.Bool
	off.Store(true)
	server := *apiserver.Shared(t)
	server.Config = rest.CopyConfig(server.Config)
	server.Config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return dropCounters{rt, &off} })
	n := startNodeAt(t, &server, "ibm-ac922-lassen", v1alpha1.DefaultDriverConfig())
	if got := n.kinds(t); got["pair"] != 0 || got["gpu"] != 4 {
		t.Errorf("with the feature off: %v", got)
	}
	off.Store(false)
	n.agent.watcher.wake()
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		got := n.kinds(t)
		if got["pair"] == 4 && got["consuming"] > 4 && got["counters"] > 0 {
			break
		}
		if time.Since(start) > 20*time.Second {
			t.Fatalf("with the feature on: %v", got)
		}
	}
	n.event(t, "PairsPublished")
}

// dropCounters does to requests what an API server without the feature does.
type dropCounters struct {
	http.RoundTripper
	off *atomic.Bool
}

func (d dropCounters) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.off.Load() && r.Body != nil && strings.HasSuffix(r.URL.Path, "/resourceslices") {
		slice := &resourceapi.ResourceSlice{}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, slice); err != nil {
			return nil, err
		}
		slice.Spec.SharedCounters = nil
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].ConsumesCounters = nil
		}
		slice.APIVersion, slice.Kind = "resource.k8s.io/v1", "ResourceSlice"
		if body, err = json.Marshal(slice); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Header.Set("Content-Type", "application/json")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return d.RoundTripper.RoundTrip(r)
}

// event waits for an event on the node.
func (n *node) event(t *testing.T, reason string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		list, err := n.admin.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + n.name})
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, e := range list.Items {
			if e.Reason == reason {
				count++
				t.Log(e.Message)
			}
		}
		if count == 1 {
			return
		}
		if time.Since(start) > 20*time.Second || count > 1 {
			t.Fatalf("%d events %s, want one", count, reason)
		}
	}
}
