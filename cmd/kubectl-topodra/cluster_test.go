package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/report"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// apiServer answers what the command asks for, and nothing else.
type apiServer struct {
	pods   []corev1.Pod
	slices []resourceapi.ResourceSlice
	agents map[string]string // pod to what it serves at /topology

	asked []string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.URL.RequestURI())
	const proxied = ":9464/proxy/topology"
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/pods"):
		writeJSON(w, corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: s.pods})
	case strings.HasSuffix(path, "/resourceslices"):
		writeJSON(w, resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"}, Items: s.slices})
	case strings.HasSuffix(path, proxied):
		pod := strings.TrimSuffix(path[strings.LastIndex(strings.TrimSuffix(path, proxied), "/")+1:], proxied)
		if body, ok := s.agents[pod]; ok {
			fmt.Fprint(w, body)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		writeJSON(w, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "cannot get resource pods/proxy",
		})
	default:
		http.NotFound(w, r)
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client sees what is cut short
}

// start returns the kubeconfig of the server.
func (s *apiServer) start(t *testing.T) string {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "` + server.URL + `"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u"}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func agentPod(name string, ready corev1.ConditionStatus, age time.Duration) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gpu", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// published returns a machine's report and its ResourceSlices.
func published(t *testing.T, slug string, kinds ...v1alpha1.DeviceKind) (*report.Report, []resourceapi.ResourceSlice) {
	m := simulatetest.Load(t, slug)
	s, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	topo := topology.Compute(s, topology.Config{Excluded: m.Roles()})
	pool, problems := nodeslices.Pool(nodeslices.Build(s, topo, nodeslices.Options{Kinds: kinds}))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var list []resourceapi.ResourceSlice
	for _, s := range pool.Slices {
		list = append(list, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.Group, Pool: resourceapi.ResourcePool{Name: "node-1", Generation: 2}, Devices: s.Devices,
		}})
	}
	return report.New("node-1", s, topo), list
}

func TestNodeFromAgent(t *testing.T) {
	want, _ := published(t, "aws-p6-b200-48xl", v1alpha1.GPUKind, v1alpha1.NICKind)
	body, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	s := &apiServer{
		pods: []corev1.Pod{
			agentPod("starting", corev1.ConditionFalse, time.Second),
			agentPod("serving", corev1.ConditionTrue, time.Hour),
		},
		agents: map[string]string{"serving": string(body)},
	}
	stdout, stderr, err := execute("topo", "node-1", "-o", "json", "--kubeconfig", s.start(t))
	if err != nil || stderr != "" {
		t.Fatal(err, stderr)
	}
	var got report.Report
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	asked := []string{
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&labelSelector=app.kubernetes.io%2Fname%3Dtopodra",
		"/api/v1/namespaces/gpu/pods/serving:9464/proxy/topology",
	}
	if diff := cmp.Diff(asked, s.asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// What ResourceSlices tell is less, and never something else.
func TestNodeFromSlices(t *testing.T) {
	for _, slug := range simulatetest.Slugs(t) {
		full, list := published(t, slug, v1alpha1.GPUKind, v1alpha1.NICKind)
		old := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.Group, Pool: resourceapi.ResourcePool{Name: "node-1", Generation: 1},
			Devices: []resourceapi.Device{{Name: "gone", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}},
		}}
		s := &apiServer{pods: []corev1.Pod{agentPod("agent", corev1.ConditionTrue, time.Hour)}, slices: append(list, old)}
		stdout, stderr, err := execute("topo", "node-1", "-o", "json", "--kubeconfig", s.start(t))
		if err != nil {
			t.Fatal(slug, err)
		}
		if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "gpu/agent does not answer") || !strings.Contains(stderr, "pods/proxy") {
			t.Errorf("%s: one line should say why less is shown, not %q", slug, stderr)
		}
		var got report.Report
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatal(slug, err)
		}
		for _, format := range report.Formats {
			if err := format.Render(io.Discard, &got); err != nil {
				t.Errorf("%s as %s: %v", slug, format.Name, err)
			}
		}
		compareLess(t, slug, full, &got)
	}
}

