package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/topodra/topodra/internal/sysfs"
)

// GID is one entry of a port's GID table: an address of the port for RDMA.
type GID struct {
	Index   int
	Address netip.Addr // gids/N
	Type    string     // gid_attrs/types/N: "IB/RoCE v1" or "RoCE v2"
	Netdev  string     // gid_attrs/ndevs/N: the interface it comes from; empty on InfiniBand
}

// RoCEv2 is the type of a GID that RDMA over routed IP networks needs.
const RoCEv2 = "RoCE v2"

// Ports returns the ports of one RDMA device as they are now. A device that this
// process's network namespace does not see has none.
func Ports(root sysfs.FS, device string) ([]Port, error) { return ports(root, device) }

// GIDs returns the GIDs of a port by index, without the empty entries, which the
// kernel shows as all-zero and without a type (show_port_gid and
// _show_port_gid_attr in drivers/infiniband/core/sysfs.c). The sysfs root must be
// one of the network namespace that the RDMA device is in.
func GIDs(root sysfs.FS, device string, port int) ([]GID, error) {
	dir := fmt.Sprintf("%s/%s/ports/%d", classDevices, device, port)
	names, err := root.List(dir, "gids")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("port %d of RDMA device %s has no GID table", port, device)
	}
	var gids []GID
	var errs []error
	for _, name := range names {
		index, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := root.Attr(dir, "gids", name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s/gids/%s: %w", dir, name, err))
			continue
		}
		if addr.IsUnspecified() {
			continue
		}
		gid := GID{Index: index, Address: addr}
		// EINVAL when the entry was emptied meanwhile, or has no interface.
		gid.Type, _ = root.Attr(dir, "gid_attrs/types", name)
		gid.Netdev, _ = root.Attr(dir, "gid_attrs/ndevs", name)
		gids = append(gids, gid)
	}
	slices.SortFunc(gids, func(a, b GID) int { return cmp.Compare(a.Index, b.Index) })
	return gids, errors.Join(errs...)
}

// BestRoCEv2 returns the index of the GID that a library should use on a network
// interface with these addresses: RoCE v2, of this interface, one of its addresses
// before any other, IPv4 before global IPv6 before link-local, which only reaches
// peers on the same link. Without addresses all GIDs of the interface count alike.
func BestRoCEv2(gids []GID, netdev string, addrs []netip.Addr) (index int, ok bool) {
	best := [3]int{}
	for _, gid := range gids {
		if gid.Type != RoCEv2 || gid.Address.IsUnspecified() || (gid.Netdev != "" && gid.Netdev != netdev) {
			continue
		}
		// VLANs and macvlans of the interface have GIDs in the same table.
		foreign := 0
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.WithZone("").Unmap() == gid.Address.Unmap() }) {
			foreign = 1
		}
		rank := [3]int{foreign, kind(gid.Address), gid.Index}
		if !ok || slices.Compare(rank[:], best[:]) < 0 {
			best, ok = rank, true
		}
	}
	return best[2], ok
}

func kind(a netip.Addr) int {
	switch {
	case a.Is4In6():
		return 0
	case a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}
