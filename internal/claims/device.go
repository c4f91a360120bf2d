// Package claims prepares and unprepares ResourceClaims on this node as one
// transaction per claim that survives a crash at any point.
//
// The order of Prepare, undone from its end on failure:
//
//	reserve the devices in memory     (refuses what another claim holds)
//	records of where the NICs are at home
//	journal: <claim UID>.preparing.json, synced
//	CDI file
//	journal: renamed to <claim UID>.json
//
// The journal holds everything that the later steps write, so a claim found in
// the journal can be finished or undone without the API server, the GPU driver
// or the network. Unprepare removes the CDI file first and the journal last.
package claims

import (
	"context"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
)

// Device is what a published device is on this machine.
type Device struct {
	Name    string // as published, "gpu-0000-1b-00-0"
	Type    v1alpha1.DeviceKind
	Address pci.Address
	GPU     *gpu.GPU     // set for GPUs
	NIC     *machine.NIC // set for NICs

	// Parts are what a pair is made of, its GPU first. They need not be published
	// themselves. GPUs and NICs have none.
	Parts []Device
	// Shares is how many claims may have the device at a time as part of a pair;
	// 0 and 1 mean one.
	Shares int

	AffinityGroup string // "" when unknown
	Rail          *int   // NICs; nil when unknown

	// Distances holds, for a NIC, the class PIX, PXB, PHB, NODE or SYS to the
	// GPUs of this machine. A GPU that is not in it is at an unknown distance.
	Distances map[pci.Address]string

	// Attributes are those published in the ResourceSlice; they go into the
	// metadata file of the container.
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
}

// Inventory knows the devices of this machine.
type Inventory interface {
	// Device returns a device by its published name. The error is one sentence
	// that names a device which is not there (any more); it is taken as
	// temporary, since drivers are reloaded and scans may be under way.
	Device(name string) (Device, error)
}

// GPUEdits knows what containers need to use GPUs.
type GPUEdits interface {
	// Edits returns the edits of each GPU by UUID, and those that every
	// container with any GPU needs (libraries, control devices, hooks).
	Edits(ctx context.Context, uuids []string) (perDevice map[string]*cdi.Edits, common *cdi.Edits, err error)
}

// Prepared is a claim that is ready for containers.
type Prepared struct {
	Pods    []v1alpha1.PodRef // consumers of the claim when it was prepared last
	Devices []PreparedDevice  // in the order of the allocation
	At      time.Time         // when it was prepared
}

// PreparedDevice is one allocation result of a prepared claim.
type PreparedDevice struct {
	Request     string     `json:"request"` // "request" or "request/subrequest"
	Pool        string     `json:"pool"`
	Name        string     `json:"name"`
	ShareID     *types.UID `json:"shareID,omitempty"`
	AdminAccess bool       `json:"adminAccess,omitempty"`

	// CDIDeviceIDs begin with an ID that no other device has, because the
	// kubelet tells devices apart by it. Empty when nothing is to be injected.
	CDIDeviceIDs []string `json:"cdiDeviceIDs,omitempty"`

	Attributes map[string]resourceapi.DeviceAttribute `json:"attributes,omitempty"`

	// Network is the interface that the device is in its pod; nil for none.
	Network *resourceapi.NetworkDeviceData `json:"network,omitempty"`

	// Warnings are what preflight found worth a word.
	Warnings []string `json:"warnings,omitempty"`

	// Holds are the keys under which the index guards the device or its parts.
	Holds []string `json:"holds,omitempty"`
	// Placements are what the record of the pod says: one for the device, or one
	// for each part of a pair.
	Placements []v1alpha1.DevicePlacement `json:"placements"`
}

// parts returns what is really handed out: the parts of a pair, or the device.
func (d Device) parts() []Device {
	if len(d.Parts) == 0 {
		return []Device{d}
	}
	return d.Parts
}

// holds returns the keys that guard a device: adminAccess holds nothing, one share
// of a device with consumable capacity only itself, and a pair all of its parts.
func holds(device Device, share *types.UID, adminAccess bool) []string {
	switch {
	case adminAccess:
		return nil
	case share != nil:
		return []string{device.Name + "/" + string(*share)}
	}
	var keys []string
	for _, part := range device.parts() {
		key := part.Name
		if len(device.Parts) > 0 && part.Shares > 1 {
			key += sharesMark + strconv.Itoa(part.Shares)
		}
		keys = append(keys, key)
	}
	return keys
}