func compareLess(t *testing.T, slug string, full, got *report.Report) {
	t.Helper()
	if len(got.GPUs) != len(full.GPUs) {
		t.Errorf("%s: %d GPUs, want %d", slug, len(got.GPUs), len(full.GPUs))
	}
	handedOut := 0
	for _, n := range full.NICs {
		if n.Published {
			handedOut++
		}
	}
	if len(got.NICs) != handedOut {
		t.Errorf("%s: %d NICs, want %d", slug, len(got.NICs), handedOut)
	}
	for gpu, row := range got.Distances {
		for nic, class := range row {
			if want := full.Distances[gpu][nic]; class != topology.Unknown && class != want {
				t.Errorf("%s: %s to %s is %s, the agent says %s", slug, gpu, nic, class, want)
			}
		}
	}
	for _, g := range got.GPUs {
		for _, f := range full.GPUs {
			if f.Address == g.Address && g.Nearest != nil && !cmp.Equal(g.Nearest, f.Nearest) {
				t.Errorf("%s: nearest to GPU %s: %+v, the agent says %+v", slug, g.Address, g.Nearest, f.Nearest)
			}
		}
	}
}

// Of a machine with one switch per pair, slices tell the nearest NICs all the same.
func TestNearestFromSlices(t *testing.T) {
	full, list := published(t, "aws-p5-48xl", v1alpha1.GPUKind, v1alpha1.NICKind)
	got := report.FromSlices("node-1", list)
	for i, g := range got.GPUs {
		if diff := cmp.Diff(full.GPUs[i].Nearest, g.Nearest); diff != "" {
			t.Errorf("GPU %s (-agent +slices):\n%s", g.Address, diff)
		}
	}
}

func TestNodeErrors(t *testing.T) {
	kubeconfig := (&apiServer{}).start(t)
	_, _, err := execute("topo", "node-9", "--kubeconfig", kubeconfig)
	const want = "node node-9: no pod with label app.kubernetes.io/name=topodra runs there; " +
		"it has no ResourceSlices of topodra.dev either: is that the node's name, and is the driver installed there?"
	if message(err) != want {
		t.Errorf("error %q, want %q", message(err), want)
	}
	t.Setenv("KUBECONFIG", "/nonexistent")
	t.Setenv("HOME", t.TempDir())
	if _, _, err := execute("topo", "node-9"); !strings.Contains(message(err), "no kubeconfig") {
		t.Errorf("no kubeconfig: %v", err)
	}
}

// Pairs alone are the cheapest form to publish; they are enough to draw.
func TestPairsFromSlices(t *testing.T) {
	full, list := published(t, "aws-p5en-48xl", v1alpha1.PairKind)
	got := report.FromSlices("node-1", list)
	if diff := cmp.Diff(full.Pairs, got.Pairs); diff != "" {
		t.Errorf("pairs (-agent +slices):\n%s", diff)
	}
	for _, p := range got.Pairs {
		for _, n := range p.NICs {
			if got.Distances[p.GPU][n] != p.Distance {
				t.Errorf("%s to %s: %s, the pair says %s", p.GPU, n, got.Distances[p.GPU][n], p.Distance)
			}
		}
	}
	for _, n := range got.NICs {
		if !n.Fabric() || n.AffinityGroup == nil || n.NUMANode == nil {
			t.Errorf("NIC %+v lacks what its pair says", n)
		}
	}
	compareLess(t, "pairs", &report.Report{GPUs: full.GPUs, NICs: got.NICs, Distances: full.Distances}, got)
}

// With pairs and their parts published, each says its share.
func TestAllKindsFromSlices(t *testing.T) {
	full, list := published(t, "gb300-cx8-datadirect", v1alpha1.PairKind, v1alpha1.GPUKind, v1alpha1.NICKind)
	got := report.FromSlices("node-1", list)
	compareLess(t, "all kinds", full, got)
	if diff := cmp.Diff(full.Pairs, got.Pairs); diff != "" {
		t.Errorf("pairs (-agent +slices):\n%s", diff)
	}
	for i, n := range got.NICs {
		if diff := cmp.Diff(full.NICs[i].RDMADevice, n.RDMADevice); diff != "" {
			t.Errorf("NIC %s (-agent +slices):\n%s", n.Address, diff)
		}
	}
}
