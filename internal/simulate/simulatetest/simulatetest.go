// Package simulatetest helps tests to use simulated machines.
package simulatetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/topodra/topodra/internal/simulate"
)

// ModuleRoot returns the directory of the main module's go.mod, also for tests of
// the modules that lie in it.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/topodra/topodra\n")) {
			return dir
		}
	}
	t.Fatal("no go.mod of github.com/topodra/topodra above the working directory")
	return ""
}

// Slugs returns the names of all machines in testdata/machines.
func Slugs(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(ModuleRoot(t), "testdata/machines/*/machine.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no machine files in testdata/machines: %v", err)
	}
	var slugs []string
	for _, f := range files {
		slugs = append(slugs, filepath.Base(filepath.Dir(f)))
	}
	return slugs
}

// Load reads a machine of testdata/machines.
func Load(t testing.TB, slug string) *simulate.Machine {
	t.Helper()
	m, err := simulate.Load(filepath.Join(ModuleRoot(t), "testdata/machines", slug, "machine.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Build builds a machine of testdata/machines in a directory of the test.
func Build(t testing.TB, slug string) simulate.Root {
	t.Helper()
	root, err := Load(t, slug).Build(t.TempDir(), NVMLDouble(t))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// BuildDriver builds only the driver root of a machine, which is faster.
func BuildDriver(t testing.TB, slug string) simulate.Root {
	t.Helper()
	root, err := Load(t, slug).BuildDriver(t.TempDir(), NVMLDouble(t))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// NVMLDouble returns the path of the double of libnvidia-ml.so.1. It is compiled
// once for each state of its source and kept in the user's cache directory.
//
// One process can use one machine's NVML at a time: the one that was opened
// last. Tests that list GPUs must not run in parallel.
func NVMLDouble(t testing.TB) string {
	t.Helper()
	source := filepath.Join(ModuleRoot(t), "internal/simulate/nvml")
	hash := sha256.New()
	for _, name := range []string{"abi.h", "absent.h", "build.sh", "nvml.c"} {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(data)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "topodra", "nvml-double")
	library := filepath.Join(cache, fmt.Sprintf("%x.so", hash.Sum(nil)[:8]))
	if _, err := os.Stat(library); err == nil {
		return library
	}

	if _, err := exec.LookPath("cc"); err != nil {
		t.Fatalf("no C compiler for the NVML double: install gcc (make test does it): %v", err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	// Test binaries of several packages run at once: compile aside, then rename.
	dir, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "double.so")
	if msg, err := exec.Command(filepath.Join(source, "build.sh"), out).CombinedOutput(); err != nil {
		t.Fatalf("build the NVML double: %v\n%s", err, msg)
	}
	if err := os.Rename(out, library); err != nil {
		t.Fatal(err)
	}
	return library
}
