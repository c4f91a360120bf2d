package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// step is a step of preparing or unpreparing a claim, as it shows from outside: a change of a file. The agent is killed in the
// moment after it.
type step struct {
	name string
	dir  string
	op   fsnotify.Op
	file func(name string) bool
}

var (
	whilePreparing = []step{
		{"journal has announced a claim", claimsDir, fsnotify.Create, func(f string) bool { return strings.HasSuffix(f, ".preparing.json") }},
		{"CDI file is written", cdiDir, fsnotify.Create, func(f string) bool { return strings.HasPrefix(f, "topodra.dev-claim_") && isJSON(f) }},
		{"journal has a prepared claim", claimsDir, fsnotify.Create, func(f string) bool { return isJSON(f) && !strings.HasSuffix(f, ".preparing.json") }},
		{"metadata of one request is written", cdiDir, fsnotify.Create, func(f string) bool { return strings.HasPrefix(f, "topodra.dev_metadata_") && isJSON(f) }},
	}
	whileUnpreparing = []step{
		{"CDI file is removed", cdiDir, fsnotify.Remove, func(f string) bool { return strings.HasPrefix(f, "topodra.dev-claim_") && isJSON(f) }},
		{"journal has forgotten a claim", claimsDir, fsnotify.Remove, isJSON},
	}
)

func isJSON(file string) bool { return strings.HasSuffix(file, ".json") }

// TestAgentKilledBetweenSteps kills the agent with SIGKILL at each step of the way while pods start and end. Whatever was cut
// off, every pod must run, and at the end every claim must have its files and no file be without its claim.
func TestAgentKilledBetweenSteps(t *testing.T) {
	s := newSpace(t)
	const node, atOnce = "node1", 4
	ctx := t.Context()
	cut := 0
	for round := range whilePreparing {
		killed := killAt(t, node, whilePreparing[round], atOnce)
		for i := range atOnce {
			s.create(t, s.pod(fmt.Sprintf("round-%d-pod-%d", round, i), node, defaultTemplate))
		}
		cut += <-killed
		if _, err := s.Running(ctx, s.name, "", atOnce, startLimit); err != nil {
			t.Fatal(err)
		}
		s.checkNode(ctx, t, node)
		killed = make(chan int, 1)
		if round < len(whileUnpreparing) {
			killed = killAt(t, node, whileUnpreparing[round], atOnce)
		} else {
			killed <- 0
		}
		s.deleteAll(ctx, t)
		cut += <-killed
		s.checkNode(ctx, t, node)
	}
	t.Logf("half-way in all: %d", cut)
	if cut == 0 {
		t.Error("no claim was cut off half-way: the agent was never killed between two steps")
	}
}

// killAt kills the agent of a node when it makes a step. Each time a claim comes to the step the agent is halted, and killed if
// it has left a claim half-way there; the last of the claims does not get further. The channel then gets the number of claims
// that were left half-way.
func killAt(t *testing.T, node string, step step, claims int) chan int {
	t.Helper()
	a := findAgent(t, node)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Add(a.path(step.dir)); err != nil {
		t.Fatal(err)
	}
	// Paths below the agent's root end with the agent; open directories stay.
	var open dirs
	for name, dir := range map[string]**os.File{claimsDir: &open.journal, cdiDir: &open.cdi} {
		if *dir, err = os.Open(a.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	killed := make(chan int, 1)
	go func() {
		defer watcher.Close()
		defer open.journal.Close()
		defer open.cdi.Close()
		ctx, cancel := context.WithTimeout(t.Context(), startLimit)
		defer cancel()
		for seen := 0; ; {
			select {
			case event := <-watcher.Events:
				if !event.Has(step.op) || !step.file(filepath.Base(event.Name)) {
					continue
				}
				a.signal(t, syscall.SIGSTOP)
				if seen++; seen < claims && open.halfWay(t) == 0 {
					a.signal(t, syscall.SIGCONT)
					continue
				}
				a.kill(t)
				n := open.halfWay(t)
				t.Logf("killed when the %s; half-way: %d", step.name, n)
				killed <- n
				return
			case <-ctx.Done():
				t.Errorf("the agent was not killed: it came %d times to where the %s, want %d", seen, step.name, claims)
				killed <- 0
				return
			}
		}
	}()
	return killed
}

// dirs are the directories that an agent writes to.
type dirs struct{ journal, cdi *os.File }

// halfWay counts the claims whose files are in a state that no finished call leaves.
func (d dirs) halfWay(t *testing.T) int {
	recorded, files := names(t, d.journal), names(t, d.cdi)
	withCDI := map[string]bool{}
	metadata := map[string]int{}
	for _, file := range files {
		if uid, ok := strings.CutPrefix(file, "topodra.dev-claim_"); ok && isJSON(file) {
			withCDI[strings.TrimSuffix(uid, ".json")] = true
		}
		if rest, ok := strings.CutPrefix(file, "topodra.dev_metadata_"); ok {
			uid, _, _ := strings.Cut(rest, "_")
			metadata[uid]++
		}
	}
	n := 0
	for _, file := range recorded {
		uid, isRecord := strings.CutSuffix(file, ".json")
		uid, preparing := strings.CutSuffix(uid, ".preparing")
		// a claim of the example has two requests with metadata
		if isRecord && (preparing || !withCDI[uid] || metadata[uid] != 2) {
			n++
		}
		delete(metadata, uid)
	}
	return n + len(metadata) // without a record
}

func names(t *testing.T, dir *os.File) []string {
	_, err := dir.Seek(0, io.SeekStart)
	if err != nil {
		t.Error(err)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		t.Error(err)
	}
	return names
}

// TestCDIFilesLost: /var/run/cdi is a tmpfs that somebody may clean. The agent's next start writes the files again, and
// containers restart with what they had.
func TestCDIFilesLost(t *testing.T) {
	s := newSpace(t)
	const node = "node1"
	s.create(t, s.pod("pod", node, defaultTemplate))
	pod := s.running(t, "pod")
	before := s.inside(t, pod, "main")
	list := func() string {
		text, err := s.In(t.Context(), node, "sh", "-c", "find "+cdiDir+" -name 'topodra.dev*.json' -exec sha256sum {} + | sort")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	files := list()
	if strings.Count(files, "\n") != 3 {
		t.Fatalf("CDI files before, want one of the claim and two of metadata:\n%s", files)
	}
	if _, err := s.In(t.Context(), node, "sh", "-c", "rm "+cdiDir+"/topodra.dev*"); err != nil {
		t.Fatal(err)
	}
	findAgent(t, node).kill(t)
	for start := time.Now(); list() != files; time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("CDI files after 30 s:\n%swant\n%s", list(), files)
		}
	}
	s.restartContainer(t, pod)
	if after := s.inside(t, s.running(t, "pod"), "main"); after != before {
		t.Errorf("the restarted container has\n%swant\n%s", after, before)
	}
}
