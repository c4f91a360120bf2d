package simulate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

// factsName is the file that the double reads, in the directory of the library.
// The environment variable TOPODRA_NVML_FACTS overrides it.
//
// Each line is a key, a space and a value. First come the lines of the driver:
//
//	driver_version 580.65.06
//	cuda_version   13000     major * 1000 + minor * 10
//	init           9         NVML return code of nvmlInit; absent means success
//
// then for each GPU in NVML's order a line "gpu" and below it the lines
//
//	uuid, name, minor
//	pci              0000:1b:00  domain, bus, device, hexadecimal
//	pci_id           233510de    device and vendor id, hexadecimal
//	pci_subsystem_id             likewise
//	memory                       bytes
//	capability       9.0
//	architecture, brand          numbers of nvml.h
//	mig              0           1: enabled; absent: not supported
//	nvlinks          18          active NVLinks
//	fabric           <32 hexadecimal digits of the cluster UUID> <clique>
//	error            15          NVML return code of every query on this GPU
//
// An absent line makes the query fail as it does where the driver does not tell.
const factsName = "topodra-nvml.facts"

// cliqueID is the partition of all simulated GPUs of one NVLink domain.
const cliqueID = 32766

type nvmlGPU struct {
	*GPU
	function *Function
	minor    int
}

// nvmlGPUs returns the GPUs that NVML lists, in its order. As with NICs, a GPU
// whose address was not published has no place in the machine. Minor numbers
// are given out as the driver does, in the order in which PCI is probed.
func (m *Machine) nvmlGPUs() []nvmlGPU {
	var gpus []nvmlGPU
	for i := range m.GPUs {
		if g := &m.GPUs[i]; g.Address != nil {
			gpus = append(gpus, nvmlGPU{GPU: g, function: m.functions[*g.Address]})
		}
	}
	slices.SortFunc(gpus, func(a, b nvmlGPU) int {
		return pci.MustParseAddress(*a.Address).Compare(pci.MustParseAddress(*b.Address))
	})
	for i := range gpus {
		gpus[i].minor = i
	}
	slices.SortFunc(gpus, func(a, b nvmlGPU) int { return cmp.Compare(a.Index, b.Index) })
	return gpus
}

// inFabric tells whether the GPU belongs to an NVLink domain of several nodes.
func (g *GPU) inFabric() bool { return g.NVLink != nil && g.NVLink.Kind == "c2c+nvswitch" }

func (m *Machine) facts() []byte {
	var b bytes.Buffer
	line := func(key string, value any) { fmt.Fprintf(&b, "%s %v\n", key, value) }
	major, minor, _ := strings.Cut(CUDAVersion, ".")
	line("driver_version", DriverVersion)
	line("cuda_version", major+"0"+minor+"0")
	for _, g := range m.nvmlGPUs() {
		b.WriteString("gpu\n")
		line("uuid", g.UUID)
		if g.Name != "" {
			line("name", g.Name)
		}
		line("minor", g.minor)
		line("pci", strings.TrimSuffix(*g.Address, ".0"))
		line("pci_id", pciID(g.function.Device, g.function.Vendor))
		line("pci_subsystem_id", pciID(g.function.SubDevice, g.function.SubVendor))
		if p, ok := products[g.Name]; ok {
			line("capability", p.capability)
			line("architecture", p.architecture)
			line("brand", p.brand)
			if p.memoryMiB > 0 {
				line("memory", p.memoryMiB<<20)
			}
			if p.mig {
				line("mig", 0)
			}
		}
		if g.NVLink == nil {
			continue
		}
		if g.NVLink.Links != nil {
			line("nvlinks", *g.NVLink.Links)
		}
		if g.inFabric() {
			line("fabric", fmt.Sprintf("%x %d", m.clusterUUID(), cliqueID))
		}
	}
	return b.Bytes()
}

func pciID(device, vendor string) string {
	id := func(s string) uint64 {
		n, _ := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 16) // checked by validate
		return n
	}
	return fmt.Sprintf("%08x", id(device)<<16|id(vendor))
}

// clusterUUID is made up from the slug: nodes that simulate the same rack-scale
// machine share an NVLink domain, as trays of one rack do.
func (m *Machine) clusterUUID() []byte {
	sum := sha256.Sum256([]byte("topodra NVLink domain " + m.Slug))
	uuid := sum[:16]
	uuid[6] = uuid[6]&0x0f | 0x40 // version 4
	uuid[8] = uuid[8]&0x3f | 0x80 // variant of RFC 9562
	return uuid
}
