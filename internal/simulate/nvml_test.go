package simulate_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/testing/golden"
)

// A function of NVML that go-nvml calls and the library lacks ends the process.
func TestDoubleExportsWhatGoNVMLCalls(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	sources, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	for _, source := range sources {
		data, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`C\.(nvml\w+)\(`).FindAllSubmatch(data, -1) {
			called[string(match[1])] = true
		}
	}
	if len(called) < 400 {
		t.Fatalf("only %d calls found in %s", len(called), dir)
	}

	library, err := elf.Open(simulatetest.NVMLDouble(t))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	symbols, err := library.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range symbols {
		if symbol.Section != elf.SHN_UNDEF {
			delete(called, symbol.Name)
		}
	}
	for name := range called {
		t.Errorf("add ABSENT(%s) to nvml/absent.h", name)
	}
}

func TestFacts(t *testing.T) {
	root := simulatetest.BuildDriver(t, "gb200-nvl72-baremetal")
	data, err := os.ReadFile(root.NVMLFacts)
	if err != nil {
		t.Fatal(err)
	}
	golden.Expect(t, "testdata/gb200-nvl72-baremetal.facts", string(data))
}
