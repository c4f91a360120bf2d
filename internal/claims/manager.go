package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/preflight"
)

// Recorder is told what metrics are made of.
type Recorder interface {
	// PreparedClaims is called with the number of prepared claims on change.
	PreparedClaims(n int)
	// JournalSetAside is called when a journal file could not be read; reason is
	// "corrupt" or "unsupported".
	JournalSetAside(reason string)
}

// Options are what a Manager needs. All fields but Retry and Now are required.
type Options struct {
	Dir         string // directory of the journal; made if missing
	CDI         cdi.Store
	CharDevices cdi.CharDevices
	Inventory   Inventory
	GPUs        GPUEdits
	NICs        NICMover
	Gate        Gate
	Preflight   Preflight // nil: nothing is looked at
	Recorder    Recorder

	Driver string // only results and configurations of this driver are ours
	Pool   string // name of this node's pool
	BootID string // of the running kernel

	Retry *Retry           // nil: DefaultRetry
	Now   func() time.Time // nil: time.Now
}

// Manager prepares and unprepares claims. Calls for different claims run in
// parallel and cost the same however many claims are prepared; calls for one
// claim wait for each other.
type Manager struct {
	Options
	plans     planner
	journal   journalFiles
	cdi       cdiFiles
	index     *index
	locks     locks
	instances instances
	syncMu    sync.Mutex
	sawOthers atomic.Bool
	retry     Retry
}

// journalFiles and cdiFiles are the two places a Manager writes to.
type journalFiles interface {
	begin(*record) error
	finish(types.UID) error
	remove(types.UID) error
	dropPrepared(types.UID) error
	readFile(uid types.UID, prepared bool) (*record, error)
	setAside(e *unreadableError, now time.Time) (string, error)
	list() (map[types.UID]bool, error)
}

type cdiFiles interface {
	Ensure(claim types.UID, content []byte) (bool, error)
	Remove(claim types.UID) error
	List() ([]types.UID, error)
	Devices(claim types.UID) ([]string, error)
}

// New returns a Manager. Call Recover before the first Prepare or Unprepare.
func New(o Options) (*Manager, error) {
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("directory of the journal: %w", err)
	}
	instances, err := openInstances(o.Dir)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		Options:   o,
		plans:     planner{inventory: o.Inventory, gpus: o.GPUs, charDevices: o.CharDevices, gate: o.Gate},
		journal:   newJournal(o.Dir),
		cdi:       o.CDI,
		index:     newIndex(),
		instances: instances,
		retry:     DefaultRetry,
	}
	if o.Retry != nil {
		m.retry = *o.Retry
	}
	if m.Now == nil {
		m.Now = time.Now
	}
	return m, nil
}

// Close gives up the place among the driver's instances. Claims stay prepared.
func (m *Manager) Close() error { return m.instances.Close() }

// Prepare makes a claim ready for containers. It is safe to repeat: a claim
// that is prepared gets the same answer, after its CDI file has been checked and
// written again if need be. siblings are the other claims of the same pod.
//
// It tries again by itself for as long as Retry allows. Errors are one sentence
// for the user. After an error the claim is as it was before the call.
func (m *Manager) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim, siblings ...*resourceapi.ResourceClaim) (Prepared, error) {
	r, err := parse(claim, m.Driver, m.Pool)
	if err != nil {
		return Prepared{}, err
	}
	if len(r.results) == 0 {
		return Prepared{Pods: r.pods}, nil
	}
	var others []request
	for _, sibling := range siblings {
		if other, err := parse(sibling, m.Driver, m.Pool); err == nil && other.uid != r.uid {
			others = append(others, other)
		}
	}
	unlock, err := m.locks.lock(ctx, r.uid)
	if err != nil {
		return Prepared{}, fmt.Errorf("another call for this claim did not end in time: %w", err)
	}
	defer unlock()

	var rec *record
	err = m.retry.do(ctx, func() error {
		if err := m.syncInstances(ctx, r.uid); err != nil {
			return err
		}
		rec, err = m.prepare(ctx, r, others)
		return classify(err)
	})
	if err != nil {
		return Prepared{}, err
	}
	return Prepared{Pods: rec.Pods, Devices: rec.Devices}, nil
}

// prepare is one attempt. Whatever it returns, it leaves nothing half done.
func (m *Manager) prepare(ctx context.Context, r request, siblings []request) (*record, error) {
	before := m.index.get(r.uid)
	if before != nil && before.prepared && before.Fingerprint == r.fingerprint && m.NICs.Holds(r.uid, before.NICs) {
		return m.confirm(ctx, before, r)
	}
	devices, err := m.plans.resolve(r)
	if err != nil {
		return nil, err
	}
	if err := m.index.reserve(r.uid, r.name, r.holdKeys(devices)); err != nil {
		return nil, err
	}
	rec := &record{
		UID: r.uid, Namespace: r.name.Namespace, Name: r.name.Name,
		BootID: m.BootID, Fingerprint: r.fingerprint, Pods: r.pods,
		PreparedAt: metav1.NewTime(m.Now().UTC().Truncate(time.Second)),
	}
	if err := m.describe(ctx, rec, r, devices, siblings, before == nil); err != nil {
		return nil, errors.Join(err, m.restore(ctx, r.uid, before))
	}
	if before != nil {
		own := rec.holdKeys()
		rec.AlsoHolds = slices.DeleteFunc(before.holdKeys(), func(key string) bool { return slices.Contains(own, key) })
	}
	if err := m.journal.begin(rec); err != nil {
		return nil, errors.Join(err, m.restore(ctx, r.uid, before))
	}
	m.index.set(rec)
	if err := m.apply(ctx, rec); err != nil {
		if before != nil {
			// It stays known as "preparing": containers of it may still run.
			return nil, err
		}
		return nil, errors.Join(err, m.undo(ctx, rec.UID))
	}
	done := *rec
	done.prepared = true
	m.index.set(&done)
	m.Recorder.PreparedClaims(m.index.prepared())
	return &done, nil
}

