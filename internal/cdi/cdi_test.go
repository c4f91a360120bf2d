package cdi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/topodra/topodra/internal/rdma"
)

func TestBuild(t *testing.T) {
	env := func(s ...string) *Edits { return &Edits{Env: s} }
	for name, test := range map[string]struct {
		devices map[string]*Edits
		want    string
		err     string
	}{
		"nothing":         {nil, "", ""},
		"only empty ones": {map[string]*Edits{"a": {}, "b": nil}, "", ""},
		"sorted, without empty ones": {
			map[string]*Edits{"b": env("B=1"), "a": env("A=1"), "c": {}},
			`{"cdiVersion":"0.3.0","kind":"topodra.dev/claim","devices":[` +
				`{"name":"uid-a","containerEdits":{"env":["A=1"]}},{"name":"uid-b","containerEdits":{"env":["B=1"]}}],"containerEdits":{}}`, "",
		},
		"host path asks for a newer version": {
			map[string]*Edits{"a": {DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/x", HostPath: "/fake/dev/x"}}}},
			`{"cdiVersion":"0.5.0","kind":"topodra.dev/claim","devices":[{"name":"uid-a","containerEdits":{"deviceNodes":[{"path":"/dev/x","hostPath":"/fake/dev/x"}]}}],"containerEdits":{}}`, "",
		},
		"bad name":  {map[string]*Edits{"a/b": env("A=1")}, "", `CDI device of a/b`},
		"bad edits": {map[string]*Edits{"a": env("A")}, "", `invalid environment variable "A"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Build("uid", test.devices)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got, want := ID("uid", "gpu-0000-1b-00-0"), "topodra.dev/claim=uid-gpu-0000-1b-00-0"; got != want {
		t.Errorf("ID %s, want %s", got, want)
	}
}

func TestStore(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "run", "cdi")}
	if claims, err := s.List(); err != nil || len(claims) != 0 {
		t.Fatalf("without a directory: %v, %v", claims, err)
	}
	if err := s.Remove("uid"); err != nil {
		t.Fatal(err)
	}
	content, err := Build("uid", map[string]*Edits{"gpu-1": {Env: []string{"A=1"}}, "nic-1": {Env: []string{"B=1"}}})
	if err != nil {
		t.Fatal(err)
	}
	ensure := func(want bool) {
		t.Helper()
		if written, err := s.Ensure("uid", content); err != nil || written != want {
			t.Fatalf("written %v, %v; want %v", written, err, want)
		}
	}
	ensure(true)
	ensure(false)
	if err := os.WriteFile(s.Path("uid"), content[:10], 0o600); err != nil {
		t.Fatal(err)
	}
	ensure(true)
	for _, other := range []string{"topodra.dev_metadata_uid_gpu.json", "nvidia.yaml", "topodra.dev-claim_x.123.tmp"} {
		if err := os.WriteFile(filepath.Join(s.Dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	claims, err := s.List()
	if diff := cmp.Diff([]types.UID{"uid"}, claims); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	devices, err := s.Devices("uid")
	if diff := cmp.Diff([]string{"gpu-1", "nic-1"}, devices); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := s.Remove("uid"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Devices("uid"); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

// TestRuntimeAppliesDevices lets the code of container runtimes apply our file to
// containers that ask for one device, for both, and for the same one twice.
func TestRuntimeAppliesDevices(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Device nodes that every machine has stand in for those of a GPU and a NIC.
	edits := func(env, node string) *Edits {
		return &Edits{Env: []string{env, "COMMON=1"}, DeviceNodes: []*DeviceNode{{Path: "/dev/" + node, HostPath: "/dev/null"}}}
	}
	content, err := Build("uid", map[string]*Edits{"gpu": edits("GPU=1", "nvidia0"), "nic": edits("NIC=1", "uverbs0")})
	if err != nil {
		t.Fatal(err)
	}
	store := Store{Dir: filepath.Join(root, "cdi")}
	if _, err := store.Ensure("uid", content); err != nil {
		t.Fatal(err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(store.Dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ ask, env, nodes []string }{
		{[]string{"gpu"}, []string{"GPU=1", "COMMON=1"}, []string{"/dev/nvidia0"}},
		{[]string{"nic"}, []string{"NIC=1", "COMMON=1"}, []string{"/dev/uverbs0"}},
		{[]string{"gpu", "nic"}, []string{"GPU=1", "COMMON=1", "NIC=1"}, []string{"/dev/nvidia0", "/dev/uverbs0"}},
		{[]string{"gpu", "gpu"}, []string{"GPU=1", "COMMON=1"}, []string{"/dev/nvidia0"}},
	} {
		var ids []string
		for _, name := range test.ask {
			ids = append(ids, ID("uid", name))
		}
		spec := &oci.Spec{}
		if _, err := cache.InjectDevices(spec, ids...); err != nil {
			t.Fatal(err)
		}
		var nodes []string
		for _, node := range spec.Linux.Devices {
			nodes = append(nodes, node.Path)
		}
		if diff := cmp.Diff(test.env, spec.Process.Env); diff != "" {
			t.Errorf("%v: environment (-want +got):\n%s", test.ask, diff)
		}
		if diff := cmp.Diff(test.nodes, nodes); diff != "" {
			t.Errorf("%v: device nodes (-want +got):\n%s", test.ask, diff)
		}
	}
}

func TestStoreLeavesNoTemporaryFile(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	// A directory in the place of the file makes the rename fail.
	if err := os.MkdirAll(filepath.Join(s.Path("uid"), "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure("uid", []byte("{}")); err == nil {
		t.Error("no error")
	}
	entries, _ := os.ReadDir(s.Dir)
	if len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}

func TestCharDevices(t *testing.T) {
	ports := func(linkLayer string) []rdma.Port { return []rdma.Port{{Number: 1, LinkLayer: linkLayer}} }
	infiniBand := &rdma.Device{Name: "mlx5_0", Uverbs: "uverbs0", Umad: []string{"umad0"}, Issm: []string{"issm0"}, Ports: ports("InfiniBand")}
	roce := &rdma.Device{Name: "mlx5_0", Uverbs: "uverbs0", Ports: ports("Ethernet")}
	efa := &rdma.Device{Name: "rdmap0s31", Uverbs: "uverbs0", Ports: ports("Unspecified")}
	for name, test := range map[string]struct {
		device   *rdma.Device
		nodes    []string // in /dev/infiniband
		hostRoot string
		want     []string // path=host path
		err      string
	}{
		"InfiniBand": {infiniBand, []string{"uverbs0", "uverbs1", "rdma_cm", "umad0", "umad1", "issm0"}, "/",
			[]string{"uverbs0=", "rdma_cm=", "umad0=", "issm0="}, ""},
		"umad and issm are optional": {infiniBand, []string{"uverbs0", "rdma_cm"}, "/", []string{"uverbs0=", "rdma_cm="}, ""},
		"RoCE":                       {roce, []string{"uverbs0", "rdma_cm"}, "/", []string{"uverbs0=", "rdma_cm="}, ""},
		"RoCE without rdma_cm":       {roce, []string{"uverbs0"}, "/", nil, "/dev/infiniband/rdma_cm does not exist: load the kernel module rdma_ucm"},
		"EFA without rdma_cm":        {efa, []string{"uverbs0"}, "/", []string{"uverbs0="}, ""},
		"EFA with rdma_cm":           {efa, []string{"uverbs0", "rdma_cm"}, "/", []string{"uverbs0=", "rdma_cm="}, ""},
		"no uverbs node":             {roce, []string{"rdma_cm"}, "/", nil, "/dev/infiniband/uverbs0 does not exist: load the kernel module ib_uverbs"},
		"no uverbs device":           {&rdma.Device{Name: "mlx5_0"}, []string{"rdma_cm"}, "/", nil, "mlx5_0 has no uverbs device"},
		"other root": {roce, []string{"uverbs0", "rdma_cm"}, "/fake/root",
			[]string{"uverbs0=/fake/root/dev/infiniband/uverbs0", "rdma_cm=/fake/root/dev/infiniband/rdma_cm"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, infiniband), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, node := range test.nodes {
				if err := os.WriteFile(filepath.Join(root, infiniband, node), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			edits, err := CharDevices{Root: root, HostRoot: test.hostRoot}.Edits(test.device)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, node := range edits.DeviceNodes {
				got = append(got, strings.TrimPrefix(node.Path, infiniband+"/")+"="+node.HostPath)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRDMAPorts(t *testing.T) {
	for _, test := range []struct {
		devices []*rdma.Device
		want    string
	}{
		{nil, ""},
		{[]*rdma.Device{{Name: "mlx5_1"}}, "mlx5_1:1"},
		{[]*rdma.Device{{Name: "a", Ports: []rdma.Port{{Number: 1}, {Number: 2}}}, {Name: "b", Ports: []rdma.Port{{Number: 1}}}}, "a:1,a:2,b:1"},
	} {
		if got := RDMAPorts(test.devices); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
