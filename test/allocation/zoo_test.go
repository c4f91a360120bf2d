package allocation

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/slices"
)

const (
	pair = v1alpha1.PairKind
	gpu  = v1alpha1.GPUKind
	nic  = v1alpha1.NICKind
)

var everything = slices.Options{Kinds: []v1alpha1.DeviceKind{pair, gpu, nic}}

// zoo are nodes that tests of this package have looked at: scanning a machine takes
// longer than most tests do.
var zoo sync.Map

func newNode(t testing.TB, slug string, o slices.Options) *Node {
	t.Helper()
	known, ok := zoo.Load(slug)
	if !ok {
		n, err := NewNode(t.Context(), simulatetest.Load(t, slug), o)
		if err != nil {
			t.Fatal(err)
		}
		known, _ = zoo.LoadOrStore(slug, n)
	}
	return known.(*Node).With(o)
}

// machinesWithPairs are the machines of the zoo that have at least so many
// disjoint pairs.
func machinesWithPairs(t testing.TB, atLeast int) []string {
	t.Helper()
	var slugs []string
	for _, slug := range simulatetest.Slugs(t) {
		if NewLedger(newNode(t, slug, everything)).MostPairs() >= atLeast {
			slugs = append(slugs, slug)
		}
	}
	if len(slugs) < 8 {
		t.Fatalf("%d machines with %d pairs: the zoo has more", len(slugs), atLeast)
	}
	return slugs
}

// load takes devices of mixed kinds at random, as many of the published ones as
// the share says and the parts allow.
func load(l *Ledger, share float64, seed uint64) InUse {
	random := rand.New(rand.NewPCG(seed, uint64(share*100)))
	inUse := InUse{}
	for _, i := range random.Perm(len(l.node.Inventory.Devices)) {
		name := l.node.Inventory.Devices[i].Name
		if random.Float64() < share && l.Fits(name) {
			if err := l.Take(name); err != nil {
				panic(err) // it fits
			}
			inUse.Insert(name)
		}
	}
	return inUse
}
