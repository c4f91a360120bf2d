package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fault stands between a Manager and its files and strikes at one step. Each
// operation has two steps: just before it is done and just after.
type fault struct {
	journalFiles
	files cdiFiles
	at    int   // step to strike at, counted from 0; negative for never
	err   error // what to return; nil for a crash
	step  int
	steps []string
}

// crash is the panic of a process that ends here: nothing after it runs.
type crash struct{ step string }

func (f *fault) strike(step string) error {
	f.steps = append(f.steps, step)
	f.step++
	if f.step-1 != f.at {
		return nil
	}
	if f.err == nil {
		panic(crash{step})
	}
	return f.err
}

func (f *fault) around(operation string, do func() error) error {
	if err := f.strike("before " + operation); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return f.strike("after " + operation)
}

func (f *fault) begin(r *record) error {
	return f.around("journal begin", func() error { return f.journalFiles.begin(r) })
}

func (f *fault) finish(uid types.UID) error {
	return f.around("journal finish", func() error { return f.journalFiles.finish(uid) })
}

func (f *fault) remove(uid types.UID) error {
	return f.around("journal remove", func() error { return f.journalFiles.remove(uid) })
}

func (f *fault) dropPrepared(uid types.UID) error {
	return f.around("journal dropPrepared", func() error { return f.journalFiles.dropPrepared(uid) })
}

func (f *fault) Ensure(uid types.UID, content []byte) (written bool, err error) {
	err = f.around("CDI write", func() error { written, err = f.files.Ensure(uid, content); return err })
	return written, err
}

func (f *fault) Remove(uid types.UID) error {
	return f.around("CDI remove", func() error { return f.files.Remove(uid) })
}

func (f *fault) List() ([]types.UID, error)              { return f.files.List() }
func (f *fault) Devices(uid types.UID) ([]string, error) { return f.files.Devices(uid) }

// inject puts a fault into a Manager.
func inject(m *Manager, at int, err error) *fault {
	f := &fault{journalFiles: m.journal, files: m.cdi, at: at, err: err}
	m.journal, m.cdi = f, f
	return f
}

// survives runs call and reports whether it came to its end.
func survives(call func()) (ended bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
		}
	}()
	call()
	return true
}

// check asserts what must hold whenever no call is under way: one claim per
// device, and no CDI file without a claim in the journal.
func (n *node) check(m *Manager) {
	n.t.Helper()
	owner := map[string]types.UID{}
	journalled, err := m.journal.list()
	if err != nil {
		n.t.Fatal(err)
	}
	for uid := range journalled {
		rec, err := m.load(context.Background(), uid, false)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, key := range rec.holdKeys() {
			if other, taken := owner[key]; taken && other != uid {
				n.t.Fatalf("device %s is held by %s and %s", key, other, uid)
			}
			owner[key] = uid
		}
		if rec.prepared {
			for _, id := range rec.Devices {
				if len(id.CDIDeviceIDs) == 0 {
					n.t.Fatalf("prepared claim %s has a device without CDI ID", uid)
				}
			}
		}
	}
	withFile, err := n.store().List()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, uid := range withFile {
		if !journalled[uid] {
			n.t.Fatalf("CDI file of %s is there without a claim in the journal", uid)
		}
	}
}

// scenario is a call that is disturbed at each of its steps.
type scenario struct {
	setUp func(*node, *Manager)
	call  func(*Manager) error
}

var scenarios = map[string]scenario{
	"prepare": {
		setUp: func(*node, *Manager) {},
		call:  prepareCall(pair("uid", 0)),
	},
	"prepare again with another allocation": {
		setUp: func(n *node, m *Manager) { mustPrepare(n.t, m, pair("uid", 1)) },
		call:  prepareCall(pair("uid", 0)),
	},
	"prepare again without CDI file": {
		setUp: func(n *node, m *Manager) {
			mustPrepare(n.t, m, pair("uid", 0))
			if err := n.store().Remove("uid"); err != nil {
				n.t.Fatal(err)
			}
		},
		call: prepareCall(pair("uid", 0)),
	},
	"prepare for a second pod": {
		setUp: func(n *node, m *Manager) { mustPrepare(n.t, m, pair("uid", 0)) },
		call: prepareCall(pair("uid", 0, func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor[0].UID = "second"
		})),
	},
	"unprepare": {
		setUp: func(n *node, m *Manager) { mustPrepare(n.t, m, pair("uid", 0)) },
		call:  func(m *Manager) error { return unprepare(m, pair("uid", 0)) },
	},
}

