// Package sysfs reads single attributes and links below a sysfs root: /sys, a
// copy of it, or a tree in memory. It follows no link out of the root by itself:
// link texts are parsed, never opened.
//
// github.com/prometheus/procfs/sysfs was weighed for this (v0.23.0). One odd
// device fails its whole PCI listing, it prints addresses unlike the kernel, and
// it reads neither VPD nor what sits between /sys/devices and a host bridge, on
// which Hyper-V and Grace depend.
package sysfs

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// pageSize bounds an attribute: the kernel gives each one page at most
// (Documentation/filesystems/sysfs.rst).
const pageSize = 4096

// maxEntries bounds a directory listing, so that a hostile tree cannot exhaust
// memory. The largest published machine has 400 PCI functions.
const maxEntries = 65536

// FS is a sysfs root.
type FS struct{ source source }

// source is where the files are. Names are relative to the root and clean.
// Errors are those of os, so that errors.Is(err, fs.ErrNotExist) works.
type source interface {
	read(name string, limit int) ([]byte, error)
	readLink(name string) (string, error)
	// list returns sorted names; a directory that does not exist is empty.
	list(name string) ([]string, error)
}

// Attr returns an attribute without its trailing newline. Some drivers answer EIO
// or EAGAIN for an attribute that they have but cannot tell now.
func (f FS) Attr(elem ...string) (string, error) {
	b, err := f.Bytes(pageSize, elem...)
	return strings.TrimRight(string(b), "\n"), err
}

// Bytes returns at most limit bytes of a binary attribute.
func (f FS) Bytes(limit int, elem ...string) ([]byte, error) {
	return f.source.read(path.Join(elem...), limit)
}

// Uint returns an attribute that is a decimal or 0x number of at most bits bits.
func (f FS) Uint(bits int, elem ...string) (uint64, error) {
	text, err := f.Attr(elem...)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(strings.TrimSpace(text), 0, bits)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number of %d bits", path.Join(elem...), text, bits)
	}
	return v, nil
}

// Int returns an attribute that is a signed decimal number.
func (f FS) Int(elem ...string) (int, error) {
	text, err := f.Attr(elem...)
	if err != nil {
		return 0, err
	}
	v, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", path.Join(elem...), text)
	}
	return v, nil
}

// Link returns the text of a symbolic link.
func (f FS) Link(elem ...string) (string, error) {
	return f.source.readLink(path.Join(elem...))
}

// List returns the sorted names in a directory. A directory that does not exist
// is empty: a kernel without a subsystem has no class directory for it.
func (f FS) List(elem ...string) ([]string, error) {
	return f.source.list(path.Join(elem...))
}
