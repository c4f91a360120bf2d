package podnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/internal/podnet/gate"
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

// Attach moves the NICs of a pod's claims into the network namespace of a sandbox that
// starts. It is safe to repeat. On an error the sandbox must not start; NICs that are in
// it go home again.
func (m *Mover) Attach(ctx context.Context, sandbox Sandbox, claims []Claimed) error {
	m.remember(sandbox)
	if err := m.Complete(ctx, sandbox, claims); err != nil {
		return errors.Join(err, m.leaveAll(sandbox))
	}
	return nil
}

// Complete moves NICs into a sandbox that runs as far as they can be. What its containers
// have is left alone whatever happens.
func (m *Mover) Complete(ctx context.Context, sandbox Sandbox, claims []Claimed) error {
	if sandbox.Netns == "" {
		return nil
	}
	var errs []error
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
				errs = append(errs, fmt.Errorf("NIC %s of claim %s: %w", plan.Device, c.Claim, err))
			}
		}
	}
	return errors.Join(errs...)
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
	case r.Inode != 0 && r.Sandbox != sandbox.ID && m.running(r):
		return fmt.Errorf("it is in pod %s: a claim with a NIC serves one pod, give each pod its own by a ResourceClaimTemplate", r.where())
	}
	host, err := hostNamespace()
	if err != nil {
		return err
	}
	defer host.close()
	if r.Inode == pod.inode && r.Sandbox == sandbox.ID {
		// What an application changed in its own namespace is its own.
		if complete, err := isIn(pod, plan); complete || err != nil {
			return err
		}
	}
	step("attach: before")
	r.Away, r.Attachment = true, gate.Attachment{Pod: sandbox.pod(), Interface: plan.Pod.Name}
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
	if err := m.sameCharDevice(plan); err != nil {
		return err
	}
	r.Inode, r.Sandbox, r.AttachedAt = pod.inode, sandbox.ID, m.now()
	if r.Renewal != nil {
		r.Renewal.At = r.Renewal.Obtained.Add(r.Renewal.Term / 2)
		defer m.Wake()
	}
	return m.write(r)
}

// isIn tells whether all of a NIC is in a pod.
func isIn(pod *namespace, plan Plan) (bool, error) {
	if plan.Parent != "" {
		if l, err := pod.find(plan.Parent); err != nil || l == nil {
			return false, err
		}
	}
	if plan.RDMA != "" {
		if d, err := pod.rdma(plan.RDMA, plan.RDMAGUID); err != nil || d == nil {
			return false, err
		}
	}
	return true, nil
}

// sameCharDevice checks that a RDMA device still has the character device that the CDI file
// names: the kernel numbers them anew when it moves one, by the lowest that is free.
func (m *Mover) sameCharDevice(plan Plan) error {
	if plan.RDMA == "" {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(m.SysfsPCI, plan.Address.String(), "infiniband_verbs"))
	if err != nil {
		return nil //nolint:nilerr // a kernel that does not tell
	}
	for _, e := range entries {
		if e.Name() == plan.Uverbs {
			return nil
		}
	}
	return fmt.Errorf("the character device of %s was %s when the claim was prepared and is another one now: delete the pod", plan.RDMA, plan.Uverbs)
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
	taken := fmt.Errorf("the pod has an interface %s already: choose another name in the claim's NICConfig (interface)", plan.Pod.Name)
	if _, err := pod.LinkByName(plan.Pod.Name); err == nil {
		return nil, taken
	}
	if err := host.move(l, pod, plan.Pod.Name); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil, taken
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
			if err := goHome(l, pod, host, r); err != nil {
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

// goHome moves an interface to the host, under its name if that is free there.
func goHome(l netlink.Link, pod, host *namespace, r *Record) error {
	err := pod.move(l, host, r.Home.Name)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if arrived, err := host.find(r.Parent); err != nil || arrived != nil {
		return err // under the name that it had in the pod
	}
	return pod.move(l, host, r.spareName())
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
	r.Away, r.Attachment = false, gate.Attachment{Pod: r.Pod}
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
	if mac := l.Attrs().HardwareAddr; r.HardwareAddr != "" && mac.String() != r.HardwareAddr {
		own, err := net.ParseMAC(r.HardwareAddr)
		if err == nil {
			err = errors.Join(host.LinkSetDown(l), host.LinkSetHardwareAddr(l, own))
		}
		if err != nil {
			klog.Background().Error(err, "The hardware address of a NIC could not be set back", "nic", r.Address)
		}
	}
	home := r.Home
	home.Rules = nil // they have not left the host
	if err := host.apply(l, home); err != nil {
		klog.Background().Error(err, "A NIC is home, but not all that it had there could be restored", "nic", r.Address)
	}
	return nil
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
	r.Away, r.Attachment = false, gate.Attachment{}
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

// Recover releases the NICs of claims that are not known, at start. One that is at home may
// belong to a claim that another instance of the driver is preparing; whoever wants it
// next takes its record over.
func (m *Mover) Recover(ctx context.Context, known func(types.UID) bool) error {
	return m.release(ctx, func(r *Record) bool { return r.Away && !known(r.Claim.UID) })
}

// Holds tells whether a claim has the records of all NICs that move by its plans.
func (m *Mover) Holds(claim types.UID, plans []Plan) bool {
	for _, p := range plans {
		if !p.Moves() {
			continue
		}
		if r, err := m.read(p.Address); err != nil || r == nil || r.BootID != m.BootID || r.Claim.UID != claim || r.Released {
			return false
		}
	}
	return true
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
	_, err = m.reconcile()
	if err != nil {
		klog.FromContext(ctx).Error(err, "NICs are not all home; it is tried again")
	}
	m.Wake()
	return errors.Join(errs...)
}

// Reconcile brings home every NIC that has no pod any more, and returns how many are
// still on their way.
func (m *Mover) Reconcile() (outstanding int, err error) {
	unlock, err := m.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	return m.reconcile()
}

func (m *Mover) reconcile() (outstanding int, err error) {
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
		if r.Inode != 0 && !r.Released && m.running(r) {
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
	paths := []string{m.pathOf(r)}
	if paths[0] == "" {
		m.mu.Lock()
		paths = slices.Collect(maps.Values(m.sandboxes))
		m.mu.Unlock()
	}
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
