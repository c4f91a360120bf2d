package topology

import (
	"fmt"
	"slices"

	"github.com/topodra/topodra/internal/pci"
)

// assign gives every GPU its share of the NICs nearest to it. The functions of
// one card stay together. Within a group each GPU gets the same number of cards,
// the largest number that all can have; where there are fewer cards than GPUs,
// cards are shared, as evenly as it goes.
func (t *Topology) assign(c PairConfig) {
	groups := map[string][]*GPU{}
	for i := range t.GPUs {
		if g := &t.GPUs[i]; g.Group != "" {
			groups[g.Group] = append(groups[g.Group], g)
		}
	}
	for _, gpus := range groups {
		t.assignGroup(gpus)
	}
	for i := range t.GPUs {
		t.GPUs[i].limit(c)
	}
}

// PairComponents returns the GPUs with a pair, grouped by whose pairs have a NIC in
// common, each group and all groups by address.
func (t *Topology) PairComponents() [][]GPU {
	u := newUnion[pci.Address](pci.Address.Compare)
	for _, g := range t.GPUs {
		for _, n := range g.Pair {
			u.join(g.Address, n)
		}
	}
	index := map[pci.Address]int{}
	var components [][]GPU
	for _, g := range t.GPUs {
		if len(g.Pair) == 0 {
			continue
		}
		top := u.find(g.Address)
		if _, ok := index[top]; !ok {
			index[top] = len(components)
			components = append(components, nil)
		}
		components[index[top]] = append(components[index[top]], g)
	}
	return components
}

// limit takes away what the configuration does not call a pair.
func (g *GPU) limit(c PairConfig) {
	switch {
	case g.Nearest == Unknown:
		g.NoPair = "no fabric NIC is known to be near"
	case c.Farthest != Unknown && g.Nearest > c.Farthest:
		g.Pair, g.NoPair = nil, fmt.Sprintf("the nearest fabric NIC is at %v, farther than %v, the farthest that makes a pair here", g.Nearest, c.Farthest)
	case c.NICs > 0 && len(g.Pair) > c.NICs:
		g.Pair = g.Pair[:c.NICs]
	}
}

func (t *Topology) assignGroup(gpus []*GPU) {
	m := matching{}
	total := map[pci.Address]bool{}
	for _, g := range gpus {
		cards := t.nearestCards(g)
		m.wants = append(m.wants, cards)
		for _, c := range cards {
			total[c] = true
		}
	}
	for each := len(total) / len(gpus); each >= 1; each-- {
		if owners, all := m.solve(each, 1); all {
			t.give(gpus, owners)
			return
		}
	}
	// Fewer cards than GPUs, or too few where some GPUs need them: share as little
	// as possible. When all GPUs share one card, the last round succeeds.
	for per := 2; per <= len(gpus); per++ {
		if owners, all := m.solve(1, per); all {
			t.give(gpus, owners)
			return
		}
	}
}

// nearestCards returns the cards with a nearest NIC of a GPU, in order.
func (t *Topology) nearestCards(g *GPU) []pci.Address {
	var cards []pci.Address
	for _, n := range g.NearestNICs {
		cards = append(cards, t.nic(n).Card)
	}
	slices.SortFunc(cards, pci.Address.Compare)
	return slices.Compact(cards)
}

// give turns cards back into those of their functions that are nearest.
func (t *Topology) give(gpus []*GPU, owned map[int][]pci.Address) {
	for i, g := range gpus {
		for _, n := range g.NearestNICs {
			if slices.Contains(owned[i], t.nic(n).Card) {
				g.Pair = append(g.Pair, n)
			}
		}
	}
}

// matching finds who gets which card; wants lists the cards that each GPU can have.
type matching struct {
	wants [][]pci.Address
	owner map[seat]int // to a slot
	per   int
	each  int
}

// seat is one of the places that a card has when GPUs share it.
type seat struct {
	card  pci.Address
	place int
}

// solve gives each GPU a number of cards, each card to at most per GPUs, and
// tells whether all got theirs. It is Kuhn's augmenting path algorithm: slots in
// GPU order take cards in address order, which keeps neighbours together.
func (m *matching) solve(each, per int) (owned map[int][]pci.Address, all bool) {
	m.owner, m.per, m.each = map[seat]int{}, per, each
	all = true
	for slot := range len(m.wants) * each {
		if !m.augment(slot, map[seat]bool{}) {
			all = false
		}
	}
	owned = map[int][]pci.Address{}
	for s, slot := range m.owner {
		gpu := slot / each
		owned[gpu] = append(owned[gpu], s.card)
	}
	return owned, all
}

func (m *matching) augment(slot int, seen map[seat]bool) bool {
	// A free seat first, so that nobody moves without need.
	for _, move := range []bool{false, true} {
		for place := range m.per {
			for _, card := range m.wants[slot/m.each] {
				s := seat{card, place}
				owner, taken := m.owner[s]
				if taken != move || seen[s] {
					continue
				}
				if taken {
					seen[s] = true
					if !m.augment(owner, seen) {
						continue
					}
				}
				m.owner[s] = slot
				return true
			}
		}
	}
	return false
}
