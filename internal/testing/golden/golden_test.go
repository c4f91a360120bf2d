package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Errorf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }

func TestExpect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "want")
	if err := os.WriteFile(file, []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for got, fails := range map[string]bool{"a\nb\n": false, "a\nb": true, "": true} {
		r := &recorder{TB: t}
		Expect(r, file, got)
		if (r.failure != "") != fails {
			t.Errorf("%q: failure %q, want one: %t", got, r.failure, fails)
		}
	}
}
