package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
)

const header = "apiVersion: topodra.dev/v1alpha1\nkind: DriverConfig\n"

func TestParseDriverConfig(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want func(*DriverConfig) // change to the defaults
		errs []string
	}{
		"defaults": {text: header, want: func(*DriverConfig) {}},
		"everything": {
			text: header + `
devices: [nic]
nicSelector: nic.rateGbps >= 200
allowSoftwareRDMA: true
topologyFile: /etc/nccl/topology.xml
rails:
- {rail: 0, address: "0000:1d:00.0"}
- {rail: 1, interface: eth1}
- {rail: 2, cidr: 10.2.0.0/16}
nodeLabels: {rack: [example.com/rack]}
`,
			want: func(c *DriverConfig) {
				c.Devices = []DeviceKind{NICKind}
				c.NICSelector = "nic.rateGbps >= 200"
				c.AllowSoftwareRDMA = true
				c.TopologyFile = "/etc/nccl/topology.xml"
				c.Rails = []RailRule{{Rail: 0, Address: "0000:1d:00.0"}, {Rail: 1, Interface: "eth1"}, {Rail: 2, CIDR: "10.2.0.0/16"}}
				c.NodeLabels.Rack = []string{"example.com/rack"}
			},
		},
		"JSON":           {text: `{"apiVersion":"topodra.dev/v1alpha1","kind":"DriverConfig"}`, want: func(*DriverConfig) {}},
		"empty":          {text: "", errs: []string{`apiVersion: "" is not known, want "topodra.dev/v1alpha1"`}},
		"no YAML":        {text: "a: [", errs: []string{"driver configuration: "}},
		"unknown fields": {text: header + "nicSelektor: x\nrails: [{rail: 1, interface: a, nics: 3}]\n", errs: []string{"nicSelektor: unknown field", "rails[0].nics: unknown field"}},
		"repeated field": {text: header + "devices: [gpu]\ndevices: [nic]\n", errs: []string{"devices"}},
		"wrong type":     {text: header + "rails: {rail: 1}\n", errs: []string{"rails"}},
		"wrong kind":     {text: "apiVersion: topodra.dev/v1alpha1\nkind: GPUConfig\n", errs: []string{`kind: "GPUConfig" is not known, want DriverConfig`}},
		"faults, all at once": {
			text: header + `
devices: [gpu, gpu, triple]
pairs: {farthest: NEAR, nics: -1, nicSharing: 0}
nicSelector: "  "
topologyFile: topology.xml
rails:
- {rail: 0}
- {rail: 0, interface: a, cidr: 10.0.0.0/8}
- {rail: -1, interface: a}
- {rail: 0, address: 1d}
- {rail: 0, cidr: 10.0.0.1}
nodeLabels: {rack: ["a b"]}
`,
			errs: []string{
				`devices[1]: "gpu" is listed twice`, `devices[2]: "triple" is not known, want pair, gpu or nic`,
				`pairs.farthest: "NEAR" is no distance`, "pairs.nics: -1 is negative", "pairs.nicSharing: 0 pairs cannot use one NIC",
				"nicSelector: only blanks", `topologyFile: "topology.xml" is not an absolute path`,
				"rails[0]: 0 of address, interface and cidr are set, want exactly one", "rails[1]: 2 of address",
				"rails[2].rail: -1 is negative", `rails[3].address: PCI address "1d"`, `rails[4].cidr: "10.0.0.1" is not a network`,
				`nodeLabels.rack[0]: "a b" is not a label key`,
			},
		},
		"no devices": {text: header + "devices: []\n", errs: []string{"devices: nothing would be published"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseDriverConfig([]byte(test.text))
			if test.want == nil {
				for _, want := range test.errs {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want %q in it", err, want)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := DefaultDriverConfig()
			test.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeDeviceConfig(t *testing.T) {
	for text, want := range map[string]DeviceConfig{
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"GPUConfig"}`:               &GPUConfig{},
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig"}`:               &NICConfig{},
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"none"}`: &NICConfig{RDMA: RDMANone},
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","interface":"rail%d","mtu":4200,"routes":[{"to":"10.0.0.0/8","via":"10.1.0.1"}]}`: &NICConfig{
			Interface: "rail%d", MTU: 4200, Routes: []Route{{To: "10.0.0.0/8", Via: "10.1.0.1"}}},
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"GPUConfig","x":1}`:         nil,
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"host"}`: nil,
		`{"apiVersion":"topodra.dev/v1alpha1","kind":"DriverConfig"}`:            nil,
		`{"kind":"NICConfig"}`: nil,
		``:                     nil,
		`7`:                    nil,
	} {
		got, err := DecodeDeviceConfig(runtime.RawExtension{Raw: []byte(text)}, "here")
		switch {
		case want == nil && (err == nil || !strings.HasPrefix(err.Error(), "here")):
			t.Errorf("%s: got %v, want an error that begins with the path", text, err)
		case want != nil && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != nil:
			ignoreType := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".TypeMeta" }, cmp.Ignore())
			if diff := cmp.Diff(want, got, ignoreType); diff != "" {
				t.Errorf("%s (-want +got):\n%s", text, diff)
			}
		}
	}
}

// TestPlacementOmitsWhatDoesNotApply: a GPU has no rail, which is something else
// than an unknown rail.
func TestPlacementOmitsWhatDoesNotApply(t *testing.T) {
	got, err := json.Marshal(DevicePlacement{Name: "gpu-0000-1b-00-0", Type: GPUKind, Request: "gpu", PCIAddress: "0000:1b:00.0", AffinityGroup: Unknown, GPUUUID: "GPU-1"})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"gpu-0000-1b-00-0","type":"gpu","request":"gpu","pciAddress":"0000:1b:00.0","affinityGroup":"unknown","gpuUUID":"GPU-1"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
