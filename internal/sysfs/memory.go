package sysfs

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Node is a file or, with Link set, a symbolic link of a tree in memory.
type Node struct {
	Data []byte
	Link string

	listed bool // only seen in a listing, by a Recorder
}

// Memory is a sysfs root in memory: a simulated machine or the content of an
// archive. Keys are clean paths relative to the root; directories are implied.
// A path that is a key as it stands is not resolved: archives hold files under
// the names by which they were read, through links.
func Memory(nodes map[string]Node) FS {
	m := &memory{nodes: nodes, children: map[string][]string{}}
	known := map[string]bool{".": true}
	for name := range nodes {
		for !known[name] {
			known[name] = true
			parent := path.Dir(name)
			m.children[parent] = append(m.children[parent], path.Base(name))
			name = parent
		}
	}
	for _, names := range m.children {
		slices.Sort(names)
	}
	return FS{m}
}

type memory struct {
	nodes    map[string]Node
	children map[string][]string
}

// maxLinks bounds links on the way to a file, as the kernel does (MAXSYMLINKS).
const maxLinks = 40

// resolve follows the links of a path, except the last element's own unless last
// is set. ".." cannot leave the root.
func (m *memory) resolve(op, name string, last bool) (string, error) {
	todo := strings.Split(path.Clean(name), "/")
	at := "."
	for links := 0; len(todo) > 0; {
		next := path.Join(at, todo[0])
		if next == ".." || strings.HasPrefix(next, "../") {
			return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		todo = todo[1:]
		node, ok := m.nodes[next]
		if !ok || node.Link == "" || (len(todo) == 0 && !last) {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: op, Path: name, Err: syscall.ELOOP}
		}
		todo = append(strings.Split(path.Clean(node.Link), "/"), todo...)
	}
	return at, nil
}

func (m *memory) read(name string, limit int) ([]byte, error) {
	node, ok := m.nodes[name]
	if !ok || node.Link != "" {
		at, err := m.resolve("open", name, true)
		if err != nil {
			return nil, err
		}
		node, ok = m.nodes[at]
	}
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return node.Data[:min(limit, len(node.Data))], nil
}

func (m *memory) readLink(name string) (string, error) {
	node, ok := m.nodes[name]
	if !ok {
		at, err := m.resolve("readlink", name, false)
		if err != nil {
			return "", err
		}
		node, ok = m.nodes[at]
	}
	switch {
	case !ok:
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrNotExist}
	case node.Link == "":
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return node.Link, nil
}

func (m *memory) list(name string) ([]string, error) {
	if names := m.children[name]; names != nil {
		return names, nil
	}
	at, err := m.resolve("open", name, true)
	if err != nil {
		return nil, err
	}
	return m.children[at], nil
}
