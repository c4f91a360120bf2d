package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/e2e/kube"
)

// restartContainer ends the process of a pod's container and waits until the kubelet has started it again.
func (s *space) restartContainer(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	before := s.get(t, pod.Name).Status.ContainerStatuses[0]
	// a kubelet that has just started does not know its pods for a moment
	err := kube.Until(t.Context(), startLimit, "end of the container's process", func(ctx context.Context) (string, error) {
		_, err := s.Exec(ctx, pod, before.Name, "kill", "1")
		return "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = kube.Until(t.Context(), startLimit, "restart of the container", func(context.Context) (string, error) {
		now := s.get(t, pod.Name).Status.ContainerStatuses[0]
		if now.RestartCount == before.RestartCount || !now.Ready {
			return fmt.Sprintf("%d restarts, ready %t", now.RestartCount, now.Ready), nil
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestContainerRestart(t *testing.T) {
	s := newSpace(t)
	s.create(t, s.pod("pod", "node2", defaultTemplate))
	pod := s.running(t, "pod")
	before := s.inside(t, pod, "main")
	s.restartContainer(t, pod)
	if after := s.inside(t, pod, "main"); after != before {
		t.Errorf("the restarted container has\n%swant\n%s", after, before)
	}
}

// TestKubeletRestart: a kubelet that starts deletes the slices of its node, and remembers prepared claims.
func TestKubeletRestart(t *testing.T) {
	s := newSpace(t)
	const node = "node1"
	s.create(t, s.pod("pod", node, defaultTemplate))
	pod := s.running(t, "pod")
	before := s.inside(t, pod, "main")
	slicesBefore := s.sliceUIDs(t, node)

	if _, err := s.Hack(t.Context(), "svc", "-n", node, "kill", "kubelet"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := s.Hack(t.Context(), "svc", "-n", node, "start", "kubelet"); err != nil {
		t.Fatal(err)
	}
	var goneAt time.Duration
	err := kube.Until(t.Context(), 30*time.Second, "slices of a restarted kubelet's node", func(context.Context) (string, error) {
		now := s.sliceUIDs(t, node)
		if goneAt == 0 && !sameKeys(now, slicesBefore) {
			goneAt = time.Since(start)
		}
		if goneAt == 0 || len(now) != len(slicesBefore) {
			return fmt.Sprintf("%d slices, deleted %t", len(now), goneAt > 0), nil
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("kubelet started; slices deleted after %.1f s, back %.1f s later", goneAt.Seconds(), (time.Since(start) - goneAt).Seconds())

	now := s.running(t, "pod").Status.ContainerStatuses[0]
	if was := pod.Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID || now.RestartCount != 0 {
		t.Errorf("container %s was restarted with the kubelet, it is %s now", was.ContainerID, now.ContainerID)
	}
	s.restartContainer(t, pod)
	if after := s.inside(t, pod, "main"); after != before {
		t.Errorf("the restarted container has\n%swant\n%s", after, before)
	}
	s.create(t, s.pod("next", node, defaultTemplate))
	if next := s.pair(t, s.running(t, "next")); next.GPU.Name == s.pair(t, pod).GPU.Name {
		t.Errorf("both pods have %s", next.GPU.Name)
	}
	s.checkNode(t.Context(), t, node)
}

func (s *space) sliceUIDs(t *testing.T, node string) map[types.UID]bool {
	t.Helper()
	list, err := s.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
		FieldSelector: "spec.driver=" + v1alpha1.Group + ",spec.nodeName=" + node,
	})
	if err != nil {
		t.Fatal(err)
	}
	uids := map[types.UID]bool{}
	for _, slice := range list.Items {
		uids[slice.UID] = true
	}
	return uids
}

func sameKeys(a, b map[types.UID]bool) bool {
	for key := range a {
		if !b[key] {
			return false
		}
	}
	return len(a) == len(b)
}

// TestPodDeletedWithoutAgent: while the agent is away its node's pods go on terminating, and no longer.
func TestPodDeletedWithoutAgent(t *testing.T) {
	s := newSpace(t)
	const node = "node1"
	s.create(t, s.pod("pod", node, defaultTemplate))
	pod := s.running(t, "pod")

	s.labelNode(t, node, `null`)
	t.Cleanup(func() {
		s.labelNode(t, node, `"yes"`)
	})
	err := kube.Until(t.Context(), endLimit, "end of the agent of "+node, func(ctx context.Context) (string, error) {
		list, err := s.CoreV1().Pods(kube.AgentNamespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return "it is there", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.delete(t, "pod", metav1.DeleteOptions{})
	time.Sleep(3 * time.Second)
	if now := s.get(t, "pod"); now.UID != pod.UID || now.DeletionTimestamp == nil {
		t.Errorf("pod %s is not terminating while the agent is away", now.UID)
	}
	s.labelNode(t, node, `"yes"`)
	back := time.Now()
	s.agentsReady(t)
	s.gone(t, "pod")
	t.Logf("the pod was gone %.1f s after the agent was let back", time.Since(back).Seconds())
	s.checkNode(t.Context(), t, node)

	// The first device that fits is the one that was given back.
	s.create(t, s.pod("next", node, defaultTemplate))
	if was, now := s.pair(t, pod).GPU.Name, s.pair(t, s.running(t, "next")).GPU.Name; was != now {
		t.Errorf("the next pod got %s, want %s, which is free again", now, was)
	}
}

func (s *space) labelNode(t *testing.T, node, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, agentLabel, value)
	if _, err := s.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
