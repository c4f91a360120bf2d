// Package golden compares what a test got with a file of the repository.
package golden

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Expect fails the test when got is not the content of file. With UPDATE=1
// in the environment, which go test ./... gives to all packages, it writes the
// file first.
func Expect(t testing.TB, file, got string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got; UPDATE=1 writes it):\n%s", file, diff)
	}
}
