package policy

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/internal/testing/apiserver"
)

// TestClaims runs with the API server's own check of status.devices (Kubernetes 1.36 and later), and without it, as on 1.34
// and 1.35, where our policy alone stands.
func TestClaims(t *testing.T) {
	t.Run("1.36 and later", func(t *testing.T) { testClaims(t, sharedCluster(t), true) })
	t.Run("before 1.36", func(t *testing.T) {
		server := apiserver.Start(t, apiserver.WithFeatureGate("DRAResourceClaimGranularStatusAuthorization", false))
		testClaims(t, install(t, server), false)
	})
}

func testClaims(t *testing.T, c *cluster, granular bool) {
	own := func(status *resourceapi.ResourceClaimStatus, node string) {
		status.Devices = append(status.Devices, deviceStatus(driver, node, "gpu-0000-1b-00-0", metav1.ConditionTrue))
	}
	const upstream = "resourceclaims/driver" // part of the API server's own denial
	tests := map[string]struct {
		tokenNode, claimNode string
		change               func(status *resourceapi.ResourceClaimStatus, node string)
		denial               string // of our policy
		granularDenial       string // of the API server, which looks first
	}{
		"own driver, own node":   {ownNode, ownNode, own, "", ""},
		"own driver, other node": {ownNode, otherNode, own, "agent of node n1 may not write the status of claim", upstream},
		"own driver, unbound":    {"", ownNode, own, unbound, upstream},
		"other driver changed": {ownNode, ownNode, func(s *resourceapi.ResourceClaimStatus, node string) {
			s.Devices = []resourceapi.AllocatedDeviceStatus{deviceStatus(otherDriver, node, "nic-0", metav1.ConditionFalse)}
		}, "entries of the driver topodra.dev in a claim's status.devices only", upstream},
		"other driver removed": {ownNode, ownNode, func(s *resourceapi.ResourceClaimStatus, node string) {
			s.Devices = nil
			own(s, node)
		}, "entries of the driver topodra.dev in a claim's status.devices only", upstream},
		"reservation": {ownNode, ownNode, func(s *resourceapi.ResourceClaimStatus, node string) {
			s.ReservedFor = append(s.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "p", UID: "v"})
		}, "may not change the allocation or reservation of a claim", "resourceclaims/binding"},
		"deallocation": {ownNode, ownNode, func(s *resourceapi.ResourceClaimStatus, node string) {
			*s = resourceapi.ResourceClaimStatus{}
		}, "in a claim's status.devices only", "resourceclaims/binding"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			claim := c.claim(t, "claim-"+strings.NewReplacer(" ", "-", ",", "").Replace(name), tc.claimNode)
			tc.change(&claim.Status, tc.claimNode)
			denial := tc.denial
			if granular {
				denial = tc.granularDenial
			}
			_, err := c.as(tc.tokenNode).ResourceV1().ResourceClaims(workloads).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
			check(t, err, denial)
		})
	}
	t.Run("nothing but the allocation", func(t *testing.T) {
		claim := c.claim(t, "unreserved", ownNode)
		claim.Status.ReservedFor, claim.Status.Devices = nil, nil
		claim, err := c.admin.ResourceV1().ResourceClaims(workloads).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.Allocation = nil
		_, err = c.as(ownNode).ResourceV1().ResourceClaims(workloads).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
		denial := "may not change the allocation or reservation of a claim"
		if granular {
			denial = "resourceclaims/binding"
		}
		check(t, err, denial)
	})
	t.Run("claim that is not allocated", func(t *testing.T) {
		// Nothing changes, so the API server has no objection of its own.
		claim := c.claim(t, "not-allocated", "")
		_, err := c.as(ownNode).ResourceV1().ResourceClaims(workloads).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
		check(t, err, "may not write the status of claim not-allocated: it is not allocated to that node.")
	})
}
