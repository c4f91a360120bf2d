// Package rdma reads RDMA devices from sysfs: identity, ports and the
// character devices that a process needs to use them.
package rdma

import "github.com/topodra/topodra/internal/pci"

// Device is one entry of /sys/class/infiniband.
type Device struct {
	Name         string       // for example "mlx5_0"
	Address      *pci.Address // PCI function below it; nil for software devices (rxe, siw)
	Netdev       string       // "parent" of a software device: the interface it runs on
	NodeGUID     string       // node_guid, "a088:c203:00ab:cdef"
	SysImageGUID string       // sys_image_guid, equal on functions of one card
	Firmware     string       // fw_ver
	Ports        []Port       // by number
	Uverbs       string       // name in /sys/class/infiniband_verbs, for example "uverbs0"
	Umad         []string     // names in /sys/class/infiniband_mad: umadN, one per InfiniBand port
	Issm         []string     // names in /sys/class/infiniband_mad: issmN
}

// Port is /sys/class/infiniband/<device>/ports/<number>.
type Port struct {
	Number    int
	State     string // "ACTIVE", "DOWN", "INIT", "ARMED"; from "4: ACTIVE"
	LinkLayer string // "InfiniBand", "Ethernet"; EFA says "Unspecified"
	RateGbps  int    // from "400 Gb/sec (4X NDR)"; 0 when unknown
}