func prepareCall(c *resourceapi.ResourceClaim) func(*Manager) error {
	return func(m *Manager) error { _, err := m.Prepare(context.Background(), c); return err }
}

// disturbed runs a scenario with a fault at each step, and hands the node to
// then. It fails if a scenario has suspiciously few steps.
func disturbed(t *testing.T, fault error, then func(t *testing.T, n *node, m *Manager)) {
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			steps := 0
			for at := 0; ; at++ {
				n := newNode(t)
				m := n.manager()
				s.setUp(n, m)
				f := inject(m, at, fault)
				ended := survives(func() { _ = s.call(m) })
				if f.step <= at {
					if steps < 2 {
						t.Fatalf("only %d steps", steps)
					}
					return
				}
				steps++
				step := f.steps[at]
				t.Run(fmt.Sprintf("%02d %s", at, step), func(t *testing.T) {
					n.t = t
					if fault == nil {
						if ended {
							t.Fatal("the crash did not happen")
						}
						_ = m.Close()
						m = n.manager()
					}
					n.check(m)
					then(t, n, m)
				})
			}
		})
	}
}

// undisturbed is what Prepare answers when nothing goes wrong.
func undisturbed(t *testing.T) []PreparedDevice {
	undisturbedOnce.Do(func() { undisturbedDevices = mustPrepare(t, newNode(t).manager(), pair("uid", 0)).Devices })
	return undisturbedDevices
}

var (
	undisturbedOnce    sync.Once
	undisturbedDevices []PreparedDevice
)

func thenPrepare(t *testing.T, n *node, m *Manager) {
	c := pair("uid", 0)
	got := mustPrepare(t, m, c)
	n.check(m)
	if diff := cmp.Diff(undisturbed(t), got.Devices); diff != "" {
		t.Errorf("differs from an undisturbed Prepare (-undisturbed +got):\n%s", diff)
	}
	mustPrepare(t, m, pair("other", 1)) // what an earlier allocation held is free
	if _, err := m.Prepare(context.Background(), pair("third", 0)); err == nil {
		t.Error("a held device was given away")
	}
	mustUnprepare(t, m, c)
	mustPrepare(t, m, pair("third", 0))
	n.check(m)
}

func thenUnprepare(t *testing.T, n *node, m *Manager) {
	mustUnprepare(t, m, pair("uid", 0))
	if got := append(n.files("claims"), n.files("cdi")...); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
	mustPrepare(t, m, pair("other", 0))
	mustPrepare(t, m, pair("another", 1))
}

func TestCrashThenPrepare(t *testing.T)   { disturbed(t, nil, thenPrepare) }
func TestCrashThenUnprepare(t *testing.T) { disturbed(t, nil, thenUnprepare) }

var errDisk = errors.New("input/output error")

func TestFaultThenPrepare(t *testing.T)   { disturbed(t, errDisk, thenPrepare) }
func TestFaultThenUnprepare(t *testing.T) { disturbed(t, errDisk, thenUnprepare) }

// TestFailedPrepareLeavesNothing: a claim that was unknown before a failed call
// is unknown after it, so its devices are free for others.
func TestFailedPrepareLeavesNothing(t *testing.T) {
	for at := 0; ; at++ {
		n := newNode(t)
		m := n.manager()
		f := inject(m, at, errDisk)
		_, err := m.Prepare(context.Background(), pair("uid", 0))
		if f.step <= at {
			break
		}
		if !errors.Is(err, errDisk) {
			t.Fatalf("%s: got %v", f.steps[at], err)
		}
		// What could be written before the fault is found by a restart.
		_ = m.Close()
		m = n.manager()
		n.check(m)
		mustUnprepare(t, m, pair("uid", 0))
		mustPrepare(t, m, pair("other", 0))
	}
}

