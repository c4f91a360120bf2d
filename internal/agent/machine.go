package agent

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/nvml"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/links"
	"github.com/topodra/topodra/internal/sysfs"
)

// Machine is where the agent reads hardware and finds its device nodes.
type Machine struct {
	Scanner     *machine.Scanner
	GPUEdits    claims.GPUEdits
	CharDevices cdi.CharDevices
	PCIDir      string // bus/pci/devices of the scanner's sysfs

	Links     []links.NIC            // interfaces that a simulated machine has
	Simulated string                 // name of the simulated machine; empty on hardware
	Roles     map[pci.Address]string // why NICs of a simulated machine are not fabric
	Notes     []string               // what a simulated machine lacks
}

// Hardware says where the roots of a real machine are.
type Hardware struct {
	SysfsRoot      string // directory with bus, class and devices
	DriverRoot     string // holds the NVIDIA driver, as this process sees it
	DriverRootHost string // the same as the container runtime sees it
	HookPath       string // nvidia-cdi-hook as the container runtime sees it
}

// Real returns the machine that the agent runs on.
func Real(h Hardware) Machine {
	gpus := nvml.New(h.DriverRoot)
	return Machine{
		Scanner:     &machine.Scanner{Sysfs: sysfs.Dir(h.SysfsRoot), GPUs: gpus, Host: netdev.Host},
		GPUEdits:    nvml.NewEditor(gpus, nvml.EditorOptions{HostRoot: h.DriverRootHost, HookPath: h.HookPath}),
		CharDevices: cdi.CharDevices{Root: "/", HostRoot: "/"},
		PCIDir:      filepath.Join(h.SysfsRoot, "bus/pci/devices"),
	}
}

// Simulated builds a machine file below dir and returns the machine. realRoot is
// the root of the host, where no NVML may answer.
func Simulated(file, dir, realRoot, double, hookPath string) (Machine, error) {
	if err := nvml.RefuseIfReal(realRoot); err != nil {
		return Machine{}, err
	}
	m, err := simulate.Load(file)
	if err != nil {
		return Machine{}, err
	}
	root, err := m.Build(filepath.Join(dir, "simulated"), double)
	if err != nil {
		return Machine{}, err
	}
	gpus := nvml.New(root.DriverRoot)
	var nics []links.NIC
	for _, n := range m.Interfaces() {
		address, err := pci.ParseAddress(n.Address)
		if err != nil {
			return Machine{}, fmt.Errorf("machine file %s: %w", file, err)
		}
		nics = append(nics, links.NIC{Address: address, Name: n.Name})
	}
	return Machine{
		Links:       nics,
		Scanner:     &machine.Scanner{Sysfs: sysfs.Dir(root.Sysfs), GPUs: gpus, Simulated: m.Slug, Unknown: root.Unknown},
		GPUEdits:    nvml.NewEditor(gpus, nvml.EditorOptions{HookPath: hookPath}),
		CharDevices: cdi.CharDevices{Root: filepath.Dir(root.DevRoot), HostRoot: filepath.Dir(root.DevRoot)},
		PCIDir:      filepath.Join(root.Sysfs, "bus/pci/devices"),
		Simulated:   m.Slug,
		Roles:       m.Roles(),
		Notes:       root.Notes,
	}, nil
}

var errNoNodeName = errors.New("no node name: set --node-name or the environment variable NODE_NAME from spec.nodeName")

// Validate refuses options that contradict each other, each with one sentence.
func (o Options) Validate() error {
	if o.NodeName == "" {
		return errNoNodeName
	}
	for name, path := range map[string]string{"kubelet directory": o.KubeletDir, "CDI directory": o.CDIDir} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s %q is not an absolute path", name, path)
		}
	}
	return nil
}
