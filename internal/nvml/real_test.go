package nvml_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/topodra/topodra/internal/nvml"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
)

// library puts a libnvidia-ml.so.1 with this source into a driver root.
func library(t *testing.T, source string) (driverRoot string) {
	t.Helper()
	driverRoot = t.TempDir()
	dir := filepath.Join(driverRoot, "usr/lib64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cc := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "-")
	cc.Stdin = strings.NewReader(source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return driverRoot
}

func TestRefuseIfReal(t *testing.T) {
	const shutdown = "int nvmlShutdown(void) { return 0; }\n"
	root := library(t, shutdown+"int nvmlInit_v2(void) { return 0; }")
	err := nvml.RefuseIfReal(root)
	if err == nil || !strings.Contains(err.Error(), "remove --simulate") || !strings.Contains(err.Error(), root) {
		t.Errorf("a real NVML answers: %v", err)
	}
	for name, root := range map[string]string{
		"no library":        t.TempDir(),
		"driver not loaded": library(t, shutdown+"int nvmlInit_v2(void) { return 9; }"),
		"something else":    library(t, "int unrelated;"),
		"our double":        simulatetest.BuildDriver(t, "dgx-a100").DriverRoot,
		"an unusable library": func() string {
			root := library(t, "")
			if err := os.WriteFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), []byte("text"), 0o755); err != nil {
				t.Fatal(err)
			}
			return root
		}(),
	} {
		if err := nvml.RefuseIfReal(root); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
