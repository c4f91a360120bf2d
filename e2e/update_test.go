package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/e2e/kube"
)

// TestRollingUpdate: while one agent replaces the other, pods start as if nothing happened.
func TestRollingUpdate(t *testing.T) {
	s := newSpace(t)
	room := map[string]int{"node1": 8, "node2": 4}
	old := map[string]agent{}
	for node := range machines {
		old[node] = findAgent(t, node)
	}
	start := time.Now()
	if _, err := s.Hack(t.Context(), "helm", "upgrade", "topodra", filepath.Join(s.Root, "charts", "topodra"),
		"--namespace", kube.AgentNamespace, "--reuse-values", "--set", "logVerbosity=4"); err != nil {
		t.Fatal(err)
	}
	updated := make(chan error, 1)
	go func() {
		_, err := s.Kubectl(t.Context(), "", "-n", kube.AgentNamespace, "rollout", "status", "daemonset/topodra", "--timeout=90s")
		updated <- err
	}()
	created := 0
	for done := false; !done; {
		select {
		case err := <-updated:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		case <-time.After(400 * time.Millisecond):
			node := []string{"node1", "node1", "node2"}[created%3]
			if room[node] > 0 {
				room[node]--
				s.create(t, s.pod(fmt.Sprintf("pod-%d", created), node, defaultTemplate))
				created++
			}
		}
	}
	t.Logf("agents replaced in %.1f s, %d pods created meanwhile", time.Since(start).Seconds(), created)
	if created < 6 {
		t.Errorf("only %d pods were created during the update", created)
	}
	pods, err := s.Running(t.Context(), s.name, "", created, startLimit)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		s.pair(t, &pod)
		events, err := s.Events(t.Context(), &pod, corev1.EventTypeWarning)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			t.Errorf("pod %s: %s: %s", pod.Name, event.Reason, event.Message)
		}
	}
	for node := range machines {
		if now := findAgent(t, node); now == old[node] {
			t.Errorf("the agent of %s was not replaced", node)
		}
		s.checkNode(t.Context(), t, node)
	}
	agents, err := s.CoreV1().Pods(kube.AgentNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range agents.Items {
		if pod.DeletionTimestamp == nil && pod.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("the new agent %s was restarted %d times", pod.Name, pod.Status.ContainerStatuses[0].RestartCount)
		}
	}
}
