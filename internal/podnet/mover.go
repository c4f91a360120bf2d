package podnet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Options are what a Mover needs.
type Options struct {
	Dir    string // directory of the records; made if missing
	BootID string // of the running kernel
	// SysfsPCI is the directory with the PCI functions of the machine, /sys/bus/pci/devices.
	SysfsPCI string
	// Simulated says that interfaces with SimulatedAlias stand for the NICs.
	Simulated bool
	// Ready says why NICs could not be moved into a pod now; nil when they can.
	Ready func() error
	// Lease asks for an address by DHCP. Set by New.
	Lease func(ctx context.Context, link netlink.Link) (Lease, error)
}

// Mover moves NICs between the host's network namespace and those of pods. What it does
// is told by two things alone: the records, and where the kernel has the NICs. Each
// operation makes it be so, whatever an earlier one left half done, so it can be
// repeated after a crash at any point. Two processes may work side by side.
type Mover struct {
	Options
	records
	wake chan struct{}

	mu        sync.Mutex
	sandboxes map[string]string // network namespaces of running sandboxes, by sandbox ID
}

// New returns a Mover.
func New(o Options) (*Mover, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory of NICs: %w", err)
	}
	if o.Lease == nil {
		o.Lease = requestLease
	}
	return &Mover{Options: o, records: records{o.Dir, o.BootID}, sandboxes: map[string]string{}, wake: make(chan struct{}, 1)}, nil
}

// lock keeps everybody else from changing records and interfaces, in this process and
// in another instance of the driver.
func (m *Mover) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(m.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, fmt.Errorf("lock of NICs: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// Sandbox is a pod's sandbox as the container runtime tells of it.
type Sandbox struct {
	ID        string
	Namespace string // of the pod
	Name      string
	UID       types.UID
	Netns     string // path of the network namespace; "" for hostNetwork
}

func (s Sandbox) pod() string { return s.Namespace + "/" + s.Name }

// Claimed is a prepared claim with its NICs.
type Claimed struct {
	Claim Claim
	Plans []Plan
}

// --- the sandboxes that run

func (m *Mover) remember(s Sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Netns != "" {
		m.sandboxes[s.ID] = s.Netns
	}
}

// knows tells whether a sandbox runs.
func (m *Mover) knows(s Sandbox) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sandboxes[s.ID] != ""
}

func (m *Mover) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sandboxes, id)
}

// replaceSandboxes makes the given ones all that run.
func (m *Mover) replaceSandboxes(all []Sandbox) {
	m.mu.Lock()
	m.sandboxes = map[string]string{}
	m.mu.Unlock()
	for _, s := range all {
		m.remember(s)
	}
}

// running tells whether the sandbox that has a NIC runs.
func (m *Mover) running(r *Record) bool { return m.pathOf(r) != "" }

// pathOf returns the path of the network namespace of the sandbox that has a NIC, "" if it
// does not run.
func (m *Mover) pathOf(r *Record) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := m.sandboxes[r.Sandbox]
	if i, err := inode(path); path == "" || err != nil || i != r.Inode {
		return ""
	}
	return path
}

// step is where tests end the process.
var step = func(string) {}
