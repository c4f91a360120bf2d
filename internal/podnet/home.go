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
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/internal/podnet/gate"
)

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
