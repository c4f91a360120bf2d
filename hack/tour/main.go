// Command tour shows what a user of topodra sees, on a cluster that hack/install has prepared, and checks each thing that it
// prints. It is the part of "make demo" that is worth reading: hack/demo starts it with
//
//	hack/cluster net tour node1=MACHINE node2=MACHINE
//
// in the root of the checkout.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/e2e/kube"
)

// examples are the manifests that the tour applies.
var examples = []string{"examples/pair.yaml", "examples/two-pairs.yaml"}

const (
	// startLimit is generous: pods of the examples take 2 s on an idle machine.
	startLimit = 60 * time.Second
)

func main() {
	p := &printer{out: os.Stdout, color: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""}
	if err := run(p, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// tour is the state of a walk through a cluster.
type tour struct {
	*printer
	cluster  *kube.Cluster
	nodes    []string
	machines map[string]*kube.Machine // by node
	pods     []seen
}

// seen is a pod of the examples with its record.
type seen struct {
	corev1.Pod
	placement v1alpha1.Placement
	pairs     []kube.Pair
}

func run(p *printer, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cluster, err := kube.Connect(".")
	if err != nil {
		return err
	}
	t := &tour{printer: p, cluster: cluster, machines: map[string]*kube.Machine{}}
	for _, arg := range args {
		node, slug, _ := strings.Cut(arg, "=")
		if t.machines[node], err = kube.ReadMachine(cluster.Root, slug); err != nil {
			return err
		}
		t.nodes = append(t.nodes, node)
	}
	for _, step := range []func(context.Context) error{t.slices, t.topo, t.apply, t.container, t.network, t.labels, t.record, t.metadata} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if len(p.faults) > 0 {
		return fmt.Errorf("%d of %d checks failed: %s", len(p.faults), p.checks, strings.Join(p.faults, "; "))
	}
	p.section(fmt.Sprintf("All of this was checked while it was printed: %d checks passed.", p.checks))
	return nil
}

// showRequests prints what a template of a manifest asks for.
func (t *tour) showRequests(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, requests, _ := strings.Cut(string(text), "      requests:\n")
	requests, _, ok := strings.Cut(requests, "---\n")
	if !ok {
		return fmt.Errorf("%s has no requests", file)
	}
	t.lines("requests:\n" + strings.ReplaceAll("\n"+requests, "\n      ", "\n")[1:])
	return nil
}

// apply applies the examples and shows which devices each pod got.
func (t *tour) apply(ctx context.Context) error {
	t.section("2. One claim template, two machines",
		"A pair is one GPU with the NICs nearest to it. The template asks for one, and names no address and no machine.")
	if err := t.showRequests(examples[0]); err != nil {
		return err
	}
	t.command("kubectl apply -f %s", strings.Join(examples, " -f "))
	args := []string{"apply"}
	for _, file := range examples {
		args = append(args, "-f", file)
	}
	text, err := t.cluster.Kubectl(ctx, "", args...)
	if err != nil {
		return err
	}
	t.lines(text)
	for selector, n := range map[string]int{"app=worker": 2, "app=trainer": 1} {
		pods, err := t.cluster.Running(ctx, metav1.NamespaceDefault, selector, n, startLimit)
		if err != nil {
			return err
		}
		for _, pod := range pods {
			s := seen{Pod: pod}
			if s.placement, err = kube.Placement(&pod); err != nil {
				return err
			}
			if s.pairs, err = kube.Pairs(s.placement); err != nil {
				return err
			}
			t.pods = append(t.pods, s)
		}
	}
	t.sortPods()

	t.section("   Who got what", "From the record on each pod: the distance is the one between that GPU and that NIC.")
	rows := [][]string{{"POD", "NODE", "GPU", "NIC", "DISTANCE", "AFFINITY GROUP"}}
	for _, pod := range t.pods {
		for _, pair := range pod.pairs {
			rows = append(rows, []string{
				pod.Name, pod.Spec.NodeName, pair.GPU.PCIAddress, pair.NIC.PCIAddress + " " + pair.NIC.RDMADevice, pair.Distance(), pair.GPU.AffinityGroup,
			})
		}
	}
	t.table(rows)
	t.note("PIX: below one PCIe switch. NODE: on one NUMA node, as this cloud's virtual machines show no common switch.")
	t.note("Checked with testdata/machines/*/expected.yaml: no NIC of the machine is nearer to that GPU.")
	nodes := map[string]bool{}
	for _, pod := range t.pods {
		nodes[pod.Spec.NodeName] = true
		for _, pair := range pod.pairs {
			t.check(t.machines[pod.Spec.NodeName].Check(pair))
			want(t.printer, "affinity group of the NIC of "+pod.Name, pair.NIC.AffinityGroup, pair.GPU.AffinityGroup)
		}
	}
	want(t.printer, "number of nodes with pods", len(nodes), len(t.nodes))
	return nil
}
