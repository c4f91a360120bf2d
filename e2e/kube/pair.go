package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api/v1alpha1"
)

// Pair is a GPU and the NIC that a claim tied to it.
type Pair struct {
	GPU, NIC v1alpha1.DevicePlacement
}

// Distance is the class of the way between the two, as the record has it.
func (p Pair) Distance() string { return p.NIC.Distances[p.GPU.Name] }

// Pairs returns the GPUs of a record, each with every NIC that belongs to it: those of its pair device, or that of the request
// beside its own (gpu and nic, gpu-0 and nic-0).
func Pairs(placement v1alpha1.Placement) ([]Pair, error) {
	var pairs []Pair
	for _, claim := range placement.Claims {
		for _, gpu := range claim.Devices {
			if gpu.Type != v1alpha1.GPUKind {
				continue
			}
			found := false
			for _, nic := range claim.Devices {
				if nic.Type == v1alpha1.NICKind && belongs(nic, gpu) {
					pairs, found = append(pairs, Pair{GPU: gpu, NIC: nic}), true
				}
			}
			if !found {
				return nil, fmt.Errorf("claim %s has no NIC for %s", claim.Name, gpu.Name)
			}
		}
	}
	return pairs, nil
}

func belongs(nic, gpu v1alpha1.DevicePlacement) bool {
	if gpu.Pair != "" {
		return nic.Pair == gpu.Pair
	}
	return strings.TrimPrefix(nic.Request, "nic") == strings.TrimPrefix(gpu.Request, "gpu")
}

// Machine is a machine of testdata/machines, with what is known about it from other sources than this driver.
type Machine struct {
	Slug string
	GPUs []struct {
		Index   int    `json:"index"`
		Address string `json:"address"`
	} `json:"gpus"`
	NICs []struct {
		Address string `json:"address"`
		RDMA    string `json:"rdma"`
	} `json:"nics"`
	best map[string]nearest // by "GPU0"
}

type nearest struct {
	NICs  []string `json:"nics"` // PCI addresses or names of RDMA devices
	Class string   `json:"class"`
}

// ReadMachine reads a machine of the checkout.
func ReadMachine(root, slug string) (*Machine, error) {
	dir := filepath.Join(root, "testdata", "machines", slug)
	m := &Machine{Slug: slug}
	var expected struct {
		BestNICs map[string]nearest `json:"bestNics"`
	}
	for name, into := range map[string]any{"machine.yaml": m, "expected.yaml": &expected} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
	}
	m.best = expected.BestNICs
	return m, nil
}

// Check returns an error unless the pair's NIC is one that the machine's source calls nearest to the GPU.
func (m *Machine) Check(p Pair) error {
	for _, gpu := range m.GPUs {
		if gpu.Address != p.GPU.PCIAddress {
			continue
		}
		best := m.best[fmt.Sprintf("GPU%d", gpu.Index)]
		if !slices.Contains(best.NICs, p.NIC.PCIAddress) && !slices.Contains(best.NICs, p.NIC.RDMADevice) {
			return fmt.Errorf("%s got %s (%s), but nearest to it on %s are %v", p.GPU.Name, p.NIC.Name, p.NIC.RDMADevice, m.Slug, best.NICs)
		}
		if p.Distance() != best.Class {
			return fmt.Errorf("%s to %s is %q, but on %s it is %q", p.GPU.Name, p.NIC.Name, p.Distance(), m.Slug, best.Class)
		}
		return nil
	}
	return fmt.Errorf("%s (%s) is no GPU of %s", p.GPU.Name, p.GPU.PCIAddress, m.Slug)
}
