// Command cluster measures the real scheduler with fake nodes: how long it takes to
// find out that a pod fits nowhere, how long a small pod behind it waits, and how
// many pods with one pair it places per second; pair devices beside GPUs and NICs
// that are tied by constraints. It prints a table of docs/performance.md.
//
//	hack/cluster --name bench up --nodes 1
//	hack/cluster --name bench net go run ./test/bench/allocation/cluster
//	hack/cluster --name bench down
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/simulate"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/test/allocation"
)

func main() {
	var o options
	flag.StringVar(&o.machine, "machine", "testdata/machines/kvm-8xh200-pxb-switch/machine.yaml", "what every node is")
	flag.IntVar(&o.nodes, "nodes", 100, "fake nodes")
	flag.IntVar(&o.pods, "pods", 200, "pods with one pair each")
	flag.IntVar(&o.rounds, "rounds", 3, "repeat with the pod that fits nowhere")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

type options struct {
	machine             string
	nodes, pods, rounds int
}

// A form is a way to publish nodes and to ask for n pairs.
type form struct {
	name  string
	kinds []v1alpha1.DeviceKind
	claim func(n int) *resourceapi.ResourceClaim
}

var (
	singles = []v1alpha1.DeviceKind{v1alpha1.GPUKind, v1alpha1.NICKind}
	forms   = []form{
		{"pairs", append([]v1alpha1.DeviceKind{v1alpha1.PairKind}, singles...), func(n int) *resourceapi.ResourceClaim { return allocation.Pairs(n) }},
		{"pairs alone", []v1alpha1.DeviceKind{v1alpha1.PairKind}, func(n int) *resourceapi.ResourceClaim { return allocation.Pairs(n) }},
		{"interleaved", singles, func(n int) *resourceapi.ResourceClaim { return allocation.Interleaved(n, 1) }},
		{"grouped", singles, func(n int) *resourceapi.ResourceClaim { return allocation.Grouped(n, 1) }},
	}
)

func run(ctx context.Context, o options) error {
	kubeconfig := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("no cluster: run this with \"hack/cluster net\": %w", err)
	}
	config.QPS, config.Burst = 2000, 2000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	machine, err := simulate.Load(o.machine)
	if err != nil {
		return err
	}
	b := &bench{Interface: client, options: o, dir: filepath.Dir(kubeconfig)}
	if err := b.nodesAndClasses(ctx); err != nil {
		return err
	}
	go b.renewLeases(ctx)
	nodes := make([]*allocation.Node, len(forms))
	for i, f := range forms {
		if nodes[i], err = allocation.NewNode(ctx, machine, nodeslices.Options{Kinds: f.kinds}); err != nil {
			return err
		}
	}
	// All forms in each round, so that what else runs on this machine hits all.
	rows := make([]row, len(forms))
	for range o.rounds {
		for i, f := range forms {
			if err := b.measure(ctx, f, nodes[i], &rows[i]); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	fmt.Printf("%d nodes like %s. Median of %d rounds: 8 pairs wanted with one NIC in use on each node, then %d pods with one pair each on free nodes.\n\n",
		o.nodes, machine.Slug, o.rounds, o.pods)
	fmt.Println("| | until \"unschedulable\" | the scheduler's processor time | a small pod behind it waits | one-pair pods per second | the scheduler's memory |")
	fmt.Println("|---|---|---|---|---|---|")
	for i, f := range forms {
		r := rows[i]
		fmt.Printf("| %s | %v | %v | %v | %.0f | %d MiB |\n", f.name, median(r.refused), median(r.cpu), median(r.small),
			float64(o.pods)/median(r.placed).Seconds(), median(r.memory)>>20)
	}
	return nil
}

// row are the measurements of one form, one of each kind in a round.
type row struct {
	placed, refused, cpu, small []time.Duration
	memory                      []int64
}

// measure publishes the nodes in one form, and asks in that form.
func (b *bench) measure(ctx context.Context, f form, node *allocation.Node, r *row) error {
	if err := b.clear(ctx); err != nil {
		return err
	}
	if err := b.publish(ctx, node); err != nil {
		return err
	}
	for name, n := range map[string]int{"one": 1, "eight": 8} {
		if err := b.template(ctx, name, f.claim(n)); err != nil {
			return err
		}
	}
	placed, err := b.place(ctx)
	if err != nil {
		return err
	}
	if err := b.occupy(ctx, node); err != nil {
		return err
	}
	refused, cpu, small, err := b.refusal(ctx)
	if err != nil {
		return err
	}
	_, memory, err := b.schedulerUse()
	r.placed, r.refused, r.cpu, r.small = append(r.placed, placed), append(r.refused, refused), append(r.cpu, cpu), append(r.small, small)
	r.memory = append(r.memory, memory)
	return err
}

func median[T ~int64](s []T) T {
	sorted := slices.Sorted(slices.Values(s))
	m := sorted[len(sorted)/2]
	if d, ok := any(m).(time.Duration); ok {
		m = T(d.Round(time.Millisecond))
	}
	return m
}
