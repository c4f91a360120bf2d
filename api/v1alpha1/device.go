package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Kinds of opaque device configuration.
const (
	GPUConfigKind = "GPUConfig"
	NICConfigKind = "NICConfig"
)

// DeviceConfig is the opaque configuration of devices: *GPUConfig or *NICConfig.
type DeviceConfig interface {
	// DeviceKind tells which devices the configuration fits.
	DeviceKind() DeviceKind
}

// GPUConfig configures GPUs. It has no fields yet; it exists so that a claim
// which names it is checked today and can be extended later.
type GPUConfig struct {
	metav1.TypeMeta `json:",inline"`
}

// NICConfig configures NICs and what containers get of them. A pair takes it for
// its NICs.
type NICConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Interface is the name of the network interface in the pod. A configuration
	// that several NICs of a claim get must have %d in it, which counts them from 0.
	// Default: the name on the host, or nic%d where that is "eth0".
	Interface string `json:"interface,omitempty"`

	// Addresses are the addresses in the pod, "10.1.0.5/24" or "fd00::5/64". They
	// take the place of the host's and fit a single NIC. Default: the host's.
	Addresses []string `json:"addresses,omitempty"`

	// DHCP asks for the addresses by DHCP, in place of the host's. Default: false.
	DHCP bool `json:"dhcp,omitempty"`

	// Routes are routes in the pod that leave through the NIC, besides those that
	// the interface has on the host. Default: none.
	Routes []Route `json:"routes,omitempty"`

	// MTU of the interface in the pod, in bytes; at most that of the host.
	// Default: the host's.
	MTU int `json:"mtu,omitempty"`

	// RDMA tells how containers get the RDMA device of the NIC. Default: exclusive
	// or shared, as the node's RDMA subsystem is set.
	RDMA RDMAMode `json:"rdma,omitempty"`

	// Environment switches off variables that containers get. Default: all are on.
	Environment Environment `json:"environment,omitempty"`
}

// Route is a route of a pod through a NIC.
type Route struct {
	// To is the destination, "10.0.0.0/8", "fd00::/8", or "default".
	To string `json:"to"`
	// Via is the address of the gateway, which must be reached through the NIC
	// directly. Default: none, for destinations on the link.
	Via string `json:"via,omitempty"`
}

// Environment says which variables containers with an RDMA device get. A switch
// that is absent is on.
type Environment struct {
	UCX      *bool `json:"ucx,omitempty"`      // UCX_NET_DEVICES
	NCCL     *bool `json:"nccl,omitempty"`     // NCCL_IB_HCA
	GIDIndex *bool `json:"gidIndex,omitempty"` // UCX_IB_GID_INDEX and NCCL_IB_GID_INDEX
	GPUNICs  *bool `json:"gpuNICs,omitempty"`  // TOPODRA_GPU_NICS, the NICs near each GPU as JSON
}

// RDMAMode is a way of giving an RDMA device to containers.
type RDMAMode string

// Ways of giving an RDMA device to containers.
const (
	// RDMAExclusive moves the RDMA device into the pod's network namespace. The
	// node's RDMA subsystem must be in exclusive mode ("rdma system").
	RDMAExclusive RDMAMode = "exclusive"
	// RDMAShared gives the containers of the request the character devices; the RDMA
	// device stays in the host's network namespace, and its interface moves. The
	// node's RDMA subsystem must be in shared mode, the kernel's default.
	RDMAShared RDMAMode = "shared"
	// RDMANone gives no RDMA at all; the NIC is used as a network interface.
	RDMANone RDMAMode = "none"
)

// DeviceKind says GPUConfig fits GPUs.
func (*GPUConfig) DeviceKind() DeviceKind { return GPUKind }

// DeviceKind says NICConfig fits NICs.
func (*NICConfig) DeviceKind() DeviceKind { return NICKind }

// DecodeDeviceConfig reads the parameters of an opaque device configuration.
// path is where they are in the object that the user sees; errors begin with
// it. All errors are the user's to repair: trying again does not help.
func DecodeDeviceConfig(raw runtime.RawExtension, path string) (DeviceConfig, error) {
	var t metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw.Raw, &t); err != nil {
		return nil, fmt.Errorf("%s: not a JSON object with apiVersion and kind: %w", path, err)
	}
	if err := checkType(t, path, GPUConfigKind, NICConfigKind); err != nil {
		return nil, err
	}
	if t.Kind == GPUConfigKind {
		c := &GPUConfig{}
		return c, decodeStrict(raw.Raw, c, path)
	}
	c := &NICConfig{}
	if err := decodeStrict(raw.Raw, c, path); err != nil {
		return nil, err
	}
	return c, c.validate(path)
}
