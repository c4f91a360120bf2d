package simulate

import (
	"cmp"
	"fmt"
	"slices"
)

// portState is what the kernel prints in ports/N/state.
var portState = map[string]string{"DOWN": "1: DOWN", "INIT": "2: INIT", "ARMED": "3: ARMED", "ACTIVE": "4: ACTIVE"}

// rdmaName returns the name of the RDMA device, made up from the number of the
// device when the file only says that there is one.
func (n *NIC) rdmaName(number int) string {
	return cmp.Or(n.RDMA, fmt.Sprintf("zoordma%d", number))
}

func (n *NIC) isRDMA() bool { return n.RDMA != "" || n.RDMAExpected }

func (n *NIC) isInfiniBand() bool {
	return slices.ContainsFunc(n.Ports, func(p Port) bool { return p.LinkLayer == "InfiniBand" })
}

func (n *NIC) isUp() bool {
	if n.NetdevUp != nil {
		return *n.NetdevUp
	}
	return slices.ContainsFunc(n.Ports, func(p Port) bool { return p.State == "ACTIVE" })
}

// Interface is a network interface of a simulated NIC.
type Interface struct{ Address, Name string }

// Interfaces returns the interfaces of NICs with a PCI address. A RoCE device never is
// without one: where the file has no name for it, one is made up.
func (m *Machine) Interfaces() []Interface {
	var out []Interface
	for i := range m.NICs {
		n := &m.NICs[i]
		switch {
		case n.Address == nil:
		case n.Netdev != "":
			out = append(out, Interface{*n.Address, n.Netdev})
		case n.isRDMA() && !n.isInfiniBand():
			out = append(out, Interface{*n.Address, fmt.Sprintf("fabric%d", len(out))})
		}
	}
	return out
}

// nics lays out the network interfaces and RDMA devices. A NIC without an
// address has no place in the tree; its interface is built as a virtual one
// when the tree is complete, so that nothing else can be below it.
func (s *sysfs) nics() {
	number, mad := 0, 0
	for i := range s.m.NICs {
		n := &s.m.NICs[i]
		if n.Address == nil {
			if n.Netdev != "" && n.RDMA == "" && s.m.Tree == "complete" {
				dir := "devices/virtual/net/" + n.Netdev
				s.file(dir+"/type", "1")
				s.symlink(dir, "class/net/"+n.Netdev)
			}
			continue
		}
		function := s.paths[*n.Address]
		if n.Netdev != "" {
			s.netdev(function, n)
		}
		if n.isRDMA() {
			s.rdma(function, n, number)
			mad = s.mads(function, n, number, mad)
			number++
		}
	}
}

func (s *sysfs) netdev(function string, n *NIC) {
	dir := function + "/net/" + n.Netdev
	linkType, state := "1", "down" // ARPHRD_ETHER
	if n.isInfiniBand() {
		linkType = "32" // ARPHRD_INFINIBAND
	}
	if n.isUp() {
		state = "up"
	}
	s.file(dir+"/type", linkType)
	s.file(dir+"/operstate", state)
	s.symlink(function, dir+"/device")
	s.symlink(dir, "class/net/"+n.Netdev)
}

// ports returns the ports of a NIC; an RDMA device has at least one.
func (n *NIC) ports() []Port {
	if len(n.Ports) == 0 {
		return []Port{{Port: 1}}
	}
	return n.Ports
}

func (s *sysfs) rdma(function string, n *NIC, number int) {
	name := n.rdmaName(number)
	dir := function + "/infiniband/" + name
	guid := cmp.Or(n.NodeGUID, fmt.Sprintf("02ff:00ff:fe00:%04x", number))
	s.file(dir+"/node_guid", guid)
	s.file(dir+"/sys_image_guid", s.cardGUID(n, guid))
	s.file(dir+"/node_type", "1: CA")
	for _, p := range n.ports() {
		port := fmt.Sprintf("%s/ports/%d", dir, p.Port)
		s.file(port+"/state", portState[cmp.Or(p.State, "ACTIVE")])
		s.file(port+"/link_layer", cmp.Or(p.LinkLayer, "Ethernet"))
		s.file(port+"/rate", cmp.Or(p.Rate, "0 Gb/sec"))
	}
	s.symlink(function, dir+"/device")
	s.symlink(dir, "class/infiniband/"+name)

	verbs := fmt.Sprintf("uverbs%d", number)
	dir = function + "/infiniband_verbs/" + verbs
	s.file(dir+"/ibdev", name)
	s.symlink(function, dir+"/device")
	s.symlink(dir, "class/infiniband_verbs/"+verbs)
}

// cardGUID is the node GUID of the first function of a card, which all its
// functions carry as sys_image_guid.
func (s *sysfs) cardGUID(n *NIC, guid string) string {
	if n.Card == "" {
		return guid
	}
	for i := range s.m.NICs {
		if first := &s.m.NICs[i]; first.Card == n.Card {
			return cmp.Or(first.NodeGUID, guid)
		}
	}
	return guid
}

// madDevices names the kinds of management datagram devices of a port. The
// kernel makes umadN for InfiniBand and RoCE (not for EFA, whose link layer is
// unspecified) and issmN, for subnet managers, for InfiniBand only.
func (p Port) madDevices() []string {
	switch p.LinkLayer {
	case "InfiniBand":
		return []string{"umad", "issm"}
	case "Ethernet":
		return []string{"umad"}
	}
	return nil
}

// mads lays out the management datagram devices, numbered from mad on, and
// returns the next number.
func (s *sysfs) mads(function string, n *NIC, number, mad int) int {
	for _, p := range n.Ports {
		for _, kind := range p.madDevices() {
			name := fmt.Sprintf("%s%d", kind, mad)
			dir := function + "/infiniband_mad/" + name
			s.file(dir+"/ibdev", n.rdmaName(number))
			s.file(dir+"/port", fmt.Sprint(p.Port))
			s.symlink(function, dir+"/device")
			s.symlink(dir, "class/infiniband_mad/"+name)
		}
		if len(p.madDevices()) > 0 {
			mad++
		}
	}
	return mad
}
