package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/simulate"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
	"github.com/topodra/topodra/test/allocation"
)

// A state is what is in use before n pairs are asked for. It is the same for all
// forms of the claim, part by part.
type state struct {
	name string
	room bool
	// parts returns the pairs in use, and of which pairs the NICs are in use alone.
	parts func(gpus []topology.GPU, n int) (pairs, nics []topology.GPU)
}

var states = []state{
	{"nothing in use", true, func([]topology.GPU, int) (pairs, nics []topology.GPU) { return nil, nil }},
	{"room for exactly these", true, func(gpus []topology.GPU, n int) (pairs, nics []topology.GPU) { return gpus[:len(gpus)-n], nil }},
	{"the NICs of one pair too few", false, func(gpus []topology.GPU, n int) (pairs, nics []topology.GPU) {
		return gpus[:len(gpus)-n], gpus[len(gpus)-n:][:1]
	}},
	{"all GPUs free, NICs for one pair too few", false, func(gpus []topology.GPU, n int) (pairs, nics []topology.GPU) { return nil, gpus[:len(gpus)-n+1] }},
}

// A form is a way to ask for pairs, on the kinds of devices that suit it best.
type form struct {
	name   string
	node   *allocation.Node
	claims func(n int) []*resourceapi.ResourceClaim
}

// bench is one machine.
type bench struct {
	options
	scheduler *allocation.Scheduler
	topology  *topology.Topology
	gpus      []topology.GPU // with a pair, in the order of the scheduler
	nics      int            // that constraints tie to a GPU
	forms     []form
}

// newBench ties a GPU to nics NICs where constraints are used, 0 for as many as a
// pair has.
func newBench(ctx context.Context, m *simulate.Machine, nics int, o options) (*bench, error) {
	node := func(kinds ...v1alpha1.DeviceKind) (*allocation.Node, error) {
		return allocation.NewNode(ctx, m, nodeslices.Options{Kinds: kinds})
	}
	all, err1 := node(v1alpha1.PairKind, v1alpha1.GPUKind, v1alpha1.NICKind)
	pairs, err2 := node(v1alpha1.PairKind)
	singles, err3 := node(v1alpha1.GPUKind, v1alpha1.NICKind)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	b := &bench{options: o, scheduler: allocation.NewScheduler(), topology: all.Topology}
	for _, d := range pairs.Inventory.Devices {
		for _, g := range all.Topology.GPUs {
			if nodeslices.PairName(g.Address) == d.Name {
				b.gpus = append(b.gpus, g)
			}
		}
	}
	if len(b.gpus) == 0 {
		return nil, fmt.Errorf("machine %s has no pairs", m.Slug)
	}
	if nics == 0 {
		nics = len(b.gpus[0].Pair)
	}
	b.nics = nics
	one := func(claim func(n, nics int) *resourceapi.ResourceClaim) func(int) []*resourceapi.ResourceClaim {
		return func(n int) []*resourceapi.ResourceClaim { return []*resourceapi.ResourceClaim{claim(n, nics)} }
	}
	asPairs := one(func(n, _ int) *resourceapi.ResourceClaim { return allocation.Pairs(n) })
	b.forms = []form{
		{"pairs", all, asPairs},
		{"pairs alone", pairs, asPairs},
		{"a claim each", all, func(n int) (claims []*resourceapi.ResourceClaim) {
			for range n {
				claims = append(claims, allocation.Pairs(1))
			}
			for i, c := range claims {
				c.Name = fmt.Sprintf("rank-%d", i)
			}
			return claims
		}},
		{"interleaved", singles, one(allocation.Interleaved)},
		{"grouped", singles, one(allocation.Grouped)},
	}
	return b, nil
}

func (b *bench) describe() string {
	return fmt.Sprintf("%d GPUs, %d NICs in each pair, constraints tie %d to a GPU; %d devices are published, %d where pairs are alone, %d without pairs.",
		len(b.gpus), len(b.gpus[0].Pair), b.nics,
		len(b.forms[0].node.Inventory.Devices), len(b.forms[1].node.Inventory.Devices), len(b.forms[3].node.Inventory.Devices))
}

