// Package topograph reads the rails that NVIDIA's topograph found by looking at
// the cabling (ConfigMap topograph-nic-rails, one record per node).
package topograph

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

// SchemaVersion is the version of the record that is understood.
const SchemaVersion = "v1alpha1"

// record is one value of the ConfigMap; its key is the node's name. Fields that
// are of no use here are left to topograph to extend.
type record struct {
	SchemaVersion string              `json:"schemaVersion"`
	NodeUID       string              `json:"nodeUID"`
	NICs          map[string][]string `json:"nics"` // PCI address to names of rails
}

// Rails returns the rail number of every NIC in a record. nodeUID, unless empty,
// must be that of the record: a record of an earlier node of the same name says
// nothing about this one's cables. Entries that cannot be used are left out, each
// with one sentence.
func Rails(data []byte, nodeUID string) (map[pci.Address]int, []error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, []error{fmt.Errorf("rail record: %w", err)}
	}
	if r.SchemaVersion != SchemaVersion {
		return nil, []error{fmt.Errorf("rail record: schemaVersion %q, want %s", r.SchemaVersion, SchemaVersion)}
	}
	if nodeUID != "" && r.NodeUID != nodeUID {
		return nil, []error{fmt.Errorf("rail record: it is of the node with UID %q, this one has %q: run topograph again", r.NodeUID, nodeUID)}
	}
	rails := map[pci.Address]int{}
	var errs []error
	for _, text := range slices.Sorted(maps.Keys(r.NICs)) {
		addr, err := pci.ParseAddress(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("rail record: %w", err))
			continue
		}
		names := r.NICs[text]
		if len(names) != 1 {
			errs = append(errs, fmt.Errorf("rail record: %s is on %d rails %v, want one", text, len(names), names))
			continue
		}
		rail, err := number(names[0])
		if err != nil {
			errs = append(errs, fmt.Errorf("rail record: %s: %w", text, err))
			continue
		}
		rails[addr] = rail
	}
	return rails, errs
}

// number reads the number at the end of a rail's name, "rail0" or "leaf-3".
func number(name string) (int, error) {
	digits := name[len(strings.TrimRight(name, "0123456789")):]
	n, err := strconv.ParseUint(digits, 10, 15)
	if err != nil {
		return 0, fmt.Errorf("rail %q does not end in a number", name)
	}
	return int(n), nil
}
