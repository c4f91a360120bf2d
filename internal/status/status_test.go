package status

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
)

func outcome(plan podnet.Plan, netns string, err error, warnings ...string) Outcome {
	plan.Device, plan.Address = "nic-0000-02-00-0", pci.MustParseAddress("0000:02:00.0")
	return Outcome{
		Driver: "topodra.dev", Plans: []podnet.Plan{plan}, Since: time.Unix(1e9, 0), Err: err,
		Sandbox: podnet.Sandbox{Namespace: "ns", Name: "pod", Netns: netns},
		Claim: claims.Prepared{Devices: []claims.PreparedDevice{
			{Name: "gpu-0000-01-00-0", Pool: "node", Placements: []v1alpha1.DevicePlacement{{PCIAddress: "0000:01:00.0"}}},
			{
				Name: "nic-0000-02-00-0", Pool: "node", Warnings: warnings, Placements: []v1alpha1.DevicePlacement{{PCIAddress: "0000:02:00.0"}},
				Network: &resourceapi.NetworkDeviceData{InterfaceName: "rail0", HardwareAddress: "02:00:00:00:00:01", IPs: []string{"10.1.0.5/24"}},
			},
		}},
	}
}

func TestConditions(t *testing.T) {
	moves := podnet.Plan{Parent: "pci/0000:02:00.0", Pod: podnet.State{Name: "rail0"}, Uses: "mlx5_0"}
	exclusive, stays, noRDMA, onlyRDMA := moves, podnet.Plan{Uses: "mlx5_0", Stays: "it is shared"}, moves, podnet.Plan{Uses: "mlx5_0", RDMA: "mlx5_0"}
	exclusive.RDMA, noRDMA.Uses = "mlx5_0", ""
	for name, test := range map[string]struct {
		outcome              Outcome
		ready, network, rdma string
		hasNetwork           bool
	}{
		"shared":       {outcome(moves, "/ns", nil), "True Prepared", "True InPod interface rail0 is in the pod", "True Shared RDMA device mlx5_0 stays on the host and is open to the pod", true},
		"exclusive":    {outcome(exclusive, "/ns", nil), "True Prepared", "True InPod", "True InPod RDMA device mlx5_0 is in the pod", true},
		"only RDMA":    {outcome(onlyRDMA, "/ns", nil), "True Prepared", "True None", "True InPod", true},
		"no RDMA":      {outcome(noRDMA, "/ns", nil), "True Prepared", "True InPod", "False None", true},
		"stays":        {outcome(stays, "/ns", nil), "True Prepared", "False OnHost nic-0000-02-00-0 stays on the host: it is shared", "True Shared", true},
		"host network": {outcome(exclusive, "", nil), "True Prepared", "True HostNetwork", "True HostNetwork", false},
		"failed":       {outcome(moves, "/ns", errors.New("it is not here")), "False AttachFailed it is not here", "False AttachFailed it is not here", "False AttachFailed it is not here", false},
		"warned":       {outcome(moves, "/ns", nil, "preflight gid: none"), "True PreparedWithWarnings the pod has what the claim asked for; preflight gid: none", "True InPod", "True Shared", true},
	} {
		t.Run(name, func(t *testing.T) {
			devices := test.outcome.devices()
			if len(devices) != 1 || devices[0].Device != "nic-0000-02-00-0" {
				t.Fatalf("entries %+v, want one, for the NIC", devices)
			}
			got := map[string]string{}
			for _, c := range devices[0].Conditions {
				got[c.Type] = strings.TrimSpace(string(c.Status) + " " + c.Reason + " " + c.Message)
			}
			for kind, want := range map[string]string{Ready: test.ready, NetworkReady: test.network, RDMAReady: test.rdma} {
				if !strings.HasPrefix(got[kind], want) {
					t.Errorf("%s is %q, want %q", kind, got[kind], want)
				}
			}
			if (devices[0].NetworkData != nil) != test.hasNetwork {
				t.Errorf("network data %+v", devices[0].NetworkData)
			}
		})
	}
}

// TestStoredInTheEnd: an API server that is away keeps nobody waiting, and gets the newest outcome once it is back.
func TestStoredInTheEnd(t *testing.T) {
	other := resourceapi.AllocatedDeviceStatus{Driver: "other.example.com", Pool: "node", Device: "nic-0000-02-00-0"}
	client := fake.NewClientset(&resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "uid"},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}, Devices: []resourceapi.AllocatedDeviceStatus{other}},
	})
	var away atomic.Bool
	away.Store(true)
	stored := make(chan string, 10)
	client.PrependReactor("update", "resourceclaims", func(action ktesting.Action) (bool, runtime.Object, error) {
		if away.Load() {
			return true, nil, apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "update", action.GetResource().GroupResource(), "claim", "it is away", 0, false)
		}
		devices := action.(ktesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim).Status.Devices
		stored <- action.GetSubresource() + " " + devices[0].Driver + " " + devices[1].Conditions[0].Reason
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := NewWriter(client)
	go w.Run(ctx)
	claim := podnet.Claim{UID: "uid", Namespace: "ns", Name: "claim"}
	moves := podnet.Plan{Parent: "pci/0000:02:00.0", Pod: podnet.State{Name: "rail0"}}
	w.Store(claim, outcome(moves, "/ns", errors.New("not yet")))
	w.Store(claim, outcome(moves, "/ns", nil))
	time.Sleep(150 * time.Millisecond)
	away.Store(false)
	select {
	case got := <-stored:
		if want := "status other.example.com Prepared"; got != want {
			t.Errorf("stored %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("not stored after 10 s")
	}
	w.Store(claim, outcome(moves, "/ns", nil)) // a new agent tells the same
	select {
	case again := <-stored:
		t.Errorf("stored twice: %s", again)
	case <-time.After(300 * time.Millisecond):
	}
}
