package cdi

import (
	"encoding/json"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// MountFile returns the content of a CDI file with one device that mounts a file read-only into the container, as the
// kubeletplugin helper writes it for device metadata. kind is "vendor/class".
func MountFile(kind, device, hostPath, containerPath string) ([]byte, error) {
	spec := &cdispec.Spec{Kind: kind, Devices: []cdispec.Device{{Name: device, ContainerEdits: Edits{
		Mounts: []*cdispec.Mount{{HostPath: hostPath, ContainerPath: containerPath, Options: []string{"ro", "bind"}}},
	}}}}
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("CDI file of device %s: %w", device, err)
	}
	spec.Version = version
	return json.MarshalIndent(spec, "", "  ")
}
