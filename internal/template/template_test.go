package template

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/internal/testing/golden"
	"github.com/topodra/topodra/internal/topology"
)

// kept are templates whose text is in testdata. test/allocation allocates each.
var kept = []Options{
	{Name: "one", Driver: Topodra, Pairs: 1},
	{Name: "four-near", Driver: Topodra, Pairs: 4, Distance: topology.PXB, Namespace: "llm"},
	{Name: "four-on-rails", Driver: Topodra, Pairs: 4, Rails: Rails{{0, 3}}},
	{Name: "two-on-odd-rails", Driver: Topodra, Pairs: 2, Rails: Rails{{1, 1}, {5, 7}}},
	{Name: "four-on-a-node", Driver: Topodra, Pairs: 4, SameNUMA: true},
	{Name: "ladder", Driver: Topodra, Pairs: 2, Prefer: Classes{topology.PIX, topology.PXB, topology.NODE}},
	{Name: "ladder-with-all", Driver: Topodra, Pairs: 2, Prefer: Classes{topology.PXB, topology.NODE}, Rails: Rails{{0, 3}}, SameNUMA: true},
	{Name: "split-one", Driver: Split, Pairs: 1, NICClass: DefaultNICClass},
	{Name: "split-four", Driver: Split, Pairs: 4, NICClass: "dranet-rdma", SameNUMA: true},
}

func TestGolden(t *testing.T) {
	for _, o := range kept {
		t.Run(o.Name, func(t *testing.T) {
			got, err := YAML(o)
			if err != nil {
				t.Fatal(err)
			}
			golden.Expect(t, filepath.Join("testdata", o.Name+".yaml"), string(got))
		})
	}
}

// What is printed is what a person would type: no field without a value, and
// nothing that the API does not know.
func TestPlain(t *testing.T) {
	for _, o := range kept {
		text, err := YAML(o)
		if err != nil {
			t.Fatal(err)
		}
		object, err := Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if object.Name != o.Name || object.Namespace != o.Namespace || object.Kind != "ResourceClaimTemplate" {
			t.Errorf("%s: is %s %s/%s", o.Name, object.Kind, object.Namespace, object.Name)
		}
		for _, noise := range []string{"null", "status", "{}", "[]", "creationTimestamp", "\t", " \n", "\n\n"} {
			if strings.Contains(string(text), noise) {
				t.Errorf("%s contains %q:\n%s", o.Name, noise, text)
			}
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") && len(line) > 121 {
				t.Errorf("%s: a comment is too long to read: %s", o.Name, line)
			}
		}

		asJSON, err := JSON(text)
		if err != nil {
			t.Fatal(err)
		}
		var fromYAML, fromJSON any
		if err := yaml.Unmarshal(text, &fromYAML); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(asJSON, &fromJSON); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
			t.Errorf("%s: JSON says something else (-YAML +JSON):\n%s", o.Name, diff)
		}
	}
}

// All that Validate lets pass, the API takes.
func TestAllThatIsValidIsAccepted(t *testing.T) {
	accepted := 0
	for _, driver := range []Driver{Topodra, Split} {
		for _, pairs := range []int{1, 2, 16, 17, 32} {
			for _, distance := range []topology.Class{topology.Unknown, topology.PIX, topology.SYS} {
				for _, prefer := range []Classes{nil, {topology.PIX, topology.PXB, topology.PHB, topology.NODE, topology.SYS}} {
					for _, rails := range []Rails{nil, {{0, 0}}, {{0, maxRail}, {1, 1}, {2, 2}, {3, 3}, {4, 5}, {6, 7}}} {
						for _, same := range []bool{false, true} {
							o := Options{Name: "x", Driver: driver, Pairs: pairs, Distance: distance, Prefer: prefer, Rails: rails, SameNUMA: same}
							if driver == Split {
								o.NICClass = DefaultNICClass
							}
							if o.Validate() != nil {
								continue
							}
							accepted++
							if _, err := YAML(o); err != nil {
								t.Errorf("%+v: %v", o, err)
							}
						}
					}
				}
			}
		}
	}
	if accepted < 50 {
		t.Errorf("only %d combinations are valid", accepted)
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Options){
		`--name "Four": a lowercase RFC 1123 subdomain`:                             func(o *Options) { o.Name = "Four" },
		`--namespace "A": a lowercase RFC 1123 label`:                               func(o *Options) { o.Namespace = "A" },
		`--pairs 0: a claim is for at least one pair`:                               func(o *Options) { o.Pairs = 0 },
		`--pairs 33: a claim gets at most 32 devices; use several claims`:           func(o *Options) { o.Pairs = 33 },
		`--pairs 17: a claim has room for 32 requests, which is 16 pairs`:           func(o *Options) { *o = split(*o); o.Pairs = 17 },
		`--prefer and --distance contradict each other: the last class of --prefer`: func(o *Options) { o.Distance, o.Prefer = topology.PXB, Classes{topology.PIX} },
		`--prefer NODE,PIX: PIX is not farther than NODE and would never be tried`:  func(o *Options) { o.Prefer = Classes{topology.NODE, topology.PIX} },
		`--prefer PIX,PIX: PIX is not farther than PIX and would never be tried`:    func(o *Options) { o.Prefer = Classes{topology.PIX, topology.PIX} },
		`--same-numa and SYS contradict each other: a pair at SYS`:                  func(o *Options) { o.SameNUMA, o.Distance = true, topology.SYS },
		`--nic-class is for --driver split`:                                         func(o *Options) { o.NICClass = "dra.net" },
		`--nic-class "x y": a lowercase RFC 1123 subdomain`:                         func(o *Options) { *o = split(*o); o.NICClass = "x y" },
		`--driver split knows no distance`:                                          func(o *Options) { *o = split(*o); o.Distance = topology.PIX },
		`--driver split knows no rails`:                                             func(o *Options) { *o = split(*o); o.Rails = Rails{{0, 0}} },
		`--driver "nvidia" is none of topodra, split`:                               func(o *Options) { o.Driver = "nvidia" },
	} {
		o := Options{Name: "x", Driver: Topodra, Pairs: 1}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&o)
		err := o.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v:\n got %v\nwant %s", o, err, want)
		}
		if text, err := YAML(o); err == nil {
			t.Errorf("%+v is written all the same:\n%s", o, text)
		}
	}
}

