package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// driverFiles names the CDI device with what all GPU containers of a claim
// share. As a device of its own it is injected once per container, however many
// GPUs it has, and never into a container that asked for NICs only.
const driverFiles = "driver-files"

// planner describes what a claim needs; it changes nothing.
type planner struct {
	inventory   Inventory
	gpus        GPUEdits
	charDevices cdi.CharDevices
}

// plan returns the devices of a request and the content of its CDI file (nil
// for none). siblings are the other claims of the same pod. Errors may go away
// by trying again unless they are marked permanent.
func (p planner) plan(ctx context.Context, r request, siblings []request) ([]PreparedDevice, json.RawMessage, error) {
	devices := make([]Device, len(r.results))
	for i, res := range r.results {
		device, err := p.inventory.Device(res.Device)
		if err != nil {
			return nil, nil, err
		}
		if err := res.fits(device.Type); err != nil {
			return nil, nil, permanent(err)
		}
		devices[i] = device
	}
	perGPU, common, err := p.gpuEdits(ctx, devices)
	if err != nil {
		return nil, nil, err
	}
	rdmaEnv := p.rdmaEnv(append([]request{r}, siblings...))

	edits := map[string]*cdi.Edits{driverFiles: common}
	prepared := make([]PreparedDevice, len(devices))
	for i, device := range devices {
		var e *cdi.Edits
		switch device.Type {
		case v1alpha1.GPUKind:
			e = gpuEdits(device, perGPU)
		case v1alpha1.NICKind:
			if e, err = p.nicEdits(device, r.results[i].nic(), rdmaEnv); err != nil {
				return nil, nil, err
			}
		}
		// The same device can come twice, with adminAccess or as two shares.
		name := device.Name
		for n := 2; edits[name] != nil; n++ {
			name = fmt.Sprintf("%s-%d", device.Name, n)
		}
		edits[name] = e
		prepared[i] = describe(r.results[i], device, devices)
		if !cdi.IsEmpty(e) {
			prepared[i].CDIDeviceIDs = []string{cdi.ID(r.uid, name)}
			if device.Type == v1alpha1.GPUKind && !cdi.IsEmpty(common) {
				prepared[i].CDIDeviceIDs = append(prepared[i].CDIDeviceIDs, cdi.ID(r.uid, driverFiles))
			}
		}
	}
	content, err := cdi.Build(r.uid, edits)
	if err != nil {
		return nil, nil, permanent(err)
	}
	return prepared, content, nil
}

// gpuEdits asks for the edits of all GPUs at once and refuses edits that give
// no device node: they are what one gets while the GPU driver is being
// installed, and a container would start with them and find no GPU.
func (p planner) gpuEdits(ctx context.Context, devices []Device) (map[string]*cdi.Edits, *cdi.Edits, error) {
	uuids := map[string]string{}
	for _, device := range devices {
		if device.Type == v1alpha1.GPUKind {
			uuids[device.GPU.UUID] = device.Name
		}
	}
	if len(uuids) == 0 {
		return nil, nil, nil
	}
	perGPU, common, err := p.gpus.Edits(ctx, slices.Sorted(maps.Keys(uuids)))
	if err != nil {
		return nil, nil, fmt.Errorf("what containers need to use GPUs: %w", err)
	}
	for uuid, name := range uuids {
		if perGPU[uuid] == nil || len(perGPU[uuid].DeviceNodes) == 0 {
			return nil, nil, fmt.Errorf("device %s (%s) has no device node in /dev: check that the GPU driver is installed completely", name, uuid)
		}
	}
	return perGPU, common, nil
}

func gpuEdits(device Device, perGPU map[string]*cdi.Edits) *cdi.Edits {
	e := *perGPU[device.GPU.UUID]
	// "void" stops NVIDIA's own runtime hook from adding GPUs by the
	// environment of the image. NIC devices do not carry it: their pod may have
	// its GPUs from another driver, by that very variable.
	e.Env = append(slices.Clone(e.Env), "NVIDIA_VISIBLE_DEVICES=void", cdi.DeviceEnv(device.Name, device.GPU.UUID))
	return &e
}

func (p planner) nicEdits(device Device, config v1alpha1.NICConfig, rdmaEnv []string) (*cdi.Edits, error) {
	if device.NIC.RDMA == nil || config.RDMA == v1alpha1.RDMANone {
		if device.NIC.IfName() == "" {
			return &cdi.Edits{}, nil
		}
		return &cdi.Edits{Env: []string{cdi.DeviceEnv(device.Name, device.NIC.IfName())}}, nil
	}
	e, err := p.charDevices.Edits(device.NIC.RDMA)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", device.Name, err)
	}
	e.Env = append(slices.Clone(rdmaEnv), cdi.DeviceEnv(device.Name, device.NIC.RDMAName()))
	return e, nil
}

// rdmaEnv lists the RDMA devices of all claims of the pod. A sibling that
// cannot be told fails by itself; it is left out here.
func (p planner) rdmaEnv(requests []request) []string {
	found := map[pci.Address]*rdma.Device{}
	for _, r := range requests {
		for _, res := range r.results {
			device, err := p.inventory.Device(res.Device)
			if err == nil && device.NIC != nil && device.NIC.RDMA != nil && res.nic().RDMA != v1alpha1.RDMANone {
				found[device.Address] = device.NIC.RDMA
			}
		}
	}
	var list []*rdma.Device
	for _, address := range slices.SortedFunc(maps.Keys(found), pci.Address.Compare) {
		list = append(list, found[address])
	}
	return cdi.RDMAEnv(list)
}

// describe records what a device was when it was prepared.
func describe(res result, device Device, all []Device) PreparedDevice {
	d := PreparedDevice{
		Request:     res.Request,
		Pool:        res.Pool,
		Name:        res.Device,
		ShareID:     res.ShareID,
		AdminAccess: res.adminAccess(),
		Placement: v1alpha1.DevicePlacement{
			Name:          res.Device,
			Type:          device.Type,
			Request:       res.Request,
			PCIAddress:    device.Address.String(),
			AffinityGroup: known(device.AffinityGroup),
		},
	}
	if len(device.Attributes) > 0 {
		d.Attributes = map[string]resourceapi.DeviceAttribute{}
		for name, value := range device.Attributes {
			d.Attributes[string(name)] = value
		}
	}
	if device.GPU != nil {
		d.Placement.GPUUUID = known(device.GPU.UUID)
	}
	if device.NIC != nil {
		d.Placement.IfName = device.NIC.IfName()
		d.Placement.Rail = v1alpha1.Unknown
		if device.Rail != nil {
			d.Placement.Rail = strconv.Itoa(*device.Rail)
		}
		if device.NIC.RDMA != nil {
			d.Placement.RDMADevice = device.NIC.RDMA.Name
			d.Placement.NICGUID = known(device.NIC.RDMA.NodeGUID)
		}
		for _, other := range all {
			if other.GPU == nil {
				continue
			}
			if d.Placement.Distances == nil {
				d.Placement.Distances = map[string]string{}
			}
			d.Placement.Distances[other.Name] = known(device.Distances[other.Address])
		}
	}
	return d
}

func known(s string) string {
	if s == "" {
		return v1alpha1.Unknown
	}
	return s
}

// permanentError marks what does not go away by trying again.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error { return permanentError{err} }

func isPermanent(err error) bool {
	var p permanentError
	return errors.As(err, &p)
}
