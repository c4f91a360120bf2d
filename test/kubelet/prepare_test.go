package kubelet

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claim lives through a restart of everything.
func TestLifecycle(t *testing.T) {
	n := startNode(t)
	pod := n.newPod(t, "pod", "claim")
	claim := n.newClaim(t, "claim", pod, "", gpu0, nic0)
	n.mustPrepare(t, pod)
	n.checkPrepared(t, pod, claim)
	if diff := cmp.Diff([]string{"GET resourceclaims/claim", "PATCH pods/pod"}, n.calls.take()); diff != "" {
		t.Errorf("requests of the agent (-want +got):\n%s", diff)
	}
	devices := n.cdiDevices(t)
	for device, want := range map[string][]string{
		gpu0:           {"/dev/nvidia0", "NVIDIA_VISIBLE_DEVICES=void"},
		"driver-files": {"/dev/nvidiactl"},
		nic0:           {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm", "NCCL_IB_HCA==zoordma0:1"},
	} {
		got := devices["topodra.dev/claim="+string(claim.UID)+"-"+device]
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("CDI device of %s has %v, and not %s", device, got, w)
			}
		}
	}
	stored, record := n.placement(t, "pod")
	if stored.Labels[corev1.LabelHostname] != n.name || stored.Labels[corev1.LabelTopologyZone] != "z1" || stored.Labels[corev1.LabelTopologyRegion] != "r1" {
		t.Errorf("labels of the pod: %v", stored.Labels)
	}
	if len(record.Claims) != 1 || record.Claims[0].UID != claim.UID || len(record.Claims[0].Devices) != 2 || record.Claims[0].Devices[1].Distances[gpu0] != "PIX" {
		t.Errorf("placement record: %+v", record)
	}

	// A container restarts: the kubelet answers by itself.
	n.mustPrepare(t, pod)
	if calls := n.calls.take(); len(calls) != 0 {
		t.Errorf("the second prepare reached the agent: %v", calls)
	}

	again := func(what string) {
		t.Helper()
		n.mustPrepare(t, pod)
		if calls := n.calls.take(); !slices.Contains(calls, "GET resourceclaims/claim") {
			t.Errorf("after %s the kubelet did not ask the agent: %v", what, calls)
		}
		n.checkPrepared(t, pod, claim)
		if diff := cmp.Diff(devices, n.cdiDevices(t)); diff != "" {
			t.Errorf("CDI devices changed with %s:\n%s", what, diff)
		}
		if _, now := n.placement(t, "pod"); !cmp.Equal(record, now) {
			t.Errorf("placement record changed with %s:\n%s", what, cmp.Diff(record, now))
		}
	}
	n.startKubelet(t)
	again("a restart of the kubelet")

	n.stopAgent()
	if err := os.RemoveAll(filepath.Join(n.dir, "cdi")); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	n.waitFor(t, "CDI files of a prepared claim after a restart of the agent", func() bool { return cmp.Equal(devices, n.cdiDevices(t)) })
	n.startKubelet(t)
	again("a restart of both and the loss of all CDI files")

	// The claim is unprepared by a kubelet that never prepared it and an agent that neither did.
	n.startAgent(t)
	n.startKubelet(t)
	n.waitFor(t, "unprepare", func() bool { return n.kubelet.UnprepareResources(t.Context(), pod) == nil })
	n.checkClean(t, claim)
	if left := n.cdiDevices(t); len(left) != 0 {
		t.Errorf("CDI devices are left: %v", slices.Collect(maps.Keys(left)))
	}
	n.mustUnprepare(t, pod)
}

func TestTwoClaimsOnePatch(t *testing.T) {
	n := startNode(t)
	pod := n.newPod(t, "pod", "a", "b")
	a, b := n.newClaim(t, "a", pod, "", gpu0, nic0), n.newClaim(t, "b", pod, "", gpu1, nic1)
	n.mustPrepare(t, pod)
	n.checkPrepared(t, pod, a, b)
	want := []string{"GET resourceclaims/a", "GET resourceclaims/b", "PATCH pods/pod"}
	if diff := cmp.Diff(want, n.calls.take()); diff != "" {
		t.Errorf("requests of the agent (-want +got):\n%s", diff)
	}
	if _, record := n.placement(t, "pod"); len(record.Claims) != 2 {
		t.Errorf("placement record has %d claims, want 2", len(record.Claims))
	}
	// Both lists are for the same process.
	devices := n.cdiDevices(t)
	for claim, nic := range map[*resourceapi.ResourceClaim]string{a: nic0, b: nic1} {
		if got := devices["topodra.dev/claim="+string(claim.UID)+"-"+nic]; !slices.Contains(got, "NCCL_IB_HCA==zoordma0:1,zoordma1:1") {
			t.Errorf("%s of claim %s does not name the NICs of both claims: %v", nic, claim.Name, got)
		}
	}
	n.mustUnprepare(t, pod)
	n.checkClean(t, a)
	n.checkClean(t, b)
}

