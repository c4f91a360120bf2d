package allocation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/topology"
)

// An order is a way to list devices; the scheduler takes the first that fits.
type order struct {
	name string
	list func([]resourceapi.Device)
}

var orders = []order{
	{"by address", func(d []resourceapi.Device) {
		slices.SortStableFunc(d, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
	}},
	{"reverse", func(d []resourceapi.Device) {
		slices.SortStableFunc(d, func(a, b resourceapi.Device) int { return strings.Compare(b.Name, a.Name) })
	}},
	{"shuffled", func(d []resourceapi.Device) {
		random := rand.New(rand.NewPCG(7, 7))
		random.Shuffle(len(d), func(i, j int) { d[i], d[j] = d[j], d[i] })
	}},
}

// ordered is a node that lists the same devices in another order.
func ordered(n *Node, o order) *Node {
	other := *n
	inventory := n.Inventory
	inventory.Devices = slices.Clone(inventory.Devices)
	o.list(inventory.Devices)
	other.Publish(inventory)
	return &other
}

// fit allocates a claim until the node has no room for another and returns how
// often that was.
func fit(t *testing.T, s *Scheduler, n *Node, inUse InUse, claim *resourceapi.ResourceClaim) int {
	t.Helper()
	inUse = inUse.Clone()
	for i := 0; ; i++ {
		results, err := s.Allocate(t.Context(), n.Slices, inUse, claim)
		if err != nil {
			t.Fatal(err)
		}
		if results == nil {
			return i
		}
		inUse.Insert(Devices(results)...)
	}
}

// alternating is a machine that the zoo lacks: every second GPU, by address, is on
// the other NUMA node.
func alternating(t *testing.T) *Node {
	m := simulatetest.Load(t, "kvm-8xh200-pxb-switch")
	snapshot, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	topo := topology.Compute(snapshot, topology.Config{})
	for i, g := range topo.GPUs {
		for _, part := range append([]pci.Address{g.Address}, g.Pair...) {
			snapshot.PCI.Functions[part].NUMANode = i % 2
		}
	}
	snapshot.Simulated = "alternating"
	return (&Node{Snapshot: snapshot, Topology: topo}).With(everything)
}

// Small claims leave large groups whole: after k claims of one pair, at least as
// many claims of several pairs on one NUMA node fit as with any naive order.
func TestPacking(t *testing.T) {
	s := NewScheduler()
	nodes := map[string]*Node{"alternating": alternating(t)}
	for _, slug := range machinesWithPairs(t, 2) {
		nodes[slug] = newNode(t, slug, everything)
	}
	better := map[string]int{}
	for _, slug := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[slug]
		for _, size := range []int{2, 4} {
			large := Pairs(size, NUMANode)
			if fit(t, s, n, nil, large) == 0 {
				continue
			}
			ours := afterSmall(t, s, n, large)
			text := fmt.Sprint(ours)
			for _, naive := range orders {
				other := afterSmall(t, s, ordered(n, naive), large)
				text += fmt.Sprintf(", %s %v", naive.name, other)
				for k, got := range ours {
					if got < other[k] {
						t.Errorf("%s: after %d claims of one pair %d claims of %d fit, %d when listed %s", slug, k, got, size, other[k], naive.name)
					}
					better[naive.name] += got - other[k]
				}
			}
			t.Logf("%-26s %d pairs each: ours %s", slug, size, text)
		}
	}
	t.Logf("large claims more than with other orders: %v", better)
	if better["by address"] <= 0 {
		t.Error("our order is nowhere better than addresses: it is not worth its lines")
	}
}

// afterSmall returns how many large claims fit after none, one, two and so on of
// one pair, until the machine is full.
func afterSmall(t *testing.T, s *Scheduler, n *Node, large *resourceapi.ResourceClaim) (fits []int) {
	t.Helper()
	inUse := InUse{}
	for {
		fits = append(fits, fit(t, s, n, inUse, large))
		results, err := s.Allocate(t.Context(), n.Slices, inUse, Pairs(1))
		if err != nil {
			t.Fatal(err)
		}
		if results == nil {
			return fits
		}
		inUse.Insert(Devices(results)...)
	}
}

// The same after a long time of claims that come and go.
func TestPackingAfterChurn(t *testing.T) {
	const runs, steps = 5, 30
	s := NewScheduler()
	large := Pairs(4, NUMANode)
	total := map[string]int{}
	ours := order{"ours", func([]resourceapi.Device) {}}
	for _, n := range []*Node{alternating(t), newNode(t, "kvm-8xh200-pxb-switch", everything), newNode(t, "aws-p5-48xl", everything)} {
		var said []string
		for _, o := range append([]order{ours}, orders...) {
			node := ordered(n, o)
			sum := 0
			for run := range runs {
				sum += churn(t, s, node, large, uint64(run), steps)
			}
			total[o.name] += sum
			said = append(said, fmt.Sprintf("%s %d", o.name, sum))
		}
		t.Logf("%s of 8 pairs: claims of four that fit, summed over %d looks: %s", n.Snapshot.Simulated, runs*steps, strings.Join(said, ", "))
	}
	for name, sum := range total {
		if total["ours"] < sum {
			t.Errorf("%d large claims fit, %d when listed %s", total["ours"], sum, name)
		}
	}
}

// churn lets claims of one pair come and go around half of the machine, and adds
// up how many large claims would fit after each step.
func churn(t *testing.T, s *Scheduler, n *Node, large *resourceapi.ResourceClaim, seed uint64, steps int) (sum int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	var held []string
	for range steps {
		if len(held) > 0 && random.IntN(8) < len(held)*2-2 {
			i := random.IntN(len(held))
			held = slices.Delete(held, i, i+1)
		} else if results, err := s.Allocate(t.Context(), n.Slices, InUse{}.Insert(held...), Pairs(1)); err != nil {
			t.Fatal(err)
		} else {
			held = append(held, Devices(results)...)
		}
		sum += fit(t, s, n, InUse{}.Insert(held...), large)
	}
	return sum
}