func TestInnerRetryFinishesTheCall(t *testing.T) {
	for name, s := range scenarios {
		for at := 0; ; at++ {
			n := newNode(t)
			m := n.manager()
			s.setUp(n, m)
			m.retry = Retry{Budget: 5 * time.Second, First: time.Millisecond, Max: time.Millisecond}
			f := inject(m, at, errDisk)
			if err := s.call(m); err != nil {
				t.Fatalf("%s, %s: %v", name, f.steps[at], err)
			}
			n.check(m)
			if f.step <= at {
				break
			}
		}
	}
}

// TestRandomInterleavings prepares and unprepares random claims that want random
// devices, crashing now and then at a random step.
func TestRandomInterleavings(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			n := newNode(t)
			m := n.manager()
			// prepared are the claims whose last Prepare has succeeded.
			prepared := map[types.UID]*resourceapi.ResourceClaim{}
			for range 120 {
				uid := fmt.Sprintf("uid-%d", random.IntN(6))
				i := random.IntN(4)
				c := pair(uid, i)
				if random.IntN(3) == 0 {
					c = claim(uid, []string{"gpu=" + gpuName(i), "nic=" + nicName(random.IntN(4))})
				}
				at := -1
				if random.IntN(3) == 0 {
					at = random.IntN(8)
				}
				inject(m, at, nil)
				var err error
				isPrepare := random.IntN(2) == 0
				ended := survives(func() {
					if isPrepare {
						err = prepareCall(c)(m)
					} else {
						err = unprepare(m, c)
					}
				})
				switch {
				case !ended:
					// The caller learns nothing; the claim may be in either state.
					delete(prepared, c.UID)
				case isPrepare && err == nil:
					prepared[c.UID] = c
				case isPrepare:
					var held *heldError
					if !errors.As(err, &held) {
						t.Fatal(err)
					}
					// A refused reallocation leaves the claim in its earlier state,
					// but the caller does not rely on it any more.
					delete(prepared, c.UID)
				case err == nil:
					delete(prepared, c.UID)
				default:
					t.Fatal(err)
				}
				_ = m.Close()
				if !ended || random.IntN(4) == 0 {
					m = n.manager()
				} else {
					m.journal, m.cdi = newJournal(n.journalDir()), n.store()
					if m.instances, err = openInstances(n.journalDir()); err != nil {
						t.Fatal(err)
					}
				}
				n.check(m)
				for uid, c := range prepared {
					rec := m.index.get(uid)
					if rec == nil || !rec.prepared {
						t.Fatalf("prepared claim %s was forgotten", uid)
					}
					var want []string
					for _, res := range c.Status.Allocation.Devices.Results {
						want = append(want, res.Device)
					}
					if got := rec.holdKeys(); !slices.Equal(got, want) {
						t.Fatalf("claim %s holds %v, want %v", uid, got, want)
					}
				}
			}
		})
	}
}

// TestFailedReallocationKeepsBothDevices: until a claim with a new allocation is
// prepared, containers of the old one may run.
func TestFailedReallocationKeepsBothDevices(t *testing.T) {
	for name, prepared := range map[string]bool{"prepared before": true, "salvaged before": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			m := n.manager()
			mustPrepare(t, m, pair("uid", 1))
			if !prepared {
				_ = m.Close()
				if err := os.WriteFile(filepath.Join(n.journalDir(), "uid.json"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				m = n.manager()
			}
			journal, cdi := m.journal, m.cdi
			f := inject(m, 2, errDisk)
			if _, err := m.Prepare(context.Background(), pair("uid", 0)); !errors.Is(err, errDisk) || f.steps[2] != "before CDI write" {
				t.Fatalf("got %v after %v", err, f.steps)
			}
			m.journal, m.cdi = journal, cdi
			for _, when := range []string{"at once", "after a restart"} {
				for i := range 2 {
					if _, err := m.Prepare(context.Background(), pair("thief", i)); err == nil {
						t.Errorf("%s: device %d was given away", when, i)
					}
				}
				_ = m.Close()
				m = n.manager()
			}
			mustPrepare(t, m, pair("uid", 0))
			mustPrepare(t, m, pair("other", 1))
		})
	}
}
