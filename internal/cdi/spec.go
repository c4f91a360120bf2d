// Package cdi builds and keeps the CDI files of claims: one file per claim, one
// CDI device per device of the claim, so that a container gets exactly the
// devices of the requests it names.
package cdi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// The qualifier of our CDI devices: "topodra.dev/claim=<claim UID>-<device>".
const (
	Vendor = "topodra.dev"
	Class  = "claim"
)

// Edits are what one CDI device changes in a container. The name spares others
// the import of the CDI library.
type Edits = cdispec.ContainerEdits

// Hook is one hook among Edits.
type Hook = cdispec.Hook

// DeviceNode is one device node among Edits.
type DeviceNode = cdispec.DeviceNode

// ID is the qualified name of a CDI device. The claim's UID is part of it
// because runtimes cache CDI devices, so a name must never mean two things.
func ID(claim types.UID, device string) string {
	return parser.QualifiedName(Vendor, Class, deviceName(claim, device))
}

func deviceName(claim types.UID, device string) string {
	return string(claim) + "-" + device
}

// Build returns the content of the CDI file of a claim. The result depends on
// the arguments alone, so that content can be compared byte by byte. Devices
// without edits are left out, as runtimes reject them; without any device left
// the content is nil and there must be no file.
func Build(claim types.UID, devices map[string]*Edits) ([]byte, error) {
	spec := &cdispec.Spec{Kind: Vendor + "/" + Class}
	for name, edits := range devices {
		if IsEmpty(edits) {
			continue
		}
		full := deviceName(claim, name)
		if err := parser.ValidateDeviceName(full); err != nil {
			return nil, fmt.Errorf("CDI device of %s: %w", name, err)
		}
		if err := (&cdi.ContainerEdits{ContainerEdits: edits}).Validate(); err != nil {
			return nil, fmt.Errorf("CDI device of %s: %w", name, err)
		}
		spec.Devices = append(spec.Devices, cdispec.Device{Name: full, ContainerEdits: *edits})
	}
	if len(spec.Devices) == 0 {
		return nil, nil
	}
	slices.SortFunc(spec.Devices, func(a, b cdispec.Device) int {
		return strings.Compare(a.Name, b.Name)
	})
	// Runtimes refuse versions newer than themselves: ask for no more than the
	// edits need.
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("CDI file of claim %s: %w", claim, err)
	}
	spec.Version = version
	content, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("CDI file of claim %s: %w", claim, err)
	}
	return content, nil
}

// IsEmpty tells whether edits change nothing.
func IsEmpty(e *Edits) bool {
	return e == nil || len(e.Env) == 0 && len(e.DeviceNodes) == 0 && len(e.NetDevices) == 0 &&
		len(e.Hooks) == 0 && len(e.Mounts) == 0 && len(e.AdditionalGIDs) == 0 && e.IntelRdt == nil
}
