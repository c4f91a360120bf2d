package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/e2e/kube"
)

// event waits for a warning about a pod and returns its text.
func (s *space) event(t *testing.T, pod, reason string) string {
	t.Helper()
	var text string
	err := kube.Until(t.Context(), startLimit, "event "+reason+" of pod "+pod, func(ctx context.Context) (string, error) {
		events, err := s.Events(ctx, s.get(t, pod), corev1.EventTypeWarning)
		for _, event := range events {
			if event.Reason == reason {
				text = event.Message
				return "", nil
			}
		}
		return fmt.Sprintf("%d other events", len(events)), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTwoClaimsForOneDevice(t *testing.T) {
	s := newSpace(t)
	const node, gpu = "node1", "0000:cc:00.0"
	template := s.template(t, "one-gpu")
	template.Spec.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes[%q].pciBusID == %q", "resource.kubernetes.io", gpu),
	}}}
	s.createTemplate(t, template)

	s.create(t, s.pod("first", node, template.Name))
	if got := s.pair(t, s.running(t, "first")).GPU.PCIAddress; got != gpu {
		t.Fatalf("first pod has GPU %s, want %s", got, gpu)
	}
	s.create(t, s.pod("second", node, template.Name))
	text := s.event(t, "second", "FailedScheduling")
	t.Logf("second pod: %s", text)
	if !strings.Contains(text, "cannot allocate all claims") {
		t.Errorf("the event of the second pod does not say that its claim cannot be allocated: %s", text)
	}
	if pod := s.get(t, "second"); pod.Spec.NodeName != "" {
		t.Errorf("second pod is on %s, while the first has its device", pod.Spec.NodeName)
	}
	s.delete(t, "first", metav1.DeleteOptions{})
	if got := s.pair(t, s.running(t, "second")).GPU.PCIAddress; got != gpu {
		t.Errorf("second pod has GPU %s, want %s", got, gpu)
	}

	// Deleted by force, a pod leaves the API while its container runs: its device is allocated anew, and must not be handed
	// out before the container has ended.
	s.create(t, s.pod("third", node, template.Name))
	s.event(t, "third", "FailedScheduling")
	s.delete(t, "second", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if got := s.pair(t, s.running(t, "third")).GPU.PCIAddress; got != gpu {
		t.Errorf("third pod has GPU %s, want %s", got, gpu)
	}
	s.checkNode(t.Context(), t, node)
}

func TestWrongConfig(t *testing.T) {
	s := newSpace(t)
	const node = "node1"
	template := s.template(t, "wrong")
	template.Spec.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{
		Requests: []string{"nic"},
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     v1alpha1.Group,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"none","rdma":"shared"}`)},
		}},
	}}
	s.createTemplate(t, template)
	s.create(t, s.pod("wrong", node, template.Name))
	text := s.event(t, "wrong", "FailedPrepareDynamicResources")
	t.Logf("pod with a wrong claim: %s", text)
	const path = "status.allocation.devices.config[0] (FromClaim).opaque.parameters.rdma: duplicate field"
	if strings.Count(text, path) != 1 || strings.Contains(text, "\n") {
		t.Errorf("the event is\n%s\nwant one line that has this once: %s", text, path)
	}
	s.create(t, s.pod("right", node, defaultTemplate))
	s.pair(t, s.running(t, "right"))
	if kube.IsReady(s.get(t, "wrong")) {
		t.Error("the pod with the wrong claim runs")
	}
	start := time.Now()
	s.delete(t, "wrong", metav1.DeleteOptions{})
	s.gone(t, "wrong")
	t.Logf("the pod with a wrong claim was gone after %.1f s", time.Since(start).Seconds())
}