// describe fills in what the claim will have. Devices of a claim that is known already may
// be in its pod, where preflight does not see them.
func (m *Manager) describe(ctx context.Context, rec *record, r request, devices []Device, siblings []request, atHome bool) (err error) {
	if rec.NICs, err = m.planNICs(ctx, r, devices); err != nil {
		return err
	}
	plans := byAddress(rec.NICs)
	var subjects []preflight.Subject
	if atHome {
		subjects = r.subjects(devices, plans)
	}
	looked := m.preflight(ctx, subjects) // while the rest is planned
	rec.Devices, rec.CDI, err = m.plans.plan(ctx, r, devices, plans, siblings)
	found := <-looked
	if err := cmp.Or(err, found.fault); err != nil { // one says what the other would
		return err
	}
	rec.warn(devices, found.warnings)
	return nil
}

// apply does what the journal has announced.
func (m *Manager) apply(ctx context.Context, rec *record) error {
	// The other instance may have announced the same device at the same moment.
	// Both write first and look afterwards, so at least one of them sees it.
	if err := m.syncInstances(ctx, rec.UID); err != nil {
		return err
	}
	if err := m.index.held(rec.UID, rec.holdKeys()); err != nil {
		return err
	}
	if err := m.writeCDI(rec); err != nil {
		return err
	}
	return m.journal.finish(rec.UID)
}

func (m *Manager) writeCDI(rec *record) error {
	if len(rec.CDI) == 0 {
		return m.cdi.Remove(rec.UID)
	}
	_, err := m.cdi.Ensure(rec.UID, rec.CDI)
	return err
}

// undo takes back an attempt for a claim that was not known before.
func (m *Manager) undo(ctx context.Context, uid types.UID) error {
	if err := m.forget(ctx, uid); err != nil {
		return fmt.Errorf("taking the attempt back failed too: %w", err)
	}
	return nil
}

// restore gives up what an attempt reserved before it reached the journal.
func (m *Manager) restore(ctx context.Context, uid types.UID, before *record) error {
	if before != nil {
		m.index.set(before)
		return nil
	}
	m.index.drop(uid)
	return m.NICs.Release(ctx, uid)
}

// confirm answers for a claim that is prepared already.
func (m *Manager) confirm(ctx context.Context, rec *record, r request) (*record, error) {
	if len(rec.CDI) > 0 {
		written, err := m.cdi.Ensure(rec.UID, rec.CDI)
		if err != nil {
			return nil, err
		}
		if written {
			klog.FromContext(ctx).Info("Wrote the CDI file of a prepared claim again, it was missing or different", "claim", rec.claim())
		}
	}
	if slices.Equal(rec.Pods, r.pods) {
		return rec, nil
	}
	changed := *rec
	changed.Pods = r.pods
	if err := m.journal.begin(&changed); err != nil {
		return nil, err
	}
	if err := m.journal.finish(rec.UID); err != nil {
		return nil, err
	}
	m.index.set(&changed)
	return &changed, nil
}

// Unprepare undoes Prepare. It needs neither the API server nor the hardware,
// and it is no error if the claim is not prepared.
func (m *Manager) Unprepare(ctx context.Context, uid types.UID, name types.NamespacedName) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	unlock, err := m.locks.lock(ctx, uid)
	if err != nil {
		return fmt.Errorf("another call for this claim did not end in time: %w", err)
	}
	defer unlock()
	return m.retry.do(ctx, func() error {
		if err := m.syncInstances(ctx, uid); err != nil {
			return err
		}
		return classify(m.forget(ctx, uid))
	})
}

// forget removes all traces of a claim, the record of them last.
func (m *Manager) forget(ctx context.Context, uid types.UID) error {
	if rec := m.index.get(uid); rec != nil && rec.prepared {
		// If this fails half-way, the next Prepare must not trust the record.
		undoing := *rec
		undoing.prepared = false
		m.index.set(&undoing)
	}
	if err := m.cdi.Remove(uid); err != nil {
		return err
	}
	if err := m.NICs.Release(ctx, uid); err != nil {
		return err
	}
	if err := m.journal.remove(uid); err != nil {
		return err
	}
	m.index.drop(uid)
	m.Recorder.PreparedClaims(m.index.prepared())
	return nil
}

// Placements returns what this node has prepared for a pod, claims by name.
func (m *Manager) Placements(pod types.UID) []v1alpha1.ClaimPlacement {
	var out []v1alpha1.ClaimPlacement
	for _, rec := range m.index.ofPod(pod) {
		c := v1alpha1.ClaimPlacement{Name: rec.Name, UID: rec.UID, PreparedAt: rec.PreparedAt}
		for _, d := range rec.Devices {
			c.Devices = append(c.Devices, d.Placements...)
		}
		out = append(out, c)
	}
	return out
}

// Known tells whether the journal has a claim.
func (m *Manager) Known(uid types.UID) bool { return m.index.get(uid) != nil }

// holdKeys are what the results of a request hold, devices being what they are.
func (r request) holdKeys(devices []Device) []string {
	var keys []string
	for i, res := range r.results {
		keys = append(keys, holds(devices[i], res.ShareID, res.adminAccess())...)
	}
	return keys
}

// classify marks file errors that no waiting repairs.
func classify(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) {
		return permanent(err)
	}
	return err
}
