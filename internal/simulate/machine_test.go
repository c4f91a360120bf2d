package simulate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
)

// machine returns a small valid file in which tests replace parts.
func machine(replacements ...string) string {
	return strings.NewReplacer(replacements...).Replace(`schema: 1
slug: small
title: one GPU and one NIC below one switch
arch: x86_64
virtual: false
tree: complete
partial: false
numaNodes:
  - {id: 0, cpus: "0-7"}
roots:
  - {name: "pci0000:10", numaNode: 0}
pci:
  - {address: "0000:10:01.0", parent: "pci0000:10", class: "0x060400"}
  - {address: "0000:11:00.0", parent: "0000:10:01.0", class: "0x030200", vendor: "0x10de"}
  - {address: "0000:12:00.0", parent: "0000:10:01.0", class: "0x020000", vendor: "0x15b3"}
gpus:
  - {index: 0, address: "0000:11:00.0", name: "NVIDIA H200", uuid: "GPU-00000000-0000-4000-8000-000000000000"}
nics:
  - {address: "0000:12:00.0", id: mlx5_0, rdma: mlx5_0, netdev: eth0, nodeGuid: "02ff:00ff:fe00:0001", ports: [{port: 1, state: ACTIVE, linkLayer: Ethernet}]}
`)
}

func TestParseRefuses(t *testing.T) {
	if _, err := simulate.Parse([]byte(machine())); err != nil {
		t.Fatal(err)
	}
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&many, "\n  - {address: \"%04x:00:00.0\", parent: \"pci0000:10\"}", i+1)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown key":           {"title:", "titel:", `unknown field "titel"`},
		"unknown key inside":    {`vendor: "0x15b3"`, `vendr: "0x15b3"`, `unknown field "vendr"`},
		"repeated key":          {"arch: x86_64", "arch: x86_64\narch: aarch64", "line 5"},
		"not YAML":              {"roots:", "roots: [", "line "},
		"newer schema":          {"schema: 1", "schema: 2", "schema: 2, this version reads 1"},
		"unknown architecture":  {"arch: x86_64", "arch: mips", `arch: "mips"`},
		"partial contradicts":   {"partial: false", "partial: true", `partial: true contradicts tree "complete"`},
		"bad address":           {`"0000:12:00.0", parent`, `"0000:12:00.8", parent`, `pci[2].address: "0000:12:00.8"`},
		"repeated address":      {`"0000:12:00.0", parent`, `"0000:11:00.0", parent`, `pci[2].address: "0000:11:00.0" is repeated`},
		"missing parent":        {`"0000:12:00.0", parent: "0000:10:01.0"`, `"0000:12:00.0", parent: "0000:10:02.0"`, `pci[2].parent: "0000:10:02.0"`},
		"no parent":             {`"0000:12:00.0", parent: "0000:10:01.0"`, `"0000:12:00.0", parent: null`, "pci[2]: a complete tree"},
		"parent no bridge":      {`"0000:12:00.0", parent: "0000:10:01.0"`, `"0000:12:00.0", parent: "0000:11:00.0"`, "is no bridge"},
		"loop":                  {`parent: "pci0000:10", class`, `parent: "0000:10:01.0", class`, "below a loop"},
		"other domain":          {`"0000:12:00.0", parent: "0000:10:01.0"`, `"0001:12:00.0", parent: "pci0000:10"`, "another PCI domain"},
		"bad elided":            {`class: "0x020000"`, `elided: "some"`, "elided"},
		"negative elided":       {`class: "0x020000"`, `elided: -1`, "pci[2].elided: -1"},
		"huge elided":           {`class: "0x020000"`, `elided: 1000000000`, "pci[2].elided: 1000000000"},
		"bad class":             {`"0x030200"`, `"3D"`, `pci[1].class: "3D"`},
		"physfn missing":        {`class: "0x020000"`, `physfn: "0000:77:00.0"`, "pci[2].physfn"},
		"escaping prefix":       {"numaNode: 0}", `sysfsPrefix: "../../etc"}`, "roots[0].sysfsPrefix"},
		"absolute prefix":       {"numaNode: 0}", `sysfsPrefix: "/etc"}`, "roots[0].sysfsPrefix"},
		"escaping interface":    {"netdev: eth0", `netdev: "../eth0"`, "nics[0].netdev"},
		"escaping RDMA name":    {"rdma: mlx5_0", `rdma: ".."`, "nics[0].rdma"},
		"GPU not in pci":        {`address: "0000:11:00.0", name`, `address: "0000:33:00.0", name`, "gpus[0].address"},
		"newline in GPU name":   {`"NVIDIA H200"`, `"x\ngpu"`, "gpus[0].name"},
		"bad GPU UUID":          {"GPU-00000000-0000", "GPU-0", "gpus[0].uuid"},
		"NIC not in pci":        {`address: "0000:12:00.0", id`, `address: "0000:13:00.0", id`, "nics[0].address"},
		"bad port state":        {"state: ACTIVE", "state: UP", "nics[0].ports[0].state"},
		"repeated port":         {"ports: [", "ports: [{port: 1}, ", "nics[0].ports[1].port"},
		"too many functions":    {"pci:", "pci:" + many.String(), "pci: 5003 entries, at most 4096"},
		"address of wrong type": {`address: "0000:12:00.0", id`, `address: 12, id`, "address"},
	} {
		t.Run(name, func(t *testing.T) {
			file := machine(c.old, c.new)
			if file == machine() {
				t.Fatalf("%q is not in the file", c.old)
			}
			_, err := simulate.Parse([]byte(file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine.yaml")
	for name, content := range map[string][]byte{
		"too large":   make([]byte, simulate.MaxFileSize+1),
		"empty":       nil,
		"many errors": []byte(machine("0000:", "xyz:")),
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := simulate.Load(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: got error %v, want one that names %s", name, err, file)
		}
	}
	if _, err := simulate.Load(file + ".missing"); err == nil {
		t.Error("no error for a missing file")
	}
}

// FuzzMachine checks that no file makes Parse or the layout fail in another way
// than with an error, and that no path leads out of the directory.
func FuzzMachine(f *testing.F) {
	f.Add([]byte(machine()))
	f.Add([]byte(machine("numaNode: 0}", `sysfsPrefix: "pci0000:10/0000:10:01.0/class"}`)))
	for _, slug := range simulatetest.Slugs(f) {
		data, err := os.ReadFile(filepath.Join(simulatetest.ModuleRoot(f), "testdata/machines", slug, "machine.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := simulate.Parse(data)
		if err != nil {
			return
		}
		if _, err := m.Listing("sys"); err != nil {
			return
		}
		if err := m.CheckPaths(); err != nil {
			t.Fatal(err)
		}
	})
}