func split(o Options) Options {
	o.Driver, o.NICClass = Split, DefaultNICClass
	return o
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Rails{"3": {{3, 3}}, "0-3": {{0, 3}}, "0, 2,4-7": {{0, 0}, {2, 2}, {4, 7}}, "1023": {{1023, 1023}}} {
		got, err := ParseRails(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
		if again := got.String(); again != strings.ReplaceAll(text, " ", "") {
			t.Errorf("%q becomes %q", text, again)
		}
	}
	for _, text := range []string{"", "a", "-1", "1-", "3-0", "0-1024", "1,,2", "0x1"} {
		if got, err := ParseRails(text); err == nil {
			t.Errorf("rails %q are %v", text, got)
		}
	}
	if got, err := ParseClasses("PIX, NODE"); err != nil || got.String() != "PIX,NODE" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "pix", "unknown", "PIX,,PXB"} {
		if got, err := ParseClasses(text); err == nil {
			t.Errorf("classes %q are %v", text, got)
		}
	}
}

// Check finds what the API server would refuse, at its place.
func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*resourceapi.DeviceClaim){
		`spec.spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value`: func(d *resourceapi.DeviceClaim) {
			d.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device."}}}
		},
		`spec.spec.devices.requests[0].exactly.selectors[0].cel.expression: Forbidden`: func(d *resourceapi.DeviceClaim) {
			costly := `device.attributes["a"].all(x, device.attributes["b"].all(y, device.attributes["c"].all(z, x == y && y == z && device.attributes["d"].all(u, u == x))))`
			d.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: costly}}}
		},
		`spec.spec.devices.requests[0].exactly.selectors[0].cel.expression: Too long`: func(d *resourceapi.DeviceClaim) {
			d.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `"` + strings.Repeat("x", 10240) + `" == ""`}}}
		},
		`spec.spec.devices.requests: Too many`: func(d *resourceapi.DeviceClaim) {
			for i := range 32 {
				r := *d.Requests[0].DeepCopy()
				r.Name += strings.Repeat("x", i+1)
				d.Requests = append(d.Requests, r)
			}
		},
		`spec.spec.devices.requests[1]: Duplicate value`: func(d *resourceapi.DeviceClaim) { d.Requests = append(d.Requests, d.Requests[0]) },
		`spec.spec.devices.constraints[0].matchAttribute: Invalid value: ""`: func(d *resourceapi.DeviceClaim) {
			d.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To[resourceapi.FullyQualifiedName]("")}}
		},
	} {
		text, err := YAML(Options{Name: "x", Driver: Topodra, Pairs: 1})
		if err != nil {
			t.Fatal(err)
		}
		object, err := Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		change(&object.Spec.Spec.Devices)
		if err := Check(object); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if _, err := Decode([]byte("spec: {spec: {devices: {request: []}}}")); err == nil || !strings.Contains(err.Error(), `unknown field "request"`) {
		t.Errorf("an unknown field: %v", err)
	}
}
