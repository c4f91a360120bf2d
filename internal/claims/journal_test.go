package claims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// TestUnreadableJournalFiles: the file is kept under another name, the claim
// keeps its devices, its next Prepare starts afresh, its Unprepare removes all.
func TestUnreadableJournalFiles(t *testing.T) {
	for name, test := range map[string]struct {
		damage func([]byte) []byte
		reason string
		// byCDI is set where only the CDI file still tells the devices.
		byCDI bool
	}{
		"empty":     {func([]byte) []byte { return nil }, "corrupt", true},
		"zeros":     {func(b []byte) []byte { return make([]byte, len(b)) }, "corrupt", true},
		"truncated": {func(b []byte) []byte { return b[:len(b)/2] }, "corrupt", true},
		"text":      {func([]byte) []byte { return []byte("hello") }, "corrupt", true},
		"null":      {func([]byte) []byte { return []byte("null") }, "corrupt", true},
		"flipped byte": {func(b []byte) []byte { return bytes.Replace(b, []byte("mlx5_0"), []byte("mlx5_9"), 1) },
			"corrupt", false},
		"bad checksum": {func(b []byte) []byte { return bytes.Replace(b, []byte(`"sha256":"`), []byte(`"sha256":"0`), 1) }, "corrupt", false},
		"no version":   {func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":0`), 1) }, "corrupt", false},
		"other claim": {func([]byte) []byte {
			b, _ := encodeRecord(&record{UID: "another", BootID: boot, Devices: []PreparedDevice{{Name: gpuName(0)}}})
			return b
		}, "corrupt", false},
		"newer version": {func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1) }, "unsupported", false},
		"newer version in another form": {func([]byte) []byte {
			return []byte(`{"version":7,"claim":{"namespace":"ns","name":"claim-uid","devices":[{"name":"` + gpuName(0) + `","new":[1]}]}}`)
		}, "unsupported", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, next := range []string{"prepare", "unprepare"} {
				n := newNode(t)
				m := n.manager()
				first := mustPrepare(t, m, pair("uid", 0))
				mustPrepare(t, m, pair("bystander", 1))
				path := filepath.Join(n.journalDir(), "uid.json")
				good, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				bad := test.damage(bytes.Clone(good))
				if err := os.WriteFile(path, bad, 0o600); err != nil {
					t.Fatal(err)
				}
				_ = m.Close()

				// Started twice: what was salvaged must itself be durable.
				_ = n.manager().Close()
				m = n.manager()
				aside, _ := filepath.Glob(path + "." + test.reason + "-*")
				if len(aside) != 1 {
					t.Fatalf("set aside: %v, want one file", aside)
				}
				if kept, _ := os.ReadFile(aside[0]); !bytes.Equal(kept, bad) {
					t.Errorf("set aside %q, want %q", kept, bad)
				}
				if diff := cmp.Diff([]string{test.reason}, n.metrics.aside); diff != "" {
					t.Errorf("metric (-want +got):\n%s", diff)
				}
				if _, err := m.Prepare(context.Background(), claim("thief", []string{"gpu=" + gpuName(0)})); err == nil {
					t.Error("a device of the claim was given away")
				} else if !test.byCDI && name != "other claim" && !strings.Contains(err.Error(), "ns/claim-uid") {
					t.Errorf("holder is not named: %v", err)
				}
				if _, err := os.Stat(n.store().Path("uid")); err != nil {
					t.Errorf("CDI file, which a running container may need for a restart: %v", err)
				}
				n.check(m)
				if next == "prepare" {
					if diff := cmp.Diff(first, mustPrepare(t, m, pair("uid", 0))); diff != "" {
						t.Errorf("prepared from the API (-before +after):\n%s", diff)
					}
					if now, _ := os.ReadFile(path); !bytes.Equal(now, good) {
						t.Errorf("journal file is\n%s\nwant\n%s", now, good)
					}
				}
				mustUnprepare(t, m, pair("uid", 0))
				mustPrepare(t, m, pair("thief", 0))
			}
		})
	}
}

