package allocation

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/template"
	"github.com/topodra/topodra/internal/topology"
)

// wanted are what the golden templates of internal/template ask for, said again:
// any of these, so many pairs for which the conditions are true.
var wanted = map[string]struct {
	pairs    int
	farthest []topology.Class // one after the other
	rails    []int
	sameNUMA bool
}{
	"one":              {1, nil, nil, false},
	"four-near":        {4, []topology.Class{topology.PXB}, nil, false},
	"four-on-rails":    {4, nil, []int{0, 1, 2, 3}, false},
	"two-on-odd-rails": {2, nil, []int{1, 5, 6, 7}, false},
	"four-on-a-node":   {4, nil, nil, true},
	"ladder":           {2, []topology.Class{topology.PIX, topology.PXB, topology.NODE}, nil, false},
	"ladder-with-all":  {2, []topology.Class{topology.PXB, topology.NODE}, []int{0, 1, 2, 3}, true},
}

func readTemplate(t *testing.T, path string) resourceapi.ResourceClaimSpec {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	object, err := template.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return object.Spec.Spec
}

// Each template gets what it asks for wherever that exists, and nothing else.
func TestTemplates(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(simulatetest.ModuleRoot(t), "internal/template/testdata/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := NewScheduler()
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if strings.HasPrefix(name, "split-") {
			continue // TestSplitTemplates
		}
		want, ok := wanted[name]
		if !ok {
			t.Errorf("%s is not allocated by any test", file)
			continue
		}
		claim := Claim(readTemplate(t, file), name)
		said := map[bool]int{}
		for _, slug := range simulatetest.Slugs(t) {
			n := newNode(t, slug, everything)
			ledger := NewLedger(n)
			room, first := false, topology.SYS
			for _, farthest := range append(slices.Clone(want.farthest), topology.SYS) {
				if len(want.farthest) > 0 && farthest == topology.SYS {
					break
				}
				if fitsIn(n, ledger, want.pairs, farthest, want.rails, want.sameNUMA) {
					room, first = true, farthest
					break
				}
			}
			results, err := s.Allocate(t.Context(), n.Slices, nil, claim)
			if err != nil {
				t.Errorf("%s on %s: %v", name, slug, err)
				continue
			}
			said[results != nil]++
			if got := results != nil; got != room {
				t.Errorf("%s on %s: allocated %v, room is %v", name, slug, Devices(results), room)
			}
			numa := map[int]bool{}
			for _, device := range Devices(results) {
				g, _ := n.Topology.GPU(pairGPU(n, device))
				if n.Near(g) > first {
					t.Errorf("%s on %s: %s is at %v, farther than %v", name, slug, device, n.Near(g), first)
				}
				if want.rails != nil && !onRails(n, want.rails)(g) {
					t.Errorf("%s on %s: %s is on another rail than %v", name, slug, device, want.rails)
				}
				numa[n.Snapshot.PCI.Functions[g.Address].NUMANode] = true
			}
			if want.sameNUMA && len(numa) > 1 {
				t.Errorf("%s on %s: %v are on NUMA nodes %v", name, slug, Devices(results), numa)
			}
		}
		if said[true] == 0 || said[false] == 0 {
			t.Errorf("%s: %d machines have room and %d do not: this has tested nothing", name, said[true], said[false])
		}
		t.Logf("%-18s %d machines of %d have room", name, said[true], said[true]+said[false])
	}
}

func fitsIn(n *Node, l *Ledger, pairs int, farthest topology.Class, rails []int, sameNUMA bool) bool {
	conditions := []func(topology.GPU) bool{func(g topology.GPU) bool { return n.Near(g) <= farthest }}
	if rails != nil {
		conditions = append(conditions, onRails(n, rails))
	}
	if !sameNUMA {
		return l.MostPairs(conditions...) >= pairs
	}
	for _, g := range n.Topology.GPUs {
		if node := n.Snapshot.PCI.Functions[g.Address].NUMANode; node >= 0 && l.MostPairs(append(conditions, onNUMANode(n, node))...) >= pairs {
			return true
		}
	}
	return false
}

func onRails(n *Node, rails []int) func(topology.GPU) bool {
	return func(g topology.GPU) bool {
		on := map[int]bool{}
		for _, addr := range g.Pair {
			f, _ := n.Topology.NIC(addr)
			if f.Rail == nil {
				return false
			}
			on[*f.Rail] = true
		}
		for rail := range on {
			if len(on) == 1 && slices.Contains(rails, rail) {
				return true
			}
		}
		return false
	}
}

