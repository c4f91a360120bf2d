package agent

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/metrics"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/policy"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/uevent"
)

const (
	// debounce gathers a burst of events, such as 64 VFs being made, into one scan.
	debounce = 500 * time.Millisecond
	// maxDebounce bounds the wait while events go on and on.
	maxDebounce = 5 * time.Second
	// safetyInterval is the age at which a scan is repeated without an event.
	safetyInterval = 5 * time.Minute
	// retryInterval is the first pause after which something that is missing is
	// looked for again; it doubles up to the safety interval.
	retryInterval = 10 * time.Second
)

// watcher follows the machine: it scans when the kernel announces a change, and
// now and then without.
type watcher struct {
	machine   Machine
	policy    *policy.Policy
	metrics   *metrics.Metrics
	publisher *nodeslices.Publisher
	changed   func(context.Context, *view)
	counters  countersQuestion

	droppedFields atomic.Bool // the API server did not store all of a slice

	events chan struct{} // a scan is due
	last   *view
	said   []string // selector errors and limit problems that were logged
}

// wake makes a scan due.
func (w *watcher) wake() {
	select {
	case w.events <- struct{}{}:
	default: // one is due already
	}
}

// run scans until the context ends.
func (w *watcher) run(ctx context.Context) {
	if w.machine.Simulated == "" {
		go func() {
			err := uevent.Listen(ctx, func(e uevent.Event) {
				if concerns(e) {
					w.wake()
				}
			})
			if err != nil {
				klog.FromContext(ctx).Error(err, "Device changes are noticed by the slow rescan only", "interval", safetyInterval)
			}
		}()
		go func() {
			if err := netdev.Watch(ctx, w.wake); err != nil {
				klog.FromContext(ctx).Error(err, "Changes of the uplink and of addresses are noticed by the slow rescan only", "interval", safetyInterval)
			}
		}()
	}
	retry := retryInterval
	for {
		pause := safetyInterval
		if len(w.last.snapshot.Missing) > 0 {
			pause = retry
			retry = min(2*retry, safetyInterval)
		} else {
			retry = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-w.events:
			if !settle(ctx, w.events) {
				return
			}
		}
		w.askCounters(ctx)
		w.changed(ctx, w.scan(ctx))
	}
}

// settle waits until events pause, and tells whether to go on.
func settle(ctx context.Context, events <-chan struct{}) bool {
	deadline := time.After(maxDebounce)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-deadline:
			return true
		case <-time.After(debounce):
			return true
		case <-events:
		}
	}
}

// concerns tells whether an event can change what a scan sees. Virtual network
// interfaces come and go with every pod; what matters of bonds, routes and addresses
// comes over netlink (netdev.Watch). The zero event says that events were lost.
func concerns(e uevent.Event) bool {
	switch e.Subsystem {
	case "", "pci", "infiniband", "infiniband_verbs", "infiniband_mad", "auxiliary":
		return true
	case "net":
		return !isVirtual(e.DevPath)
	case "module":
		return e.DevPath == "/module/nvidia" || e.DevPath == "/module/ib_core" || e.DevPath == "/module/ib_uverbs"
	}
	return false
}

func isVirtual(path string) bool {
	const virtual = "/devices/virtual/"
	return len(path) > len(virtual) && path[:len(virtual)] == virtual
}

// scan looks at the machine once and says what is new.
func (w *watcher) scan(ctx context.Context) *view {
	start := time.Now()
	snapshot := w.machine.Scanner.Scan(ctx)
	topology, errs := w.policy.Apply(ctx, snapshot)
	v := newView(snapshot, topology, w.publish())
	w.metrics.Scanned(snapshot, time.Since(start))
	w.say(ctx, v, errs)
	w.last = v
	return v
}

// say logs each thing once, and again only after it had gone.
func (w *watcher) say(ctx context.Context, v *view, errs []error) {
	logger := klog.FromContext(ctx)
	var before []machine.Missing
	if w.last != nil {
		before = w.last.snapshot.Missing
	}
	for _, m := range v.snapshot.Missing {
		if !slices.Contains(before, m) {
			logger.Info("Part of the machine is not visible, the rest is published; looking again from time to time", "part", m.Part, "reason", m.Reason)
		}
	}
	for _, m := range before {
		if !slices.ContainsFunc(v.snapshot.Missing, func(n machine.Missing) bool { return n.Part == m.Part }) {
			logger.Info("Part of the machine is visible again", "part", m.Part)
		}
	}
	now := slices.Clone(v.problems)
	for _, err := range errs {
		now = append(now, err.Error())
	}
	for _, text := range now {
		if !slices.Contains(w.said, text) {
			logger.Info("Left out", "reason", text)
		}
	}
	w.said = now
}