func TestCrashWhileSalvaging(t *testing.T) {
	for at := 0; ; at++ {
		n := newNode(t)
		m := n.manager()
		mustPrepare(t, m, pair("uid", 0))
		_ = m.Close()
		if err := os.Truncate(filepath.Join(n.journalDir(), "uid.json"), 100); err != nil {
			t.Fatal(err)
		}
		m = n.unrecovered()
		f := inject(m, at, nil)
		survives(func() { _ = m.Recover(context.Background()) })
		_ = m.Close()
		m = n.manager()
		if err := m.index.held("thief", []string{gpuName(0)}); err == nil {
			t.Errorf("crash at %v frees the device", f.steps)
		}
		n.check(m)
		if f.step <= at {
			if at < 4 {
				t.Fatalf("only %d steps", at)
			}
			return
		}
	}
}

func TestJournalFileIsReadable(t *testing.T) {
	n := newNode(t)
	mustPrepare(t, n.manager(), pair("uid", 0))
	content, err := os.ReadFile(filepath.Join(n.journalDir(), "uid.json"))
	if err != nil {
		t.Fatal(err)
	}
	expectJSON(t, "journal-v1.json", content)

	// A file of this version must be read for ever. Its golden copy is indented,
	// which the checksum rightly refuses, so it is compacted first.
	indented, err := os.ReadFile("testdata/journal-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, indented); err != nil {
		t.Fatal(err)
	}
	r, err := decodeRecord("uid", compact.Bytes())
	if err != nil || len(r.Devices) != 2 {
		t.Errorf("read %+v, %v", r, err)
	}
}

// TestUnknownFieldsAreNoFault: a later version that adds a field keeps the
// format version, and this one must read its files.
func TestUnknownFieldsAreNoFault(t *testing.T) {
	body := []byte(`{"uid":"uid","devices":[{"name":"x","new":true}],"alsoNew":{}}`)
	content, _ := json.Marshal(envelope{Version: 1, SHA256: checksum(body), Claim: body})
	if r, err := decodeRecord("uid", content); err != nil || r.Devices[0].Name != "x" {
		t.Errorf("read %+v, %v", r, err)
	}
}

func TestEarlierBoot(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	mustPrepare(t, m, pair("uid", 0))
	mustPrepare(t, m, pair("ended", 1))
	_ = m.Close()

	n.boot = "boot-2"
	// uverbs numbers may change with a boot: the CDI file must not be the old one.
	d, _ := n.devices.Device(nicName(0))
	d.NIC.RDMA.Uverbs = "uverbs7"
	n.devices.add(d)
	m = n.manager()
	if got := append(n.files("claims"), n.files("cdi")...); len(got) > 0 {
		t.Errorf("left from the earlier boot: %v", got)
	}
	// A power loss can bring back the journal file of a claim that was unprepared
	// and that nobody will unprepare again; its device must not stay held.
	mustPrepare(t, m, pair("newcomer", 1))
	mustPrepare(t, m, pair("uid", 0))
	content, _ := os.ReadFile(n.store().Path("uid"))
	if !strings.Contains(string(content), "uverbs7") {
		t.Errorf("CDI file is of the earlier boot:\n%s", content)
	}
	mustUnprepare(t, m, pair("ended", 1))
}

func TestRecoverRemovesStrayFiles(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	mustPrepare(t, m, pair("uid", 0))
	if _, err := n.store().Ensure("stray", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(n.store().Dir, "other-vendor.json")
	old, young := filepath.Join(n.journalDir(), ".uid.json123"), filepath.Join(n.journalDir(), ".uid.json456")
	for _, path := range []string{foreign, old, young} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hour := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, hour, hour); err != nil {
		t.Fatal(err)
	}
	n.manager()
	for path, want := range map[string]bool{n.store().Path("stray"): false, foreign: true, old: false, young: true, n.store().Path("uid"): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: there: %v, want %v", path, err == nil, want)
		}
	}
}

func TestJournalThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	m := n.unrecovered()
	if err := os.RemoveAll(n.journalDir()); err != nil {
		t.Fatal(err)
	}
	if err := m.Recover(context.Background()); err == nil {
		t.Error("no error for a journal that is gone")
	}
	_, err := m.Prepare(context.Background(), pair("uid", 0))
	if err == nil || !strings.Contains(err.Error(), "journal of claim ns/claim-uid (uid)") {
		t.Errorf("got %v", err)
	}
	if got := n.files("cdi"); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
}

