package netdev

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
)

const classNet = "class/net"

// representor is what phys_port_name says of the interface that stands for another
// function's port: "pf0vf3", "c1pf0sf88", "pf0hpf" (devlink_port_phys_port_name_get,
// net/devlink/port.c). An uplink says "p0".
var representor = regexp.MustCompile(`^(c\d+)?pf\d+((vf|sf)\d+|hpf)?$`)

// Read returns the interfaces that sysfs shows, by name, without what only
// netlink knows: kind, addresses and routes. It is enough for a copy of sysfs or
// a simulated machine; on a live machine Host adds the rest.
func Read(root sysfs.FS) ([]Link, []error) {
	names, err := root.List(classNet)
	if err != nil {
		return nil, []error{fmt.Errorf("list network interfaces: %w", err)}
	}
	var links []Link
	for _, name := range names {
		target, err := root.Link(classNet, name)
		if err != nil {
			continue // bonding_masters is a file; an interface may vanish meanwhile
		}
		l := Link{Name: name}
		if addr, ok := pci.Enclosing(target); ok {
			l.Address = &addr
		}
		port, _ := root.Attr(classNet, name, "phys_port_name")
		switch {
		case strings.Contains(target, ".sf."):
			l.Stands = "scalable function" // below mlx5_core.sf.N, an auxiliary device
		case representor.MatchString(port):
			l.Stands = "representor"
		}
		l.Index, _ = root.Int(classNet, name, "ifindex")
		l.MTU, _ = root.Int(classNet, name, "mtu")
		l.HardwareAddr, _ = root.Attr(classNet, name, "address")
		l.Up = isUp(root, name)
		if master, err := root.Link(classNet, name, "master"); err == nil {
			l.Master = master[strings.LastIndexByte(master, '/')+1:]
		}
		links = append(links, l)
	}
	return links, nil
}

// isUp reads the administrative state. Copies and simulated machines may hold
// only the operational one.
func isUp(root sysfs.FS, name string) bool {
	if flags, err := root.Uint(32, classNet, name, "flags"); err == nil {
		const iffUp = 1 // IFF_UP, include/uapi/linux/if.h
		return flags&iffUp != 0
	}
	state, _ := root.Attr(classNet, name, "operstate")
	return state == "up"
}
