package claims

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/podnet"
)

// journalVersion is the version of the files that this code writes and the
// newest that it reads. Raise it when an older driver would misread a file.
const journalVersion = 1

// record is one claim in the journal: all that is needed to write its CDI file
// again, to answer the kubelet again, and to undo everything.
type record struct {
	UID         types.UID         `json:"uid"`
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	BootID      string            `json:"bootID"`
	Fingerprint string            `json:"fingerprint"`
	Pods        []v1alpha1.PodRef `json:"pods,omitempty"`
	PreparedAt  metav1.Time       `json:"preparedAt"`
	Devices     []PreparedDevice  `json:"devices"`
	CDI         json.RawMessage   `json:"cdi,omitempty"`  // content of the CDI file
	NICs        []podnet.Plan     `json:"nics,omitempty"` // how NICs get into the pod

	// AlsoHolds are hold keys of the record that this one replaces. They count
	// until this one is prepared, as containers of the older one may still run.
	AlsoHolds []string `json:"alsoHolds,omitempty"`

	// Salvaged marks a record made from what could still be told of a file that
	// could not be read. It keeps its devices until the claim is prepared anew
	// or unprepared; the rest of it says nothing.
	Salvaged bool `json:"salvaged,omitempty"`

	prepared bool // told by the file's name, not by its content
}

func (r *record) claim() string { return claimName(r.Namespace, r.Name, r.UID) }

func claimName(namespace, name string, uid types.UID) string {
	if name == "" {
		return string(uid)
	}
	return fmt.Sprintf("%s/%s (%s)", namespace, name, uid)
}

// holdKeys are what the claim holds according to its record.
func (r *record) holdKeys() []string {
	var keys []string
	if !r.prepared {
		keys = append(keys, r.AlsoHolds...)
	}
	for _, d := range r.Devices {
		keys = append(keys, d.Holds...)
	}
	return keys
}

// envelope is the form of a journal file. The checksum is over the bytes of the
// claim as they lie in the file, so a field that a later version adds or drops
// never breaks it.
type envelope struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"`
	Claim   json.RawMessage `json:"claim"`
}

func encodeRecord(r *record) ([]byte, error) {
	claim, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{Version: journalVersion, SHA256: checksum(claim), Claim: claim})
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

var (
	errCorrupt     = errors.New("corrupt")
	errUnsupported = errors.New("written by a newer version of the driver")
)

// decodeRecord reads the content of a journal file. The error is errCorrupt or
// errUnsupported with the reason.
func decodeRecord(uid types.UID, content []byte) (*record, error) {
	var e envelope
	if err := json.Unmarshal(content, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	switch {
	case e.Version > journalVersion:
		return nil, fmt.Errorf("%w: format %d, this one reads up to %d", errUnsupported, e.Version, journalVersion)
	case e.Version < 1:
		return nil, fmt.Errorf("%w: no format version", errCorrupt)
	case e.SHA256 != checksum(e.Claim):
		return nil, fmt.Errorf("%w: checksum does not match", errCorrupt)
	}
	r := &record{}
	if err := json.Unmarshal(e.Claim, r); err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if r.UID != uid {
		return nil, fmt.Errorf("%w: it is about claim %q", errCorrupt, r.UID)
	}
	return r, nil
}

// salvageRecord takes from an unreadable file what can still be told.
func salvageRecord(uid types.UID, content []byte) *record {
	var loose struct {
		Claim struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			BootID    string `json:"bootID"`
			Devices   []struct {
				Name        string   `json:"name"`
				AdminAccess bool     `json:"adminAccess"`
				Holds       []string `json:"holds"`
			} `json:"devices"`
		} `json:"claim"`
	}
	// Files of wrong types or with a wrong checksum still tell most of it; a
	// truncated one is no JSON and tells nothing.
	_ = json.Unmarshal(content, &loose)
	r := &record{UID: uid, Namespace: loose.Claim.Namespace, Name: loose.Claim.Name, BootID: loose.Claim.BootID, Salvaged: true}
	for _, d := range loose.Claim.Devices {
		if d.Name == "" {
			continue
		}
		if len(d.Holds) == 0 && !d.AdminAccess { // of another form: the name is the best there is
			d.Holds = []string{d.Name}
		}
		r.Devices = append(r.Devices, PreparedDevice{Name: d.Name, AdminAccess: d.AdminAccess, Holds: d.Holds})
	}
	return r
}

