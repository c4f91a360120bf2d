package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/archive"
	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/policy"
	"github.com/topodra/topodra/internal/report"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/sysfs"
)

// rules is the driver's configuration file that a local machine is looked at with.
type rules struct{ path string }

// report describes a snapshot under the rules.
func (c rules) report(ctx context.Context, name string, s *machine.Snapshot, roles map[pci.Address]string) (*report.Report, []string, error) {
	config := v1alpha1.DefaultDriverConfig()
	if c.path != "" {
		data, err := os.ReadFile(c.path)
		if err != nil {
			return nil, nil, err
		}
		if config, err = v1alpha1.ParseDriverConfig(data); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.path, err)
		}
	}
	p, err := policy.New(config, roles, name)
	if err != nil {
		return nil, nil, err
	}
	t, errs := p.Apply(ctx, s)
	var notes []string
	for _, err := range errs {
		notes = append(notes, err.Error())
	}
	return report.New(name, s, t), notes, nil
}

// thisMachine is the machine that the command runs on.
type thisMachine struct{ rules }

func (m thisMachine) report(ctx context.Context) (*report.Report, []string, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, fmt.Errorf("host name of this machine: %w", err)
	}
	scanner := &machine.Scanner{Sysfs: sysfs.Dir("/sys"), Host: netdev.Host}
	return m.rules.report(ctx, cmp.Or(os.Getenv("NODE_NAME"), host), withoutNVML(ctx, scanner), nil)
}

// sysfsCopy is a directory that holds bus, class and devices of another /sys.
type sysfsCopy struct {
	dir string
	rules
}

func (s sysfsCopy) report(ctx context.Context) (*report.Report, []string, error) {
	for _, part := range []string{"bus/pci/devices", "devices"} {
		if _, err := os.Stat(filepath.Join(s.dir, part)); err != nil {
			return nil, nil, fmt.Errorf("%s is no copy of /sys: %w", s.dir, err)
		}
	}
	return s.rules.report(ctx, filepath.Clean(s.dir), withoutNVML(ctx, &machine.Scanner{Sysfs: sysfs.Dir(s.dir)}), nil)
}

func withoutNVML(ctx context.Context, scanner *machine.Scanner) *machine.Snapshot {
	s := scanner.Scan(ctx)
	s.GPUs = pciGPUs(s.PCI)
	s.Missing = append(s.Missing, machine.Missing{
		Part: machine.PartNVML,
		Reason: "this command does not load NVML, so GPUs are what the PCI bus shows: in the order of their addresses, without UUID and name. " +
			"The agent's view has them: kubectl topodra topo NODE",
	})
	return s
}

// PCI classes of GPUs: a VGA controller has a display, a 3D controller none.
const (
	classVGA = 0x0300
	class3D  = 0x0302
)

// pciGPUs finds NVIDIA GPUs without NVML. A virtual function is no GPU of its own;
// a guest cannot tell, there it is one.
func pciGPUs(tree *pci.Tree) []gpu.GPU {
	var gpus []gpu.GPU
	for addr, fn := range tree.Functions {
		class := fn.Class >> 8
		if fn.Vendor == pci.VendorNVIDIA && (class == classVGA || class == class3D) && fn.PhysFn == nil {
			gpus = append(gpus, gpu.GPU{Address: addr})
		}
	}
	slices.SortFunc(gpus, func(a, b gpu.GPU) int { return a.Address.Compare(b.Address) })
	for i := range gpus {
		gpus[i].Index = i
	}
	return gpus
}

// machineFile is a machine file; see testdata/machines/README.md. The roles that it
// gives NICs count as if the administrator had said so.
type machineFile struct {
	path string
	rules
}

func (f machineFile) report(ctx context.Context) (*report.Report, []string, error) {
	m, err := simulate.Load(f.path)
	if err != nil {
		return nil, nil, err
	}
	s, err := m.Snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	return f.rules.report(ctx, m.Slug, s, m.Roles())
}

// snapshotFile is what "topodra snapshot" wrote.
type snapshotFile struct {
	path string
	rules
}

func (f snapshotFile) report(ctx context.Context) (*report.Report, []string, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	recording, err := archive.Read(file)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return f.rules.report(ctx, filepath.Base(f.path), recording.Scanner().Scan(ctx), nil)
}