// TestTwoInstances: during a rolling update the kubelet may call either one.
func TestTwoInstances(t *testing.T) {
	n := newNode(t)
	old := n.manager()
	mustPrepare(t, old, pair("a", 0))
	young := n.manager()
	mustPrepare(t, young, pair("b", 1))

	for name, m := range map[string]*Manager{"old": old, "young": young} {
		for i := range 2 {
			var held *heldError
			if _, err := m.Prepare(context.Background(), pair("thief", i)); !errors.As(err, &held) {
				t.Errorf("%s instance gives away device %d: %v", name, i, err)
			}
		}
	}
	mustUnprepare(t, old, pair("b", 1))
	mustPrepare(t, young, pair("c", 1))
	mustPrepare(t, old, pair("c", 1))
	if got := old.Placements("pod-c"); len(got) != 1 {
		t.Errorf("old instance knows %+v of a pod that the young one prepared", got)
	}
	// The old one writes last and goes: the young one must look once more.
	mustPrepare(t, old, pair("d", 2))
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := young.Prepare(context.Background(), pair("thief", 2)); err == nil {
		t.Error("the last claim of the old instance was overlooked")
	}
	if others, err := young.instances.others(); err != nil || others || young.sawOthers.Load() {
		t.Errorf("young instance still sees others (%v, %v)", others, err)
	}
	n.check(young)
}

// lateInstance acts like another instance that announces a device in the moment
// between our check and our own announcement.
type lateInstance struct {
	journalFiles
	other *record
}

func (l *lateInstance) begin(r *record) error {
	if l.other != nil {
		other := l.other
		l.other = nil
		if err := l.journalFiles.begin(other); err != nil {
			return err
		}
	}
	return l.journalFiles.begin(r)
}

func TestTwoInstancesAtTheSameMoment(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	n.unrecovered() // another one is there
	m.journal = &lateInstance{m.journal, &record{
		UID: "other", Namespace: "ns", Name: "other", BootID: boot, Devices: []PreparedDevice{{Name: gpuName(0), Holds: []string{gpuName(0)}}},
	}}
	var held *heldError
	if _, err := m.Prepare(context.Background(), pair("uid", 0)); !errors.As(err, &held) || held.uid != "other" {
		t.Fatalf("got %v, want that claim other holds the device", err)
	}
	if diff := cmp.Diff([]string{"other.preparing.json"}, n.files("claims")); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

// TestNewerInstanceIsLeftAlone: an older instance that still runs must not set
// aside what the newer one writes.
func TestNewerInstanceIsLeftAlone(t *testing.T) {
	n := newNode(t)
	m := n.manager()
	n.unrecovered()
	path := filepath.Join(n.journalDir(), "uid.json")
	if err := os.WriteFile(path, []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := m.Prepare(context.Background(), pair("uid", 0))
	if !errors.Is(err, errUnsupported) {
		t.Errorf("got %v", err)
	}
	mustPrepare(t, m, pair("other", 1)) // one file does not stop the others
	if content, _ := os.ReadFile(path); string(content) != `{"version":2}` {
		t.Errorf("file of the newer instance is now %q", content)
	}
}

// FuzzDecodeRecord: no content makes the reader panic, or take a file for good
// whose claim is not byte for byte what was written; salvaging never panics.
func FuzzDecodeRecord(f *testing.F) {
	good, err := encodeRecord(&record{UID: "uid", Devices: []PreparedDevice{{Name: gpuName(0), Holds: []string{gpuName(0)}}}, CDI: json.RawMessage(`{}`)})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{good, good[:40], nil, []byte("null"), []byte(`{"version":2}`), []byte(`{"claim":{"devices":[{"name":1}]}}`)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := decodeRecord("uid", content)
		if (r == nil) == (err == nil) {
			t.Fatalf("record %+v with error %v", r, err)
		}
		if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, errUnsupported) {
			t.Fatalf("error of no kind: %v", err)
		}
		if err == nil && r.UID != types.UID("uid") {
			t.Fatalf("record of claim %q", r.UID)
		}
		for _, d := range salvageRecord("uid", content).Devices {
			if d.Name == "" {
				t.Fatal("salvaged a device without a name")
			}
		}
	})
}
