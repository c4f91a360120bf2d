package policy

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// requests has one request of the agent for each verb of its role, as it makes them in its work.
var requests = map[string]func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error{
	"resource.k8s.io resourceslices get": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.ResourceV1().ResourceSlices().Get(ctx, c.ownSlice(t), metav1.GetOptions{})
		return err
	},
	"resource.k8s.io resourceslices list": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + ownNode})
		return err
	},
	"resource.k8s.io resourceslices watch": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		w, err := client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + ownNode})
		if err == nil {
			w.Stop()
		}
		return err
	},
	"resource.k8s.io resourceslices create": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		object := slice("", ownNode, driver)
		object.GenerateName = "created-"
		_, err := client.ResourceV1().ResourceSlices().Create(ctx, object, metav1.CreateOptions{})
		return err
	},
	"resource.k8s.io resourceslices update": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		object, err := c.admin.ResourceV1().ResourceSlices().Get(ctx, c.ownSlice(t), metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Spec.Pool.Generation++
		_, err = client.ResourceV1().ResourceSlices().Update(ctx, object, metav1.UpdateOptions{})
		return err
	},
	"resource.k8s.io resourceslices patch": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.ResourceV1().ResourceSlices().Patch(ctx, c.ownSlice(t), types.MergePatchType, []byte(`{"spec":{"pool":{"generation":9}}}`), metav1.PatchOptions{})
		return err
	},
	"resource.k8s.io resourceslices delete": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		return client.ResourceV1().ResourceSlices().Delete(ctx, c.ownSlice(t), metav1.DeleteOptions{})
	},
	"resource.k8s.io resourceclaims get": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.ResourceV1().ResourceClaims(workloads).Get(ctx, c.ownClaim(t), metav1.GetOptions{})
		return err
	},
	"resource.k8s.io resourceclaims/status update": updateClaimStatus,
	// Asked by the API server beside the verb on resourceclaims/status.
	"resource.k8s.io resourceclaims/driver associated-node:update": updateClaimStatus,
	"nodes get": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Nodes().Get(ctx, ownNode, metav1.GetOptions{})
		return err
	},
	"pods get": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Pods(workloads).Get(ctx, c.ownPod(t), metav1.GetOptions{})
		return err
	},
	"pods patch": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Pods(workloads).Patch(ctx, c.ownPod(t), types.MergePatchType, []byte(`{"metadata":{"labels":{"kubernetes.io/hostname":"n1"}}}`), metav1.PatchOptions{})
		return err
	},
	"events create": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Events(workloads).Create(ctx, event("created"), metav1.CreateOptions{})
		return err
	},
	"events patch": func(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
		object, err := c.admin.CoreV1().Events(workloads).Create(ctx, event("patched"), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		_, err = client.CoreV1().Events(workloads).Patch(ctx, object.Name, types.MergePatchType, []byte(`{"count":2}`), metav1.PatchOptions{})
		return err
	},
}

func updateClaimStatus(ctx context.Context, t *testing.T, c *cluster, client kubernetes.Interface) error {
	claim, err := c.admin.ResourceV1().ResourceClaims(workloads).Get(ctx, c.ownClaim(t), metav1.GetOptions{})
	if err != nil {
		return err
	}
	claim.Status.Devices = append(claim.Status.Devices, deviceStatus(driver, ownNode, "gpu-0000-1b-00-0", metav1.ConditionTrue))
	_, err = client.ResourceV1().ResourceClaims(workloads).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}

// ownSlice, ownClaim and ownPod create an object of the agent's node and return its name.

func (c *cluster) ownSlice(t *testing.T) string {
	t.Helper()
	object := slice("", ownNode, driver)
	object.GenerateName = "own-"
	object, err := c.admin.ResourceV1().ResourceSlices().Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object.Name
}

func (c *cluster) ownClaim(t *testing.T) string {
	t.Helper()
	return c.claim(t, "own-"+unique(), ownNode).Name
}

func (c *cluster) ownPod(t *testing.T) string {
	t.Helper()
	return c.pod(t, "own-"+unique(), ownNode, nil).Name
}

func event(name string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: name + "-"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: workloads, Name: "p"},
		Reason:         "Test",
	}
}