func onNUMANode(n *Node, node int) func(topology.GPU) bool {
	return func(g topology.GPU) bool {
		for _, part := range append([]pci.Address{g.Address}, g.Pair...) {
			if n.Snapshot.PCI.Functions[part].NUMANode != node {
				return false
			}
		}
		return true
	}
}

func pairGPU(n *Node, device string) pci.Address {
	for _, g := range n.Topology.GPUs {
		if nodeslices.PairName(g.Address) == device {
			return g.Address
		}
	}
	return pci.Address{}
}

// twoDrivers are the slices of NVIDIA's driver and of DraNet on a machine, as far
// as the split templates read them.
func twoDrivers(n *Node) []*resourceapi.ResourceSlice {
	devices := map[string][]resourceapi.Device{}
	for _, d := range n.Inventory.Devices {
		standard := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for name, value := range d.Attributes {
			if strings.HasPrefix(string(name), "resource.kubernetes.io/") {
				standard[name] = value
			}
		}
		yes, gpuType := true, "gpu"
		switch {
		case strings.HasPrefix(d.Name, "gpu-"):
			standard["type"] = resourceapi.DeviceAttribute{StringValue: &gpuType}
			devices["gpu.nvidia.com"] = append(devices["gpu.nvidia.com"], resourceapi.Device{Name: d.Name, Attributes: standard})
		case strings.HasPrefix(d.Name, "nic-"):
			if d.Attributes["topodra.dev/rdmaDevice"].StringValue != nil {
				standard["rdma"] = resourceapi.DeviceAttribute{BoolValue: &yes}
			}
			devices["dra.net"] = append(devices["dra.net"], resourceapi.Device{Name: d.Name, Attributes: standard})
		}
	}
	var all []*resourceapi.ResourceSlice
	for _, driver := range slices.Sorted(maps.Keys(devices)) {
		all = append(all, ResourceSlices(driver, resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices[driver]}}})...)
	}
	return all
}

// The split templates find pairs on machines whose GPUs and NICs have PCIe roots in
// common, one NIC for each GPU, and only NICs with RDMA.
func TestSplitTemplates(t *testing.T) {
	s := NewScheduler()
	s.classes["dranet-rdma"] = s.classes["dra.net"]
	root := simulatetest.ModuleRoot(t)
	for name, pairs := range map[string]int{"split-one": 1, "split-four": 4} {
		claim := Claim(readTemplate(t, filepath.Join(root, "internal/template/testdata", name+".yaml")), name)
		for slug, room := range map[string]int{
			"aws-p5-48xl":             4, // a root for each GPU with four NICs
			"kvm-8xh200-pxb-switch":   4, // a root for each socket
			"aws-p4d-24xl":            2, // four NICs in all, two on a NUMA node
			"azure-nd-gb300-v6":       0, // no root in common
			"azure-ndv5-h100":         0, // no root is known
			"h200-4cx7-snc-baremetal": 0,
		} {
			want := room >= pairs
			n := newNode(t, slug, nodeslices.Options{Kinds: everything.Kinds[1:]})
			results, err := s.Allocate(t.Context(), twoDrivers(n), nil, claim)
			if err != nil {
				t.Fatal(err)
			}
			if got := results != nil; got != want {
				t.Errorf("%s on %s: allocated %v, want %v", name, slug, Devices(results), want)
			}
			if names := Devices(results); want && (len(names) != 2*pairs || len(InUse{}.Insert(names...)) != 2*pairs) {
				t.Errorf("%s on %s: %v, want %d devices", name, slug, names, 2*pairs)
			}
			if results != nil {
				sharePCIeRoot(t, n, results[0])
			}
		}
	}
}

func sharePCIeRoot(t *testing.T, n *Node, r resourceapi.AllocationResult) {
	t.Helper()
	rootOf := map[string]string{}
	for _, d := range r.Devices.Results {
		attributes := n.Device(d.Device).Attributes
		if strings.HasPrefix(d.Request, "nic-") && attributes["topodra.dev/rdmaDevice"].StringValue == nil {
			t.Errorf("%s has no RDMA", d.Device)
		}
		root := *attributes["resource.kubernetes.io/pcieRoot"].StringValue
		_, number, _ := strings.Cut(d.Request, "-")
		if other, ok := rootOf[number]; ok && other != root {
			t.Errorf("GPU and NIC %s are at %s and %s", number, root, other)
		}
		rootOf[number] = root
	}
}
