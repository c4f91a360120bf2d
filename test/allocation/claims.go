package allocation

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
)

// Names of attributes that claims match.
const (
	AffinityGroup resourceapi.FullyQualifiedName = v1alpha1.Group + "/affinityGroup"
	NUMANode      resourceapi.FullyQualifiedName = "resource.kubernetes.io/numaNode"
)

// Claim wraps what the API server would make of a spec: the allocator wants the
// defaults filled in.
func Claim(spec resourceapi.ResourceClaimSpec, name string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       *spec.DeepCopy(),
	}
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			setDefaults(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			setDefaults(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
		}
	}
	return c
}

func setDefaults(mode *resourceapi.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

// Pairs asks for n pairs in one request. With match the pairs have one value of
// an attribute.
func Pairs(n int, match ...resourceapi.FullyQualifiedName) *resourceapi.ResourceClaim {
	var spec resourceapi.ResourceClaimSpec
	spec.Devices.Requests = []resourceapi.DeviceRequest{request("accel", v1alpha1.PairKind, n)}
	for _, m := range match {
		spec.Devices.Constraints = append(spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: &m})
	}
	return Claim(spec, fmt.Sprintf("pairs-%d", n))
}

// Singles asks for n devices of a kind.
func Singles(kind v1alpha1.DeviceKind, n int, selectors ...string) *resourceapi.ResourceClaim {
	r := request("accel", kind, n)
	for _, s := range selectors {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return Claim(resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}}}, fmt.Sprintf("%ss-%d", kind, n))
}

// Interleaved asks for n GPUs, each with a number of NICs of its affinity group:
// gpu-0, nic-0, gpu-1, nic-1 and so on.
func Interleaved(n, nics int) *resourceapi.ResourceClaim {
	var spec resourceapi.ResourceClaimSpec
	for i := range n {
		g, f := matched(i, nics)
		spec.Devices.Requests = append(spec.Devices.Requests, g, f)
		spec.Devices.Constraints = append(spec.Devices.Constraints, constraint(g, f))
	}
	return Claim(spec, fmt.Sprintf("interleaved-%d", n))
}

// Grouped asks for the same as Interleaved, GPUs first and NICs last.
func Grouped(n, nics int) *resourceapi.ResourceClaim {
	var spec resourceapi.ResourceClaimSpec
	var last []resourceapi.DeviceRequest
	for i := range n {
		g, f := matched(i, nics)
		spec.Devices.Requests = append(spec.Devices.Requests, g)
		last = append(last, f)
		spec.Devices.Constraints = append(spec.Devices.Constraints, constraint(g, f))
	}
	spec.Devices.Requests = append(spec.Devices.Requests, last...)
	return Claim(spec, fmt.Sprintf("grouped-%d", n))
}

func matched(i, nics int) (gpu, nic resourceapi.DeviceRequest) {
	return request(fmt.Sprintf("gpu-%d", i), v1alpha1.GPUKind, 1), request(fmt.Sprintf("nic-%d", i), v1alpha1.NICKind, nics)
}

func constraint(requests ...resourceapi.DeviceRequest) resourceapi.DeviceConstraint {
	match := AffinityGroup
	c := resourceapi.DeviceConstraint{MatchAttribute: &match}
	for _, r := range requests {
		c.Requests = append(c.Requests, r.Name)
	}
	return c
}

func request(name string, kind v1alpha1.DeviceKind, n int) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: string(kind) + "." + v1alpha1.Group, Count: int64(n),
	}}
}
