package kubelet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api/v1alpha1"
)

// Pairs of a GPU and the NIC next to it.
const (
	gpu0, nic0 = "gpu-0000-68-00-0", "nic-0000-67-00-0"
	gpu1, nic1 = "gpu-0000-6b-00-0", "nic-0000-6c-00-0"
)

// newPod creates a pod on the node with one container that uses all claims, which need not exist yet.
func (n *node) newPod(t *testing.T, name string, claims ...string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: n.name},
		Spec:       corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		use := &pod.Spec.Containers[0].Resources
		use.Claims = append(use.Claims, corev1.ResourceClaim{Name: claim})
	}
	pod, err := n.api.CoreV1().Pods(n.name).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.pods.add(pod)
	return pod
}

// newClaim creates a claim with one request per device, allocated as the scheduler would and reserved for the pod. config
// is JSON for all requests, empty for none.
func (n *node) newClaim(t *testing.T, name string, pod *corev1.Pod, config string, devices ...string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: n.name}}
	allocation := &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n.name}}},
	}}}}
	for _, device := range devices {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: device, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		})
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: device, Driver: v1alpha1.Group, Pool: n.name, Device: device,
		})
	}
	if config != "" {
		opaque := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.Group, Parameters: runtime.RawExtension{Raw: []byte(config)},
		}}
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque}}
		allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: opaque,
		}}
	}
	claim, err := n.api.ResourceV1().ResourceClaims(n.name).Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Allocation = allocation
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	claim, err = n.api.ResourceV1().ResourceClaims(n.name).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// cdiIDs returns what the kubelet tells the container runtime about the pod's container, each ID once, sorted.
func (n *node) cdiIDs(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	info, err := n.kubelet.GetResources(pod, &pod.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, device := range info.CDIDevices {
		ids = append(ids, device.Name)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// cdiFile is the part of a CDI file that matters here, by the CDI specification.
type cdiFile struct {
	Kind    string
	Devices []struct {
		Name           string
		ContainerEdits struct {
			Env         []string
			DeviceNodes []struct{ Path, HostPath string }
			Mounts      []struct{ HostPath, ContainerPath string }
		}
	}
}

// cdiDevices reads all CDI files of the node as a container runtime does.
func (n *node) cdiDevices(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.dir, "cdi", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	devices := map[string][]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f cdiFile
		if err := json.Unmarshal(content, &f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, device := range f.Devices {
			id := f.Kind + "=" + device.Name
			if _, twice := devices[id]; twice {
				t.Errorf("CDI device %s is defined twice; a runtime would refuse both", id)
			}
			edits := append([]string{}, device.ContainerEdits.Env...)
			for _, node := range device.ContainerEdits.DeviceNodes {
				host := node.HostPath
				if host == "" {
					host = node.Path
				}
				if _, err := os.Stat(host); err != nil {
					t.Errorf("CDI device %s: device node: %v", id, err)
				}
				edits = append(edits, node.Path)
			}
			for _, mount := range device.ContainerEdits.Mounts {
				if _, err := os.Stat(mount.HostPath); err != nil {
					t.Errorf("CDI device %s: mount: %v", id, err)
				}
				edits = append(edits, mount.ContainerPath)
			}
			devices[id] = edits
		}
	}
	return devices
}

// checkPrepared compares what the kubelet got for a pod's claim with the devices that the claim has, and checks that a
// runtime finds all of it.
func (n *node) checkPrepared(t *testing.T, pod *corev1.Pod, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	var want []string
	for _, claim := range claims {
		gpus := false
		for _, result := range claim.Status.Allocation.Devices.Results {
			want = append(want, "topodra.dev/claim="+string(claim.UID)+"-"+result.Device,
				"topodra.dev/metadata="+string(claim.UID)+"_"+result.Request)
			gpus = gpus || strings.HasPrefix(result.Device, "gpu-")
		}
		if gpus {
			want = append(want, "topodra.dev/claim="+string(claim.UID)+"-driver-files")
		}
	}
	slices.Sort(want)
	got := n.cdiIDs(t, pod)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CDI devices of pod %s (-want +got):\n%s", pod.Name, diff)
	}
	devices := n.cdiDevices(t)
	for _, id := range got {
		if _, ok := devices[id]; !ok {
			t.Errorf("pod %s gets CDI device %s, which no CDI file defines", pod.Name, id)
		}
	}
}

// checkClean checks that nothing of a claim is left on the node.
func (n *node) checkClean(t *testing.T, claim *resourceapi.ResourceClaim) {
	t.Helper()
	err := filepath.WalkDir(n.dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(path), string(claim.UID)) {
			t.Errorf("claim %s left %s", claim.Name, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// placement returns the record on a pod.
func (n *node) placement(t *testing.T, name string) (*corev1.Pod, v1alpha1.Placement) {
	t.Helper()
	pod, err := n.api.CoreV1().Pods(n.name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var p v1alpha1.Placement
	if err := json.Unmarshal([]byte(pod.Annotations[v1alpha1.PlacementAnnotation]), &p); err != nil {
		t.Fatalf("placement record of pod %s: %v", name, err)
	}
	return pod, p
}
