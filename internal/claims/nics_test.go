package claims

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/preflight"
)

// TestMovingNIC: a NIC that moves has a gate, is in the metadata and in the journal, and is released at the end.
func TestMovingNIC(t *testing.T) {
	n := newNode(t)
	n.nics.moves = true
	m := n.manager()
	claim := pair("uid", 0)
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}}
	got, err := m.Prepare(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	want := &resourceapi.NetworkDeviceData{InterfaceName: "rail0", HardwareAddress: "02:00:00:00:00:01", IPs: []string{"10.1.0.5/24"}}
	for _, d := range got.Devices {
		if isNIC := strings.HasPrefix(d.Name, "nic"); isNIC && cmp.Diff(want, d.Network) != "" || !isNIC && d.Network != nil {
			t.Errorf("%s has network %+v", d.Name, d.Network)
		}
	}
	content, err := n.store().Devices("uid")
	if err != nil || len(content) == 0 {
		t.Fatal(content, err)
	}
	var spec struct {
		Devices []struct {
			Name           string
			ContainerEdits struct{ Hooks []*cdi.Hook }
		}
	}
	if err := json.Unmarshal(m.index.get("uid").CDI, &spec); err != nil {
		t.Fatal(err)
	}
	for _, d := range spec.Devices {
		gates := 0
		for _, hook := range d.ContainerEdits.Hooks {
			if cmp.Diff(&cdi.Hook{HookName: "createRuntime", Path: "/hook", Args: []string{"/hook", "/records", "/claims", "0000:02:00.0", "rdma"}}, hook) == "" {
				gates++
			}
		}
		if isNIC := strings.Contains(d.Name, "-nic-"); isNIC != (gates == 1) {
			t.Errorf("%s has %d gates", d.Name, gates)
		}
	}
	// Should its record be lost, the next call plans anew.
	delete(n.nics.held, "uid")
	if _, err := m.Prepare(t.Context(), claim); err != nil || !n.nics.held["uid"] {
		t.Errorf("Prepare again: %v, NIC held %t", err, n.nics.held["uid"])
	}
	// The next process knows them from the journal.
	claimed, err := n.manager().NICsOf(t.Context(), "pod-uid")
	if err != nil || len(claimed) != 1 || len(claimed[0].Plans) != 1 || claimed[0].Plans[0].Parent != "pci/0000:02:00.0" {
		t.Errorf("after a restart the pod has %+v, %v", claimed, err)
	}
	if err := m.Unprepare(t.Context(), "uid", request{}.name); err != nil || n.nics.held["uid"] {
		t.Errorf("not released: %v", err)
	}
}

// TestNICFaults: nothing is left of a claim whose NIC cannot be had.
func TestNICFaults(t *testing.T) {
	for name, test := range map[string]struct {
		prepare   func(*node, *resourceapi.ResourceClaim)
		want      string
		permanent bool
	}{
		"configuration": {func(n *node, _ *resourceapi.ResourceClaim) {
			n.nics.err = podnet.ConfigError{Fault: errors.New("config.mtu: too much")}
		}, "config.mtu: too much", true},
		"away": {func(n *node, _ *resourceapi.ResourceClaim) {
			n.nics.err = &podnet.AwayError{Device: "nic", Pod: "ns/pod"}
		}, "still on its way back from pod ns/pod", false},
		"two pods": {func(n *node, c *resourceapi.ResourceClaim) {
			n.nics.moves = true
			for _, pod := range []string{"a", "b"} {
				c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: "u"})
			}
		}, "nic-0000-02-00-0 would have to be in the network namespaces of 3 pods (pod-uid, a, b): a claim with a NIC serves one pod", true},
		"preflight": {func(n *node, _ *resourceapi.ResourceClaim) {
			n.preflight.fault = errors.New("preflight portActive: it is down")
		}, "preflight portActive: it is down", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			claim := pair("uid", 0)
			test.prepare(n, claim)
			_, err := n.manager().Prepare(t.Context(), claim)
			if err == nil || !strings.Contains(err.Error(), test.want) || isPermanent(err) != test.permanent {
				t.Errorf("got %v (permanent %t), want %q (%t)", err, isPermanent(err), test.want, test.permanent)
			}
			if files := append(n.files("claims"), n.files("cdi")...); len(files) > 0 || n.nics.held["uid"] {
				t.Errorf("left behind: %v, NICs %t", files, n.nics.held["uid"])
			}
		})
	}
}

// TestPreflightWarnings are kept with the device that they are about.
func TestPreflightWarnings(t *testing.T) {
	n := newNode(t)
	n.preflight.warnings = map[pci.Address][]string{pci.MustParseAddress("0000:02:00.0"): {"preflight gid: none"}}
	got, err := n.manager().Prepare(t.Context(), pair("uid", 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range got.Devices {
		if isNIC := strings.HasPrefix(d.Name, "nic"); isNIC != (len(d.Warnings) == 1) {
			t.Errorf("%s has warnings %q", d.Name, d.Warnings)
		}
	}
	for _, s := range n.preflight.asked {
		if len(s.GPUs) != 1 || s.GPUs[0] != pci.MustParseAddress("0000:01:00.0") {
			t.Errorf("asked about %+v, want the claim's GPU", s)
		}
	}
}

type fakePreflight struct {
	mu       sync.Mutex
	warnings map[pci.Address][]string
	fault    error
	asked    []preflight.Subject
}

func (f *fakePreflight) Check(_ context.Context, subjects []preflight.Subject) (map[pci.Address][]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, subjects...)
	return f.warnings, f.fault
}