// The user deletes a claim and makes another of the same name.
func TestRecreatedClaim(t *testing.T) {
	n := startNode(t)
	first := n.newPod(t, "first", "claim")
	old := n.newClaim(t, "claim", first, "", gpu0, nic0)
	n.mustPrepare(t, first)

	if err := n.api.ResourceV1().ResourceClaims(n.name).Delete(t.Context(), "claim", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := n.newPod(t, "second", "claim")
	claim := n.newClaim(t, "claim", second, "", gpu0, nic0)
	n.calls.take()
	if err := n.prepare(t, second); err == nil || !strings.Contains(err.Error(), "still exists") {
		t.Errorf("while the old pod runs: got %v, want the kubelet to refuse", err)
	}
	if calls := n.calls.take(); len(calls) != 0 {
		t.Errorf("the kubelet asked the agent all the same: %v", calls)
	}

	n.mustUnprepare(t, first)
	n.checkClean(t, old)
	n.mustPrepare(t, second)
	n.checkPrepared(t, second, claim)
	if old.UID == claim.UID {
		t.Error("the API server gave both claims one UID")
	}
	n.mustUnprepare(t, second)
}

const unknownField = `{"apiVersion": "topodra.dev/v1alpha1", "kind": "NICConfig", "rdma": "shared", "rdam": "none"}`

func TestUnknownConfigField(t *testing.T) {
	n := startNode(t)
	bad, good := n.newPod(t, "bad", "bad"), n.newPod(t, "good", "good")
	refused, fine := n.newClaim(t, "bad", bad, unknownField, nic0), n.newClaim(t, "good", good, "", gpu0)
	err := n.prepare(t, bad)
	const want = `ResourceClaim bad: status.allocation.devices.config[0] (FromClaim).opaque.parameters.rdam: unknown field`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
	n.mustPrepare(t, good)
	n.checkPrepared(t, good, fine)

	// The kubelet unprepares what it has tried to prepare.
	n.mustUnprepare(t, bad)
	n.checkClean(t, refused)
	n.mustUnprepare(t, good)
}

// A device that another claim still holds is not handed out, and the reason reaches the kubelet.
func TestHeldDevice(t *testing.T) {
	n := startNode(t)
	first, second := n.newPod(t, "first", "first"), n.newPod(t, "second", "second")
	held, wanted := n.newClaim(t, "first", first, "", gpu0), n.newClaim(t, "second", second, "", gpu0)
	n.mustPrepare(t, first)
	err := n.prepare(t, second)
	want := fmt.Sprintf("device %s is still held by claim %s/first (%s)", gpu0, n.name, held.UID)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
	n.checkPrepared(t, first, held)

	// The kubelet tries the second pod again later, when the first has gone.
	n.mustUnprepare(t, first)
	n.mustPrepare(t, second)
	n.checkPrepared(t, second, wanted)
	n.mustUnprepare(t, second)
}

// The kubelet's checkpoint has a claim that was never prepared, and a new agent, which has never heard of it, is asked
// to unprepare it.
func TestNeverPrepared(t *testing.T) {
	n := startNode(t)
	pod := n.newPod(t, "pod", "claim")
	claim := n.newClaim(t, "claim", pod, unknownField, nic0)
	if err := n.prepare(t, pod); err == nil {
		t.Fatal("an unknown field was accepted")
	}
	n.startAgent(t)
	n.startKubelet(t)
	if !n.kubelet.PodMightNeedToUnprepareResources(pod.UID) {
		t.Fatal("the kubelet has forgotten the claim, so the agent is not asked")
	}
	n.waitFor(t, "unprepare", func() bool { return n.kubelet.UnprepareResources(t.Context(), pod) == nil })
	n.checkClean(t, claim)
}

// The kubelet deletes the slices of its node when it starts.
func TestSlicesAfterKubeletRestart(t *testing.T) {
	n := startNode(t)
	complete := func() bool {
		list, err := n.api.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items) > 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount
	}
	n.waitFor(t, "a complete pool", complete)
	watch, err := n.api.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	n.startKubelet(t)
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			break
		}
	}
	gone := time.Now()
	n.waitFor(t, "a complete pool again", complete)
	t.Logf("slices were back after %v", time.Since(gone).Round(10*time.Millisecond))
}
