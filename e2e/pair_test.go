package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTour runs what "make demo" shows. It checks everything that it prints: slices that say they are simulated, GPU and NIC
// of one affinity group and nearest to each other, devices and environment, labels, record and metadata.
func TestTour(t *testing.T) {
	s := newSpace(t)
	tour := filepath.Join(t.TempDir(), "tour")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", tour, "./hack/tour")
	build.Dir = s.Root
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	walk := exec.CommandContext(t.Context(), tour)
	walk.Dir = s.Root
	for _, node := range []string{"node1", "node2"} {
		walk.Args = append(walk.Args, node+"="+machines[node])
	}
	text, err := walk.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, text)
	}
	if _, err := s.Kubectl(t.Context(), "", "delete", "--ignore-not-found", "--wait=false", "-f", filepath.Join(s.Root, "examples")); err != nil {
		t.Error(err)
	}
	(&space{s.Cluster, metav1.NamespaceDefault}).deleteAll(t.Context(), t)
}

// TestOnlyItsRequests: a container gets the devices of the requests that it names, and no others.
func TestOnlyItsRequests(t *testing.T) {
	s := newSpace(t)
	pod := s.pod("pod", "node1", defaultTemplate)
	pod.Spec.Containers = append(pod.Spec.Containers,
		container("only-nic", corev1.ResourceClaim{Name: "devices", Request: "nic"}),
		container("only-gpu", corev1.ResourceClaim{Name: "devices", Request: "gpu"}),
		container("nothing"),
	)
	s.create(t, pod)
	pod = s.running(t, "pod")
	pair := s.pair(t, pod)
	gpu := []string{"/dev/nvidiactl\n", "=" + pair.GPU.GPUUUID + "\n", "/gpu/topodra.dev-metadata.json\n"}
	nic := []string{"/dev/infiniband/uverbs", "/dev/infiniband/rdma_cm\n", "UCX_NET_DEVICES=" + pair.NIC.RDMADevice + ":1\n", "/nic/topodra.dev-metadata.json\n"}
	for name, wants := range map[string]struct{ gpu, nic bool }{
		"main": {true, true}, "only-nic": {nic: true}, "only-gpu": {gpu: true}, "nothing": {},
	} {
		text := s.inside(t, pod, name)
		for _, part := range []struct {
			marks []string
			want  bool
		}{{gpu, wants.gpu}, {nic, wants.nic}} {
			for _, mark := range part.marks {
				if strings.Contains(text, mark) != part.want {
					t.Errorf("container %s: %q present is %t, want %t; it has\n%s", name, mark, !part.want, part.want, text)
				}
			}
		}
	}
}
