// Command pods measures on a real cluster how long a pod takes from its creation to Ready and from its deletion to the end,
// with no claim, with one pair and with eight, one after another in random order; and from the deletion until its NICs are
// back on the host. It prints a table of docs/performance.md.
//
//	test/bench/pods/run
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/topodra/topodra/e2e/kube"
)

const (
	node  = "node1"
	nics  = "/var/lib/kubelet/plugins/topodra.dev/nics"
	limit = 60 * time.Second
	space = "default"
)

func main() {
	rounds := flag.Int("rounds", 30, "pods of each kind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *rounds)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// kind is a pod with so many pairs.
type kind struct {
	pairs                int64
	start, end, returned []time.Duration
}

func run(ctx context.Context, rounds int) error {
	cluster, err := kube.Connect(".")
	if err != nil {
		return err
	}
	kinds := []*kind{{pairs: 0}, {pairs: 1}, {pairs: 8}}
	for _, k := range kinds[1:] {
		if err := template(ctx, cluster, k.pairs); err != nil {
			return err
		}
	}
	for round := range rounds + 1 { // the first warms up
		for _, i := range rand.Perm(len(kinds)) {
			k := kinds[i]
			start, end, returned, err := once(ctx, cluster, k.pairs, round)
			if err != nil {
				return fmt.Errorf("pod with %d pairs: %w", k.pairs, err)
			}
			if round > 0 {
				k.start, k.end, k.returned = append(k.start, start), append(k.end, end), append(k.returned, returned)
			}
		}
	}
	fmt.Printf("| pod with | created to Ready, p50 s | p99 s | more than without | deleted to gone, p50 s | p99 s | deleted to NICs home, p50 s | p99 s |\n|---|---|---|---|---|---|---|---|\n")
	for _, k := range kinds {
		home := []string{"-", "-"}
		if k.pairs > 0 {
			home = []string{seconds(k.returned, 0.5), seconds(k.returned, 0.99)}
		}
		fmt.Printf("| %s | %s | %s | %+.2f s | %s | %s | %s | %s |\n", cmp.Or(map[int64]string{0: "no claim", 1: "1 pair"}[k.pairs], fmt.Sprintf("%d pairs", k.pairs)),
			seconds(k.start, 0.5), seconds(k.start, 0.99), (quantile(k.start, 0.5) - quantile(kinds[0].start, 0.5)).Seconds(),
			seconds(k.end, 0.5), seconds(k.end, 0.99), home[0], home[1])
	}
	return nil
}

func template(ctx context.Context, cluster *kube.Cluster, pairs int64) error {
	t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pairs-%d", pairs)}}
	t.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "accel", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "pair.topodra.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: pairs,
	}}}
	_, err := cluster.ResourceV1().ResourceClaimTemplates(space).Create(ctx, t, metav1.CreateOptions{})
	return err
}

// once runs one pod.
func once(ctx context.Context, cluster *kube.Cluster, pairs int64, round int) (start, end, returned time.Duration, err error) {
	name := fmt.Sprintf("pod-%d-%d", pairs, round)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node}, EnableServiceLinks: ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "main", Image: "topodra.local/busybox:1", Command: []string{"sh", "-c", "trap exit TERM; while :; do sleep 0.05; done"}}},
		},
	}
	if pairs > 0 {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: ptr.To(fmt.Sprintf("pairs-%d", pairs))}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
	}
	pods := cluster.CoreV1().Pods(space)
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, 0, err
	}
	if start, err = until(ctx, began, func() (bool, error) {
		now, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && kube.IsReady(now), err
	}); err != nil {
		return 0, 0, 0, err
	}
	began = time.Now()
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, 0, 0, err
	}
	if pairs > 0 {
		if returned, err = until(ctx, began, func() (bool, error) {
			away, err := cluster.In(ctx, node, "sh", "-c", "grep -l '\"away\":true' "+nics+"/*.json 2>/dev/null | cat")
			return strings.TrimSpace(away) == "", err
		}); err != nil {
			return 0, 0, 0, err
		}
	}
	end, err = until(ctx, began, func() (bool, error) {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	return start, end, returned, err
}

// until asks every 10 ms.
func until(ctx context.Context, began time.Time, done func() (bool, error)) (time.Duration, error) {
	for time.Since(began) < limit {
		ok, err := done()
		if err != nil {
			return 0, err
		}
		if ok {
			return time.Since(began), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("not after %v", limit)
}

func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func seconds(all []time.Duration, q float64) string {
	return fmt.Sprintf("%.2f", quantile(all, q).Seconds())
}