// inUse translates a state into the devices of a node. Where pairs are alone, a NIC
// in use is its pair in use.
func (b *bench) inUse(n *allocation.Node, pairs, nics []topology.GPU) allocation.InUse {
	use := allocation.InUse{}
	take := func(names ...string) bool {
		for _, name := range names {
			if n.Device(name) == nil {
				return false
			}
		}
		use.Insert(names...)
		return true
	}
	for _, g := range pairs {
		if !take(nodeslices.PairName(g.Address)) {
			take(nodeslices.GPUName(g.Address))
			for _, f := range g.Pair {
				take(nodeslices.NICName(f))
			}
		}
	}
	for _, g := range nics {
		if take(nodeslices.NICName(g.Pair[0])) {
			for _, f := range g.Pair[1:] {
				take(nodeslices.NICName(f))
			}
		} else {
			take(nodeslices.PairName(g.Address))
		}
	}
	return use
}

const header = `| pairs wanted | in use | room | pairs | pairs alone | a claim each | interleaved | grouped | interleaved / pairs |
|---|---|---|---|---|---|---|---|---|
`

// row measures all forms in one state, one after the other in each round, so that
// what else runs on this machine hits all of them.
func (b *bench) row(ctx context.Context, n int, s state) (string, bool) {
	pairs, nics := s.parts(b.gpus, n)
	if s.room && n == len(b.gpus) && s.name != states[0].name || !s.room && n == len(b.gpus) && s.name == states[3].name {
		return "", false // the same as the row above
	}
	series := make([]series, len(b.forms))
	for {
		more := false
		for i, f := range b.forms {
			if series[i].enough(b.spend) {
				continue
			}
			more = true
			series[i].add(b.once(ctx, f, b.inUse(f.node, pairs, nics), n, s.room))
		}
		if !more || ctx.Err() != nil {
			break
		}
	}
	room := map[bool]string{true: "yes", false: "no"}[s.room]
	cells := []string{fmt.Sprint(n), s.name, room}
	for i := range series {
		cells = append(cells, series[i].String())
	}
	cells = append(cells, ratio(series[3], series[0]))
	return "| " + strings.Join(cells, " | ") + " |", true
}

// once makes an allocator, as the scheduler does for each pod, and asks it about
// the node.
func (b *bench) once(ctx context.Context, f form, inUse allocation.InUse, n int, room bool) (time.Duration, error) {
	claims := f.claims(n)
	devices := 0
	for _, r := range claims[0].Spec.Devices.Requests {
		devices += int(r.Exactly.Count)
	}
	if devices > resourceapi.AllocationResultsMaxSize {
		return 0, errTooMany
	}
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	start := time.Now()
	results, err := b.scheduler.Allocate(ctx, f.node.Slices, inUse, claims...)
	took := time.Since(start)
	if err == nil && (results != nil) != room {
		err = fmt.Errorf("allocated %v", allocation.Devices(results))
	}
	return took, err
}

var errTooMany = fmt.Errorf("over %d devices", resourceapi.AllocationResultsMaxSize)

// series are measurements of one cell.
type series struct {
	took []time.Duration
	sum  time.Duration
	err  error
	over time.Duration // the limit, when an allocation did not end
}

func (s *series) enough(spend time.Duration) bool {
	const atLeast, atMost = 5, 300
	return s.err != nil || s.over > 0 || len(s.took) >= atMost || (s.sum > spend && len(s.took) >= atLeast)
}

func (s *series) add(took time.Duration, err error) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		s.over = took
	case err != nil:
		s.err = err
	default:
		s.took = append(s.took, took)
		s.sum += took
	}
}

func (s *series) median() time.Duration {
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[len(sorted)/2]
}

// String is median and worst, in milliseconds.
func (s *series) String() string {
	switch {
	case s.err != nil:
		return s.err.Error()
	case s.over > 0:
		return fmt.Sprintf(">%.0f s", s.over.Round(time.Second).Seconds())
	}
	return fmt.Sprintf("%s (%s)", milliseconds(s.median()), milliseconds(slices.Max(s.took)))
}

func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms >= 10 {
		return fmt.Sprintf("%.0f", ms)
	}
	return fmt.Sprintf("%.2f", ms)
}

func ratio(slow, fast series) string {
	switch {
	case slow.err != nil || len(fast.took) == 0:
		return "-"
	case slow.over > 0:
		return fmt.Sprintf(">%d", slow.over/fast.median())
	}
	r := float64(slow.median()) / float64(fast.median())
	if r >= 10 {
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.1f", r)
}

// host says where this was measured.
func host() string {
	cpu := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				cpu = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	return fmt.Sprintf("Median and (worst) in ms for one node. %d CPUs (%s), %s.", runtime.NumCPU(), cpu, runtime.Version())
}
