package podnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
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

// arrival is how long a sandbox waits for a NIC that the kernel has yet to return from an
// earlier one. The runtime allows two seconds for everything.
const arrival = time.Second

// now is cut to what the API stores.
func (m *Mover) now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// Since returns when the last NIC of a claim was complete in its pod, the zero time if
// none moves.
func (m *Mover) Since(c Claimed) time.Time {
	var since time.Time
	for _, p := range c.Plans {
		if r, err := m.read(p.Address); err == nil && r != nil && p.Moves() && r.AttachedAt.After(since) {
			since = r.AttachedAt
		}
	}
	return since
}

// Attach moves the NICs of a pod's claims into its network namespace. It is safe to
// repeat. On an error the sandbox must not start; NICs moved before go home again.
func (m *Mover) Attach(ctx context.Context, sandbox Sandbox, claims []Claimed) error {
	m.remember(sandbox)
	if sandbox.Netns == "" {
		return nil
	}
	var pod *namespace
	deadline := time.Now().Add(arrival)
	for _, c := range claims {
		for _, plan := range c.Plans {
			if !plan.Moves() {
				continue
			}
			var err error
			if pod == nil {
				if pod, err = podNamespace(sandbox.Netns); err != nil {
					return err
				}
				defer pod.close()
			}
			for {
				err = m.attach(pod, sandbox, c.Claim, plan)
				if !errors.Is(err, errNotHere) || time.Now().After(deadline) || ctx.Err() != nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				return errors.Join(fmt.Errorf("NIC %s of claim %s: %w", plan.Device, c.Claim, err), m.leaveAll(sandbox))
			}
		}
	}
	return nil
}

var errNotHere = errors.New("it is neither on the host nor in the pod: the kernel has not returned it from an earlier pod yet, or it was removed")

func (m *Mover) attach(pod *namespace, sandbox Sandbox, claim Claim, plan Plan) error {
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := m.read(plan.Address)
	switch {
	case err != nil:
		return err
	case r == nil || r.Claim.UID != claim.UID || r.Released:
		return errors.New("the claim is not prepared any more")
	case r.Inode != 0 && r.Inode != pod.inode && m.running(r.Inode):
		return fmt.Errorf("it is in pod %s: a claim with a NIC serves one pod, give each pod its own by a ResourceClaimTemplate", r.where())
	}
	host, err := hostNamespace()
	if err != nil {
		return err
	}
	defer host.close()
	if r.Inode == pod.inode {
		// Complete already. What an application changed in its own namespace is its own.
		if l, err := pod.find(r.Parent); plan.Parent == "" || err == nil && l != nil {
			return nil
		}
	}
	step("attach: before")
	r.Away, r.Attachment.Inode, r.Pod, r.Interface = true, 0, sandbox.pod(), plan.Pod.Name
	if err := m.write(r); err != nil {
		return err
	}
	step("attach: recorded")
	var link netlink.Link
	if plan.Parent != "" {
		if link, err = enter(host, pod, plan); err != nil {
			return err
		}
	}
	step("attach: interface moved")
	if plan.RDMA != "" {
		if err := bring(plan.RDMA, plan.RDMAGUID, host, pod); err != nil {
			return err
		}
	}
	step("attach: RDMA moved")
	if link != nil {
		if err := pod.apply(link, plan.Pod); err != nil {
			return err
		}
	}
	step("attach: set up")
	r.Inode, r.AttachedAt = pod.inode, m.now()
	if r.Renewal != nil {
		r.Renewal.At = time.Now().Add(r.Renewal.Term / 2)
		defer m.Wake()
	}
	return m.write(r)
}

// enter returns the interface of a plan in the pod, moved there if it was on the host.
func enter(host, pod *namespace, plan Plan) (netlink.Link, error) {
	if l, err := pod.find(plan.Parent); err != nil || l != nil {
		return l, err
	}
	l, err := host.find(plan.Parent)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, errNotHere
	}
	if err := host.move(l, pod, plan.Pod.Name); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("the pod has an interface %s already: choose another name in the claim's NICConfig (interface)", plan.Pod.Name)
		}
		return nil, fmt.Errorf("move %s into the pod: %w", l.Attrs().Name, err)
	}
	if l, err = pod.find(plan.Parent); err == nil && l == nil {
		err = errors.New("its interface was moved into the pod and is not there")
	}
	return l, err
}

