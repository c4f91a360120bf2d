package policy

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestSlices(t *testing.T) {
	c := sharedCluster(t)
	tests := map[string]struct {
		tokenNode, sliceNode, driver string
		denial                       string
	}{
		"own node":       {ownNode, ownNode, driver, ""},
		"other node":     {ownNode, otherNode, driver, "agent of node n1 may not write ResourceSlices of node n2."},
		"all nodes":      {ownNode, "", driver, "agent of node n1 may not write ResourceSlices of no single node."},
		"other driver":   {ownNode, ownNode, otherDriver, "of the driver topodra.dev only, not of nic.example.com."},
		"unbound token":  {"", ownNode, driver, unbound},
		"nobody's slice": {"", "", driver, unbound},
	}
	number := 0
	for name, tc := range tests {
		number++
		object := fmt.Sprintf("slice-%d", number)
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			slices := c.as(tc.tokenNode).ResourceV1().ResourceSlices()
			t.Run("create", func(t *testing.T) {
				_, err := slices.Create(ctx, slice(object, tc.sliceNode, tc.driver), metav1.CreateOptions{})
				check(t, err, tc.denial)
			})
			if tc.denial != "" {
				if _, err := c.admin.ResourceV1().ResourceSlices().Create(ctx, slice(object, tc.sliceNode, tc.driver), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			t.Run("update", func(t *testing.T) {
				stored, err := c.admin.ResourceV1().ResourceSlices().Get(ctx, object, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				stored.Spec.Pool.Generation++
				_, err = slices.Update(ctx, stored, metav1.UpdateOptions{})
				check(t, err, tc.denial)
			})
			t.Run("patch", func(t *testing.T) {
				_, err := slices.Patch(ctx, object, types.MergePatchType, []byte(`{"spec":{"pool":{"generation":9}}}`), metav1.PatchOptions{})
				check(t, err, tc.denial)
			})
			t.Run("delete", func(t *testing.T) {
				check(t, slices.Delete(ctx, object, metav1.DeleteOptions{}), tc.denial)
			})
		})
	}
	t.Run("somebody else is not concerned", func(t *testing.T) {
		if _, err := c.admin.ResourceV1().ResourceSlices().Create(t.Context(), slice("of-admin", "", otherDriver), metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// A slice of its own node in another node's pool would speak for that node's devices.
func TestOwnPoolOnly(t *testing.T) {
	c := sharedCluster(t)
	slices := c.as(ownNode).ResourceV1().ResourceSlices()
	for pool, allowed := range map[string]bool{ownNode: true, ownNode + "/probe": true, otherNode: false, ownNode + "/other": false} {
		s := slice("", ownNode, driver)
		s.GenerateName, s.Spec.Pool.Name = "pool-", pool
		_, err := slices.Create(t.Context(), s, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if allowed != (err == nil) || (err != nil && !strings.Contains(err.Error(), "pool "+pool)) {
			t.Errorf("pool %s: %v, want allowed %t", pool, err, allowed)
		}
	}
}
