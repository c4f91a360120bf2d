package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/report"
	"github.com/topodra/topodra/internal/simulate"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/topology"
)

// expectation is what was published about a machine, apart from its tree.
type expectation struct {
	Matrix   map[string]map[string]topology.Class `json:"matrix"`
	PCIeRoot map[pci.Address]*string              `json:"pcieRoot"`
	BestNICs map[string]struct {
		NICs  []string        `json:"nics"`
		Class *topology.Class `json:"class"`
		Basis string          `json:"basis"`
	} `json:"bestNics"`
}

// zoo is one machine: what was published and what the command says.
type zoo struct {
	slug     string
	file     *simulate.Machine
	expected expectation
	got      report.Report
	gpus     map[string]report.GPU  // by "GPU0"
	nics     map[string]pci.Address // by id in the machine file
	complete bool                   // every bridge is known, or how many there are

	wrong   []string
	checked map[string]int
}

// TestZoo compares "topo -o json" of every machine with what was published. What
// differs for a good reason is in testdata/machines/deviations.yaml.
func TestZoo(t *testing.T) {
	root := simulatetest.ModuleRoot(t)
	var deviations map[string]string
	readYAML(t, filepath.Join(root, "testdata/machines/deviations.yaml"), &deviations)
	checked := map[string]int{}
	for _, slug := range simulatetest.Slugs(t) {
		z := openZoo(t, root, slug, checked)
		z.matrix()
		z.roots()
		z.bestNICs()
		z.roles()
		reason, listed := deviations[slug]
		switch {
		case listed && len(z.wrong) == 0:
			t.Errorf("%s agrees with what was published: remove it from deviations.yaml", slug)
		case listed && reason == "":
			t.Errorf("%s is in deviations.yaml without a reason", slug)
		case !listed && len(z.wrong) > 0:
			t.Errorf("%s differs from what was published:\n  %s", slug, strings.Join(z.wrong, "\n  "))
		}
		delete(deviations, slug)
	}
	for slug := range deviations {
		t.Errorf("deviations.yaml lists %s, which does not exist", slug)
	}
	// A test that finds nothing to compare would pass.
	for what, least := range map[string]int{"cells": 180, "roots": 460, "best": 130, "roles": 300} {
		if checked[what] < least {
			t.Errorf("only %d %s compared, want at least %d", checked[what], what, least)
		}
	}
	t.Logf("compared: %v", checked)
}

func openZoo(t *testing.T, root, slug string, checked map[string]int) *zoo {
	t.Helper()
	dir := filepath.Join(root, "testdata/machines", slug)
	z := &zoo{slug: slug, gpus: map[string]report.GPU{}, nics: map[string]pci.Address{}, checked: checked}
	z.file = simulatetest.Load(t, slug)
	z.complete = z.file.Tree != "partial"
	readYAML(t, filepath.Join(dir, "expected.yaml"), &z.expected)
	var stdout, stderr bytes.Buffer
	c := topo{source: machineFile{path: filepath.Join(dir, "machine.yaml")}, format: "json", color: "auto"}
	if err := c.run(t.Context(), &stdout, &stderr); err != nil || stderr.Len() > 0 {
		t.Fatalf("%s: %v %s", slug, err, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), &z.got); err != nil {
		t.Fatalf("%s: %v", slug, err)
	}
	for _, g := range z.got.GPUs {
		z.gpus["GPU"+strconv.Itoa(g.Index)] = g
	}
	for _, n := range z.file.NICs {
		if n.Address != nil {
			z.nics[n.ID] = pci.MustParseAddress(*n.Address)
		}
	}
	return z
}

func readYAML(t *testing.T, file string, to any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func (z *zoo) differs(format string, args ...any) {
	z.wrong = append(z.wrong, fmt.Sprintf(format, args...))
}

// matrix compares cells. Ours may be unknown where the tree is known in part only.
func (z *zoo) matrix() {
	for _, name := range slices.Sorted(maps.Keys(z.expected.Matrix)) {
		gpu, ok := z.gpus[name]
		if !ok {
			continue // its address was not published
		}
		row := z.expected.Matrix[name]
		for _, id := range slices.Sorted(maps.Keys(row)) {
			nic, ok := z.nics[id]
			if !ok {
				continue
			}
			got := z.got.Distances[gpu.Address][nic]
			if got == topology.Unknown && !z.complete {
				continue
			}
			z.checked["cells"]++
			if got != row[id] {
				z.differs("%s to %s: %s, published %s", name, id, got, row[id])
			}
		}
	}
}

// roots compares root names; one that is not known must not be made up.
func (z *zoo) roots() {
	got := map[pci.Address]*string{}
	for _, g := range z.got.GPUs {
		got[g.Address] = g.PCIeRoot
	}
	for _, n := range z.got.NICs {
		got[n.Address] = n.PCIeRoot
	}
	for addr, want := range z.expected.PCIeRoot {
		ours, ok := got[addr]
		if !ok {
			continue // a function that is neither GPU nor NIC
		}
		z.checked["roots"]++
		switch known := want != nil && strings.HasPrefix(*want, "pci"); {
		case known && ours == nil:
			z.differs("pcieRoot of %s: null, published %s", addr, *want)
		case known && *ours != *want:
			z.differs("pcieRoot of %s: %s, published %s", addr, *ours, *want)
		case !known && ours != nil:
			z.differs("pcieRoot of %s: %s, but nobody published it", addr, *ours)
		}
	}
}

// bestNICs compares the nearest NICs. On a machine known in part ours may be null.
func (z *zoo) bestNICs() {
	for _, name := range slices.Sorted(maps.Keys(z.expected.BestNICs)) {
		want := z.expected.BestNICs[name]
		gpu, ok := z.gpus[name]
		if !ok || slices.ContainsFunc(want.NICs, func(id string) bool { _, ok := z.nics[id]; return !ok }) {
			continue
		}
		if gpu.Nearest == nil && !z.complete && len(want.NICs) > 0 {
			continue
		}
		z.checked["best"]++
		var ids []string
		class := topology.Unknown
		if gpu.Nearest != nil {
			class = gpu.Nearest.Distance
			for id, addr := range z.nics {
				if slices.Contains(gpu.Nearest.NICs, addr) {
					ids = append(ids, id)
				}
			}
		}
		slices.Sort(ids)
		slices.Sort(want.NICs)
		if !slices.Equal(ids, want.NICs) {
			z.differs("nearest to %s: %v, by %s %v", name, ids, want.Basis, want.NICs)
		} else if want.Class != nil && class != *want.Class {
			z.differs("nearest to %s: %s, by %s %s", name, class, want.Basis, *want.Class)
		}
	}
}

// roles wants the NICs of other roles excluded with a reason, and no others.
func (z *zoo) roles() {
	ours := map[pci.Address]report.NIC{}
	for _, n := range z.got.NICs {
		ours[n.Address] = n
	}
	for _, n := range z.file.NICs {
		addr, ok := z.nics[n.ID]
		if !ok {
			continue
		}
		z.checked["roles"]++
		got, ok := ours[addr]
		compute := n.Role == "" || n.Role == "compute"
		switch {
		case !ok:
			z.differs("NIC %s is missing", n.ID)
		case got.Published != compute:
			z.differs("NIC %s with role %q: published is %t", n.ID, n.Role, got.Published)
		case got.Published != (got.Reason == nil):
			z.differs("NIC %s: published is %t with the wrong reason", n.ID, got.Published)
		}
	}
}
