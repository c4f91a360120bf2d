package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/api/v1alpha1"
)

const namespace = "bench"

// Devices of the machine; those at one place of the lists are next to each other.
var (
	gpus = []string{"gpu-0000-68-00-0", "gpu-0000-6b-00-0", "gpu-0000-70-00-0", "gpu-0000-73-00-0", "gpu-0000-cc-00-0", "gpu-0000-cf-00-0", "gpu-0000-d3-00-0", "gpu-0000-d8-00-0"}
	nics = []string{"nic-0000-67-00-0", "nic-0000-6c-00-0", "nic-0000-6f-00-0", "nic-0000-74-00-0", "nic-0000-cb-00-0", "nic-0000-d0-00-0", "nic-0000-d4-00-0", "nic-0000-d7-00-0"}
)

// shape is what a claim asks for: pairs of a GPU and the NIC next to it.
type shape struct {
	first, pairs int
	single       bool // one request per device instead of one per kind
	admin        bool // with adminAccess, which any number of claims may have at once
}

// allocation returns what the scheduler would write.
func (s shape) allocation() ([]resourceapi.DeviceRequest, *resourceapi.AllocationResult) {
	var requests []resourceapi.DeviceRequest
	allocation := &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName}}},
	}}}}
	var admin *bool
	if s.admin {
		admin = &s.admin
	}
	for _, kind := range []string{"gpu", "nic"} {
		devices := gpus
		if kind == "nic" {
			devices = nics
		}
		devices = devices[s.first : s.first+s.pairs]
		count := len(devices)
		if s.single {
			count = 1
		}
		for i, device := range devices {
			name := kind
			if s.single {
				name = fmt.Sprintf("%s%d", kind, i)
			}
			if s.single || i == 0 {
				requests = append(requests, resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: kind + ".topodra.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count), AdminAccess: admin,
				}})
			}
			allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
				Request: name, Driver: v1alpha1.Group, Pool: nodeName, Device: device, AdminAccess: admin,
			})
		}
	}
	return requests, allocation
}

// work is one pod with one claim.
type work struct {
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
}

func (w work) request() *drapb.Claim {
	return &drapb.Claim{Namespace: namespace, Name: w.claim.Name, Uid: string(w.claim.UID)}
}

var serial atomic.Int64

// newWork creates a pod and its claim, allocated and reserved.
func newWork(ctx context.Context, api kubernetes.Interface, s shape) (work, error) {
	name := fmt.Sprintf("w%d", serial.Add(1))
	pod, err := api.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:       nodeName,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &name}},
			Containers: []corev1.Container{{
				Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return work{}, err
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	var allocation *resourceapi.AllocationResult
	claim.Spec.Devices.Requests, allocation = s.allocation()
	claim, err = api.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return work{}, err
	}
	claim.Status.Allocation = allocation
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
	claim, err = api.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return work{pod, claim}, err
}

// newWorks creates n pods with a claim each.
func newWorks(b *testing.B, api kubernetes.Interface, s shape, n int) []work {
	b.Helper()
	works := make([]work, n)
	parallel(b, n, 4, func(i int) (err error) { works[i], err = newWork(b.Context(), api, s); return err })
	return works
}

// remove deletes pods and claims.
func remove(b *testing.B, api kubernetes.Interface, works []work) {
	b.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	parallel(b, len(works), 4, func(i int) error {
		if err := api.CoreV1().Pods(namespace).Delete(b.Context(), works[i].pod.Name, now); err != nil {
			return err
		}
		return api.ResourceV1().ResourceClaims(namespace).Delete(b.Context(), works[i].claim.Name, now)
	})
}

// parallel calls f for 0..n-1, at most limit at a time.
func parallel(b *testing.B, n, limit int, f func(int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, n)
	for range min(n, limit) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = f(i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}
