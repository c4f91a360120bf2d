// Package layout makes small sysfs trees for tests.
package layout

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Layout maps paths to contents. A content "-> target" makes a symbolic link.
type Layout map[string]string

// PCI adds a PCI function at a path below devices/, with its attributes.
func (l Layout) PCI(path string, attrs Layout) Layout {
	name := path[strings.LastIndexByte(path, '/')+1:]
	l["bus/pci/devices/"+name] = "-> ../../../devices/" + path
	for attr, value := range attrs {
		l["devices/"+path+"/"+attr] = value
	}
	return l
}

// Class adds a device of a class below a device path, with its attributes.
func (l Layout) Class(class, path, name string, attrs Layout) Layout {
	dir := "devices/" + path + "/" + class + "/" + name
	l["class/"+class+"/"+name] = "-> ../../" + dir
	for attr, value := range attrs {
		l[dir+"/"+attr] = value
	}
	return l
}

// Write makes the tree in a temporary directory and returns it.
func (l Layout) Write(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range maps.All(l) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
