package sysfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Dir is the sysfs root in a directory: "/sys", or a copy of it.
func Dir(root string) FS { return FS{dir(root)} }

type dir string

func (d dir) read(name string, limit int) ([]byte, error) {
	// O_NONBLOCK: a hostile copy may hold a FIFO where an attribute is wanted.
	file, err := os.OpenFile(filepath.Join(string(d), name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	buf := make([]byte, min(limit, pageSize))
	n, err := io.ReadFull(file, buf)
	if err == nil && n < limit {
		rest, restErr := io.ReadAll(io.LimitReader(file, int64(limit-n)))
		return append(buf, rest...), restErr
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return buf[:n], err
}

func (d dir) readLink(name string) (string, error) {
	return os.Readlink(filepath.Join(string(d), name))
}

func (d dir) list(name string) ([]string, error) {
	file, err := os.Open(filepath.Join(string(d), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names, err := file.Readdirnames(maxEntries + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if len(names) > maxEntries {
		return nil, fmt.Errorf("%s: more than %d entries", name, maxEntries)
	}
	slices.Sort(names)
	return names, err
}
