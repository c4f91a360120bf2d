package allocation

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/pci"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// only asks for one device and no other.
func only(kind v1alpha1.DeviceKind, addr pci.Address) *resourceapi.ResourceClaim {
	attribute := `device.attributes["resource.kubernetes.io"].pciBusID`
	if kind == pair {
		attribute = `device.attributes["topodra.dev"].gpuBusID`
	}
	return Singles(kind, 1, fmt.Sprintf("%s == %q", attribute, addr))
}

// excludes tells whether a device cannot be had while others are in use.
func excludes(t *testing.T, s *Scheduler, n *Node, claim *resourceapi.ResourceClaim, inUse ...string) bool {
	t.Helper()
	results, err := s.Allocate(t.Context(), n.Slices, InUse{}.Insert(inUse...), claim)
	if err != nil {
		t.Fatal(err)
	}
	return results == nil
}

// A pair excludes its parts, its parts exclude it, and neither excludes anything
// else.
func TestPairsAndPartsExcludeEachOther(t *testing.T) {
	for _, slug := range machinesWithPairs(t, 1) {
		t.Run(slug, func(t *testing.T) {
			t.Parallel()
			s, n := NewScheduler(), newNode(t, slug, everything)
			for _, g := range n.Topology.GPUs {
				if len(g.Pair) == 0 {
					continue
				}
				name := nodeslices.PairName(g.Address)
				for _, other := range n.Topology.GPUs {
					want := other.Address == g.Address
					single := nodeslices.GPUName(other.Address)
					if excludes(t, s, n, only(gpu, other.Address), name) != want || excludes(t, s, n, only(pair, g.Address), single) != want {
						t.Errorf("%s and %s: excluding each other is to be %v", name, single, want)
					}
				}
				for _, f := range someNICs(n, g) {
					want := slices.Contains(g.Pair, f.Address)
					single := nodeslices.NICName(f.Address)
					if excludes(t, s, n, only(nic, f.Address), name) != want || excludes(t, s, n, only(pair, g.Address), single) != want {
						t.Errorf("%s and %s: excluding each other is to be %v", name, single, want)
					}
				}
			}
		})
	}
}

// someNICs are the published NICs of a pair, and up to eight others.
func someNICs(n *Node, g topology.GPU) []topology.NIC {
	var some []topology.NIC
	others := 0
	for _, f := range n.Topology.NICs {
		mine := slices.Contains(g.Pair, f.Address)
		if f.Published && (mine || others < 8) {
			some = append(some, f)
			if !mine {
				others++
			}
		}
	}
	return some
}

// pairsOfOneNIC returns the addresses of the GPUs whose pairs have one NIC in
// common.
func pairsOfOneNIC(t *testing.T, n *Node, atLeast int) ([]pci.Address, pci.Address) {
	t.Helper()
	users := map[pci.Address][]pci.Address{}
	for _, g := range n.Topology.GPUs {
		for _, f := range g.Pair {
			if users[f] = append(users[f], g.Address); len(users[f]) >= atLeast {
				return users[f], f
			}
		}
	}
	t.Fatalf("no NIC is in %d pairs", atLeast)
	return nil, pci.Address{}
}

// As many pairs as NICSharing says have one NIC at a time, and none while the NIC
// is somebody's alone.
func TestSharedNIC(t *testing.T) {
	for sharing := 1; sharing <= 3; sharing++ {
		n := newNode(t, "aws-g4dn-metal", nodeslices.Options{Kinds: everything.Kinds, NICSharing: sharing})
		s := NewScheduler()
		gpus, shared := pairsOfOneNIC(t, n, 4)
		var held []string
		for i, g := range gpus {
			if got, want := excludes(t, s, n, only(pair, g), held...), i >= sharing; got != want {
				t.Errorf("sharing %d: pair %d refused: %v, want %v", sharing, i+1, got, want)
			}
			if i < sharing {
				held = append(held, nodeslices.PairName(g))
			}
		}
		for i := range held {
			if !excludes(t, s, n, only(nic, shared), held[:i+1]...) {
				t.Errorf("sharing %d: the NIC can be had alone although %d pairs use it", sharing, i+1)
			}
		}
		for _, g := range gpus {
			if !excludes(t, s, n, only(pair, g), nodeslices.NICName(shared)) {
				t.Errorf("sharing %d: %s can be had although its NIC is somebody's alone", sharing, nodeslices.PairName(g))
			}
		}
	}
}

// A cluster that cannot count gets as many pairs as one that can.
func TestWithoutCountersNoPairIsLost(t *testing.T) {
	for _, slug := range machinesWithPairs(t, 1) {
		for _, sharing := range []int{1, 2} {
			counted := newNode(t, slug, nodeslices.Options{Kinds: everything.Kinds, NICSharing: sharing})
			plain := newNode(t, slug, nodeslices.Options{Kinds: []v1alpha1.DeviceKind{pair}, NICSharing: sharing, NoCounters: true})
			if got, want := NewLedger(plain).MostPairs(), NewLedger(counted).MostPairs(); got != want {
				t.Errorf("%s, sharing %d: %d pairs without counters, %d with them", slug, sharing, got, want)
			}
			if got := len(plain.Inventory.Devices); got != NewLedger(plain).MostPairs() {
				t.Errorf("%s, sharing %d: %d pairs are published, not all can be used at once", slug, sharing, got)
			}
		}
	}
}

// What the allocator does when more is in use than a counter has, as after a
// restart with less NICSharing: it refuses everything of the node that counts, not
// only what the counter is for. The driver must not lower a counter below its use.
func TestOverdrawnCounterClosesTheNode(t *testing.T) {
	s := NewScheduler()
	n := newNode(t, "aws-p4d-24xl", everything)
	gpus, _ := pairsOfOneNIC(t, n, 2)
	overdrawn := []string{nodeslices.PairName(gpus[0]), nodeslices.PairName(gpus[1])}
	other := n.Topology.GPUs[len(n.Topology.GPUs)-1].Address
	if slices.Contains(gpus, other) {
		t.Fatalf("%s is one of the pairs of the NIC", other)
	}
	if excludes(t, s, n, only(pair, other), overdrawn[0]) {
		t.Error("a pair is refused although nothing of it is in use")
	}
	if !excludes(t, s, n, only(pair, other), overdrawn...) {
		t.Error("an overdrawn counter does not close the node: tell so in docs/claims.md")
	}
}
