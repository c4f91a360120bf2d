package topograph

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/internal/pci"
)

func TestRails(t *testing.T) {
	data := []byte(`{"schemaVersion":"v1alpha1","nodeUID":"u1","railSource":"host-lldp","gpus":{},
		"nics":{"0000:3b:00.0":["rail0"],"0000:5e:00.0":["leaf-12"],"0000:86:00.0":["rail1","rail2"],"0000:af:00.0":["blue"],"nic7":["rail3"]}}`)
	rails, errs := Rails(data, "u1")
	want := map[pci.Address]int{pci.MustParseAddress("0000:3b:00.0"): 0, pci.MustParseAddress("0000:5e:00.0"): 12}
	if diff := cmp.Diff(want, rails); diff != "" {
		t.Errorf("rails (-want +got):\n%s", diff)
	}
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	if diff := cmp.Diff([]string{
		"rail record: 0000:86:00.0 is on 2 rails [rail1 rail2], want one",
		`rail record: 0000:af:00.0: rail "blue" does not end in a number`,
		`rail record: PCI address "nic7": want DDDD:BB:DD.F`,
	}, texts); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	for data, want := range map[string]string{
		`{"schemaVersion":"v2"}`:                      `rail record: schemaVersion "v2", want v1alpha1`,
		`{"schemaVersion":"v1alpha1","nodeUID":"u0"}`: `rail record: it is of the node with UID "u0", this one has "u1": run topograph again`,
		`{`: "rail record: unexpected end of JSON input",
	} {
		if rails, errs := Rails([]byte(data), "u1"); rails != nil || len(errs) != 1 || fmt.Sprint(errs[0]) != want {
			t.Errorf("%s: %v, %v", data, rails, errs)
		}
	}
	if rails, errs := Rails([]byte(`{"schemaVersion":"v1alpha1","nodeUID":"u0","nics":{"0000:3b:00.0":["rail7"]}}`), ""); len(rails) != 1 || errs != nil {
		t.Errorf("without a node UID: %v, %v", rails, errs)
	}
}
