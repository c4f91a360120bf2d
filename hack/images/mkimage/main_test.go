package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// untar returns the content and the headers of a tar by name, and fails on a name that comes twice.
func untar(t *testing.T, content []byte) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if headers[h.Name] != nil {
			t.Errorf("%s is in the tar twice", h.Name)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name], headers[h.Name] = b, h
	}
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"tool": 0o700, "conf/a": 0o600, "conf/sub/b": 0o644} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	pack := func(out string) []byte {
		err := run([]string{
			"-o", filepath.Join(dir, out), "-ref", "example.org/tool:1", "-arch", "arm64", "-entrypoint", "/bin/tool -v",
			"-env", "A=b", "-link", "tool=/bin/alias",
			filepath.Join(dir, "tool") + ":/bin/tool", filepath.Join(dir, "conf") + ":/etc/conf",
		})
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, out))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	content := pack("1.tar")
	if !bytes.Equal(content, pack("2.tar")) {
		t.Error("the same input gave different bytes")
	}

	files, _ := untar(t, content)
	// Every blob is followed from the index by its digest, as an importer does.
	blob := func(d descriptor) []byte {
		b := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if digest(b) != d.Digest || len(b) != d.Size {
			t.Fatalf("blob %s has digest %s and %d bytes, its descriptor says %d", d.Digest, digest(b), len(b), d.Size)
		}
		return b
	}
	decode := func(b []byte, v any) {
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
	}
	var index, m manifest
	var c config
	decode(files["index.json"], &index)
	decode(blob(index.Manifests[0]), &m)
	decode(blob(*m.Config), &c)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "example.org/tool:1" {
		t.Errorf("reference is %q", got)
	}
	if c.Architecture != "arm64" || strings.Join(c.Config.Entrypoint, " ") != "/bin/tool -v" || c.Config.Env[1] != "A=b" {
		t.Errorf("config is %+v", c)
	}
	if c.RootFS.DiffIDs[0] != m.Layers[0].Digest {
		t.Errorf("diff id %s is not the uncompressed layer %s", c.RootFS.DiffIDs[0], m.Layers[0].Digest)
	}

	layerFiles, headers := untar(t, blob(m.Layers[0]))
	for name, mode := range map[string]int64{
		"bin/": 0o755, "bin/tool": 0o744, "bin/alias": 0o777, "etc/conf/a": 0o644, "etc/conf/sub/b": 0o644, "tmp/": 0o1777, "proc/": 0o755,
	} {
		if h := headers[name]; h == nil || h.Mode != mode {
			t.Errorf("%s: want mode %o, have %+v", name, mode, h)
		}
	}
	if got := string(layerFiles["etc/conf/sub/b"]); got != "conf/sub/b" {
		t.Errorf("etc/conf/sub/b holds %q", got)
	}
	if h := headers["bin/alias"]; h != nil && h.Linkname != "tool" {
		t.Errorf("bin/alias points to %q", h.Linkname)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.tar")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no reference":        {[]string{"-o", out}, "-ref"},
		"relative image path": {[]string{"-o", out, "-ref", "r", "x:y"}, "absolute path"},
		"missing file":        {[]string{"-o", out, "-ref", "r", dir + "/none:/x"}, "no such file"},
		"device":              {[]string{"-o", out, "-ref", "r", "/dev/null:/x"}, "neither a file nor a folder"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(tc.args); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("want an error with %q, got %v", tc.want, err)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
