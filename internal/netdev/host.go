package netdev

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host completes the links of sysfs with what this network namespace's kernel
// says over netlink: kind, master, lower interface, addresses and which ones
// carry a default route. Interfaces that sysfs lacks are added.
//
// On an error the links are not complete and must not be used to tell which
// interfaces carry the node's own traffic.
func Host(links []Link) ([]Link, error) {
	found, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links over netlink: %w", err)
	}
	h := &host{byName: map[string]*Link{}, nameOf: map[int]string{}}
	for i := range links {
		h.byName[links[i].Name] = &links[i]
	}
	for _, l := range found {
		h.nameOf[l.Attrs().Index] = l.Attrs().Name
	}
	for _, l := range found {
		h.merge(l)
	}
	if err := errors.Join(h.addresses(), h.defaultRoutes()); err != nil {
		return nil, err
	}
	for _, l := range h.added {
		links = append(links, *l)
	}
	return links, nil
}

// dumpTries bounds how often a list is asked for that changes while it is read.
const dumpTries = 10

// Whole repeats a dump until nothing changed during it: an interrupted one has an
// error and only a part of the list (NLM_F_DUMP_INTR).
func Whole[T any](dump func() ([]T, error)) (list []T, err error) {
	for range dumpTries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

type host struct {
	byName map[string]*Link
	nameOf map[int]string
	added  []*Link
}

func (h *host) merge(l netlink.Link) {
	attrs := l.Attrs()
	link := h.byName[attrs.Name]
	if link == nil {
		link = &Link{Name: attrs.Name}
		h.byName[attrs.Name] = link
		h.added = append(h.added, link)
	}
	link.Index = attrs.Index
	link.MTU = attrs.MTU
	link.HardwareAddr = attrs.HardwareAddr.String()
	link.Up = attrs.RawFlags&unix.IFF_UP != 0
	link.Master = h.nameOf[attrs.MasterIndex]
	// A veth's ParentIndex is its peer, often in another namespace: no lower interface.
	if l.Type() != "veth" && attrs.ParentIndex != attrs.Index {
		link.Parent = h.nameOf[attrs.ParentIndex]
	}
	if l.Type() != "device" {
		link.Kind = l.Type()
	}
}

func (h *host) addresses() error {
	addrs, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses over netlink: %w", err)
	}
	for _, a := range addrs {
		link := h.byName[h.nameOf[a.LinkIndex]]
		ip, ok := netip.AddrFromSlice(a.IP)
		if link == nil || !ok {
			continue
		}
		ones, _ := a.Mask.Size()
		link.Addrs = append(link.Addrs, netip.PrefixFrom(ip.Unmap(), ones))
	}
	return nil
}

// defaultRoutes marks the interfaces of every default route, each next hop of a
// multipath route included.
func (h *host) defaultRoutes() error {
	routes, err := Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes over netlink: %w", err)
	}
	for _, r := range routes {
		if !isDefault(r) {
			continue
		}
		h.markDefault(r.LinkIndex)
		for _, hop := range r.MultiPath {
			h.markDefault(hop.LinkIndex)
		}
	}
	return nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

func (h *host) markDefault(index int) {
	if link := h.byName[h.nameOf[index]]; link != nil {
		link.DefaultRoute = true
	}
}
