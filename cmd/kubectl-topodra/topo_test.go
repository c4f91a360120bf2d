package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/report"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
)

func TestParse(t *testing.T) {
	parse := func(args ...string) (topo, error) {
		var a topoArgs
		c := topoCommandFor(&a)
		if err := c.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		return a.parse(c.Flags().Args())
	}
	for _, test := range []struct {
		args string
		want topo
		err  string
	}{
		{args: "", want: topo{source: thisMachine{}, format: "matrix", color: "auto"}},
		{args: "-o svg", want: topo{source: thisMachine{}, format: "svg", color: "auto"}},
		{args: "node-1 --color never", want: topo{source: clusterNode{node: "node-1"}, format: "matrix", color: "never"}},
		{
			args: "node-1 --kubeconfig k --context c -n gpu",
			want: topo{source: clusterNode{node: "node-1", cluster: cluster{kubeconfig: "k", context: "c", namespace: "gpu"}}, format: "matrix", color: "auto"},
		},
		{args: "--sysfs d -o json", want: topo{source: sysfsCopy{dir: "d"}, format: "json", color: "auto"}},
		{args: "--machine=m.yaml -owide", want: topo{source: machineFile{path: "m.yaml"}, format: "wide", color: "auto"}},
		{args: "--snapshot s.tar.gz --config c.yaml", want: topo{source: snapshotFile{"s.tar.gz", rules{"c.yaml"}}, format: "matrix", color: "auto"}},
		{args: "a --config c.yaml", err: "--config does not go with a node: its agent has a configuration of its own"},
		{args: "-o xml", err: `output format "xml" is none of matrix, wide, json, yaml, dot, svg`},
		{args: "--color yes", err: `--color "yes" is none of auto, always, never`},
		{args: "a b", err: "topo shows one node, not 2: a, b"},
		{args: "a --machine m", err: "NODE and --machine name different machines: give one of them"},
		{args: "--sysfs s --machine m", err: "--sysfs and --machine name different machines: give one of them"},
	} {
		got, err := parse(strings.Fields(test.args)...)
		if message(err) != test.err {
			t.Errorf("%q: error %q, want %q", test.args, message(err), test.err)
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(topo{}, clusterNode{}, cluster{}, sysfsCopy{}, machineFile{}, snapshotFile{}, thisMachine{}, rules{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.args, diff)
		}
	}
	if _, err := parse(""); message(err) != "the node name is empty" {
		t.Errorf("empty node: %v", err)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func machinePath(t testing.TB, slug string) string {
	return filepath.Join(simulatetest.ModuleRoot(t), "testdata/machines", slug, "machine.yaml")
}

// execute runs the command as main does.
func execute(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&errs)
	err = c.ExecuteContext(context.Background())
	return out.String(), errs.String(), err
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{}, 0},
		{[]string{"topo", "--help"}, 0},
		{[]string{"topo", "--machine", machinePath(t, "vm-domain-10000")}, 0},
		{[]string{"topo", "--machine", "/nonexistent"}, exitError},
		{[]string{"topo", "--sysfs", t.TempDir()}, exitError},
		{[]string{"topo", "-o", "xml"}, exitUsage},
		{[]string{"topo", "--nonsense"}, exitUsage},
		{[]string{"topo", "a", "b"}, exitUsage},
		{[]string{"tpo"}, exitUsage},
	} {
		stdout, _, err := execute(test.args...)
		if got := exitCode(err); got != test.want {
			t.Errorf("%q: exit code %d, want %d: %v", test.args, got, test.want, err)
		}
		if err != nil && stdout != "" {
			t.Errorf("%q fails and writes to stdout:\n%s", test.args, stdout)
		}
		if strings.Contains(message(err), "\n") {
			t.Errorf("%q: an error of several lines: %v", test.args, err)
		}
	}
}

// A copy of sysfs shows the tree and no NVML facts.
func TestSysfsCopy(t *testing.T) {
	built := simulatetest.Build(t, "h200-4cx7-snc-baremetal")
	var fromFile, fromSysfs report.Report
	for _, run := range []struct {
		to   *report.Report
		args []string
	}{
		{&fromFile, []string{"--machine", machinePath(t, "h200-4cx7-snc-baremetal")}},
		{&fromSysfs, []string{"--sysfs", built.Sysfs}},
	} {
		stdout, stderr, err := execute(append([]string{"topo", "-o", "json"}, run.args...)...)
		if err != nil || stderr != "" {
			t.Fatal(err, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), run.to); err != nil {
			t.Fatal(err)
		}
	}
	if len(fromSysfs.Missing) != 1 || !strings.HasPrefix(fromSysfs.Missing[0], "nvml: ") {
		t.Errorf("missing: %q", fromSysfs.Missing)
	}
	if fromSysfs.Simulated || fromSysfs.Machine != built.Sysfs {
		t.Errorf("machine %q, simulated %t", fromSysfs.Machine, fromSysfs.Simulated)
	}
	if diff := cmp.Diff(fromFile.Distances, fromSysfs.Distances); diff != "" {
		t.Errorf("distances (-file +sysfs):\n%s", diff)
	}
	for i, g := range fromSysfs.GPUs {
		if g.UUID != nil || g.Name != nil || g.Index != i || g.Address != fromFile.GPUs[i].Address {
			t.Errorf("GPU %d: %+v", i, g)
		}
	}
}

// Virtual functions of a GPU and GPUs of other vendors are not in the list.
func TestGPUsOfPCI(t *testing.T) {
	for slug, want := range map[string]int{"rtxpro6000-gpu-vfs": 1, "workstation-gtx1070-vega": 1, "corona-8xmi50": 0, "asus-esc8000a-4xrtx6000ada": 4} {
		s, err := simulatetest.Load(t, slug).Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := len(pciGPUs(s.PCI)); got != want {
			t.Errorf("%s: %d GPUs, want %d", slug, got, want)
		}
	}
}

func TestThisMachine(t *testing.T) {
	if _, err := os.Stat("/sys/bus/pci/devices"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("this machine has no PCI bus")
	}
	t.Setenv("NODE_NAME", "here")
	stdout, _, err := execute("topo")
	if err != nil || !strings.HasPrefix(stdout, "here: ") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// TestSpeed holds the bound of 100 ms for every machine. The best of some runs
// counts, as other tests run at the same time.
func TestSpeed(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is slower by an order of magnitude")
	}
	for _, slug := range simulatetest.Slugs(t) {
		best := time.Hour
		for range 5 {
			start := time.Now()
			if _, _, err := execute("topo", "-o", "json", "--machine", machinePath(t, slug)); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		if best > 100*time.Millisecond {
			t.Errorf("%s takes %v", slug, best)
		}
	}
}

func BenchmarkTopoJSON(b *testing.B) {
	for b.Loop() {
		if _, _, err := execute("topo", "-o", "json", "--machine", machinePath(b, "aws-p5-48xl")); err != nil {
			b.Fatal(err)
		}
	}
}
