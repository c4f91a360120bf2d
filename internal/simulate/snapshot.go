package simulate

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	sysfsroot "github.com/topodra/topodra/internal/sysfs"
)

// Snapshot returns what a scan of the machine sees, without a driver root: the
// GPUs are those of the file, with what it says about them.
func (m *Machine) Snapshot(ctx context.Context) (*machine.Snapshot, error) {
	scanner, err := m.Scanner()
	if err != nil {
		return nil, err
	}
	return scanner.Scan(ctx), nil
}

// Scanner returns a scanner of the machine in memory.
func (m *Machine) Scanner() (*machine.Scanner, error) {
	layout, err := m.layout()
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", m.Slug, err)
	}
	nodes := map[string]sysfsroot.Node{}
	for name, n := range layout.tree {
		if !n.dir && !n.char {
			nodes[name] = sysfsroot.Node{Data: n.data, Link: n.link}
		}
	}
	return &machine.Scanner{Sysfs: sysfsroot.Memory(nodes), GPUs: fileGPUs{m}, Simulated: m.Slug, Unknown: &layout.unknown}, nil
}

// fileGPUs lists the GPUs of a machine as NVML does through the double, except
// that a GPU keeps the index that the file gives it.
type fileGPUs struct{ m *Machine }

func (f fileGPUs) List(context.Context) (gpu.Driver, []gpu.GPU, []error) {
	var gpus []gpu.GPU
	for _, g := range f.m.nvmlGPUs() {
		p := products[g.Name]
		out := gpu.GPU{
			Index: g.Index, Minor: g.minor, Address: pci.MustParseAddress(*g.Address), UUID: g.UUID, Name: g.Name,
			Architecture: architectureNames[p.architecture], ComputeCapability: p.capability, MemoryBytes: p.memoryMiB << 20,
		}
		if g.inFabric() {
			uuid, err := uuid.FromBytes(f.m.clusterUUID())
			if err == nil {
				out.Fabric = &gpu.Fabric{ClusterUUID: uuid.String(), CliqueID: cliqueID}
			}
		}
		gpus = append(gpus, out)
	}
	var errs []error
	for _, g := range f.m.GPUs {
		if g.Address == nil {
			errs = append(errs, fmt.Errorf("GPU %d: the machine file has no PCI address for it", g.Index))
		}
	}
	if len(gpus) == 0 {
		return gpu.Driver{}, nil, errs
	}
	return gpu.Driver{Version: DriverVersion, CUDAVersion: CUDAVersion}, gpus, errs
}
