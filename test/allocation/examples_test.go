package allocation

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/template"
)

// example is a file of examples/claims.
type example struct {
	templates map[string]resourceapi.ResourceClaimSpec
	pods      []examplePod
}

type examplePod struct {
	name string
	spec v1.PodSpec
}

func readExample(t *testing.T, name string) example {
	t.Helper()
	path := filepath.Join(simulatetest.ModuleRoot(t), "examples/claims", name)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	e := example{templates: map[string]resourceapi.ResourceClaimSpec{}}
	documents := utilyaml.NewDocumentDecoder(file)
	defer documents.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := documents.Read(buffer)
		if err == io.EOF {
			return e
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := e.add(buffer[:n]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func (e *example) add(text []byte) error {
	var kind struct{ Kind string }
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "":
		return nil // only comments
	case "ResourceClaimTemplate":
		object, err := template.Decode(text)
		if err != nil {
			return err
		}
		e.templates[object.Name] = object.Spec.Spec
		return template.Check(object)
	case "Pod":
		var pod v1.Pod
		if err := yaml.UnmarshalStrict(text, &pod); err != nil {
			return err
		}
		e.pods = append(e.pods, examplePod{pod.Name, pod.Spec})
	case "Deployment":
		var d appsv1.Deployment
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			return err
		}
		for range *d.Spec.Replicas {
			e.pods = append(e.pods, examplePod{d.Name, d.Spec.Template.Spec})
		}
	default:
		return fmt.Errorf("nobody allocates a %s", kind.Kind)
	}
	return nil
}

// claims are those that the resourceclaim controller makes for a pod.
func (e example) claims(pod examplePod) (claims []*resourceapi.ResourceClaim, err error) {
	named := map[string]bool{}
	for _, c := range pod.spec.Containers {
		for _, claim := range c.Resources.Claims {
			named[claim.Name] = true
		}
	}
	for _, c := range pod.spec.ResourceClaims {
		spec, ok := e.templates[*c.ResourceClaimTemplateName]
		if !ok || !named[c.Name] {
			return nil, fmt.Errorf("claim %s of pod %s: template in the file: %v, in a container: %v", c.Name, pod.name, ok, named[c.Name])
		}
		claims = append(claims, Claim(spec, pod.name+"-"+c.Name))
	}
	return claims, nil
}

// Each file of examples/claims on each machine: its pods get what docs/claims.md
// says where that exists.
func TestExamples(t *testing.T) {
	root := simulatetest.ModuleRoot(t)
	files, err := filepath.Glob(filepath.Join(root, "examples/claims/*.yaml"))
	if err != nil || len(files) != len(exampleResults) {
		t.Fatalf("%d files, %d expectations: %v", len(files), len(exampleResults), err)
	}
	s := NewScheduler()
	for _, file := range files {
		name := filepath.Base(file)
		for slug, want := range exampleResults[name] {
			e := readExample(t, name)
			var got []string
			for _, pod := range e.pods {
				got = append(got, onFirstNode(t, s, e, pod, slug, &nodesOf{}))
			}
			got = slices.Compact(got)
			if text := strings.Join(got, "; "); text != want {
				t.Errorf("%s on %s: every pod alone gets %q, want %q", name, slug, text, want)
			}
		}
	}
}

// exampleResults are what a pod of each file gets, by machine: pairs, distances
// and rails.
var exampleResults = map[string]map[string]string{
	"one-pair.yaml": {
		"kvm-8xh200-pxb-switch": "1 pair PIX rails [0]",
		"aws-p5-48xl":           "1 pair PIX rails []",
		"azure-nd-gb300-v6":     "1 pair NODE rails [0]",
		"dgx-2":                 "pending",
	},
	"nic-config.yaml": {
		"kvm-8xh200-pxb-switch": "1 pair PIX rails [0]",
	},
	"tensor-parallel.yaml": {
		"kvm-8xh200-pxb-switch":   "4 pairs PIX rails [0 1 2 3]",
		"aws-p5-48xl":             "4 pairs PIX rails []",
		"h200-4cx7-snc-baremetal": "4 pairs PIX rails [0 1 2 3]",
		"gb300-cx8-datadirect":    "pending",
	},
	"claim-per-rank.yaml": {
		"kvm-8xh200-pxb-switch": "4 pairs PIX rails [0 1 2 3]",
		"ibm-ac922-lassen":      "pending",
	},
	"rails.yaml": {
		"kvm-8xh200-pxb-switch": "4 pairs PIX rails [0 1 2 3]",
		"azure-nd-gb300-v6":     "4 pairs NODE rails [0 1 2 3]",
		"aws-p5-48xl":           "pending", // four NICs to a pair, each on a rail of its own
	},
	"prefill-decode.yaml": {
		"kvm-8xh200-pxb-switch": "4 pairs PIX rails [0 1 2 3]",
		"azure-ndv5-h100":       "4 pairs NODE rails [0 1 2 3]",
	},
	"no-switch.yaml": {
		"kvm-8xh200-pxb-switch":   "2 pairs PIX rails [0 1]",
		"h200-4cx7-snc-baremetal": "2 pairs PIX rails [0 1]",
		"azure-nd-gb300-v6":       "2 pairs NODE rails [0 1]",
		"aws-p4d-24xl":            "2 pairs PHB rails [0 1]",
		"kvm-8xh200-flat-q35":     "2 pairs PHB rails [0 1]",
	},
}

// nodesOf are nodes of one machine type, with what is in use on each.
type nodesOf struct{ inUse []InUse }

// onFirstNode lets a pod have the first node with room, and says what it gets.
func onFirstNode(t *testing.T, s *Scheduler, e example, pod examplePod, slug string, nodes *nodesOf) string {
	t.Helper()
	claims, err := e.claims(pod)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, slug, everything)
	if nodes.inUse == nil {
		nodes.inUse = []InUse{{}, {}}
	}
	for i := range nodes.inUse {
		results, err := s.Allocate(t.Context(), n.Slices, nodes.inUse[i], claims...)
		if err != nil {
			t.Fatal(err)
		}
		if results != nil {
			nodes.inUse[i].Insert(Devices(results)...)
			return describe(n, Devices(results))
		}
	}
	return "pending"
}

