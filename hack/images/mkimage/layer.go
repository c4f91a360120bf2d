package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// layer is the one file system layer of an image, as an uncompressed tar in memory. The first error sticks and comes
// out of close.
type layer struct {
	buf  bytes.Buffer
	tar  *tar.Writer
	dirs map[string]bool
	err  error
}

func newLayer() *layer {
	l := &layer{dirs: map[string]bool{"/": true}}
	l.tar = tar.NewWriter(&l.buf)
	return l
}

func (l *layer) add(h *tar.Header, content []byte) {
	if l.err != nil {
		return
	}
	h.Name = strings.TrimPrefix(h.Name, "/")
	h.Size = int64(len(content))
	if l.err = l.tar.WriteHeader(h); l.err == nil {
		_, l.err = l.tar.Write(content)
	}
}

// dir adds a directory and those above it, once.
func (l *layer) dir(name string) {
	name = path.Clean("/" + name)
	if l.dirs[name] {
		return
	}
	l.dir(path.Dir(name))
	l.dirs[name] = true
	mode := int64(0o755)
	if name == "/tmp" {
		mode = 0o1777
	}
	l.add(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (l *layer) symlink(target, name string) {
	l.dir(path.Dir(name))
	l.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

// file adds a file with its own permissions, readable by everyone.
func (l *layer) file(host, name string) error {
	info, err := os.Stat(host)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a folder", host)
	}
	content, err := os.ReadFile(host)
	if err != nil {
		return err
	}
	l.dir(path.Dir(name))
	l.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm() | 0o444)}, content)
	return nil
}

// tree adds a file, or a folder with everything below it.
func (l *layer) tree(host, name string) error {
	info, err := os.Stat(host)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return l.file(host, name)
	}
	l.dir(name)
	return fs.WalkDir(os.DirFS(host), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			l.dir(path.Join(name, p))
			return nil
		}
		return l.file(filepath.Join(host, p), path.Join(name, p))
	})
}

func (l *layer) close() ([]byte, error) {
	if l.err == nil {
		l.err = l.tar.Close()
	}
	return l.buf.Bytes(), l.err
}
