package allocation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	nodeslices "github.com/topodra/topodra/internal/slices"
)

// searchLimit is how many combinations the allocator may have to try before it
// says no; more take seconds. With constraints these are a GPU and a NIC for each
// pair. A request with a count is tried with every set of free devices: the
// allocator does not see that there are too few.
const searchLimit = 20_000

// Every claim form, on every machine, in every form of publishing, with nothing
// to everything in use: what is allocated is legal, and a claim fails only when
// there is no room for it.
func TestLegalAndComplete(t *testing.T) {
	scheduler := NewScheduler()
	for name, form := range map[string]struct {
		options   nodeslices.Options
		scheduler *Scheduler
	}{
		"everything":           {everything, scheduler},
		"two pairs on a NIC":   {nodeslices.Options{Kinds: everything.Kinds, NICSharing: 2}, scheduler},
		"pairs":                {nodeslices.Options{Kinds: []v1alpha1.DeviceKind{pair}}, scheduler},
		"pairs, two on a NIC":  {nodeslices.Options{Kinds: []v1alpha1.DeviceKind{pair}, NICSharing: 2}, scheduler},
		"pairs and NICs":       {nodeslices.Options{Kinds: []v1alpha1.DeviceKind{pair, nic}}, scheduler},
		"GPUs and NICs":        {nodeslices.Options{Kinds: []v1alpha1.DeviceKind{gpu, nic}}, scheduler},
		"pairs, no counters":   {nodeslices.Options{Kinds: []v1alpha1.DeviceKind{pair}, NoCounters: true}, scheduler.WithoutCounters()},
		"all kinds, no counts": {nodeslices.Options{Kinds: everything.Kinds, NoCounters: true}, scheduler.WithoutCounters()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := map[bool]int{}
			for _, slug := range simulatetest.Slugs(t) {
				n := newNode(t, slug, form.options)
				if len(n.Inventory.Devices) == 0 {
					continue
				}
				for _, share := range []float64{0, 0.15, 0.4, 0.7, 1} {
					c := &caseOf{Scheduler: form.scheduler, node: n, said: said}
					c.ledger = NewLedger(n)
					c.inUse = load(c.ledger, share, 1)
					c.name = fmt.Sprintf("%s with %v in use", slug, slices.Sorted(maps.Keys(c.inUse)))
					c.pairs(t)
					c.matched(t)
					c.singles(t)
				}
			}
			t.Logf("%d claims allocated, %d refused", said[true], said[false])
			if said[true] == 0 || said[false] == 0 {
				t.Error("only one kind of answer: this has tested nothing")
			}
		})
	}
}

// caseOf is a node with some devices in use.
type caseOf struct {
	*Scheduler
	node   *Node
	ledger *Ledger
	inUse  InUse
	name   string
	said   map[bool]int
}

// check allocates a claim, compares success with what must be, and tests the
// result.
func (c *caseOf) check(t *testing.T, want bool, claim *resourceapi.ResourceClaim) {
	t.Helper()
	results, err := c.Allocate(t.Context(), c.node.Slices, c.inUse, claim)
	if err != nil {
		t.Errorf("%s: claim %s: %v", c.name, claim.Name, err)
		return
	}
	if got := results != nil; got != want {
		t.Errorf("%s: claim %s: allocated %v, want %v", c.name, claim.Name, Devices(results), want)
	}
	c.said[results != nil]++
	if err := c.legal(results, claim); err != nil {
		t.Errorf("%s: claim %s: %v", c.name, claim.Name, err)
	}
}

// legal says what is wrong with results.
func (c *caseOf) legal(results []resourceapi.AllocationResult, claims ...*resourceapi.ResourceClaim) error {
	var taken []string
	defer func() {
		for _, name := range taken {
			c.ledger.Release(name)
		}
	}()
	for i, r := range results {
		asked := 0
		for _, request := range claims[i].Spec.Devices.Requests {
			if request.Exactly != nil {
				asked += int(request.Exactly.Count)
			}
		}
		if asked > 0 && len(r.Devices.Results) != asked {
			return fmt.Errorf("%d devices, asked for %d", len(r.Devices.Results), asked)
		}
		for _, d := range r.Devices.Results {
			taken = append(taken, d.Device)
			if err := c.ledger.Take(d.Device); err != nil {
				return err
			}
		}
		if err := c.keepsConstraints(r, claims[i]); err != nil {
			return err
		}
	}
	return c.countersHold(taken)
}

