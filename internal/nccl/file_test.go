package nccl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/topology"
)

// Two cpu elements reuse the same made-up bridge ids, as vendors' files do.
const twoSwitches = `<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200"/>
      <pci busid="0101:00:00.0" class="0x020700"/>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0002:00:00.0" class="0x030200"/>
      <pci busid="0102:00" class="0x020700"><net name="mlx5_1"/></pci>
      <pci busid="0009:00:00.0" class="0x030200"/>
      <pci busid="0003:00:00.0" class="0x030200"/>
      <pci busid="0002:00:00.0" class="0x030200"/>
    </pci>
  </cpu>
</system>
`

func machine(numa map[string]int) *pci.Tree {
	tree := &pci.Tree{Functions: map[pci.Address]*pci.Function{}}
	for text, node := range numa {
		addr := pci.MustParseAddress(text)
		tree.Functions[addr] = &pci.Function{Address: addr, NUMANode: node, Root: "pci" + text[:7]}
	}
	return tree
}

func TestPlaces(t *testing.T) {
	file, err := Parse(strings.NewReader(twoSwitches), "ndv5.xml")
	if err != nil {
		t.Fatal(err)
	}
	tree := machine(map[string]int{
		"0001:00:00.0": 0, "0002:00:00.0": -1, "0003:00:00.0": 0, "0101:00:00.0": 0, "0102:00:00.0": 1, "0102:00:00.1": 1, "0102:01:00.0": 1,
	})
	places, problems := file.Places(tree)
	if diff := cmp.Diff([]string{
		"ndv5.xml:12: busid 0009:00:00.0: this machine has no such PCI function; the element is ignored",
		"ndv5.xml:13: busid 0003:00:00.0: the file says NUMA node 1, the machine says 0 for 0003:00:00.0; the element is ignored",
		"ndv5.xml:14: busid 0002:00:00.0: 0002:00:00.0 is in line 10 already; the element is ignored",
	}, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	first, second := pci.MustParseAddress("ffffffff:00:00.0"), pci.MustParseAddress("ffffffff:00:00.3")
	want := map[pci.Address]topology.FilePlace{
		pci.MustParseAddress("0001:00:00.0"): {NUMANode: 0, Bridges: []pci.Address{first}},
		pci.MustParseAddress("0101:00:00.0"): {NUMANode: 0, Bridges: []pci.Address{first}},
		pci.MustParseAddress("0002:00:00.0"): {NUMANode: 1, Bridges: []pci.Address{second}},
		pci.MustParseAddress("0102:00:00.0"): {NUMANode: 1, Bridges: []pci.Address{second}},
		pci.MustParseAddress("0102:00:00.1"): {NUMANode: 1, Bridges: []pci.Address{second}},
	}
	if diff := cmp.Diff(want, places); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"truncated":  {"<system>\n<cpu numaid=\"0\">\n", "x.xml:3: XML syntax error on line 3: unexpected EOF"},
		"other root": {"<topology/>", "x.xml:1: no system element: this is no NCCL topology file"},
		"empty":      {"", "x.xml:1: no system element: this is no NCCL topology file"},
		"no busid":   {"<system>\n<pci/>", "x.xml:2: pci element without busid"},
		"numaid":     {"<system>\n\n<cpu numaid=\"x\">", `x.xml:3: cpu element: numaid "x" is not a number`},
		"deep":       {"<system>" + strings.Repeat("<pci busid=\"a\">", 70), "x.xml:1: elements are nested more than 64 deep"},
		"many":       {"<system>" + strings.Repeat("<a/>", maxElements), "x.xml:1: more than 16384 elements"},
		"large":      {"<system>" + strings.Repeat(" ", MaxSize), "x.xml: more than 1048576 bytes"},
	} {
		if _, err := Parse(strings.NewReader(c.text), "x.xml"); err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(twoSwitches)
	f.Add(`<system><pci busid="0000:10"><pci busid="x"/></pci></system>`)
	if files, _ := filepath.Glob("../../testdata/nccl/*.xml"); len(files) > 0 {
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	tree := machine(map[string]int{"0001:00:00.0": 0, "0000:10:00.0": 1})
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse(strings.NewReader(text), "fuzz.xml")
		if err != nil {
			return
		}
		places, _ := file.Places(tree)
		for addr := range places {
			if tree.Functions[addr] == nil {
				t.Errorf("%s is not on the machine", addr)
			}
		}
	})
}
