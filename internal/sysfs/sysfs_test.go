package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var nodes = map[string]Node{
	"devices/pci0000:10/0000:15:00.0/class":     {Data: []byte("0x020000\n")},
	"devices/pci0000:10/0000:15:00.0/numa_node": {Data: []byte("-1\n")},
	"devices/pci0000:10/0000:15:00.0/empty":     {},
	"devices/pci0000:10/0000:15:00.0/long":      {Data: []byte(strings.Repeat("x", 10000))},
	"bus/pci/devices/0000:15:00.0":              {Link: "../../../devices/pci0000:10/0000:15:00.0"},
	"bus/pci/devices/loop":                      {Link: "loop"},
}

// sources returns the same tree in a directory and in memory.
func sources(t *testing.T) map[string]FS {
	root := t.TempDir()
	for name, n := range nodes {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if n.Link != "" {
			err = os.Symlink(n.Link, path)
		} else {
			err = os.WriteFile(path, n.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_, recorded := Record(Dir(root))
	return map[string]FS{"directory": Dir(root), "memory": Memory(nodes), "recorder": recorded}
}

// What was read can be read again from the record, and nothing else is in it.
func TestRecord(t *testing.T) {
	r, f := Record(Memory(nodes))
	read := func(f FS) []string {
		names, _ := f.List("bus/pci/devices")
		class, _ := f.Attr("bus/pci/devices", "0000:15:00.0", "class")
		link, _ := f.Link("bus/pci/devices", "0000:15:00.0")
		_, err := f.Attr("bus/pci/devices", "0000:15:00.0", "vendor")
		return append(names, class, link, fmt.Sprint(errors.Is(err, fs.ErrNotExist)))
	}
	want := read(f)
	if diff := cmp.Diff(want, read(Memory(r.Nodes()))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var names []string
	for name := range r.Nodes() {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"bus/pci/devices/0000:15:00.0", "bus/pci/devices/0000:15:00.0/class", "bus/pci/devices/loop"}, names); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestSourcesAgree(t *testing.T) {
	const dev = "bus/pci/devices"
	for name, f := range sources(t) {
		if got, err := f.Attr(dev, "0000:15:00.0", "class"); got != "0x020000" || err != nil {
			t.Errorf("%s: class %q, %v", name, got, err)
		}
		if got, err := f.Uint(24, dev, "0000:15:00.0", "class"); got != 0x020000 || err != nil {
			t.Errorf("%s: class %x, %v", name, got, err)
		}
		if _, err := f.Uint(16, dev, "0000:15:00.0", "class"); err == nil {
			t.Errorf("%s: 0x020000 fits 16 bits", name)
		}
		if got, err := f.Int(dev, "0000:15:00.0", "numa_node"); got != -1 || err != nil {
			t.Errorf("%s: numa_node %d, %v", name, got, err)
		}
		if _, err := f.Int(dev, "0000:15:00.0", "empty"); err == nil {
			t.Errorf("%s: an empty attribute is a number", name)
		}
		if got, err := f.Bytes(9000, dev, "0000:15:00.0", "long"); len(got) != 9000 || err != nil {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if got, err := f.Link(dev, "0000:15:00.0"); got != "../../../devices/pci0000:10/0000:15:00.0" || err != nil {
			t.Errorf("%s: link %q, %v", name, got, err)
		}
		if _, err := f.Link(dev, "0000:15:00.0", "class"); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s: a file is a link: %v", name, err)
		}
		if _, err := f.Attr(dev, "0000:15:00.0", "missing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: missing attribute: %v", name, err)
		}
		if _, err := f.Attr(dev, "loop", "class"); !errors.Is(err, syscall.ELOOP) {
			t.Errorf("%s: loop: %v", name, err)
		}
		got, err := f.List(dev)
		if diff := cmp.Diff([]string{"0000:15:00.0", "loop"}, got); diff != "" || err != nil {
			t.Errorf("%s: list %v\n%s", name, err, diff)
		}
		got, err = f.List(dev, "0000:15:00.0")
		if diff := cmp.Diff([]string{"class", "empty", "long", "numa_node"}, got); diff != "" || err != nil {
			t.Errorf("%s: list through a link %v\n%s", name, err, diff)
		}
		if got, err := f.List("class/infiniband"); len(got) != 0 || err != nil {
			t.Errorf("%s: a class that the kernel lacks: %v, %v", name, got, err)
		}
	}
}

// A copy may come from anybody: what is no regular file must not block.
func TestFIFO(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(root, "class"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Dir(root).Attr("class"); got != "" {
		t.Errorf("a FIFO says %q, %v", got, err)
	}
}
