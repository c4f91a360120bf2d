package rdma

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
)

const (
	classDevices = "class/infiniband"
	classVerbs   = "class/infiniband_verbs"
	classMAD     = "class/infiniband_mad"
)

// Read returns the RDMA devices that this process's network namespace sees, by
// name. A device that cannot be read is left out with one error that names it. A
// kernel without RDMA has none.
//
// In exclusive netns mode the kernel hides devices of other namespaces in
// class/infiniband but not in class/infiniband_verbs.
func Read(root sysfs.FS) ([]Device, []error) {
	names, err := root.List(classDevices)
	if err != nil {
		return nil, []error{fmt.Errorf("list RDMA devices: %w", err)}
	}
	if len(names) == 0 {
		return nil, nil
	}
	chars, errs := charDevices(root)
	devices := make([]Device, 0, len(names))
	for _, name := range names {
		d, err := read(root, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("RDMA device %s left out: %w", name, err))
			continue
		}
		c := chars[name]
		d.Uverbs, d.Umad, d.Issm = c.uverbs, c.umad, c.issm
		devices = append(devices, d)
	}
	return devices, errs
}

func read(root sysfs.FS, name string) (Device, error) {
	d := Device{Name: name}
	target, err := root.Link(classDevices, name)
	if err != nil {
		return d, fmt.Errorf("its link is unreadable: %w", err)
	}
	if addr, ok := pci.Enclosing(target); ok {
		d.Address = &addr
	}
	d.NodeGUID, _ = root.Attr(classDevices, name, "node_guid")
	d.SysImageGUID, _ = root.Attr(classDevices, name, "sys_image_guid")
	d.Firmware, _ = root.Attr(classDevices, name, "fw_ver")
	d.Netdev, _ = root.Attr(classDevices, name, "parent")
	d.Ports, err = ports(root, name)
	return d, err
}

func ports(root sysfs.FS, name string) ([]Port, error) {
	names, err := root.List(classDevices, name, "ports")
	if err != nil {
		return nil, err
	}
	var ports []Port
	for _, n := range names {
		number, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		p := Port{Number: number}
		state, _ := root.Attr(classDevices, name, "ports", n, "state")
		_, p.State, _ = strings.Cut(state, ": ")
		p.LinkLayer, _ = root.Attr(classDevices, name, "ports", n, "link_layer")
		rate, _ := root.Attr(classDevices, name, "ports", n, "rate")
		p.RateGbps = ParseRate(rate)
		ports = append(ports, p)
	}
	return ports, nil
}

// ParseRate reads the rate attribute of a port, "400 Gb/sec (4X NDR)" or
// "2.5 Gb/sec (1X SDR)", in Gbit/s rounded down; 0 when it is something else.
func ParseRate(text string) int {
	number, _, ok := strings.Cut(text, " Gb/sec")
	if !ok {
		return 0
	}
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil || !(rate >= 0 && rate < 1e6) {
		return 0
	}
	return int(rate)
}

type charNames struct {
	uverbs     string
	umad, issm []string
}

// charDevices maps RDMA devices to their character devices. One pass over both
// classes serves all devices; github.com/Mellanox/rdmamap, which was weighed for
// this, walks them once per device, below a fixed /sys, and drops its errors.
func charDevices(root sysfs.FS) (map[string]charNames, []error) {
	chars := map[string]charNames{}
	var errs []error
	for _, class := range []string{classVerbs, classMAD} {
		names, err := root.List(class)
		if err != nil {
			errs = append(errs, fmt.Errorf("list RDMA character devices: %w", err))
		}
		for _, name := range names {
			device, err := root.Attr(class, name, "ibdev")
			if err != nil {
				continue // abi_version and other attributes of the class itself
			}
			c := chars[device]
			switch {
			case strings.HasPrefix(name, "uverbs"):
				c.uverbs = name
			case strings.HasPrefix(name, "umad"):
				c.umad = append(c.umad, name)
			case strings.HasPrefix(name, "issm"):
				c.issm = append(c.issm, name)
			}
			chars[device] = c
		}
	}
	return chars, errs
}
