package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/internal/rdma"
)

// infiniband is where user space expects RDMA character devices.
const infiniband = "/dev/infiniband"

// CharDevices makes the edits that give a container the character devices of an
// RDMA device.
type CharDevices struct {
	// Root is the directory that holds dev/ as this process sees it, and
	// HostRoot the same directory as the container runtime sees it. Both are
	// "/" on hardware.
	Root, HostRoot string
}

// Edits returns the device nodes of an RDMA device. The uverbs device is always
// required, rdma_cm wherever the connection manager can resolve addresses; umad
// and issm exist only for InfiniBand ports and are added when present. An error
// may go away by itself: the nodes appear when a kernel module is loaded.
func (c CharDevices) Edits(device *rdma.Device) (*Edits, error) {
	if device.Uverbs == "" {
		return nil, fmt.Errorf("RDMA device %s has no uverbs device: load the kernel module ib_uverbs", device.Name)
	}
	type node struct {
		name, module string // module is empty for optional nodes
	}
	nodes := []node{{device.Uverbs, "ib_uverbs"}, {"rdma_cm", ""}}
	if usesConnectionManager(device) {
		nodes[1].module = "rdma_ucm"
	}
	for _, name := range append(slices.Clone(device.Umad), device.Issm...) {
		nodes = append(nodes, node{name: name})
	}

	edits := &Edits{}
	for _, node := range nodes {
		_, err := os.Stat(filepath.Join(c.Root, infiniband, node.name))
		switch {
		case err == nil:
			edits.DeviceNodes = append(edits.DeviceNodes, c.node(node.name))
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("RDMA device %s: %w", device.Name, err)
		case node.module != "":
			return nil, fmt.Errorf("RDMA device %s: %s/%s does not exist: load the kernel module %s",
				device.Name, infiniband, node.name, node.module)
		}
	}
	return edits, nil
}

// usesConnectionManager is false for devices whose ports are neither InfiniBand
// nor Ethernet (EFA): rdma_cm has no way to address them, and hosts with only
// such devices do not load it.
func usesConnectionManager(device *rdma.Device) bool {
	return len(device.Ports) == 0 || slices.ContainsFunc(device.Ports, func(p rdma.Port) bool {
		return p.LinkLayer == "InfiniBand" || p.LinkLayer == "Ethernet"
	})
}

// node leaves major and minor to the runtime, which reads them from the host's
// node when a container is created: numbers may change when modules are reloaded.
func (c CharDevices) node(name string) *cdispec.DeviceNode {
	path := filepath.Join(infiniband, name)
	node := &cdispec.DeviceNode{Path: path, Permissions: "rw"}
	if host := filepath.Join("/", c.HostRoot, path); host != path {
		node.HostPath = host
	}
	return node
}

// RDMAPorts lists the ports of RDMA devices as UCX_NET_DEVICES and, after "=", without
// which NCCL matches prefixes, NCCL_IB_HCA want them. Both libraries take one list per
// process and CDI keeps the last value of a variable, so every device that a container
// may get must carry the same list: pass all RDMA devices of the pod, not those of one
// device or one claim.
func RDMAPorts(devices []*rdma.Device) string {
	var ports []string
	for _, device := range devices {
		if len(device.Ports) == 0 {
			ports = append(ports, device.Name+":1")
		}
		for _, port := range device.Ports {
			ports = append(ports, device.Name+":"+strconv.Itoa(port.Number))
		}
	}
	return strings.Join(ports, ",")
}

// DeviceEnv is the variable that names a device to the application: the GPU's
// UUID or the NIC's RDMA device or interface. The device's name is in the
// variable's name, so variables of several devices never overwrite each other.
func DeviceEnv(device, value string) string {
	return "TOPODRA_" + strings.ToUpper(strings.ReplaceAll(device, "-", "_")) + "=" + value
}
