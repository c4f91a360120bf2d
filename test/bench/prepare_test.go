// Package bench measures the agent as the kubelet sees it: the shipped binary, a real API server, and calls through the
// plugin's socket. Run it with `make bench-prepare`. It prints Markdown; counts are checked, times are not.
package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/topodra/topodra/internal/testing/apiserver"
)

const (
	rounds = 3   // of each measurement
	cycles = 200 // per round, each with a fresh pod and claim
	others = 200 // claims that are prepared meanwhile, in the last measurement
	starts = 5   // of the agent, and deletions of its slices
	traced = 20  // cycles below strace
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// bench is one run.
type bench struct {
	*testing.B
	api   kubernetes.Interface
	agent *process
	floor floor
}

func BenchmarkPrepare(b *testing.B) {
	server := apiserver.Shared(b)
	config := rest.CopyConfig(server.Config)
	// As the agent's own client.
	config.AcceptContentTypes, config.ContentType = "application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf"
	x := &bench{B: b, api: kubernetes.NewForConfigOrDie(config)}
	x.cluster()
	i := install(b, server)

	x.load("before")
	defer x.load("after")
	x.slices(i)

	x.agent = i.start(b)
	ready := newWorks(b, x.api, shape{pairs: 1}, 1)
	x.agent.ready(b, ready[0])
	remove(b, x.api, ready)

	rest, restAnonymous := x.agent.memory(b)
	fmt.Println("\n| claim | | p50 ms | p99 ms | p50 / floor | p99 / floor's p50 | p99 / floor's p99 |")
	fmt.Println("|---|---|---|---|---|---|---|")
	one := shape{pairs: 1}
	alone := x.compare(i, "1 GPU + 1 NIC", one)
	x.compare(i, "8 GPUs + 8 NICs", shape{pairs: 8})
	x.compare(i, "8 + 8, a request each", shape{pairs: 8, single: true})
	prepared := newWorks(b, x.api, shape{pairs: 1, admin: true}, others)
	for _, w := range prepared {
		x.check(x.agent.prepare(b.Context(), w))
	}
	crowded := x.compare(i, fmt.Sprintf("1 + 1 with %d others prepared", others), one)
	for _, w := range prepared {
		x.check(x.agent.unprepare(b.Context(), w))
	}
	remove(b, x.api, prepared)
	fmt.Printf("\n- %d other claims prepared: p50 / floor is %.2f times what it is without them.\n", others, crowded/alone)
	x.burst()
	x.counts()
	resident, anonymous := x.agent.memory(b)
	fmt.Printf("- Memory of the agent: %s resident, %s of it anonymous, after its start; %s and %s after all this.\n", rest, restAnonymous, resident, anonymous)
	x.agent.stop(b)
	x.syncs(i)
}

// load prints how busy the machine is; a benchmark between other work says less.
func (x *bench) load(when string) {
	x.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	x.check(err)
	fmt.Printf("- Load of the machine %s: %s tasks for %d processors.\n", when, strings.Fields(string(text))[0], runtime.NumCPU())
}

func (x *bench) check(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

// cluster makes the node and the namespace. Claims with adminAccess are allowed in it.
func (x *bench) cluster() {
	x.Helper()
	labels := map[string]string{corev1.LabelHostname: nodeName, corev1.LabelTopologyZone: "z1", corev1.LabelTopologyRegion: "r1"}
	_, err := x.api.CoreV1().Nodes().Create(x.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: labels}}, metav1.CreateOptions{})
	x.check(err)
	labels = map[string]string{"resource.kubernetes.io/admin-access": "true"}
	_, err = x.api.CoreV1().Namespaces().Create(x.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}, metav1.CreateOptions{})
	x.check(err)
}

// compare measures cycles of Prepare and Unprepare and the floor, one after the other in random order, so that whatever
// else the machine does meets both. It returns how many floors a Prepare takes, by p50.
func (x *bench) compare(i installation, name string, s shape) float64 {
	x.Helper()
	x.floor = newFloor(x.B, x.api, i, x.agent, s)
	var prepares, unprepares, floors samples
	var p parts
	var cpu time.Duration
	for range rounds {
		ours, theirs := newWorks(x.B, x.api, s, cycles), newWorks(x.B, x.api, s, cycles)
		before := x.agent.cpu(x.B)
		for n := range cycles {
			least := func() {
				took, err := x.floor.run(x.Context(), theirs[n], &p)
				x.check(err)
				x.floor.clean(theirs[n])
				floors = append(floors, took)
			}
			measured := func() {
				start := time.Now()
				x.check(x.agent.prepare(x.Context(), ours[n]))
				prepared := time.Now()
				x.check(x.agent.unprepare(x.Context(), ours[n]))
				prepares, unprepares = append(prepares, prepared.Sub(start)), append(unprepares, time.Since(prepared))
			}
			if rand.IntN(2) == 0 {
				least, measured = measured, least
			}
			least()
			measured()
		}
		cpu += x.agent.cpu(x.B) - before
		remove(x.B, x.api, ours)
		remove(x.B, x.api, theirs)
	}
	row := func(what string, s samples) {
		fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", name, what, ms(s.p50()), ms(s.p99()), ratio(s.p50(), floors.p50()), ratio(s.p99(), floors.p50()), ratio(s.p99(), floors.p99()))
	}
	row("GET of the claim", p.get)
	row(fmt.Sprintf("write, fsync and rename %d bytes", len(x.floor.file)), p.write)
	row("PATCH of the pod", p.patch)
	row("floor: all three", floors)
	row("**Prepare**", prepares)
	row("Unprepare", unprepares)
	fmt.Printf("| %s | processor time per cycle | %s | | | | |\n", name, ms(cpu/(rounds*cycles)))
	return float64(prepares.p50()) / float64(floors.p50())
}

