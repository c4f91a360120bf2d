package slices

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/testing/golden"
	"github.com/topodra/topodra/internal/topology"
)

var allKinds = []v1alpha1.DeviceKind{v1alpha1.PairKind, v1alpha1.GPUKind, v1alpha1.NICKind}

func load(t testing.TB, slug string) (*machine.Snapshot, *topology.Topology) {
	t.Helper()
	m, err := simulate.Load("../../testdata/machines/" + slug + "/machine.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s, topology.Compute(s, topology.Config{Excluded: m.Roles()})
}

func slugs(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../testdata/machines/*/machine.yaml")
	if err != nil || len(files) < 42 {
		t.Fatalf("%d machine files, %v", len(files), err)
	}
	var slugs []string
	for _, f := range files {
		slugs = append(slugs, filepath.Base(filepath.Dir(f)))
	}
	return slugs
}

// summary prints a device on one line per attribute, for files that a person reads.
func summary(inventory Inventory) string {
	var b strings.Builder
	for _, set := range inventory.Counters {
		fmt.Fprintf(&b, "counter set %s: %s\n", set.Name, counts(set.Counters))
	}
	for _, d := range inventory.Devices {
		fmt.Fprintf(&b, "%s\n", d.Name)
		var lines []string
		for name, a := range d.Attributes {
			text, err := yaml.Marshal(a)
			if err != nil {
				panic(err)
			}
			lines = append(lines, fmt.Sprintf("  %s: %s", name, strings.TrimSpace(string(text))))
		}
		for name, c := range d.Capacity {
			lines = append(lines, fmt.Sprintf("  %s: capacity: %s", name, c.Value.String()))
		}
		slices.Sort(lines)
		for _, c := range d.ConsumesCounters {
			lines = append(lines, fmt.Sprintf("  consumes from %s: %s", c.CounterSet, counts(c.Counters)))
		}
		fmt.Fprintln(&b, strings.Join(lines, "\n"))
	}
	return b.String()
}

func counts(counters map[string]resourceapi.Counter) string {
	var out []string
	for name, c := range counters {
		out = append(out, name+"="+c.Value.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestGolden(t *testing.T) {
	for _, slug := range []string{
		"asus-esc8000a-4xrtx6000ada", "aws-g4dn-metal", "aws-p4d-24xl", "aws-p5-48xl", "aws-p6-b200-48xl", "azure-nd-gb300-v6",
		"dgx-a100-sriov-vfs", "gb300-cx8-datadirect", "h200-4cx7-snc-baremetal", "ibm-ac922-lassen", "kvm-8xh200-pxb-switch",
		"vm-domain-10000", "workstation-gtx1070-vega",
	} {
		s, topo := load(t, slug)
		got := summary(Build(s, topo, Options{Kinds: allKinds}))
		golden.Expect(t, filepath.Join("testdata", slug+".txt"), got)
	}
}

// Every machine fits the API, and nothing had to be left out for it.
func TestWithinTheLimits(t *testing.T) {
	for _, slug := range slugs(t) {
		s, topo := load(t, slug)
		pool, problems := Pool(Build(s, topo, Options{Kinds: allKinds}))
		if len(problems) != 0 {
			t.Errorf("%s: %v", slug, problems)
		}
		for i, slice := range pool.Slices {
			if len(slice.Devices) > 64 || len(slice.SharedCounters) > 8 || (len(pool.Slices) > 1 && (len(slice.Devices) == 0) == (len(slice.SharedCounters) == 0)) {
				t.Errorf("%s: slice %d has %d devices and %d counter sets", slug, i, len(slice.Devices), len(slice.SharedCounters))
			}
			for _, d := range slice.Devices {
				for name, a := range d.Attributes {
					if a.StringValue != nil && *a.StringValue == "" {
						t.Errorf("%s: %s of %s is empty: it would match another empty one", slug, name, d.Name)
					}
					if a.IntValue != nil && *a.IntValue < 0 {
						t.Errorf("%s: %s of %s is %d", slug, name, d.Name, *a.IntValue)
					}
				}
			}
		}
	}
}

func TestPoolOfNothing(t *testing.T) {
	pool, problems := Pool(Inventory{})
	if len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 0 || problems != nil {
		t.Errorf("got %+v, %v, want one empty slice", pool, problems)
	}
}

func TestKinds(t *testing.T) {
	s, topo := load(t, "kvm-8xh200-pxb-switch")
	for kind, prefix := range map[v1alpha1.DeviceKind]string{v1alpha1.GPUKind: "gpu-", v1alpha1.NICKind: "nic-", v1alpha1.PairKind: "pair-"} {
		devices := Build(s, topo, Options{Kinds: []v1alpha1.DeviceKind{kind}}).Devices
		if len(devices) != 8 {
			t.Errorf("%d devices of kind %s, want 8", len(devices), kind)
		}
		for _, d := range devices {
			if !strings.HasPrefix(d.Name, prefix) {
				t.Errorf("%s among devices of kind %s", d.Name, kind)
			}
			if len(d.ConsumesCounters) != 0 {
				t.Errorf("%s consumes counters, but nothing excludes it", d.Name)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	text := func(n int) resourceapi.DeviceAttribute {
		s := strings.Repeat("x", n)
		return resourceapi.DeviceAttribute{StringValue: &s}
	}
	many := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for i := range 33 {
		many[resourceapi.QualifiedName(fmt.Sprintf("a%02d", i))] = text(1)
	}
	var in []resourceapi.Device
	for i := range 130 {
		in = append(in, resourceapi.Device{Name: fmt.Sprintf("nic-%d", i)})
	}
	in[0].Attributes = many
	in[1].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"long": text(65), "fits": text(64)}
	in[2].Name = "No_Label"
	in[3].Name = in[4].Name
	pool, problems := Pool(Inventory{Devices: in})
	var sizes []int
	for _, s := range pool.Slices {
		sizes = append(sizes, len(s.Devices))
	}
	if diff := cmp.Diff([]int{64, 64}, sizes); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"attribute a32 of device nic-0 is left out: the API takes 32 attributes",
		`attribute long of device nic-1 is left out: "` + strings.Repeat("x", 65) + `" has 65 characters, the API takes 64`,
		"device No_Label is not published: its name is no DNS label: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
		"device nic-4 is not published a second time: names must be unique",
	}, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if len(many) != 33 || len(in[1].Attributes) != 2 {
		t.Error("the devices that were handed in have changed")
	}
}

func TestSemver(t *testing.T) {
	for in, want := range map[string]string{
		"580.65.06": "580.65.6", "9.0": "9.0.0", "13": "13.0.0", "": "", "1.2.3.4": "", "x": "", "1..2": "", "-1.0": "", "535.129.03-grid": "",
	} {
		if got, ok := semver(in); got != want || ok != (want != "") {
			t.Errorf("semver(%q) = %q, %v, want %q", in, got, ok, want)
		}
	}
}

// The helpers of Kubernetes must judge the snapshot as they would judge sysfs.
func TestStandardAttributes(t *testing.T) {
	for _, slug := range slugs(t) {
		m, err := simulate.Load("../../testdata/machines/" + slug + "/machine.yaml")
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for addr := range s.PCI.Functions {
			fsys := deviceattribute.WithFS(treeFS{s.PCI})
			attr, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(addr.String(), fsys)
			fn := s.PCI.Functions[addr]
			if hidden := fn.Prefix != "" || addr.Domain > 0xffff; hidden != (err != nil) {
				t.Errorf("%s: pcieRoot of %s: %v", slug, addr, err)
			}
			if err == nil && *attr.Value.StringValue != fn.Root {
				t.Errorf("%s: pcieRoot of %s is %s, want %s", slug, addr, *attr.Value.StringValue, fn.Root)
			}
		}
	}
}

func TestTreeFSHasNothingElse(t *testing.T) {
	fsys := treeFS{&pci.Tree{Functions: map[pci.Address]*pci.Function{}}}
	if _, err := fsys.Open("bus/pci/devices/0000:00:00.0/numa_node"); !strings.Contains(fmt.Sprint(err), fs.ErrNotExist.Error()) {
		t.Errorf("open: %v", err)
	}
	if _, err := fsys.ReadLink("bus/pci/devices/x"); err == nil {
		t.Error("a link where there is no function")
	}
}

func TestNICSelector(t *testing.T) {
	s, _ := load(t, "aws-p6-b200-48xl")
	excluded := func(expression string) ([]string, []error) {
		selector, err := NewNICSelector(expression)
		if err != nil {
			t.Fatal(err)
		}
		reasons, errs := selector.Excluded(context.Background(), s)
		var out []string
		for addr := range reasons {
			out = append(out, addr.String())
		}
		slices.Sort(out)
		return out, errs
	}
	got, errs := excluded(`device.attributes["topodra.dev"].vendor != "0x15b3"`)
	if diff := cmp.Diff([]string{"0000:73:00.0", "0000:74:00.0"}, got); diff != "" || len(errs) != 0 {
		t.Errorf("by vendor: %v\n%s", errs, diff)
	}
	// Half of the NICs have no RDMA device: reading its name fails there, and
	// what fails excludes nothing.
	got, errs = excluded(`device.attributes["topodra.dev"].rdmaDevice.startsWith("rdmap")`)
	if diff := cmp.Diff([]string{"0000:73:00.0", "0000:74:00.0"}, got); diff != "" || len(errs) != 8 {
		t.Errorf("by RDMA name: %d errors, want 8\n%s", len(errs), diff)
	}
	if got, errs := excluded(""); got != nil || errs != nil {
		t.Errorf("an empty selector excludes %v, %v", got, errs)
	}
	_, err := NewNICSelector(`device.attributes["topodra.dev"].vendor ==`)
	if err == nil || !strings.Contains(err.Error(), "nicSelector does not compile") || !strings.Contains(err.Error(), ":1:") {
		t.Errorf("a broken selector: %v, want the position", err)
	}
	if _, err := NewNICSelector(`"text"`); err == nil {
		t.Error("a selector that is no boolean compiles")
	}
}
