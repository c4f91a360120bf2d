package claims

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// instances tells whether another instance of the driver uses the same journal,
// which is so for a short time during a rolling update.
type instances interface {
	others() (bool, error)
	Close() error
}

// fileInstances holds a shared lock on a file for as long as it lives. The
// question "is another one there?" is one system call that never waits: would
// somebody stand in the way of an exclusive lock? The kernel drops the lock of
// an instance that dies. Locks on open file descriptions are used because they
// work between two containers and, for tests, inside one process.
type fileInstances struct{ file *os.File }

func openInstances(dir string) (*fileInstances, error) {
	f, err := os.OpenFile(filepath.Join(dir, "instances.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the driver's instances: %w", err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock of the driver's instances %s: %w", f.Name(), err)
	}
	return &fileInstances{f}, nil
}

func (i *fileInstances) others() (bool, error) {
	question := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(i.file.Fd(), unix.F_OFD_GETLK, &question); err != nil {
		return false, fmt.Errorf("lock of the driver's instances %s: %w", i.file.Name(), err)
	}
	return question.Type != unix.F_UNLCK, nil
}

func (i *fileInstances) Close() error { return i.file.Close() }
