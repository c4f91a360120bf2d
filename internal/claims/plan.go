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
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/podnet"
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
	gate        Gate
}

// resolve returns what the devices of a request are on this machine. Errors may go
// away by trying again unless they are marked permanent.
func (p planner) resolve(r request) ([]Device, error) {
	devices := make([]Device, len(r.results))
	for i, res := range r.results {
		device, err := p.inventory.Device(res.Device)
		if err != nil {
			return nil, err
		}
		if err := res.fits(device.Type); err != nil {
			return nil, permanent(err)
		}
		devices[i] = device
	}
	return devices, nil
}

// plan returns the devices of a request as they will be prepared, and the content
// of its CDI file (nil for none). nics are the plans of its NICs, siblings the other
// claims of the same pod. Errors may go away by trying again unless they are marked
// permanent.
func (p planner) plan(ctx context.Context, r request, devices []Device, nics nicPlans, siblings []request) ([]PreparedDevice, json.RawMessage, error) {
	var parts []Device
	for _, device := range devices {
		parts = append(parts, device.parts()...)
	}
	perGPU, common, err := p.gpuEdits(ctx, parts)
	if err != nil {
		return nil, nil, err
	}
	b := planBuilder{
		planner: p, uid: r.uid, all: parts, perGPU: perGPU, common: common,
		nics: nics, environment: p.environment(append([]request{r}, siblings...)),
		edits: map[string]*cdi.Edits{driverFiles: common},
	}
	prepared := make([]PreparedDevice, len(devices))
	for i, device := range devices {
		if prepared[i], err = b.device(r.results[i], device); err != nil {
			return nil, nil, err
		}
	}
	content, err := cdi.Build(r.uid, b.edits)
	if err != nil {
		return nil, nil, permanent(err)
	}
	return prepared, content, nil
}

// planBuilder collects the CDI devices of one claim.
type planBuilder struct {
	planner
	uid         types.UID
	all         []Device // every part that the claim has
	perGPU      map[string]*cdi.Edits
	common      *cdi.Edits
	nics        nicPlans
	environment podEnvironment
	edits       map[string]*cdi.Edits // by name of the CDI device
}

// device describes one allocation result. Each part is a CDI device of its own.
func (b *planBuilder) device(res result, device Device) (PreparedDevice, error) {
	d := PreparedDevice{
		Request:     res.Request,
		Pool:        res.Pool,
		Name:        res.Device,
		ShareID:     res.ShareID,
		AdminAccess: res.adminAccess(),
		Holds:       holds(device, res.ShareID, res.adminAccess()),
	}
	if len(device.Attributes) > 0 {
		d.Attributes = map[string]resourceapi.DeviceAttribute{}
		for name, value := range device.Attributes {
			d.Attributes[string(name)] = value
		}
	}
	withGPU := false
	for _, part := range device.parts() {
		e, err := b.part(res, part)
		if err != nil {
			return d, err
		}
		// The same device can come twice, with adminAccess or as two shares.
		name := part.Name
		for n := 2; b.edits[name] != nil; n++ {
			name = fmt.Sprintf("%s-%d", part.Name, n)
		}
		b.edits[name] = e
		if !cdi.IsEmpty(e) {
			d.CDIDeviceIDs = append(d.CDIDeviceIDs, cdi.ID(b.uid, name))
			withGPU = withGPU || part.GPU != nil
		}
		placement := place(part, b.all)
		placement.Request = res.Request
		if len(device.Parts) > 0 {
			placement.Pair = device.Name
		}
		d.Placements = append(d.Placements, placement)
		d.addNetwork(b.nics[part.Address])
	}
	if withGPU && !cdi.IsEmpty(b.common) {
		d.CDIDeviceIDs = append(d.CDIDeviceIDs, cdi.ID(b.uid, driverFiles))
	}
	return d, nil
}

func (b *planBuilder) part(res result, part Device) (*cdi.Edits, error) {
	if part.GPU != nil {
		return gpuEdits(part, b.perGPU), nil
	}
	config, _ := res.nic()
	e, err := b.nicEdits(part, config)
	if plan := b.nics[part.Address]; err == nil && plan.Moves() && !res.adminAccess() {
		e.Hooks = append(e.Hooks, b.gate.hook(plan))
	}
	return e, err
}

// addNetwork adds a NIC to what the container's metadata and the claim's status say. A
// device has one interface there: of a pair with several NICs it is the first's, with
// the addresses of all.
func (d *PreparedDevice) addNetwork(plan podnet.Plan) {
	if plan.Parent == "" {
		return
	}
	if d.Network == nil {
		d.Network = &resourceapi.NetworkDeviceData{InterfaceName: plan.Pod.Name, HardwareAddress: plan.HardwareAddr}
	}
	for _, a := range plan.Pod.Addresses {
		d.Network.IPs = append(d.Network.IPs, a.Prefix.String())
	}
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

func (b *planBuilder) nicEdits(device Device, config v1alpha1.NICConfig) (*cdi.Edits, error) {
	if device.NIC.RDMA == nil || config.RDMA == v1alpha1.RDMANone {
		name := device.NIC.IfName()
		if plan := b.nics[device.Address]; plan.Parent != "" {
			name = plan.Pod.Name
		}
		if name == "" {
			return &cdi.Edits{}, nil
		}
		return &cdi.Edits{Env: []string{cdi.DeviceEnv(device.Name, name)}}, nil
	}
	e, err := b.charDevices.Edits(device.NIC.RDMA)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", device.Name, err)
	}
	e.Env = append(b.environment.of(config.Environment), cdi.DeviceEnv(device.Name, device.NIC.RDMAName()))
	return e, nil
}

// place records what a part was when it was prepared, and how far from each GPU of
// its claim.
func place(part Device, all []Device) v1alpha1.DevicePlacement {
	p := v1alpha1.DevicePlacement{
		Name:          part.Name,
		Type:          part.Type,
		PCIAddress:    part.Address.String(),
		AffinityGroup: known(part.AffinityGroup),
	}
	if part.GPU != nil {
		p.GPUUUID = known(part.GPU.UUID)
	}
	if part.NIC == nil {
		return p
	}
	p.IfName = part.NIC.IfName()
	p.Rail = v1alpha1.Unknown
	if part.Rail != nil {
		p.Rail = strconv.Itoa(*part.Rail)
	}
	if part.NIC.RDMA != nil {
		p.RDMADevice = part.NIC.RDMA.Name
		p.NICGUID = known(part.NIC.RDMA.NodeGUID)
	}
	for _, other := range all {
		if other.GPU == nil {
			continue
		}
		if p.Distances == nil {
			p.Distances = map[string]string{}
		}
		p.Distances[other.Name] = known(part.Distances[other.Address])
	}
	return p
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
