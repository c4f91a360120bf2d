package podnet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet/gate"
	"github.com/topodra/topodra/internal/rdma"
)

// Dir is the directory of records below the driver's own.
const Dir = "nics"

// recordVersion is the newest form of records that this code reads.
const recordVersion = 1

// Record says where a NIC is at home and who has it. It exists from the Prepare of a
// claim until the NIC is home and the claim unprepared. Its file is written without
// a sync to disk: after a reboot NICs are where the kernel finds them.
type Record struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"`

	Address pci.Address `json:"address"`
	Parent  string      `json:"parent,omitempty"` // see ParentOf; "" without an interface
	Home    State       `json:"home,omitzero"`    // of the interface, in the host's namespace

	HardwareAddr string `json:"hardwareAddr,omitempty"`

	// RDMA is the name of the RDMA device that moves, "" when none does.
	RDMA     string `json:"rdma,omitempty"`
	RDMAGUID string `json:"rdmaGUID,omitempty"` // node GUID, as netlink prints it

	// Link and Device are what a scan of the host saw. It sees neither while they are
	// away, and goes on with these.
	Link   *netdev.Link `json:"link,omitempty"`
	Device *rdma.Device `json:"device,omitempty"`

	Renewal *Renewal `json:"renewal,omitempty"` // of an address from DHCP that ends

	Claim Claim `json:"claim"`
	// Released says that the claim is unprepared: the NIC goes home from wherever it is.
	Released bool `json:"released,omitempty"`

	// Away says that the NIC may be somewhere else than at home, or at home in another
	// state. It is written before the first change and cleared after the last.
	Away bool `json:"away,omitempty"`
	// Attachment is what the gate of every container reads.
	gate.Attachment
}

// Claim names a claim.
type Claim struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
}

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// ReadRecord reads the record of the NIC at a PCI address, nil if there is none.
func ReadRecord(dir string, address string) (*Record, error) {
	content, err := os.ReadFile(recordFile(dir, address))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record of NIC %s: %w", address, err)
	}
	r := &Record{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, &tornError{fmt.Errorf("record of NIC %s: %w", address, err)}
	}
	if r.Version > recordVersion {
		return nil, fmt.Errorf("record of NIC %s: it is of format %d, written by a newer driver; this one reads up to %d", address, r.Version, recordVersion)
	}
	return r, nil
}

// tornError says that a file is no record.
type tornError struct{ error }

func recordFile(dir, address string) string { return filepath.Join(dir, address+".json") }

// records is the directory of records.
type records struct {
	dir    string
	bootID string
}

// read returns nil for a record that there is not, or of which nothing can be told.
func (s records) read(a pci.Address) (*Record, error) {
	r, err := ReadRecord(s.dir, a.String())
	if torn := (*tornError)(nil); errors.As(err, &torn) {
		klog.Background().Error(err, "Taken for absent")
		return nil, nil
	}
	return r, err
}

// write replaces a record atomically.
func (s records) write(r *Record) error {
	r.Version, r.BootID = recordVersion, s.bootID
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record of NIC %s: %w", r.Address, err)
	}
	file := recordFile(s.dir, r.Address.String())
	temporary := file + ".tmp" // one writer at a time, see Mover.lock
	if err = os.WriteFile(temporary, content, 0o644); err == nil {
		err = os.Rename(temporary, file)
	}
	if err != nil {
		return fmt.Errorf("record of NIC %s: %w", r.Address, err)
	}
	return nil
}

func (s records) remove(r *Record) error {
	if err := os.Remove(recordFile(s.dir, r.Address.String())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record of NIC %s: %w", r.Address, err)
	}
	return nil
}

// list returns all records of this boot, by PCI address. Those of an earlier boot, and
// what a power loss left of one, are removed: NICs are then where their drivers put them.
func (s records) list() ([]*Record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("records of NICs: %w", err)
	}
	var out []*Record
	for _, entry := range entries {
		address, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok {
			continue
		}
		r, err := ReadRecord(s.dir, address)
		if torn := (*tornError)(nil); errors.As(err, &torn) {
			klog.Background().Error(err, "Removed a record that cannot be read")
			_ = os.Remove(filepath.Join(s.dir, entry.Name()))
			continue
		}
		if err != nil {
			klog.Background().Error(err, "Left out")
			continue
		}
		if r == nil || r.BootID != s.bootID {
			_ = os.Remove(filepath.Join(s.dir, entry.Name()))
			continue
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *Record) int { return cmp.Compare(a.Address.String(), b.Address.String()) })
	return out, nil
}
