package podnet

import (
	"context"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"
)

const (
	// firstLook is how soon a NIC is looked for that was not back; the pause doubles up
	// to lastLook. Its interface announces itself, its RDMA device a moment later.
	firstLook = 50 * time.Millisecond
	lastLook  = 10 * time.Second
)

// Run brings home NICs that the kernel returns by itself, when the network namespace of
// a pod ends without the driver having seen to it, and renews DHCP leases. It sleeps
// until the kernel announces an interface of hardware on the host, a lease is due, or
// Wake is called.
func (m *Mover) Run(ctx context.Context) {
	links := m.subscribe(ctx)
	pause := firstLook // one look, for what came back before
	var renewal time.Time
	for {
		var timer <-chan time.Time
		switch {
		case pause > 0:
			timer = time.After(pause)
		case !renewal.IsZero():
			timer = time.After(time.Until(renewal))
		}
		select {
		case <-ctx.Done():
			return
		case u, open := <-links:
			if !open { // events were lost, or netlink failed
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Second):
				}
				links, pause = m.subscribe(ctx), firstLook
				break
			}
			if u.Link == nil || ParentOf(u.Link) == "" {
				continue // of a pod, or virtual
			}
			pause = 0
		case <-m.wake:
			pause = 0
		case <-timer:
		}
		outstanding, err := m.Reconcile()
		if err != nil {
			klog.FromContext(ctx).Error(err, "NICs are not all home; it is tried again")
		}
		if outstanding == 0 && err == nil {
			pause = 0
		} else {
			pause = min(max(2*pause, firstLook), lastLook)
		}
		renewal = m.renewLeases(ctx)
	}
}

// subscribe returns a channel that is closed when it fails.
func (m *Mover) subscribe(ctx context.Context) <-chan netlink.LinkUpdate {
	links := make(chan netlink.LinkUpdate, 64)
	failed := func(err error) {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Info("Interfaces are watched anew", "cause", err.Error())
		}
	}
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: failed}); err != nil {
		failed(err)
		close(links)
	}
	return links
}

// Wake makes Run look for NICs that are still away.
func (m *Mover) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
