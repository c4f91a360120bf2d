package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is a directory tree that shall exist, by slash-separated relative path.
// Directories on the way are implied until withDirs spells them out.
type tree map[string]node

// node is a regular file, a symbolic link (link set), a directory (dir set) or
// a character device (char set).
type node struct {
	data []byte
	mode fs.FileMode
	link string
	dir  bool
	char bool
}

// Harmless character devices are /dev/null under another name.
var nullDevice = unix.Mkdev(1, 3)

func (t tree) file(name, text string) { t[name] = node{data: []byte(text + "\n"), mode: 0o644} }
func (t tree) char(name string)       { t[name] = node{char: true, mode: 0o666} }

// symlink makes name point to target, both paths in the tree, by the way
// relative to the directory of name: as sysfs does it, and true wherever the
// tree is mounted.
func (t tree) symlink(target, name string) { t[name] = node{link: relative(path.Dir(name), target)} }

func relative(from, to string) string {
	f, g := strings.Split(from, "/"), strings.Split(to, "/")
	i := 0
	for i < len(f) && i < len(g) && f[i] == g[i] {
		i++
	}
	return path.Join(strings.Repeat("../", len(f)-i), path.Join(g[i:]...))
}

// mount puts other below dir, which exists even when other is empty.
func (t tree) mount(dir string, other tree) {
	t[dir] = node{dir: true, mode: 0o755}
	for name, n := range other {
		t[path.Join(dir, name)] = n
	}
}

// withDirs returns the tree with its implied directories spelt out.
func (t tree) withDirs() (tree, error) {
	all := maps.Clone(t)
	for name := range t {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if other, ok := all[d]; ok && !other.dir {
				return nil, fmt.Errorf("%s would be a directory and something else", d)
			}
			all[d] = node{dir: true, mode: 0o755}
		}
	}
	return all, nil
}

// write makes dir hold exactly this tree, directories spelt out. What is already right is not touched,
// so running containers keep the files that are mounted into them; every file
// appears under its name complete or not at all, so a run that was killed is
// finished by the next one. Device nodes that may not be made are left out and
// counted in the result.
func (t tree) write(dir string) (denied int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	// Two agents overlap during a rolling update.
	lock, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return 0, fmt.Errorf("lock %s: %w", dir, err)
	}

	if err := t.removeOthers(dir); err != nil {
		return 0, err
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		switch err := t[name].write(filepath.Join(dir, name)); {
		case t[name].char && errors.Is(err, fs.ErrPermission):
			denied++
		case err != nil:
			return denied, err
		}
	}
	return denied, nil
}

// removeOthers deletes what is not in the tree or is of another type.
func (t tree) removeOthers(dir string) error {
	return filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if want, ok := t[rel]; ok && want.fileType() == entry.Type() {
			return nil
		}
		if err := os.RemoveAll(name); err != nil {
			return err
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

func (n node) fileType() fs.FileMode {
	switch {
	case n.dir:
		return fs.ModeDir
	case n.link != "":
		return fs.ModeSymlink
	case n.char:
		return fs.ModeDevice | fs.ModeCharDevice
	}
	return 0
}

// write makes one node, unless it is there already.
func (n node) write(name string) error {
	if n.dir {
		if err := os.Mkdir(name, n.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	if n.is(name) {
		return nil
	}
	// What a killed run left under this name has gone with removeOthers.
	next := filepath.Join(filepath.Dir(name), ".next")
	if err := n.create(next); err != nil {
		return err
	}
	return os.Rename(next, name)
}

func (n node) create(name string) error {
	var err error
	switch {
	case n.link != "":
		return os.Symlink(n.link, name)
	case n.char:
		if err := unix.Mknod(name, unix.S_IFCHR|uint32(n.mode), int(nullDevice)); err != nil {
			return &fs.PathError{Op: "mknod", Path: name, Err: err}
		}
	default:
		err = os.WriteFile(name, n.data, n.mode)
	}
	if err != nil {
		return err
	}
	return os.Chmod(name, n.mode) // past the umask
}

// is says whether the node exists as wanted.
func (n node) is(name string) bool {
	info, err := os.Lstat(name)
	if err != nil || info.Mode().Type() != n.fileType() {
		return false
	}
	switch {
	case n.link != "":
		link, err := os.Readlink(name)
		return err == nil && link == n.link
	case n.char:
		var st unix.Stat_t
		return unix.Stat(name, &st) == nil && st.Rdev == nullDevice && info.Mode().Perm() == n.mode
	}
	if info.Size() != int64(len(n.data)) || info.Mode().Perm() != n.mode {
		return false
	}
	data, err := os.ReadFile(name)
	return err == nil && bytes.Equal(data, n.data)
}
