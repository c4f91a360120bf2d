package slices

import (
	"io/fs"
	"strconv"
	"strings"
	"testing/fstest"

	"github.com/topodra/topodra/internal/pci"
)

// treeFS shows a PCI tree as the part of sysfs that the deviceattribute helpers
// read, so that they judge the snapshot and not what sysfs says a moment later.
type treeFS struct{ tree *pci.Tree }

const devicesDir = "bus/pci/devices/"

// ReadLink returns what /sys/bus/pci/devices/<address> links to.
func (t treeFS) ReadLink(name string) (string, error) {
	fn, err := t.function("readlink", name, strings.TrimPrefix(name, devicesDir))
	if err != nil {
		return "", err
	}
	elements := []string{"../../../devices"}
	if fn.Prefix != "" {
		elements = append(elements, fn.Prefix)
	}
	elements = append(elements, fn.Root)
	for _, b := range fn.Bridges {
		elements = append(elements, b.String())
	}
	return strings.Join(append(elements, fn.Address.String()), "/"), nil
}

// Open returns the one attribute that is asked for, numa_node.
func (t treeFS) Open(name string) (fs.File, error) {
	dir, attr, _ := strings.Cut(strings.TrimPrefix(name, devicesDir), "/")
	fn, err := t.function("open", name, dir)
	if err != nil {
		return nil, err
	}
	if attr != "numa_node" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return fstest.MapFS{attr: {Data: []byte(strconv.Itoa(fn.NUMANode))}}.Open(attr)
}

// Lstat completes fs.ReadLinkFS; nothing here is listed.
func (t treeFS) Lstat(name string) (fs.FileInfo, error) {
	return nil, &fs.PathError{Op: "lstat", Path: name, Err: fs.ErrNotExist}
}

func (t treeFS) function(op, path, addr string) (*pci.Function, error) {
	a, err := pci.ParseAddress(addr)
	if fn := t.tree.Functions[a]; err == nil && fn != nil {
		return fn, nil
	}
	return nil, &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist}
}
