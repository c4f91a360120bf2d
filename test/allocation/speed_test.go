package allocation

import (
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/internal/simulate/simulatetest"
	nodeslices "github.com/topodra/topodra/internal/slices"
)

// The reason for pairs: the scheduler says no to eight of them hundreds of times
// faster than to eight GPUs tied to eight NICs. How fast is for
// test/bench/allocation to print; here only a ratio is asserted, with a margin.
func TestPairsAreRefusedFaster(t *testing.T) {
	const atLeast = 50
	s := NewScheduler()
	pairs := newNode(t, "kvm-8xh200-pxb-switch", everything)
	singles := newNode(t, "kvm-8xh200-pxb-switch", nodeslices.Options{Kinds: everything.Kinds[1:]})
	inUse := InUse{}.Insert(nodeslices.NICName(pairs.Topology.NICs[0].Address))
	measure := func(n *Node, claim *resourceapi.ResourceClaim, times int) time.Duration {
		var took []time.Duration
		for range times {
			start := time.Now()
			results, err := s.Allocate(t.Context(), n.Slices, inUse, claim)
			took = append(took, time.Since(start))
			if err != nil || results != nil {
				t.Fatalf("claim %s: %v, %v", claim.Name, Devices(results), err)
			}
		}
		return slices.Min(took)
	}
	fast := measure(pairs, Pairs(8), 20)
	slow := measure(singles, Interleaved(8, 1), 3)
	t.Logf("pairs %v, interleaved %v: %d times", fast, slow, slow/fast)
	if slow < atLeast*fast {
		t.Errorf("pairs are refused in %v, constraints in %v: only %d times faster, want %d", fast, slow, slow/fast, atLeast)
	}
}

// A pair needs one place among the 32 results of a claim, with constraints it needs
// one for each NIC too: eight GPUs of a p5 with their 32 NICs are more than a claim
// can hold.
func TestPairsFitWhereConstraintsDoNot(t *testing.T) {
	n := newNode(t, "aws-p5-48xl", everything)
	if _, err := NewScheduler().Allocate(t.Context(), n.Slices, nil, Interleaved(8, 4)); err == nil {
		t.Error("40 devices fit a claim")
	}
	results, err := NewScheduler().Allocate(t.Context(), n.Slices, nil, Pairs(8))
	if err != nil || len(Devices(results)) != 8 {
		t.Errorf("8 pairs: %v, %v", Devices(results), err)
	}
}

// Names of slices put them in order for the allocator, whatever order the API
// server lists them in.
func TestOrderOfSlices(t *testing.T) {
	n := newNode(t, "aws-p5-48xl", everything)
	if len(n.Slices) < 3 {
		t.Fatalf("%d slices, want several", len(n.Slices))
	}
	want, err := NewScheduler().Allocate(t.Context(), n.Slices, nil, Pairs(4))
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(n.Slices)
	got, err := NewScheduler().Allocate(t.Context(), n.Slices, nil, Pairs(4))
	if err != nil || !slices.Equal(Devices(got), Devices(want)) {
		t.Errorf("got %v, %v, want %v", Devices(got), err, Devices(want))
	}
}

// While a slice of a pool is missing nothing is allocated from it: half a pool is
// never mistaken for one.
func TestHalfAPool(t *testing.T) {
	for _, slug := range simulatetest.Slugs(t) {
		n := newNode(t, slug, everything)
		for i := range n.Slices {
			half := slices.Delete(slices.Clone(n.Slices), i, i+1)
			for _, claim := range []*resourceapi.ResourceClaim{Pairs(1), Singles(gpu, 1), Singles(nic, 1)} {
				if results, err := NewScheduler().Allocate(t.Context(), half, nil, claim); results != nil || err != nil {
					t.Errorf("%s without slice %d of %d: %v, %v", slug, i, len(n.Slices), Devices(results), err)
				}
			}
		}
	}
}
