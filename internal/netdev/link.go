// Package netdev tells which network interfaces a node has and what they are
// used for.
package netdev

import (
	"net/netip"

	"github.com/topodra/topodra/internal/pci"
)

// Link is one network interface of the host's network namespace.
type Link struct {
	Index        int
	Name         string
	Address      *pci.Address // PCI function below it; nil for virtual interfaces
	HardwareAddr string       // as "ip link" prints it
	MTU          int
	Up           bool   // administratively up
	Master       string // name of the bond, bridge or VRF it belongs to
	Parent       string // name of the lower interface of a VLAN, macvlan or ipvlan (IFLA_LINK)
	Kind         string // netlink link kind: "" for hardware, "bond", "vlan", "veth", ...
	Addrs        []netip.Prefix
	DefaultRoute bool // a default route of the main table leaves through it

	// Stands tells what the interface stands for when that is not its PCI function
	// itself: "representor" (of a virtual function, in switchdev mode) or "scalable
	// function".
	Stands string
}