// keepsConstraints reads the attributes that a constraint names.
func (c *caseOf) keepsConstraints(r resourceapi.AllocationResult, claim *resourceapi.ResourceClaim) error {
	for _, constraint := range claim.Spec.Devices.Constraints {
		var first *resourceapi.DeviceAttribute
		for _, d := range r.Devices.Results {
			if len(constraint.Requests) > 0 && !slices.Contains(constraint.Requests, d.Request) {
				continue
			}
			value, ok := c.node.Device(d.Device).Attributes[resourceapi.QualifiedName(*constraint.MatchAttribute)]
			switch {
			case !ok:
				return fmt.Errorf("%s has no %s", d.Device, *constraint.MatchAttribute)
			case first == nil:
				first = &value
			case first.String() != value.String():
				return fmt.Errorf("%s is %v on %s and %v on another", *constraint.MatchAttribute, value.String(), d.Device, first.String())
			}
		}
	}
	return nil
}

// countersHold adds up what the devices in use and those taken consume.
func (c *caseOf) countersHold(taken []string) error {
	left := map[string]int64{}
	for _, set := range c.node.Inventory.Counters {
		for name, counter := range set.Counters {
			left[set.Name+"/"+name] = counter.Value.Value()
		}
	}
	for _, device := range append(c.inUse.UnsortedList(), taken...) {
		for _, consumption := range c.node.Device(device).ConsumesCounters {
			for name, counter := range consumption.Counters {
				key := consumption.CounterSet + "/" + name
				if left[key] -= counter.Value.Value(); left[key] < 0 {
					return fmt.Errorf("%s takes counter %s below zero", device, key)
				}
			}
		}
	}
	return nil
}

func (c *caseOf) pairs(t *testing.T) {
	most := c.ledger.MostPairs()
	for _, n := range []int{1, 2, most, most + 1, 8} {
		if n > 0 {
			c.check(t, n <= most, Pairs(n))
		}
	}
}

func (c *caseOf) matched(t *testing.T) {
	most := c.ledger.MostMatched()
	gpus, nics := c.ledger.Free()
	for n := 1; n <= most+1; n++ {
		search := 1
		for i := range n {
			search *= max(gpus-i, 1) * max(nics-i, 1)
			if search > searchLimit {
				break
			}
		}
		if n > most && search > searchLimit {
			return
		}
		c.check(t, n <= most, Interleaved(n, 1))
		c.check(t, n <= most, Grouped(n, 1))
	}
}

func (c *caseOf) singles(t *testing.T) {
	gpus, nics := c.ledger.Free()
	for kind, most := range map[v1alpha1.DeviceKind]int{gpu: gpus, nic: nics} {
		for _, n := range []int{1, most, most + 1} {
			if n > most && 1<<most > searchLimit {
				continue
			}
			if n > 0 && n <= resourceapi.AllocationResultsMaxSize {
				c.check(t, n <= most, Singles(kind, n))
			}
		}
	}
}

// What a pair promises as its distance is what the PCI tree says.
func TestDistanceOfPairs(t *testing.T) {
	for _, slug := range machinesWithPairs(t, 1) {
		n := newNode(t, slug, everything)
		for _, g := range n.Topology.GPUs {
			device := n.Device(nodeslices.PairName(g.Address))
			if device == nil {
				continue
			}
			if got, want := *device.Attributes["topodra.dev/distance"].StringValue, n.Near(g).String(); got != want {
				t.Errorf("%s: %s says %s, its parts are at %s", slug, device.Name, got, want)
			}
		}
	}
}

// An allocation ends with the context, so that the timeouts of other tests and of
// the benchmark mean something.
func TestContextEndsAllocation(t *testing.T) {
	n := newNode(t, "aws-p5-48xl", nodeslices.Options{Kinds: []v1alpha1.DeviceKind{gpu, nic}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if results, err := NewScheduler().Allocate(ctx, n.Slices, nil, Interleaved(8, 4)); err == nil {
		t.Errorf("allocated %v although the context has ended", Devices(results))
	}
}
