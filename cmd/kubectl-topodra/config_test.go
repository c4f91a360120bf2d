package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/topodra/topodra/internal/archive"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/report"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
)

// write puts a file into a directory and returns its path.
func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func reportOf(t *testing.T, args ...string) (*report.Report, string) {
	t.Helper()
	stdout, stderr, err := execute(append([]string{"topo", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	r := &report.Report{}
	if err := json.Unmarshal([]byte(stdout), r); err != nil {
		t.Fatal(err)
	}
	return r, stderr
}

// A vendor's NCCL file says what the virtual tree hides: the groups that were
// published for Azure's and AWS's machines.
func TestVendorFile(t *testing.T) {
	compared := 0
	for _, slug := range simulatetest.Slugs(t) {
		var expected struct {
			GroupsPublished []struct {
				GPUs  []int    `json:"gpus"`
				NICs  []string `json:"nics"`
				Basis string   `json:"basis"`
			} `json:"groupsPublished"`
		}
		readYAML(t, filepath.Join(filepath.Dir(machinePath(t, slug)), "expected.yaml"), &expected)
		if len(expected.GroupsPublished) == 0 || !strings.Contains(expected.GroupsPublished[0].Basis, "NCCL") {
			continue
		}
		m := simulatetest.Load(t, slug)
		gpus, nics := map[int]string{}, map[string]string{}
		for _, g := range m.GPUs {
			gpus[g.Index] = *g.Address
		}
		for _, n := range m.NICs {
			nics[n.ID] = *n.Address
		}
		var xml strings.Builder
		xml.WriteString("<system version=\"1\">\n")
		for i, group := range expected.GroupsPublished {
			fmt.Fprintf(&xml, "<cpu numaid=\"-1\"><pci busid=\"ffff:ff:%02x.0\" class=\"0x060400\">\n", i+1)
			for _, g := range group.GPUs {
				fmt.Fprintf(&xml, "<pci busid=\"%s\" class=\"0x030200\"/>\n", gpus[g])
			}
			for _, n := range group.NICs {
				fmt.Fprintf(&xml, "<pci busid=\"%s\" class=\"0x020700\"/>\n", nics[n])
			}
			xml.WriteString("</pci></cpu>\n")
		}
		xml.WriteString("</system>\n")
		dir := t.TempDir()
		config := write(t, dir, "config.yaml", "apiVersion: topodra.dev/v1alpha1\nkind: DriverConfig\ntopologyFile: "+write(t, dir, "topo.xml", xml.String())+"\n")
		r, stderr := reportOf(t, "--machine", machinePath(t, slug), "--config", config)
		if stderr != "" {
			t.Errorf("%s: %s", slug, stderr)
		}
		nearest := map[string][]string{}
		for _, g := range r.GPUs {
			if g.Nearest != nil {
				for _, n := range g.Nearest.NICs {
					nearest[g.Address.String()] = append(nearest[g.Address.String()], n.String())
				}
			}
		}
		for _, group := range expected.GroupsPublished {
			var want []string
			for _, n := range group.NICs {
				want = append(want, nics[n])
			}
			slices.Sort(want)
			for _, g := range group.GPUs {
				compared++
				if !slices.Equal(nearest[gpus[g]], want) {
					t.Errorf("%s: GPU%d is near %v, want %v", slug, g, nearest[gpus[g]], want)
				}
			}
		}
	}
	if compared < 24 {
		t.Errorf("only %d GPUs compared", compared)
	}
}

// What the administrator says shows in the report, and what contradicts the
// machine is said on stderr.
func TestConfig(t *testing.T) {
	dir := t.TempDir()
	config := write(t, dir, "config.yaml", `apiVersion: topodra.dev/v1alpha1
kind: DriverConfig
nicSelector: 'device.attributes["resource.kubernetes.io"].numaNode == 0'
rails: [{rail: 5, address: "0000:67:00.0"}]
pairs: {farthest: PHB}
topologyFile: `+write(t, dir, "topo.xml", "<system><pci busid=\"0000:99:00.0\"/></system>\n")+"\n")
	r, stderr := reportOf(t, "--machine", machinePath(t, "kvm-8xh200-pxb-switch"), "--config", config)
	if want := "topo.xml:1: busid 0000:99:00.0: this machine has no such PCI function; the element is ignored"; !strings.Contains(stderr, want) {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	for _, n := range r.NICs {
		if n.Published != (*n.NUMANode == 0) {
			t.Errorf("NIC %s of NUMA node %d: published %v", n.Address, *n.NUMANode, n.Published)
		}
		if n.Address == pci.MustParseAddress("0000:67:00.0") && (n.Rail == nil || *n.Rail != 5 || *n.RailSource != "config") {
			t.Errorf("NIC %s: rail %v", n.Address, n.Rail)
		}
	}
	if len(r.Pairs) != 4 {
		t.Errorf("%d pairs, want those of NUMA node 0", len(r.Pairs))
	}
	for _, g := range r.GPUs {
		if (g.NoPair == nil) != (*g.NUMANode == 0) {
			t.Errorf("GPU %s of NUMA node %d: %v", g.Address, *g.NUMANode, g.NoPair)
		}
	}
	_, _, err := execute("topo", "--machine", machinePath(t, "dgx-a100"), "--config", write(t, dir, "bad.yaml", "kind: x\ncolour: red\n"))
	if err == nil || !strings.Contains(err.Error(), "bad.yaml") || !strings.Contains(err.Error(), "colour") {
		t.Errorf("a bad configuration: %v", err)
	}
}

// A snapshot shows what the machine shows.
func TestSnapshotFile(t *testing.T) {
	for _, slug := range []string{"aws-p5-48xl", "azure-nd-gb300-v6"} {
		scanner, err := simulatetest.Load(t, slug).Scanner()
		if err != nil {
			t.Fatal(err)
		}
		recording := archive.Capture(t.Context(), scanner)
		var file strings.Builder
		if err := recording.Write(&file); err != nil {
			t.Fatal(err)
		}
		got, _ := reportOf(t, "--snapshot", write(t, t.TempDir(), "s.tar.gz", file.String()))
		want, _ := reportOf(t, "--machine", machinePath(t, slug))
		if len(got.GPUs) != len(want.GPUs) || len(got.Pairs) != len(want.Pairs) || len(want.Pairs) == 0 {
			t.Errorf("%s: %d GPUs and %d pairs, want %d and %d", slug, len(got.GPUs), len(got.Pairs), len(want.GPUs), len(want.Pairs))
		}
		for i := range want.Pairs {
			if !slices.Equal(got.Pairs[i].NICs, want.Pairs[i].NICs) {
				t.Errorf("%s: pair %s has %v, want %v", slug, got.Pairs[i].Name, got.Pairs[i].NICs, want.Pairs[i].NICs)
			}
		}
	}
}