const (
	preparedSuffix  = ".json"
	preparingSuffix = ".preparing.json"
)

// journal is the directory of journal files. The state of a claim is in the
// name of its file: <uid>.preparing.json becomes <uid>.json by a rename. This
// needs no second sync: when a power loss takes the rename back, the claim is
// found as "preparing", which is true again, as nothing runs after a reboot.
//
// The directory itself is never synced. A power loss may take back the creation
// or the removal of a file, but it also ends the boot that the file belongs to,
// and files of an earlier boot are dropped at start.
type journal struct {
	dir string
	// writeSynced writes a file atomically and syncs its content to disk.
	writeSynced func(path string, content []byte) error
}

func newJournal(dir string) journal {
	return journal{dir: dir, writeSynced: func(path string, content []byte) error {
		return renameio.WriteFile(path, content, 0o600, renameio.WithTempDir(dir))
	}}
}

func (j journal) path(uid types.UID, prepared bool) string {
	if prepared {
		return filepath.Join(j.dir, string(uid)+preparedSuffix)
	}
	return filepath.Join(j.dir, string(uid)+preparingSuffix)
}

// begin writes a record as "preparing". It is on disk when this returns.
func (j journal) begin(r *record) error {
	content, err := encodeRecord(r)
	if err == nil {
		err = j.writeSynced(j.path(r.UID, false), content)
	}
	if err != nil {
		return fmt.Errorf("journal of claim %s: %w", r.claim(), err)
	}
	return nil
}

// finish turns the record that begin wrote into "prepared".
func (j journal) finish(uid types.UID) error {
	if err := os.Rename(j.path(uid, false), j.path(uid, true)); err != nil {
		return fmt.Errorf("journal of claim %s: %w", uid, err)
	}
	return nil
}

// dropPrepared removes the prepared record of a claim, if there is one.
func (j journal) dropPrepared(uid types.UID) error {
	if err := os.Remove(j.path(uid, true)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal of claim %s: %w", uid, err)
	}
	return nil
}

// remove forgets a claim. It is no error if nothing is known about it.
func (j journal) remove(uid types.UID) error {
	if err := os.Remove(j.path(uid, false)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal of claim %s: %w", uid, err)
	}
	return j.dropPrepared(uid)
}

// unreadableError comes with the content that could not be read.
type unreadableError struct {
	path    string
	content []byte
	err     error
}

func (e *unreadableError) Error() string { return fmt.Sprintf("journal file %s is %v", e.path, e.err) }
func (e *unreadableError) Unwrap() error { return e.err }

// readFile returns the prepared or the preparing record of a claim, nil if there
// is none. An *unreadableError comes with a file that cannot be understood.
func (j journal) readFile(uid types.UID, prepared bool) (*record, error) {
	path := j.path(uid, prepared)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal of claim %s: %w", uid, err)
	}
	r, err := decodeRecord(uid, content)
	if err != nil {
		return nil, &unreadableError{path, content, err}
	}
	r.prepared = prepared
	return r, nil
}

// setAside keeps a copy of an unreadable file under a name that is never read
// again: <name>.corrupt-<time> or <name>.unsupported-<time>.
func (j journal) setAside(e *unreadableError, now time.Time) (string, error) {
	path := fmt.Sprintf("%s.%s-%s", e.path, setAsideReason(e.err), now.UTC().Format("20060102T150405.000000000Z"))
	return path, os.WriteFile(path, e.content, 0o600)
}

func setAsideReason(err error) string {
	if errors.Is(err, errUnsupported) {
		return "unsupported"
	}
	return "corrupt"
}

// list returns the claims that have files.
func (j journal) list() (map[types.UID]bool, error) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	claims := map[types.UID]bool{}
	for _, entry := range entries {
		uid, ok := strings.CutSuffix(entry.Name(), preparingSuffix)
		if !ok {
			uid, ok = strings.CutSuffix(entry.Name(), preparedSuffix)
		}
		if ok && checkUID(types.UID(uid)) == nil {
			claims[types.UID(uid)] = true
		}
	}
	return claims, nil
}
