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

// NICConfig configures NICs.
type NICConfig struct {
	metav1.TypeMeta `json:",inline"`

	// RDMA tells how containers get the RDMA device of the NIC. Default: shared.
	RDMA RDMAMode `json:"rdma,omitempty"`
}

// RDMAMode is a way of giving an RDMA device to containers.
type RDMAMode string

// Ways of giving an RDMA device to containers.
const (
	// RDMAShared gives the containers of the request the character devices;
	// the RDMA device stays in the host's network namespace.
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
	c := &NICConfig{RDMA: RDMAShared}
	if err := decodeStrict(raw.Raw, c, path); err != nil {
		return nil, err
	}
	if c.RDMA != RDMAShared && c.RDMA != RDMANone {
		return nil, fmt.Errorf("%s: %q is not known, want %s or %s", join(path, "rdma"), c.RDMA, RDMAShared, RDMANone)
	}
	return c, nil
}
