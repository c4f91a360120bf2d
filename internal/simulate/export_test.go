package simulate

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Listing describes what Build would make below part ("sys", "driver", "dev"),
// one line for each file, link and device.
func (m *Machine) Listing(part string) (string, error) {
	t, err := m.tree(nil)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(t)) {
		rel, ok := strings.CutPrefix(name, part+"/")
		if !ok {
			continue
		}
		switch n := t[name]; {
		case n.dir:
		case n.link != "":
			fmt.Fprintf(&b, "%s -> %s\n", rel, n.link)
		case n.char:
			fmt.Fprintf(&b, "%s device\n", rel)
		default:
			fmt.Fprintf(&b, "%s = %q\n", rel, n.data)
		}
	}
	return b.String(), nil
}

// CheckPaths returns an error for a path that leads out of the tree and for a
// link that leads nowhere.
func (m *Machine) CheckPaths() error {
	t, err := m.tree(nil)
	if err != nil {
		return err
	}
	for name, n := range t {
		if path.Clean(name) != name || !filepath.IsLocal(name) {
			return fmt.Errorf("path %q", name)
		}
		if n.link == "" {
			continue
		}
		if _, ok := t[path.Join(path.Dir(name), n.link)]; !ok {
			return fmt.Errorf("link %s -> %s leads nowhere", name, n.link)
		}
	}
	return nil
}

// SysfsDir returns where the link of a PCI address leads below /sys.
func (m *Machine) SysfsDir(address string) (string, error) {
	t, err := m.tree(nil)
	if err != nil {
		return "", err
	}
	dir := "sys/bus/pci/devices"
	return path.Join(dir, t[dir+"/"+address].link), nil
}
