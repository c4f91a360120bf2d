package policy

import (
	"cmp"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	driver      = "topodra.dev"
	otherDriver = "nic.example.com"
)

// unbound is part of the sentence that every policy gives a token that is bound to no pod.
const unbound = "this one is bound to no node"

// slice returns an empty ResourceSlice; with no node it is for all nodes.
func slice(name, node, driver string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec.Driver = driver
	s.Spec.Pool = resourceapi.ResourcePool{Name: cmp.Or(node, "pool"), Generation: 1, ResourceSliceCount: 1}
	if node == "" {
		all := true
		s.Spec.AllNodes = &all
	} else {
		s.Spec.NodeName = &node
	}
	return s
}

// pod creates a pod that is bound to node, or to none.
func (c *cluster) pod(t *testing.T, name, node string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName:   node,
		Containers: []corev1.Container{{Name: "main", Image: "example"}},
	}}
	if change != nil {
		change(p)
	}
	p, err := c.admin.CoreV1().Pods(workloads).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// claim creates a claim that holds a device of each of two drivers on node; with no node it is not allocated.
func (c *cluster) claim(t *testing.T, name, node string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	request := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "example.com"}}
	}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{request("gpu"), request("nic")}
	client := c.admin.ResourceV1().ResourceClaims(workloads)
	claim, err := client.Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node == "" {
		return claim
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: driver, Pool: node, Device: "gpu-0000-1b-00-0"},
			{Request: "nic", Driver: otherDriver, Pool: node, Device: "nic-0"},
		}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "consumer", UID: types.UID("u")}}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{deviceStatus(otherDriver, node, "nic-0", metav1.ConditionTrue)}
	claim, err = client.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func deviceStatus(driver, pool, device string, ready metav1.ConditionStatus) resourceapi.AllocatedDeviceStatus {
	return resourceapi.AllocatedDeviceStatus{Driver: driver, Pool: pool, Device: device, Conditions: []metav1.Condition{
		{Type: "Ready", Status: ready, Reason: "Test", LastTransitionTime: metav1.Now()},
	}}
}

var names atomic.Int64

// unique returns a part of a name that no other call returns.
func unique() string { return strconv.FormatInt(names.Add(1), 10) }
