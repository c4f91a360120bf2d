package claims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Recover reads the journal at start, before any call is served:
//
//   - a claim of this boot is known again, and its CDI file is written if it is
//     missing or different;
//   - a claim whose preparation was cut off keeps its devices; the kubelet's next
//     Prepare or Unprepare finishes or undoes it. It is left alone here, because
//     the instance that this one replaces may be working on it right now;
//   - a claim of an earlier boot is forgotten: nothing of it runs any more, and
//     the kubelet prepares every claim anew after a reboot;
//   - a file that cannot be read is set aside, see salvage;
//   - CDI files without a claim in the journal are removed.
//
// It returns an error only when the journal as a whole cannot be read. Trouble
// with one claim is logged.
func (m *Manager) Recover(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	// The CDI files are listed first: a claim's journal file is made before its
	// CDI file and removed after it, so what is in this list without being in the
	// journal afterwards does not belong to a claim that another instance is
	// preparing.
	withCDI, err := m.cdi.List()
	if err != nil {
		return err
	}
	claims, err := m.journal.list()
	if err != nil {
		return err
	}
	for uid := range claims {
		if err := m.recoverClaim(ctx, uid); err != nil {
			logger.Error(err, "Claim could not be recovered from the journal", "claimUID", uid)
		}
	}
	for _, uid := range withCDI {
		if claims[uid] {
			continue
		}
		logger.Info("Removing a CDI file whose claim is not in the journal", "claimUID", uid)
		if err := m.cdi.Remove(uid); err != nil {
			logger.Error(err, "CDI file without a claim could not be removed", "claimUID", uid)
		}
	}
	if err := m.NICs.Recover(ctx, m.Known); err != nil {
		logger.Error(err, "NICs of claims that are gone could not be released")
	}
	m.removeLeftovers()
	m.Recorder.PreparedClaims(m.index.prepared())
	return nil
}

func (m *Manager) recoverClaim(ctx context.Context, uid types.UID) error {
	rec, err := m.load(ctx, uid, true)
	if err != nil || rec == nil {
		return err
	}
	if rec.BootID != m.BootID {
		klog.FromContext(ctx).Info("Forgetting a claim that was prepared before the node was rebooted", "claim", rec.claim())
		return m.forget(ctx, uid)
	}
	if err := m.index.held(uid, rec.holdKeys()); err != nil {
		klog.FromContext(ctx).Error(err, "Two claims in the journal have the same device", "claim", rec.claim())
	}
	m.index.set(rec)
	if !rec.prepared {
		return nil
	}
	return m.writeCDI(rec)
}

// load returns what the journal knows about a claim, nil for nothing. If a crash
// left two files, the one that was being prepared is returned; it names the
// devices of the other one in AlsoHolds. Files that cannot be read are salvaged if repair is set;
// otherwise those of a newer version are an error, as the instance that wrote
// them is running.
func (m *Manager) load(ctx context.Context, uid types.UID, repair bool) (*record, error) {
	preparing, errPreparing := m.journal.readFile(uid, false)
	prepared, errPrepared := m.journal.readFile(uid, true)
	var lost []*unreadableError
	for _, err := range []error{errPreparing, errPrepared} {
		var unreadable *unreadableError
		switch {
		case err == nil:
		case !errors.As(err, &unreadable):
			return nil, err
		case errors.Is(err, errUnsupported) && !repair:
			return nil, fmt.Errorf("%w: the newer driver on this node will serve the next call", err)
		default:
			lost = append(lost, unreadable)
		}
	}
	switch {
	case len(lost) > 0:
		return m.salvage(ctx, uid, lost, preparing, prepared)
	case preparing != nil:
		return preparing, nil
	default:
		return prepared, nil
	}
}

// salvage sets unreadable files of a claim aside and puts a readable one in
// their place, which keeps the claim's devices as far as they can be told: from
// the file itself, else from the CDI file. So nothing that a running container
// uses is handed to another claim. The claim's next Prepare starts afresh from
// the API, its Unprepare removes everything.
func (m *Manager) salvage(ctx context.Context, uid types.UID, lost []*unreadableError, readable ...*record) (*record, error) {
	rec := &record{UID: uid, Salvaged: true}
	for _, e := range lost {
		part := salvageRecord(uid, e.content)
		rec.Devices = append(rec.Devices, part.Devices...)
		if part.Name != "" {
			rec.Namespace, rec.Name, rec.BootID = part.Namespace, part.Name, part.BootID
		}
	}
	if len(rec.Devices) == 0 {
		names, err := m.cdi.Devices(uid)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "CDI file does not tell the devices of a claim", "claimUID", uid)
		}
		for _, name := range slices.DeleteFunc(names, func(s string) bool { return s == driverFiles }) {
			rec.Devices = append(rec.Devices, PreparedDevice{Name: name, Holds: []string{name}})
		}
	}
	for _, r := range readable {
		if r != nil {
			rec.AlsoHolds = append(rec.AlsoHolds, r.holdKeys()...)
		}
	}
	if rec.BootID == "" {
		rec.BootID = m.BootID
	}
	for _, e := range lost {
		aside, err := m.journal.setAside(e, m.Now())
		if err != nil {
			return nil, fmt.Errorf("%w; it could not be set aside: %w", e, err)
		}
		m.Recorder.JournalSetAside(setAsideReason(e.err))
		klog.FromContext(ctx).Error(e, "Journal file set aside; the claim keeps its devices and is prepared from the API again",
			"claim", rec.claim(), "setAside", aside, "devices", rec.holdKeys())
	}
	// The new file is written before the old one goes, so that a crash in
	// between salvages once more and forgets nothing.
	if err := m.journal.begin(rec); err != nil {
		return nil, err
	}
	return rec, m.journal.dropPrepared(uid)
}

// syncInstances takes over what another instance of the driver has changed in
// the journal. Without another instance, memory is the truth and the directory
// is not read at all. self is the claim that the caller has locked.
func (m *Manager) syncInstances(ctx context.Context, self types.UID) error {
	others, err := m.instances.others()
	if err != nil {
		return err
	}
	if !others && !m.sawOthers.Load() {
		return nil
	}
	m.syncMu.Lock()
	defer m.syncMu.Unlock()
	claims, err := m.journal.list()
	if err != nil {
		return err
	}
	for _, uid := range m.index.claims() {
		claims[uid] = true
	}
	for uid := range claims {
		if uid == self {
			if err := m.syncClaim(ctx, uid); err != nil {
				return err
			}
			continue
		}
		// A claim that is locked is being worked on here; memory is ahead of the
		// journal for it.
		if unlock, ok := m.locks.tryLock(uid); ok {
			if err := m.syncClaim(ctx, uid); err != nil {
				klog.FromContext(ctx).Error(err, "Claim of another instance of the driver could not be read", "claimUID", uid)
			}
			unlock()
		}
	}
	// There is one more look after the other one has gone, as it may have written
	// after the look before.
	m.sawOthers.Store(others)
	return nil
}

func (m *Manager) syncClaim(ctx context.Context, uid types.UID) error {
	rec, err := m.load(ctx, uid, false)
	if err != nil {
		return err
	}
	if rec == nil {
		m.index.drop(uid)
		return nil
	}
	m.index.set(rec)
	return nil
}

// removeLeftovers removes temporary files that a crash left in the journal. Young
// ones may belong to another instance.
func (m *Manager) removeLeftovers() {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && strings.HasPrefix(entry.Name(), ".") && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(filepath.Join(m.Dir, entry.Name()))
		}
	}
}