// bring moves an RDMA device between namespaces unless it is where it shall be.
func bring(name, guid string, from, to *namespace) error {
	if d, err := to.rdma(name, guid); err != nil || d != nil {
		return err
	}
	d, err := from.rdma(name, guid)
	if err != nil {
		return err
	}
	if d == nil {
		return fmt.Errorf("RDMA device %s: %w", name, errNotHere)
	}
	// The kernel looks for the device in the namespace of the thread, not in that of the
	// socket (ib_device_set_netns_put, drivers/infiniband/core/device.c).
	if err := from.do(func() error { return from.RdmaLinkSetNsFd(d, uint32(to.fd)) }); err != nil {
		return fmt.Errorf("move RDMA device %s: %w", name, err)
	}
	return nil
}

// Detach brings home what is in the network namespace of a sandbox that ends.
func (m *Mover) Detach(_ context.Context, sandbox Sandbox) error {
	m.forget(sandbox.ID)
	return m.leaveAll(sandbox)
}

func (m *Mover) leaveAll(sandbox Sandbox) error {
	if sandbox.Netns == "" {
		return nil
	}
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	away, err := m.away()
	if err != nil || len(away) == 0 {
		return err
	}
	pod, err := podNamespace(sandbox.Netns)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil // it has ended: the kernel returns the NICs, and Reconcile sees to them
	}
	if err != nil {
		return err
	}
	defer pod.close()
	host, err := hostNamespace()
	if err != nil {
		return err
	}
	defer host.close()
	var errs []error
	for _, r := range away {
		if err := m.leave(r, pod, host); err != nil {
			errs = append(errs, fmt.Errorf("NIC %s: %w", r.Address, err))
		}
	}
	return errors.Join(errs...)
}

// leave brings one NIC home from a namespace, if it is there.
func (m *Mover) leave(r *Record, pod, host *namespace) error {
	here := false
	// The RDMA device first: once the interface has gone, its GIDs have too.
	if r.RDMA != "" {
		d, err := pod.rdma(r.RDMA, r.RDMAGUID)
		if err != nil {
			return err
		}
		if d != nil {
			here = true
			if err := bring(r.RDMA, r.RDMAGUID, pod, host); err != nil {
				return err
			}
		}
	}
	step("detach: RDMA moved")
	if r.Parent != "" {
		l, err := pod.find(r.Parent)
		if err != nil {
			return err
		}
		if l != nil {
			here = true
			if err := pod.move(l, host, r.Home.Name); errors.Is(err, unix.EEXIST) {
				err = pod.move(l, host, r.spareName())
				if err != nil {
					return fmt.Errorf("move %s home: %w", l.Attrs().Name, err)
				}
			} else if err != nil {
				return fmt.Errorf("move %s home: %w", l.Attrs().Name, err)
			}
		}
	}
	step("detach: interface moved")
	if !here {
		return nil
	}
	_, err := m.home(host, r)
	return err
}

// spareName is what an interface is called while another one has its name.
func (r *Record) spareName() string {
	return fmt.Sprintf("tp%x%02x%02x%x", r.Address.Domain, r.Address.Bus, r.Address.Device, r.Address.Function)
}

// where names the pod that had a NIC last.
func (r *Record) where() string {
	if r.Pod == "" {
		return "of claim " + r.Claim.String()
	}
	return r.Pod
}

// home restores a NIC that is on the host to the state that it had there, and drops its
// record if no claim has it. It tells whether the NIC is home. A NIC whose PCI function
// has gone is given up.
func (m *Mover) home(host *namespace, r *Record) (bool, error) {
	if !r.Away {
		return true, m.settle(r)
	}
	if r.Parent != "" {
		l, err := host.find(r.Parent)
		if err != nil {
			return false, err
		}
		if l == nil {
			return m.gone(r), nil
		}
		if err := m.restore(host, l, r); err != nil {
			return false, err
		}
	}
	if r.RDMA != "" {
		d, err := host.rdma(r.RDMA, r.RDMAGUID)
		if err != nil {
			return false, err
		}
		if d == nil {
			return m.gone(r), nil
		}
		if d.Attrs.Name != r.RDMA {
			if err := host.do(func() error { return host.RdmaLinkSetName(d, r.RDMA) }); err != nil {
				return false, fmt.Errorf("rename RDMA device %s to %s: %w", d.Attrs.Name, r.RDMA, err)
			}
		}
	}
	step("home: restored")
	r.Away, r.Inode, r.Interface = false, 0, ""
	if r.Renewal != nil {
		r.Renewal.At = time.Time{}
	}
	return true, m.settle(r)
}

