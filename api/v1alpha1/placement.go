package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PlacementAnnotation is the key of the placement record on a pod.
const PlacementAnnotation = Group + "/placement"

// Placement tells which devices a pod got, where, and in which span of time.
// It carries identity as well as place, so that a record of yesterday is never
// taken for the placement of today. A field that applies to a device but could
// not be determined holds Unknown; a field that does not apply is absent.
type Placement struct {
	APIVersion string `json:"apiVersion"` // APIVersion of this package

	Node NodeRef `json:"node"`
	Pod  PodRef  `json:"pod"`

	// Claims are all claims of the pod that this node has prepared, by name.
	Claims []ClaimPlacement `json:"claims"`
}

// NodeRef identifies one boot of one node.
type NodeRef struct {
	Name   string `json:"name"`
	UID    string `json:"uid"`    // Unknown when the node object could not be read
	BootID string `json:"bootID"` // /proc/sys/kernel/random/boot_id
}

// PodRef identifies a pod.
type PodRef struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// ClaimPlacement is the part of a placement that one claim brought.
type ClaimPlacement struct {
	Name       string            `json:"name"`
	UID        types.UID         `json:"uid"`
	PreparedAt metav1.Time       `json:"preparedAt"`
	EndedAt    *metav1.Time      `json:"endedAt,omitempty"` // absent while the claim is prepared
	Devices    []DevicePlacement `json:"devices"`
}

// DevicePlacement is one device of a claim.
type DevicePlacement struct {
	Name    string     `json:"name"`
	Type    DeviceKind `json:"type"`
	Request string     `json:"request"`        // as in the claim's allocation: "request" or "request/subrequest"
	Pair    string     `json:"pair,omitempty"` // the allocated device that this one is a part of

	PCIAddress    string `json:"pciAddress"`
	AffinityGroup string `json:"affinityGroup"`

	GPUUUID string `json:"gpuUUID,omitempty"` // GPUs only

	// The rest is for NICs only.
	NICGUID    string `json:"nicGUID,omitempty"` // node GUID of the RDMA device
	IfName     string `json:"ifName,omitempty"`
	RDMADevice string `json:"rdmaDevice,omitempty"`
	Rail       string `json:"rail,omitempty"` // decimal number or Unknown
	// Distances are the classes PIX, PXB, PHB, NODE and SYS between the NIC and
	// each GPU of the same claim, by the GPU's device name.
	Distances map[string]string `json:"distances,omitempty"`
}
