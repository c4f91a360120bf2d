// Package deviceconfigs reads testdata/deviceconfigs: what a user may write in the
// parameters of our driver, and what is said of each mistake. Two judge them, the
// agent in Go and the chart's admission policy in CEL, and must say the same.
package deviceconfigs

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// Config is one configuration of the table.
type Config struct {
	Name string `json:"name"`
	// NIC are the fields of a NICConfig as they stand in JSON, or JSON is all of it.
	NIC  string `json:"nic"`
	JSON string `json:"json"`
	// Faults are what follows the path of the parameters in each error of the agent;
	// none for a configuration that is right.
	Faults []string `json:"faults"`
	// Policy are what the policy says where that differs.
	Policy *[]string `json:"policy"`
}

// Parameters returns the opaque parameters.
func (c Config) Parameters() []byte {
	const head = `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig"`
	switch {
	case c.JSON != "":
		return []byte(c.JSON)
	case c.NIC != "":
		return []byte(head + "," + c.NIC + "}")
	}
	return []byte(head + "}")
}

// PolicyFaults are what the policy says.
func (c Config) PolicyFaults() []string {
	if c.Policy != nil {
		return *c.Policy
	}
	return c.Faults
}

// Read returns the table. root is the path to the root of the module.
func Read(t testing.TB, root string) (configs []Config) {
	t.Helper()
	path := filepath.Join(root, "testdata/deviceconfigs/table.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &configs); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	names := map[string]bool{}
	for _, c := range configs {
		if c.Name == "" || names[c.Name] || (c.NIC != "" && c.JSON != "") {
			t.Fatalf("%s: %+v has no name of its own, or nic and json", path, c)
		}
		names[c.Name] = true
	}
	return configs
}
