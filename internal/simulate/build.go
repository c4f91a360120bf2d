package simulate

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/topodra/topodra/internal/pci"
)

// DriverVersion and CUDAVersion are what NVML says on every simulated node.
const (
	DriverVersion = "580.65.06"
	CUDAVersion   = "13.0"
)

// DefaultNVMLDouble is where the container image has the double that
// nvml/build.sh makes.
const DefaultNVMLDouble = "/usr/lib/topodra/libnvidia-ml.so.1"

// Root is where the parts of a simulated machine were built.
type Root struct {
	Sysfs      string // stands for /sys
	DriverRoot string // stands for / of the machine that has the NVIDIA driver
	DevRoot    string // stands for /dev; holds infiniband/
	NVMLFacts  string // file that the double reads

	// Unknown is Machine.Unknown: what of the sysfs tree stands for something
	// that nobody published.
	Unknown *pci.Unknown

	// Notes tell what could not be built, one sentence each.
	Notes []string
}

// Build makes dir/sys, dir/driver and dir/dev; anything else in dir is
// removed. nvmlDouble is the shared library that stands for libnvidia-ml.so.1.
// dir must have the same path for the container runtime, which opens the device
// nodes and mounts the driver files. A second run changes only what differs.
func (m *Machine) Build(dir, nvmlDouble string) (Root, error) {
	root, err := m.build(dir, nvmlDouble, m.tree)
	if err != nil {
		return Root{}, err
	}
	root.Unknown, err = m.Unknown()
	return root, err
}

// BuildDriver makes dir/driver only, for those who need no more than NVML.
func (m *Machine) BuildDriver(dir, nvmlDouble string) (Root, error) {
	return m.build(dir, nvmlDouble, func(double []byte) (tree, error) {
		all := tree{}
		all.mount("driver", m.driver(double))
		return all.withDirs()
	})
}

func (m *Machine) build(dir, nvmlDouble string, layout func(double []byte) (tree, error)) (Root, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Root{}, err
	}
	double, err := os.ReadFile(nvmlDouble)
	if err != nil {
		return Root{}, fmt.Errorf("double of libnvidia-ml.so.1 (internal/simulate/nvml/build.sh builds it): %w", err)
	}
	all, err := layout(double)
	if err != nil {
		return Root{}, fmt.Errorf("machine %s: %w", m.Slug, err)
	}
	denied, err := all.write(dir)
	if err != nil {
		return Root{}, fmt.Errorf("build machine %s: %w", m.Slug, err)
	}

	root := Root{
		Sysfs:      filepath.Join(dir, "sys"),
		DriverRoot: filepath.Join(dir, "driver"),
		DevRoot:    filepath.Join(dir, "dev"),
		NVMLFacts:  filepath.Join(dir, "driver", libraryDir(), factsName),
	}
	if denied > 0 {
		root.Notes = append(root.Notes, fmt.Sprintf("%d device nodes are missing: making them needs root (CAP_MKNOD)", denied))
	}
	if n := len(m.GPUs) - len(m.nvmlGPUs()); n > 0 {
		root.Notes = append(root.Notes, fmt.Sprintf("%d GPUs are missing: the machine file has no PCI address for them", n))
	}
	return root, nil
}

// tree lays out all parts of the machine.
func (m *Machine) tree(double []byte) (tree, error) {
	sysfs, err := m.sysfs()
	if err != nil {
		return nil, err
	}
	all := tree{}
	all.mount("sys", sysfs)
	all.mount("driver", m.driver(double))
	all.mount("dev", m.dev())
	return all.withDirs()
}

// libraryDir is where a driver for this architecture has its libraries. The
// architecture of the machine file does not matter: the double must load here.
func libraryDir() string {
	if runtime.GOARCH == "arm64" {
		return "usr/lib/aarch64-linux-gnu"
	}
	return "usr/lib/x86_64-linux-gnu"
}

const nvidiaSMI = `#!/bin/sh
# Stands for nvidia-smi on a simulated node.
echo "simulated GPUs (topodra), driver ` + DriverVersion + `:"
ls /dev/nvidia[0-9]* 2>/dev/null || echo "none in this container"
`

// driver lays out the NVIDIA driver root: what pkg/nvcdi looks for to tell the
// driver's version and its library directory, and the device nodes.
func (m *Machine) driver(double []byte) tree {
	t := tree{}
	if len(m.nvmlGPUs()) == 0 {
		return t // a machine without NVIDIA GPUs has no NVIDIA driver
	}
	lib := libraryDir() + "/"
	t[lib+"libnvidia-ml.so."+DriverVersion] = node{data: double, mode: 0o755}
	t.symlink(lib+"libnvidia-ml.so."+DriverVersion, lib+"libnvidia-ml.so.1")
	t.file(lib+"libcuda.so."+DriverVersion, "Stands for the CUDA driver library on a simulated node.")
	t.symlink(lib+"libcuda.so."+DriverVersion, lib+"libcuda.so.1")
	t[lib+factsName] = node{data: m.facts(), mode: 0o644}
	t["usr/bin/nvidia-smi"] = node{data: []byte(nvidiaSMI), mode: 0o755}
	for _, g := range m.nvmlGPUs() {
		t.char(fmt.Sprintf("dev/nvidia%d", g.minor))
	}
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		t.char("dev/" + name)
	}
	return t
}

// dev lays out /dev/infiniband to match class/infiniband_verbs and
// class/infiniband_mad.
func (m *Machine) dev() tree {
	t := tree{}
	number, mad := 0, 0
	for i := range m.NICs {
		n := &m.NICs[i]
		if n.Address == nil || !n.isRDMA() {
			continue
		}
		t.char("infiniband/rdma_cm")
		t.char(fmt.Sprintf("infiniband/uverbs%d", number))
		number++
		for _, p := range n.Ports {
			for _, kind := range p.madDevices() {
				t.char(fmt.Sprintf("infiniband/%s%d", kind, mad))
			}
			if len(p.madDevices()) > 0 {
				mad++
			}
		}
	}
	return t
}