// burst prepares eight pods at once, each with a pair of its own.
func (x *bench) burst() {
	x.Helper()
	const pods, repeats = 8, 50
	var last, single, lastFloor, singleFloor samples
	for range repeats {
		var ours, theirs []work
		for n := range pods {
			ours = append(ours, newWorks(x.B, x.api, shape{first: n, pairs: 1}, 1)...)
			theirs = append(theirs, newWorks(x.B, x.api, shape{first: n, pairs: 1}, 1)...)
		}
		singleFloor = append(singleFloor, x.atOnce(theirs[:1], x.least))
		single = append(single, x.atOnce(ours[:1], x.agent.prepare))
		x.check(x.agent.unprepare(x.Context(), ours[0]))

		last = append(last, x.atOnce(ours, x.agent.prepare))
		for _, w := range ours {
			x.check(x.agent.unprepare(x.Context(), w))
		}
		lastFloor = append(lastFloor, x.atOnce(theirs, x.least))
		remove(x.B, x.api, append(ours, theirs...))
	}
	fmt.Printf("- %d pods at once: the last is prepared after p50 %s ms, p99 %s ms: %s times a single one (%s ms). The last of as many floors takes %s ms, %s times a single one.\n",
		pods, ms(last.p50()), ms(last.p99()), ratio(last.p50(), single.p50()), ms(single.p50()), ms(lastFloor.p50()), ratio(lastFloor.p50(), singleFloor.p50()))
}

// least is the floor, for atOnce.
func (x *bench) least(ctx context.Context, w work) error {
	defer x.floor.clean(w)
	_, err := x.floor.run(ctx, w, nil)
	return err
}

// atOnce does something for all works at once and returns when the last is done.
func (x *bench) atOnce(works []work, do func(context.Context, work) error) time.Duration {
	x.Helper()
	errs := make([]error, len(works))
	var wg sync.WaitGroup
	start := time.Now()
	for n, w := range works {
		wg.Go(func() { errs[n] = do(x.Context(), w) })
	}
	wg.Wait()
	took := time.Since(start)
	for _, err := range errs {
		x.check(err)
	}
	return took
}

// counts checks what a Prepare and an Unprepare ask of the API server.
func (x *bench) counts() {
	x.Helper()
	works := newWorks(x.B, x.api, shape{pairs: 8}, cycles)
	before := countRequests(x.B, x.api)
	for _, w := range works {
		x.check(x.agent.prepare(x.Context(), w))
		x.check(x.agent.unprepare(x.Context(), w))
	}
	made := countRequests(x.B, x.api).since(before)
	remove(x.B, x.api, works)
	fmt.Printf("- API requests per Prepare and Unprepare: %s.\n", made.per(cycles))
	for name, want := range map[string]int{"GET resourceclaims": cycles, "PATCH pods": cycles} {
		if made[name] != want {
			x.Errorf("%d %s in %d cycles, want %d", made[name], name, cycles, want)
		}
		delete(made, name)
	}
	// The agent reads its node once a minute while it prepares claims. Watches that end are counted too.
	delete(made, "GET nodes")
	delete(made, "WATCH resourceslices")
	for name, n := range made {
		x.Errorf("%d unexpected requests %s in %d cycles", n, name, cycles)
	}
}

// syncs checks how often a Prepare waits for the disk.
func (x *bench) syncs(i installation) {
	x.Helper()
	prepare, unprepare, ok := countSyncs(x.B, x.api, i, shape{pairs: 8}, traced)
	if !ok {
		fmt.Println("- Syncs to disk: not counted, strace is not installed.")
		return
	}
	fmt.Printf("- Syncs to disk: %.2f per Prepare, %.2f per Unprepare.\n", prepare, unprepare)
	if prepare > 2 || prepare == 0 {
		x.Errorf("%.2f syncs per Prepare, want 1 or 2", prepare)
	}
}
