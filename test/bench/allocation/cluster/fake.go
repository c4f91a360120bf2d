package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/test/allocation"
)

const (
	namespace = "default"
	// fakeLabel keeps pods of this bench on fake nodes, and fakeTaint keeps all
	// others off.
	fakeLabel = "topodra.dev/fake"
	fakeTaint = "topodra.dev/fake"
)

// bench is a cluster with fake nodes: objects that nobody stands behind, so that
// pods are bound but never run.
type bench struct {
	kubernetes.Interface
	options
	dir string // of the cluster's files
}

func (b *bench) nodeName(i int) string { return fmt.Sprintf("fake-%04d", i) }

// each calls f for all numbers below n, some at a time, and returns the first error.
func each(n int, f func(i int) error) error {
	var next atomic.Int64
	var first error
	var once sync.Once
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// made drops the error of an object that is there from an earlier run.
func made[T any](_ T, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (b *bench) nodesAndClasses(ctx context.Context) error {
	for _, kind := range []v1alpha1.DeviceKind{v1alpha1.PairKind, v1alpha1.GPUKind, v1alpha1.NICKind} {
		if err := made(b.ResourceV1().DeviceClasses().Create(ctx, allocation.Class(kind), metav1.CreateOptions{})); err != nil {
			return err
		}
	}
	return each(b.nodes, func(i int) error {
		name := b.nodeName(i)
		room := v1.ResourceList{"cpu": resource.MustParse("128"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("110")}
		node := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fakeLabel: "true", v1.LabelHostname: name}},
			Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: fakeTaint, Effect: v1.TaintEffectNoSchedule}}},
		}
		if err := made(b.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})); err != nil {
			return err
		}
		if err := b.renewLease(ctx, name); err != nil {
			return err
		}
		// A patch, as controllers write to new nodes too.
		now := metav1.Now()
		status, err := json.Marshal(map[string]any{"status": v1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "Fake", LastHeartbeatTime: now, LastTransitionTime: now}},
		}})
		if err != nil {
			return err
		}
		_, err = b.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
		return err
	})
}

// renewLeases is what keeps a node from being called unreachable: the controller
// looks at the lease only.
func (b *bench) renewLeases(ctx context.Context) {
	for ctx.Err() == nil {
		_ = each(b.nodes, func(i int) error { return b.renewLease(ctx, b.nodeName(i)) })
		select {
		case <-ctx.Done():
		case <-time.After(15 * time.Second):
		}
	}
}

func (b *bench) renewLease(ctx context.Context, node string) error {
	now, seconds := metav1.NowMicro(), int32(40)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	leases := b.CoordinationV1().Leases(v1.NamespaceNodeLease)
	_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": lease.Spec})
	if err != nil {
		return err
	}
	_, err = leases.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// publish gives every node the slices of one, under its own name.
func (b *bench) publish(ctx context.Context, n *allocation.Node) error {
	err := each(b.nodes, func(i int) error {
		name := b.nodeName(i)
		for j, s := range n.Slices {
			s = s.DeepCopy()
			s.Name, s.Spec.NodeName, s.Spec.Pool.Name = fmt.Sprintf("%05x-%s", j, name), &name, name
			if _, err := b.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	time.Sleep(2 * time.Second) // until the scheduler has seen them
	return err
}

// occupy allocates one NIC on each node, or a pair where NICs are not published.
func (b *bench) occupy(ctx context.Context, n *allocation.Node) error {
	device := n.Inventory.Devices[len(n.Inventory.Devices)-1].Name // NICs come last
	claims := b.ResourceV1().ResourceClaims(namespace)
	err := each(b.nodes, func(i int) error {
		name := b.nodeName(i)
		claim := allocation.Pairs(1)
		claim.ObjectMeta = metav1.ObjectMeta{Name: "busy-" + name}
		claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		claim.Status.Allocation = &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: claim.Spec.Devices.Requests[0].Name, Driver: v1alpha1.Group, Pool: name, Device: device},
			}},
			NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{name}}},
			}}},
		}
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		return err
	})
	time.Sleep(time.Second)
	return err
}

// clear removes what an earlier form left.
func (b *bench) clear(ctx context.Context) error {
	if err := b.deletePods(ctx); err != nil {
		return err
	}
	all := metav1.ListOptions{}
	if err := b.ResourceV1().ResourceClaimTemplates(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	if err := b.ResourceV1().ResourceClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	if err := b.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	return until(ctx, "claims to go", func() (bool, error) {
		list, err := b.ResourceV1().ResourceClaims(namespace).List(ctx, all)
		return err == nil && len(list.Items) == 0, err
	})
}

// deletePods deletes at once: there is no kubelet to wait for.
func (b *bench) deletePods(ctx context.Context) error {
	now := int64(0)
	return b.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{LabelSelector: fakeLabel})
}

func (b *bench) template(ctx context.Context, name string, claim *resourceapi.ResourceClaim) error {
	_, err := b.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim.Spec},
	}, metav1.CreateOptions{})
	return err
}
