package podnet_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/topodra/topodra/internal/podnet"
)

// BenchmarkSandbox is what the hooks of a sandbox cost that starts and stops with 1 and with 8 NICs:
//
//	go test -run '^$' -bench Sandbox -benchtime 100x ./internal/podnet
func BenchmarkSandbox(b *testing.B) {
	for _, count := range []int{1, 8} {
		b.Run(fmt.Sprintf("NICs=%d", count), func(b *testing.B) {
			ctx := context.Background()
			h := newHost(b, count)
			var start, stop, floor []time.Duration
			for i := 0; b.Loop(); i++ {
				claimed := h.prepare(fmt.Sprintf("claim%d", i), h.nics...)
				pod := h.pod(fmt.Sprintf("pod%d", i))
				began := time.Now()
				err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed})
				attached := time.Now()
				err = errors.Join(err, h.mover.Detach(ctx, pod))
				start, stop = append(start, attached.Sub(began)), append(stop, time.Since(attached))
				if err != nil {
					b.Fatal(err)
				}
				// The floor: the kernel's part, bare moves of the same interfaces.
				began = time.Now()
				for _, nic := range h.nics {
					if err := podnet.BareMove(nic.Name, pod.Netns); err != nil {
						b.Fatal(err)
					}
				}
				floor = append(floor, time.Since(began))
				h.adopt(pod, claimed)
				h.end(pod)
			}
			for name, all := range map[string][]time.Duration{"start": start, "stop": stop, "bare-moves": floor} {
				slices.Sort(all)
				for q, text := range map[float64]string{0.5: "p50", 0.99: "p99"} {
					b.ReportMetric(float64(all[max(0, int(math.Ceil(q*float64(len(all))))-1)])/1e6, name+"-"+text+"-ms")
				}
			}
			b.ReportMetric(0, "ns/op") // of all of the above, which means nothing
		})
	}
}

// adopt brings home what was moved behind the driver's back.
func (h *host) adopt(pod podnet.Sandbox, claimed podnet.Claimed) {
	h.Helper()
	ctx := context.Background()
	err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed})
	if err = errors.Join(err, h.mover.Detach(ctx, pod), h.mover.Release(ctx, claimed.Claim.UID)); err != nil {
		h.Fatal(err)
	}
}
