package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/e2e/kube"
)

const (
	startLimit = 60 * time.Second // pods take 2 s on an idle machine
	endLimit   = 60 * time.Second // the kubelet tries a failed unprepare again after 10 to 15 s
)

// space is a namespace of one test. When the test ends, its pods are deleted, and both nodes must have forgotten their claims.
type space struct {
	*kube.Cluster
	name string
}

func newSpace(t *testing.T) *space {
	t.Helper()
	if skipReason != "" {
		t.Skip(skipReason)
	}
	s := &space{Cluster: cluster, name: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	for node := range machines {
		if atHome[node] == nil { // the first test
			nics, err := s.hostNICs(t.Context(), node)
			if err != nil {
				t.Fatal(err)
			}
			atHome[node] = nics
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if _, err := cluster.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background() // the test's own has ended
		if t.Failed() {
			s.explain(ctx, t)
		}
		s.deleteAll(ctx, t)
		for node := range machines {
			s.checkNode(ctx, t, node)
		}
	})
	// The template that users copy.
	text, err := os.ReadFile(filepath.Join(cluster.Root, "examples", "gpu-with-nic.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	template := &resourceapi.ResourceClaimTemplate{}
	if err := yaml.Unmarshal([]byte(strings.Split(string(text), "\n---\n")[0]), template); err != nil {
		t.Fatal(err)
	}
	s.createTemplate(t, template)
	return s
}

// explain logs what a reader of a failed test wants to know.
func (s *space) explain(ctx context.Context, t *testing.T) {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide", "-n", s.name},
		{"get", "resourceclaims", "-A", "-o", "custom-columns=CREATED:.metadata.creationTimestamp,DELETED:.metadata.deletionTimestamp,NAME:.metadata.name,DEVICES:.status.allocation.devices.results[*].device"},
		{"get", "resourceslices", "-o", "custom-columns=NAME:.metadata.name,CREATED:.metadata.creationTimestamp,GENERATION:.spec.pool.generation"},
		{"get", "events", "-n", s.name, "--field-selector", "type=Warning,reason!=MissingClusterDNS"},
		{"logs", "-n", kube.AgentNamespace, "-l", "app.kubernetes.io/name=topodra", "--prefix", "--tail=10"},
	} {
		text, _ := s.Kubectl(ctx, "", args...)
		t.Logf("kubectl %s:\n%s", strings.Join(args, " "), text)
	}
}

const defaultTemplate = "gpu-with-nic"

func (s *space) createTemplate(t *testing.T, template *resourceapi.ResourceClaimTemplate) {
	t.Helper()
	if _, err := s.ResourceV1().ResourceClaimTemplates(s.name).Create(t.Context(), template, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// template returns a copy of the example's template under a new name.
func (s *space) template(t *testing.T, name string) *resourceapi.ResourceClaimTemplate {
	t.Helper()
	template, err := s.ResourceV1().ResourceClaimTemplates(s.name).Get(t.Context(), defaultTemplate, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: template.Spec}
}

// pod is a pod of one container that uses a claim on a node. It ends at once when told to.
func (s *space) pod(name, node, template string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod": name}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			EnableServiceLinks:            ptr.To(false),
			ResourceClaims:                []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &template}},
			Containers:                    []corev1.Container{container("main", corev1.ResourceClaim{Name: "devices"})},
		},
	}
}

func container(name string, claims ...corev1.ResourceClaim) corev1.Container {
	return corev1.Container{
		Name: name, Image: "topodra.local/busybox:1",
		Command:   []string{"sh", "-c", "trap 'exit 1' TERM; while :; do sleep 0.2; done"},
		Resources: corev1.ResourceRequirements{Claims: claims},
	}
}

func (s *space) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := s.CoreV1().Pods(s.name).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// running waits for one pod.
func (s *space) running(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pods, err := s.Running(t.Context(), s.name, "pod="+name, 1, startLimit)
	if err != nil {
		t.Fatal(err)
	}
	return &pods[0]
}

func (s *space) get(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := s.CoreV1().Pods(s.name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func (s *space) delete(t *testing.T, name string, options metav1.DeleteOptions) {
	t.Helper()
	if err := s.CoreV1().Pods(s.name).Delete(t.Context(), name, options); err != nil {
		t.Fatal(err)
	}
}

func (s *space) gone(t *testing.T, name string) {
	t.Helper()
	err := kube.Until(t.Context(), endLimit, "end of pod "+name, func(ctx context.Context) (string, error) {
		pod, err := s.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("it is %s", pod.Status.Phase), err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *space) deleteAll(ctx context.Context, t *testing.T) {
	t.Helper()
	soon := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}
	if err := s.CoreV1().Pods(s.name).DeleteCollection(ctx, soon, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	err := kube.Until(ctx, endLimit, "end of all pods", func(ctx context.Context) (string, error) {
		list, err := s.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d are left, %s for one", len(list.Items), list.Items[0].Name), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// pair returns the one pair of a pod, after checking that its NIC is nearest to its GPU.
func (s *space) pair(t *testing.T, pod *corev1.Pod) kube.Pair {
	t.Helper()
	placement, err := kube.Placement(pod)
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := kube.Pairs(placement)
	if err != nil {
		t.Fatal(err)
	}
	if len(pairs) != 1 {
		t.Fatalf("pod %s has %d pairs, want 1", pod.Name, len(pairs))
	}
	machine, err := kube.ReadMachine(s.Root, machines[pod.Spec.NodeName])
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.Check(pairs[0]); err != nil {
		t.Error(err)
	}
	return pairs[0]
}

// inside returns the device files and the environment of a container, in one text that can be compared.
func (s *space) inside(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	text, err := s.Exec(t.Context(), pod, container, "sh", "-c",
		"find /dev -name 'nvidia*' -o -path '/dev/infiniband/*' | sort; env | grep -E '^(UCX|NCCL|NVIDIA|TOPODRA)_' | sort; "+
			"find /var/run/kubernetes.io -name '*metadata.json' 2>/dev/null | sort")
	if err != nil {
		t.Fatal(err)
	}
	return text
}
