package sysfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// Dir is the sysfs root in a directory: "/sys", or a copy of it.
func Dir(root string) FS { return FS{dir(root)} }

type dir string

// buffers are of one page: nearly all reads are of small attributes.
var buffers = sync.Pool{New: func() any { return new([pageSize]byte) }}

// read makes three system calls and no poller registration: a scan reads some
// thousand attributes.
func (d dir) read(name string, limit int) ([]byte, error) {
	path := filepath.Join(string(d), name)
	fail := func(op string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }
	// O_NONBLOCK: a hostile copy may hold a FIFO where an attribute is wanted.
	fd, err := retry(func() (int, error) {
		return syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fail("open", err)
	}
	defer syscall.Close(fd)
	page := buffers.Get().(*[pageSize]byte)
	defer buffers.Put(page)
	var content []byte
	for len(content) < limit {
		n, err := retry(func() (int, error) { return syscall.Read(fd, page[:min(pageSize, limit-len(content))]) })
		if err != nil {
			return content, fail("read", err)
		}
		if n <= 0 {
			break
		}
		content = append(content, page[:n]...)
		// The kernel gives an attribute in one piece: less than asked is its end.
		if n < pageSize {
			break
		}
	}
	return content, nil
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
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
