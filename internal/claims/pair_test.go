package claims

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api/v1alpha1"
)

func pairName(i int) string { return strings.Replace(gpuName(i), "gpu", "pair", 1) }

// withPairs adds a pair of each GPU and its NIC to a node. The NICs of all pairs
// can be shared by so many claims.
func withPairs(t testing.TB, shares int) *node {
	n := newNode(t)
	for i := range 8 {
		gpu, _ := n.devices.Device(gpuName(i))
		nic, _ := n.devices.Device(nicName(i))
		nic.Shares = shares
		n.devices.add(Device{Name: pairName(i), Type: v1alpha1.PairKind, Address: gpu.Address, Parts: []Device{gpu, nic}, AffinityGroup: gpu.AffinityGroup})
	}
	return n
}

// A pair is prepared as one device with the parts of two.
func TestPreparePair(t *testing.T) {
	n := withPairs(t, 1)
	m := n.manager()
	got := mustPrepare(t, m, claim("uid", []string{"r=" + pairName(3)})).Devices
	if len(got) != 1 || got[0].Name != pairName(3) {
		t.Fatalf("devices %+v, want the pair", got)
	}
	if diff := cmp.Diff([]string{
		"topodra.dev/claim=uid-" + gpuName(3), "topodra.dev/claim=uid-" + nicName(3), "topodra.dev/claim=uid-" + driverFiles,
	}, got[0].CDIDeviceIDs); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{gpuName(3), nicName(3)}, got[0].Holds); diff != "" {
		t.Errorf("holds (-want +got):\n%s", diff)
	}
	placement := m.Placements("pod-uid")[0].Devices
	if len(placement) != 2 || placement[0].Pair != pairName(3) || placement[1].RDMADevice != "mlx5_3" || placement[1].Distances[gpuName(3)] != "PIX" {
		t.Errorf("record %+v, want both parts with their distance", placement)
	}
}

// Whoever has a part has a half of the pair: the scheduler counts it, and the
// driver refuses what gets past that.
func TestPairsAndPartsExcludeEachOther(t *testing.T) {
	for name, c := range map[string]struct {
		first, second *resourceapi.ResourceClaim
		held          string
	}{
		"NIC of a pair":     {claim("a", []string{"r=" + pairName(1)}), claim("b", []string{"r=" + nicName(1)}), nicName(1)},
		"GPU of a pair":     {claim("a", []string{"r=" + pairName(1)}), claim("b", []string{"r=" + gpuName(1)}), gpuName(1)},
		"pair of a NIC":     {claim("a", []string{"r=" + nicName(1)}), claim("b", []string{"r=" + pairName(1)}), nicName(1)},
		"the same pair":     {claim("a", []string{"r=" + pairName(1)}), claim("b", []string{"r=" + pairName(1)}), gpuName(1)},
		"another pair":      {claim("a", []string{"r=" + pairName(1)}), claim("b", []string{"r=" + pairName(2)}), ""},
		"other parts":       {claim("a", []string{"r=" + pairName(1)}), claim("b", []string{"g=" + gpuName(2), "n=" + nicName(3)}), ""},
		"after the restart": {claim("a", []string{"r=" + pairName(1)}), claim("b", []string{"r=" + nicName(1)}), nicName(1)},
	} {
		t.Run(name, func(t *testing.T) {
			n := withPairs(t, 1)
			m := n.manager()
			mustPrepare(t, m, c.first)
			if name == "after the restart" {
				m = n.manager()
			}
			_, err := m.Prepare(context.Background(), c.second)
			var held *heldError
			switch {
			case c.held == "" && err != nil:
				t.Errorf("got %v, want success", err)
			case c.held != "" && (!errors.As(err, &held) || held.key != c.held || held.uid != "a"):
				t.Errorf("got %v, want that claim a holds %s", err, c.held)
			}
			n.check(m)
		})
	}
}

// Two pairs may share a NIC, three may not, and nobody may have it alone then.
func TestSharedNIC(t *testing.T) {
	n := withPairs(t, 2)
	for i := 1; i < 3; i++ { // pairs 1 and 2 have the NIC of pair 0
		p, _ := n.devices.Device(pairName(i))
		nic, _ := n.devices.Device(nicName(0))
		nic.Shares = 2
		p.Parts = []Device{p.Parts[0], nic}
		n.devices.add(p)
	}
	m := n.manager()
	mustPrepare(t, m, claim("a", []string{"r=" + pairName(0)}))
	mustPrepare(t, m, claim("b", []string{"r=" + pairName(1)}))
	for _, c := range []*resourceapi.ResourceClaim{claim("c", []string{"r=" + pairName(2)}), claim("d", []string{"r=" + nicName(0)})} {
		var held *heldError
		if _, err := m.Prepare(context.Background(), c); !errors.As(err, &held) || held.key != nicName(0) {
			t.Errorf("claim %s: got %v, want that the NIC is held", c.UID, err)
		}
	}
	mustUnprepare(t, m, claim("a", nil))
	mustPrepare(t, m, claim("c", []string{"r=" + pairName(2)}))
}

// Configurations for the parts fit a pair.
func TestPairConfig(t *testing.T) {
	n := withPairs(t, 1)
	c := claim("uid", []string{"r=" + pairName(0)},
		withConfig(resourceapi.AllocationConfigSourceClaim, `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"none"}`),
		withConfig(resourceapi.AllocationConfigSourceClaim, `{"apiVersion":"topodra.dev/v1alpha1","kind":"GPUConfig"}`))
	got := mustPrepare(t, n.manager(), c)
	if len(got.Devices) != 1 {
		t.Errorf("devices %+v, want the pair", got.Devices)
	}
	data, err := os.ReadFile(n.store().Path("uid"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "uverbs") || !strings.Contains(string(data), "GPU-0") {
		t.Errorf("CDI file with an RDMA device or without the GPU:\n%s", data)
	}
}