func (m *Mover) restore(host *namespace, l netlink.Link, r *Record) error {
	if l.Attrs().Name != r.Home.Name {
		if other, err := host.LinkByName(r.Home.Name); err == nil && other.Attrs().Index != l.Attrs().Index {
			return fmt.Errorf("its name %s is taken by another interface on the host, so it is called %s: rename that one, and it gets its name back", r.Home.Name, l.Attrs().Name)
		}
	}
	return host.apply(l, r.Home)
}

// settle drops the record of a NIC that is home and has no claim, and writes it else.
func (m *Mover) settle(r *Record) error {
	if r.Released {
		return m.remove(r)
	}
	return m.write(r)
}

// gone tells whether the PCI function of a NIC has gone, such as a virtual function that
// was removed while a pod had it, and forgets the NIC then.
func (m *Mover) gone(r *Record) bool {
	_, err := os.Lstat(filepath.Join(m.SysfsPCI, r.Address.String()))
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	klog.Background().Info("A NIC was removed while it was in a pod; it is forgotten", "nic", r.Address, "pod", r.where())
	r.Away, r.Inode = false, 0
	return m.settle(r) == nil
}

// away returns the records of NICs that may be somewhere else than at home.
func (m *Mover) away() ([]*Record, error) {
	all, err := m.list()
	var out []*Record
	for _, r := range all {
		if r.Away {
			out = append(out, r)
		}
	}
	return out, err
}

// Release takes the NICs from a claim that is unprepared: they go home, from a sandbox
// that still runs too. A NIC that the kernel has yet to return does not hold up the
// claim; whoever wants it next waits.
func (m *Mover) Release(ctx context.Context, claim types.UID) error {
	return m.release(ctx, func(r *Record) bool { return r.Claim.UID == claim })
}

// Recover releases the NICs of claims that are not known, at start.
func (m *Mover) Recover(ctx context.Context, known func(types.UID) bool) error {
	return m.release(ctx, func(r *Record) bool { return !known(r.Claim.UID) })
}

func (m *Mover) release(ctx context.Context, of func(*Record) bool) error {
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	all, err := m.list()
	if err != nil {
		return err
	}
	var errs []error
	found := false
	for _, r := range all {
		if !of(r) {
			continue
		}
		found = true
		if !r.Released {
			r.Released = true
			errs = append(errs, m.write(r))
		}
	}
	if !found {
		return errors.Join(errs...)
	}
	_, err = m.reconcile(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "NICs are not all home; it is tried again")
	}
	m.Wake()
	return errors.Join(errs...)
}

// Reconcile brings home every NIC that has no pod any more, and returns how many are
// still on their way.
func (m *Mover) Reconcile(ctx context.Context) (outstanding int, err error) {
	unlock, err := m.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	return m.reconcile(ctx)
}

func (m *Mover) reconcile(ctx context.Context) (outstanding int, err error) {
	all, err := m.list()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	host, err := hostNamespace()
	if err != nil {
		return 0, err
	}
	defer host.close()
	var errs []error
	for _, r := range all {
		if r.Inode != 0 && !r.Released && m.running(r.Inode) {
			continue
		}
		home, err := m.home(host, r)
		if err == nil && !home && r.Released {
			home, err = m.fetch(r, host)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("NIC %s: %w", r.Address, err))
		}
		if !home {
			outstanding++
		}
	}
	return outstanding, errors.Join(errs...)
}

// fetch brings a NIC home from whichever sandbox has it: one may still run when its
// pod was deleted by force.
func (m *Mover) fetch(r *Record, host *namespace) (home bool, err error) {
	m.mu.Lock()
	paths := slices.Collect(maps.Values(m.sandboxes))
	m.mu.Unlock()
	for _, path := range paths {
		pod, err := podNamespace(path)
		if err != nil {
			continue // it has just ended
		}
		err = m.leave(r, pod, host)
		pod.close()
		if err != nil || !r.Away {
			return !r.Away, err
		}
	}
	return false, nil
}

// AwayRecords returns the records of NICs that a scan of the host does not see in full.
func (m *Mover) AwayRecords() ([]*Record, error) { return m.away() }

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

// running tells whether a sandbox with a network namespace runs.
func (m *Mover) running(namespace uint64) bool { return m.pathOf(namespace) != "" }

// pathOf returns the path of the network namespace of a running sandbox, "" for none.
func (m *Mover) pathOf(namespace uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, path := range m.sandboxes {
		if i, err := inode(path); err == nil && i == namespace {
			return path
		}
	}
	return ""
}

// step is where tests end the process.
var step = func(string) {}
