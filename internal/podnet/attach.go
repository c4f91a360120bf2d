package podnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/topodra/topodra/internal/podnet/gate"
)

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
// starts. It is safe to repeat. On the first error the sandbox must not start; NICs that
// are in it go home again.
func (m *Mover) Attach(ctx context.Context, sandbox Sandbox, claims []Claimed) error {
	m.remember(sandbox)
	if err := m.enterAll(ctx, sandbox, claims, false); err != nil {
		return errors.Join(err, m.leaveAll(sandbox))
	}
	return nil
}

// Complete moves NICs into a sandbox that runs as far as they can be. What its containers
// have is left alone whatever happens.
func (m *Mover) Complete(ctx context.Context, sandbox Sandbox, claims []Claimed) error {
	return m.enterAll(ctx, sandbox, claims, true)
}

func (m *Mover) enterAll(ctx context.Context, sandbox Sandbox, claims []Claimed, goOn bool) error {
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
				if !goOn {
					return errs[0]
				}
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