func describe(n *Node, devices []string) string {
	var distances []string
	rails := []int64{}
	for _, name := range devices {
		a := n.Device(name).Attributes
		distances = append(distances, *a["topodra.dev/distance"].StringValue)
		if rail := a["topodra.dev/rail"].IntValue; rail != nil {
			rails = append(rails, *rail)
		}
	}
	slices.Sort(distances)
	slices.Sort(rails)
	pairs := "pairs"
	if len(devices) == 1 {
		pairs = "pair"
	}
	return fmt.Sprintf("%d %s %s rails %v", len(devices), pairs, strings.Join(slices.Compact(distances), ","), rails)
}

// Prefill and decode end up on two nodes, on the same rails.
func TestPrefillAndDecodeMatch(t *testing.T) {
	e := readExample(t, "prefill-decode.yaml")
	s, nodes := NewScheduler(), &nodesOf{}
	var got []string
	for _, pod := range e.pods {
		got = append(got, onFirstNode(t, s, e, pod, "kvm-8xh200-pxb-switch", nodes))
	}
	if want := []string{"4 pairs PIX rails [0 1 2 3]", "4 pairs PIX rails [0 1 2 3]"}; !slices.Equal(got, want) {
		t.Errorf("they get %q, want %q", got, want)
	}
	for i, inUse := range nodes.inUse {
		if len(inUse) != 4 {
			t.Errorf("node %d has %d pairs in use, want the 4 of one pod", i, len(inUse))
		}
	}
}

// The template in each example is what "kubectl topodra template" writes.
func TestExamplesAreWritten(t *testing.T) {
	root := simulatetest.ModuleRoot(t)
	two := func(low, high int) template.Rails { return template.Rails{{low, high}} }
	for name, o := range map[string]template.Options{
		"one-pair.yaml":        {Name: "one-pair", Pairs: 1},
		"tensor-parallel.yaml": {Name: "tensor-parallel-4", Pairs: 4},
		"claim-per-rank.yaml":  {Name: "rank", Pairs: 1},
		"rails.yaml":           {Name: "rails-0-3", Pairs: 4, Rails: two(0, 3)},
		"prefill-decode.yaml":  {Name: "rails-0-3", Pairs: 4, Rails: two(0, 3)},
		"no-switch.yaml":       {Name: "near-as-possible", Pairs: 2, Prefer: mustClasses(t, "PIX,PXB,NODE")},
	} {
		o.Driver = template.Topodra
		want, err := template.YAML(o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(root, "examples/claims", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, append([]byte("---\n"), append(want, "---\n"...)...)) {
			t.Errorf("examples/claims/%s does not contain what this writes: %s", name, o.Command())
		}
	}
}

func mustClasses(t *testing.T, text string) template.Classes {
	t.Helper()
	classes, err := template.ParseClasses(text)
	if err != nil {
		t.Fatal(err)
	}
	return classes
}
