package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

const (
	classRDMA = "class/infiniband"
	classNet  = "class/net"
)

// charDevices asks those who will make the edits.
func (c *Checker) charDevices(_ *pci.Tree, s Subject) []problem {
	switch asked := s.RDMA == v1alpha1.RDMAExclusive || s.RDMA == v1alpha1.RDMAShared; {
	case s.NIC.RDMA == nil && asked:
		return []problem{s.faultf("NIC %s has no RDMA device: load its RDMA driver (mlx5_ib, bnxt_re, irdma), or ask for 'rdma: none'", s.NIC.Address)}
	case !s.usesRDMA():
		return nil
	}
	if _, err := c.CharDevices.Edits(s.NIC.RDMA); err != nil {
		return []problem{s.faultf("%v", err)}
	}
	return nil
}

// netnsMode: an RDMA device can only be moved when the subsystem is exclusive, and
// then only opened in the namespace that it is in. The kernel refuses to change the
// mode while there are other network namespaces (rdma_compatdev_set in
// drivers/infiniband/core/device.c).
func (c *Checker) netnsMode(_ *pci.Tree, s Subject) []problem {
	if !s.usesRDMA() || s.RDMA == "" || c.NetnsMode == nil {
		return nil
	}
	mode, err := c.NetnsMode()
	if err != nil {
		return nil
	}
	const change = "before the first container of the node starts (%s)"
	switch {
	case s.RDMA == v1alpha1.RDMAExclusive && mode == "shared":
		return []problem{s.faultf("the claim asks for RDMA device %s exclusively, but the node's RDMA subsystem is shared: "+
			"run 'rdma system set netns exclusive' "+change+", or ask for 'rdma: shared'", s.NIC.RDMA.Name, "or load ib_core with netns_mode=0")}
	case s.RDMA == v1alpha1.RDMAShared && mode == "exclusive":
		return []problem{s.faultf("the claim asks for RDMA device %s shared, but the node's RDMA subsystem is exclusive: "+
			"ask for 'rdma: exclusive', or run 'rdma system set netns shared' "+change, s.NIC.RDMA.Name, "or load ib_core with netns_mode=1")}
	}
	return nil
}

// portActive reads the ports anew: the snapshot may be minutes old.
func (c *Checker) portActive(_ *pci.Tree, s Subject) []problem {
	if !s.usesRDMA() {
		return nil
	}
	name := s.NIC.RDMA.Name
	if _, err := c.Sysfs.Link(classRDMA, name); errors.Is(err, fs.ErrNotExist) {
		return []problem{s.faultf("RDMA device %s is not in the node's network namespace: another pod has it still, or its driver was unloaded; "+
			"look for it with 'rdma dev' there", name)}
	}
	ports, err := rdma.Ports(c.Sysfs, name)
	if err != nil {
		return nil
	}
	ports = slices.DeleteFunc(ports, func(p rdma.Port) bool { return p.State == "" })
	if len(ports) == 0 || slices.ContainsFunc(ports, isActive) {
		return nil
	}
	advice, ok := c.whyInactive(ports[0], s)
	if !ok {
		return nil
	}
	var states []string
	for _, p := range ports {
		states = append(states, fmt.Sprintf("port %d of RDMA device %s (%s) is %s", p.Number, name, p.LinkLayer, p.State))
	}
	return []problem{s.faultf("%s: %s", strings.Join(states, ", "), advice)}
}

func isActive(p rdma.Port) bool { return p.State == "ACTIVE" }

// whyInactive says what to do about a port; not ok when the pod's setup may change it.
func (c *Checker) whyInactive(port rdma.Port, s Subject) (advice string, ok bool) {
	const cable = "check the cable and the switch port"
	switch {
	case port.LinkLayer == "InfiniBand" && port.State == "INIT":
		return "no subnet manager has set it up; start one, on a switch or with 'opensm'", true
	case port.LinkLayer == "InfiniBand" && port.State == "ARMED":
		return "its subnet manager has not finished; look into that one's log", true
	case port.LinkLayer == "InfiniBand":
		return cable, true
	case port.LinkLayer != "Ethernet":
		return "look for its driver's messages in 'dmesg'", true
	}
	// A port of an interface that is down is DOWN, whatever the cable says
	// (mlx5_query_port_roce in drivers/infiniband/hw/mlx5/main.c).
	netdev := s.netdev()
	if netdev == "" {
		return cable, true
	}
	const isUp = 1 << 0 // IFF_UP (include/uapi/linux/if.h)
	flags, err := c.Sysfs.Uint(32, classNet, netdev, "flags")
	switch {
	case err == nil && flags&isUp != 0:
		return fmt.Sprintf("its interface %s has no carrier; %s", netdev, cable), true
	case s.Moves:
		return "", false
	case err == nil:
		return fmt.Sprintf("its interface %s is switched off; run 'ip link set %s up'", netdev, netdev), true
	}
	return fmt.Sprintf("%s, and run 'ip link set %s up'", cable, netdev), true
}

// netdev returns the interface of the RDMA device, or "".
func (s Subject) netdev() string {
	if s.NIC.RDMA != nil && s.NIC.RDMA.Netdev != "" {
		return s.NIC.RDMA.Netdev
	}
	return s.NIC.IfName()
}

// gid looks for the address that connections are made with.
func (c *Checker) gid(_ *pci.Tree, s Subject) []problem {
	if !s.usesRDMA() {
		return nil
	}
	name := s.NIC.RDMA.Name
	ports, err := rdma.Ports(c.Sysfs, name)
	if err != nil {
		return nil
	}
	var problems []problem
	for _, port := range ports {
		switch port.LinkLayer {
		case "InfiniBand":
			if c.hasZeroGUID(name, port.Number) {
				problems = append(problems, s.faultf("port %d of RDMA device %s has no port GUID, so that rdma_cm cannot use it: "+
					"give a virtual function one on its physical function ('ip link set PF vf N port_guid GUID', or by the SR-IOV operator) and bind its driver again", port.Number, name))
			}
		case "Ethernet":
			// GIDs come and go with the interface: those of the pod are made in the pod,
			// and an inactive port has its own finding.
			if !s.Moves && isActive(port) && c.lacksRoCEv2(name, port.Number) {
				where := "its interface"
				if netdev := s.netdev(); netdev != "" {
					where = "its interface " + netdev
				}
				problems = append(problems, s.faultf("port %d of RDMA device %s has no RoCE v2 GID: give %s an IP address in the node's network namespace, "+
					"and see that the driver has RoCE v2 switched on", port.Number, name, where))
			}
		}
	}
	return problems
}

// hasZeroGUID: the lower half of an InfiniBand port's first GID is its GUID; a
// virtual function that nobody gave one has zero there.
func (c *Checker) hasZeroGUID(device string, port int) bool {
	gids, err := rdma.GIDs(c.Sysfs, device, port)
	if err != nil {
		return false
	}
	if len(gids) == 0 || gids[0].Index != 0 {
		return true
	}
	bytes := gids[0].Address.As16()
	return [8]byte(bytes[8:]) == [8]byte{}
}

func (c *Checker) lacksRoCEv2(device string, port int) bool {
	// iWARP has Ethernet ports and no RoCE.
	if kind, _ := c.Sysfs.Attr(classRDMA, device, "node_type"); strings.HasSuffix(kind, "RNIC") {
		return false
	}
	gids, err := rdma.GIDs(c.Sysfs, device, port)
	return err == nil && !slices.ContainsFunc(gids, func(g rdma.GID) bool { return g.Type == rdma.RoCEv2 || g.Type == "" })
}
