package netdev

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Watch calls changed when the kernel announces something that can make another
// interface the uplink or change a rail: a default route, or an address or a master
// of an interface that is not one of a pod's. It returns when the context ends or
// netlink fails.
func Watch(ctx context.Context, changed func()) error {
	failed := make(chan error, 3)
	onError := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	links := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: onError}); err != nil {
		return fmt.Errorf("watch links over netlink: %w", err)
	}
	addrs := make(chan netlink.AddrUpdate, 64)
	if err := netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: onError}); err != nil {
		return fmt.Errorf("watch addresses over netlink: %w", err)
	}
	routes := make(chan netlink.RouteUpdate, 64)
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: onError}); err != nil {
		return fmt.Errorf("watch routes over netlink: %w", err)
	}
	w := watch{masters: map[int]int{}, ofPods: map[int]bool{}}
	for {
		var relevant bool
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end that was asked for
			}
			return fmt.Errorf("watch over netlink: %w", err)
		case u := <-links:
			relevant = w.link(u)
		case u := <-addrs:
			relevant = !w.ofPods[u.LinkIndex]
		case u := <-routes:
			relevant = isDefault(u.Route)
		}
		if relevant {
			changed()
		}
	}
}

// watch remembers what link messages said before: the kernel sends one for every
// change of state, also of carrier and statistics.
type watch struct {
	masters map[int]int
	ofPods  map[int]bool // veth and the like, which come and go with pods
}

func (w *watch) link(u netlink.LinkUpdate) bool {
	if u.Link == nil {
		return false
	}
	attrs := u.Attrs()
	switch u.Type() {
	case "veth", "tun", "ifb", "dummy":
		w.ofPods[attrs.Index] = true
		return false
	}
	before, known := w.masters[attrs.Index]
	w.masters[attrs.Index] = attrs.MasterIndex
	return !known || before != attrs.MasterIndex
}
