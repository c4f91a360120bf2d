package report

import (
	"cmp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/pci"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topology"
)

// FromSlices describes a node as far as its ResourceSlices tell: published
// devices only, and a distance only where attributes leave no other.
func FromSlices(node string, published []resourceapi.ResourceSlice) *Report {
	r := &Report{
		Machine:   node,
		GPUs:      []GPU{},
		NICs:      []NIC{},
		Distances: map[pci.Address]map[pci.Address]topology.Class{},
		Pairs:     []Pair{},
		Missing:   []string{"agent: only its ResourceSlices were read; they lack bridges, NICs that are never handed out, and most distances"},
	}
	devices := newest(published)
	slices.SortStableFunc(devices, func(a, b resourceapi.Device) int {
		return boolInt(!isPair(a)) - boolInt(!isPair(b))
	})
	for _, d := range devices {
		r.addDevice(d)
	}
	slices.SortFunc(r.GPUs, func(a, b GPU) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(r.NICs, func(a, b NIC) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(r.Pairs, func(a, b Pair) int { return a.GPU.Compare(b.GPU) })
	for i := range r.GPUs {
		r.GPUs[i].Index = i
	}
	r.measure()
	return r
}

// newest returns the devices of the newest generation of the driver's pools.
// Older slices are about to be deleted.
func newest(published []resourceapi.ResourceSlice) []resourceapi.Device {
	generation := map[string]int64{}
	for _, s := range published {
		generation[s.Spec.Pool.Name] = max(generation[s.Spec.Pool.Name], s.Spec.Pool.Generation)
	}
	var devices []resourceapi.Device
	for _, s := range published {
		if s.Spec.Driver == v1alpha1.Group && s.Spec.Pool.Generation == generation[s.Spec.Pool.Name] {
			devices = append(devices, s.Spec.Devices...)
		}
	}
	return devices
}

func isPair(d resourceapi.Device) bool {
	return deref(attributes(d.Attributes).text("type")) == string(v1alpha1.PairKind)
}

// attributes are those of one device; nil stands for an absent one.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// value finds an attribute of the driver, whose domain may be left out in the API.
func (a attributes) value(name string) resourceapi.DeviceAttribute {
	if v, ok := a[resourceapi.QualifiedName(v1alpha1.Group+"/"+name)]; ok {
		return v
	}
	return a[resourceapi.QualifiedName(name)]
}

func (a attributes) text(name string) *string { return a.value(name).StringValue }
func (a attributes) number(name string) *int  { return toInt(a.value(name).IntValue) }

func toInt(v *int64) *int {
	if v == nil {
		return nil
	}
	n := int(*v)
	return &n
}

func (a attributes) address(name string) *pci.Address { return parse(a.text(name)) }

func parse(s *string) *pci.Address {
	addr, err := pci.ParseAddress(deref(s))
	if err != nil {
		return nil
	}
	return &addr
}

// Attributes that Kubernetes defines.
const (
	standardBusID    = "resource.kubernetes.io/pciBusID"
	standardPCIeRoot = "resource.kubernetes.io/pcieRoot"
	standardNUMANode = "resource.kubernetes.io/numaNode"
)

func (a attributes) place() Place {
	return Place{
		NUMANode:      toInt(a[standardNUMANode].IntValue),
		PCIeRoot:      a[standardPCIeRoot].StringValue,
		PCIeSwitch:    a.address("pcieSwitch"),
		AffinityGroup: a.text("affinityGroup"),
	}
}

func (r *Report) addDevice(d resourceapi.Device) {
	a := attributes(d.Attributes)
	r.Simulated = r.Simulated || a.text("simulated") != nil
	kind := deref(a.text("type"))
	addr := parse(a[standardBusID].StringValue)
	switch v1alpha1.DeviceKind(kind) {
	case v1alpha1.PairKind:
		r.addPair(d.Name, a)
	case v1alpha1.GPUKind:
		if addr == nil {
			return
		}
		gpu := r.gpu(*addr)
		gpu.UUID, gpu.Name, gpu.Place = a.text("uuid"), a.text("productName"), a.place()
	case v1alpha1.NICKind:
		if addr == nil {
			return
		}
		nic := r.nic(*addr)
		nic.IfName, nic.RDMADevice, nic.Place = a.text("ifName"), a.text("rdmaDevice"), a.place()
		nic.Rail, nic.RailSource = a.number("rail"), a.text("railSource")
		if card := a.address("card"); card != nil {
			nic.Card = *card
		}
	}
}

// addPair adds a pair and its parts. Its attributes hold for each of them; where
// the parts are published themselves, theirs tell more and come later.
func (r *Report) addPair(name string, a attributes) {
	addr := a.address("gpuBusID")
	if addr == nil {
		return
	}
	gpu := r.gpu(*addr)
	gpu.UUID, gpu.Name, gpu.Place = a.text("gpuUUID"), a.text("productName"), a.place()
	pair := Pair{Name: cmp.Or(name, nodeslices.PairName(*addr)), GPU: *addr, NICs: []pci.Address{}}
	pair.Distance, _ = topology.ParseClass(deref(a.text("distance")))
	for _, field := range strings.FieldsFunc(deref(a.text("nics")), func(c rune) bool { return c == ',' || c == ' ' }) {
		if at, err := pci.ParseAddress(field); err == nil {
			pair.NICs = append(pair.NICs, at)
			nic := r.nic(at)
			nic.Place, nic.Rail, nic.RailSource = a.place(), a.number("rail"), a.text("railSource")
		}
	}
	r.Pairs = append(r.Pairs, pair)
}

// gpu returns the GPU at an address, a new one if need be.
func (r *Report) gpu(addr pci.Address) *GPU {
	for i := range r.GPUs {
		if r.GPUs[i].Address == addr {
			return &r.GPUs[i]
		}
	}
	r.GPUs = append(r.GPUs, GPU{Address: addr})
	return &r.GPUs[len(r.GPUs)-1]
}

func (r *Report) nic(addr pci.Address) *NIC {
	for i := range r.NICs {
		if r.NICs[i].Address == addr {
			return &r.NICs[i]
		}
	}
	r.NICs = append(r.NICs, NIC{Address: addr, Card: addr, Published: true})
	return &r.NICs[len(r.NICs)-1]
}

// measure fills in distances, and the nearest NICs of a GPU where all are known.
func (r *Report) measure() {
	pairs := r.pairs()
	for i := range r.GPUs {
		g := &r.GPUs[i]
		row := map[pci.Address]topology.Class{}
		nearest, known := topology.Unknown, true
		for _, n := range r.NICs {
			class := topology.Unknown
			if !r.elsewhere(n) {
				class = certain(g.Place, n.Place)
			}
			if pair := pairs[g.Address]; slices.Contains(pair.NICs, n.Address) {
				class = cmp.Or(pair.Distance, class)
			}
			row[n.Address] = class
			if !n.Fabric() {
				continue
			}
			known = known && class != topology.Unknown
			if nearest == topology.Unknown || class < nearest {
				nearest = class
			}
		}
		r.Distances[g.Address] = row
		if !known || nearest == topology.Unknown {
			continue
		}
		g.Nearest = &Nearest{Distance: nearest}
		for _, n := range r.NICs {
			if n.Fabric() && row[n.Address] == nearest {
				g.Nearest.NICs = append(g.Nearest.NICs, n.Address)
			}
		}
	}
}

// elsewhere tells whether data of a NIC enters the machine at another place than
// the NIC's own, through a Data Direct function: its group then hangs below one
// bridge, where the NIC's attributes are not.
func (r *Report) elsewhere(n NIC) bool {
	group := deref(n.AffinityGroup)
	if !strings.HasPrefix(group, "pcie-") && !strings.HasPrefix(group, "root-") {
		return false
	}
	return slices.ContainsFunc(r.GPUs, func(g GPU) bool {
		return deref(g.AffinityGroup) == group && certain(g.Place, n.Place) > topology.PHB
	})
}

// certain returns the distance that attributes prove.
func certain(a, b Place) topology.Class {
	switch {
	case a.PCIeSwitch != nil && b.PCIeSwitch != nil && *a.PCIeSwitch == *b.PCIeSwitch:
		return topology.PIX // each has one port of the switch that both hang on
	case a.PCIeRoot != nil && b.PCIeRoot != nil && *a.PCIeRoot == *b.PCIeRoot:
		return topology.Unknown // PXB or PHB
	case a.NUMANode == nil || b.NUMANode == nil:
		return topology.Unknown
	case *a.NUMANode != *b.NUMANode:
		return topology.SYS // no host bridge has functions of two nodes
	case a.PCIeRoot != nil && b.PCIeRoot != nil:
		return topology.NODE
	default:
		return topology.Unknown // a root that the API cannot name may be the same
	}
}
