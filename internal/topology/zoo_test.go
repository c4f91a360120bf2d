package topology_test

import (
	"path/filepath"
	"testing"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/simulate"
)

// zoo loads every machine of testdata/machines.
func zoo(t testing.TB) map[string]*machine.Snapshot {
	t.Helper()
	files, err := filepath.Glob("../../testdata/machines/*/machine.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no machine files: %v", err)
	}
	zoo := map[string]*machine.Snapshot{}
	for _, file := range files {
		m, err := simulate.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		zoo[m.Slug] = s
	}
	return zoo
}
