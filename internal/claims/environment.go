package claims

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// podEnvironment is what communication libraries are told of all NICs of a pod.
type podEnvironment struct {
	ucx, nccl, gpuNICs []string
}

// of returns the variables that a configuration lets a container have.
func (e podEnvironment) of(c v1alpha1.Environment) []string {
	var out []string
	for _, v := range []struct {
		on   *bool
		text []string
	}{{c.UCX, e.ucx}, {c.NCCL, e.nccl}, {c.GPUNICs, e.gpuNICs}} {
		if v.on == nil || *v.on {
			out = append(out, v.text...)
		}
	}
	return out
}

// environment looks at the devices of all claims of a pod. A sibling that cannot be told
// fails by itself; it is left out here.
func (p planner) environment(requests []request) podEnvironment {
	nics, gpus := map[pci.Address]Device{}, map[pci.Address]Device{}
	partners := map[pci.Address][]pci.Address{} // NICs of the same pair, by GPU
	for _, r := range requests {
		for _, res := range r.results {
			device, err := p.inventory.Device(res.Device)
			if err != nil {
				continue
			}
			config, _ := res.nic()
			for _, part := range device.parts() {
				switch {
				case part.GPU != nil:
					gpus[part.Address] = part
				case part.NIC != nil && part.NIC.RDMA != nil && config.RDMA != v1alpha1.RDMANone:
					nics[part.Address] = part
					if device.Type == v1alpha1.PairKind {
						partners[device.Address] = append(partners[device.Address], part.Address)
					}
				}
			}
		}
	}
	var all []*rdma.Device
	for _, address := range slices.SortedFunc(maps.Keys(nics), pci.Address.Compare) {
		all = append(all, nics[address].NIC.RDMA)
	}
	if len(all) == 0 {
		return podEnvironment{}
	}
	ports := cdi.RDMAPorts(all)
	e := podEnvironment{ucx: []string{"UCX_NET_DEVICES=" + ports}, nccl: []string{"NCCL_IB_HCA==" + ports}}
	perGPU := map[string][]string{}
	for address, g := range gpus {
		var names []string
		for _, nic := range nearest(address, partners[address], nics) {
			names = append(names, nics[nic].NIC.RDMA.Name)
		}
		if len(names) > 0 {
			perGPU[g.GPU.UUID] = names
		}
	}
	if content, err := json.Marshal(perGPU); err == nil && len(perGPU) > 0 {
		e.gpuNICs = []string{"TOPODRA_GPU_NICS=" + string(content)}
	}
	return e
}

// nearest returns the NICs that a GPU should use: those of its pair, else those of the
// pod that are nearest to it.
func nearest(gpu pci.Address, partners []pci.Address, nics map[pci.Address]Device) []pci.Address {
	if len(partners) > 0 {
		return partners
	}
	return nearestOf(slices.SortedFunc(maps.Keys(nics), pci.Address.Compare), func(nic pci.Address) string { return nics[nic].Distances[gpu] })
}

// nearestOf returns those of the candidates at the smallest distance; one at an unknown
// distance is none of them.
func nearestOf(candidates []pci.Address, distance func(pci.Address) string) []pci.Address {
	best, out := len(v1alpha1.Distances), []pci.Address(nil)
	for _, address := range candidates {
		class := slices.Index(v1alpha1.Distances, distance(address))
		switch {
		case class < 0 || class > best:
		case class < best:
			best, out = class, []pci.Address{address}
		default:
			out = append(out, address)
		}
	}
	return out
}
