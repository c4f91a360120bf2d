package bench

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
)

// requests are what the API server has counted, by "VERB resource".
type requests map[string]int

var requestTotal = regexp.MustCompile(`^apiserver_request_total\{.*resource="([^"]+)".*subresource="([^"]*)".*verb="([^"]+)".*\} (\S+)$`)

// countRequests reads the API server's metrics about the objects that drivers deal with.
func countRequests(b *testing.B, api kubernetes.Interface) requests {
	b.Helper()
	text, err := api.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	counted := requests{}
	for line := range strings.Lines(string(text)) {
		m := requestTotal.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || !slices.Contains([]string{"pods", "nodes", "resourceclaims", "resourceslices", "events"}, m[1]) {
			continue
		}
		n, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			b.Fatal(err)
		}
		name := m[3] + " " + m[1]
		if m[2] != "" {
			name += "/" + m[2]
		}
		counted[name] += int(n)
	}
	if len(counted) == 0 {
		b.Fatal("the API server's metrics count no requests")
	}
	return counted
}

// since returns the requests that were counted after before.
func (r requests) since(before requests) requests {
	out := requests{}
	for name, n := range r {
		if d := n - before[name]; d != 0 {
			out[name] = d
		}
	}
	return out
}

// per prints the requests per unit of work.
func (r requests) per(n int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		list = append(list, fmt.Sprintf("%.2f %s", float64(r[name])/float64(n), name))
	}
	return strings.Join(list, ", ")
}

var syncCall = regexp.MustCompile(`^\d+ +(\d+\.\d+) (fsync|fdatasync|syncfs|sync|sync_file_range|msync)\(`)

// countSyncs runs an agent below strace and returns its calls that wait for the disk, per Prepare and per Unprepare. ok is
// false where strace cannot run.
func countSyncs(b *testing.B, api kubernetes.Interface, i installation, s shape, cycles int) (perPrepare, perUnprepare float64, ok bool) {
	b.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		return 0, 0, false
	}
	trace := filepath.Join(b.TempDir(), "trace")
	// The agent is the child and strace watches from the side, so that signals reach the agent.
	p := i.start(b, strace, "-D", "-f", "-ttt", "-e", "trace=fsync,fdatasync,syncfs,sync,sync_file_range,msync", "-o", trace)
	works := newWorks(b, api, s, cycles+1)
	defer remove(b, api, works)
	p.ready(b, works[cycles])
	var prepares, unprepares []span
	for _, w := range works[:cycles] {
		start := time.Now()
		if err := p.prepare(b.Context(), w); err != nil {
			b.Fatal(err)
		}
		prepared := time.Now()
		if err := p.unprepare(b.Context(), w); err != nil {
			b.Fatal(err)
		}
		prepares, unprepares = append(prepares, span{start, prepared}), append(unprepares, span{prepared, time.Now()})
	}
	p.stop(b)
	times := readTrace(b, trace)
	return float64(within(times, prepares)) / float64(cycles), float64(within(times, unprepares)) / float64(cycles), true
}

type span struct{ from, to time.Time }

func within(times []time.Time, spans []span) (n int) {
	for _, t := range times {
		if slices.ContainsFunc(spans, func(s span) bool { return !t.Before(s.from) && t.Before(s.to) }) {
			n++
		}
	}
	return n
}

// readTrace returns when the calls were made.
func readTrace(b *testing.B, path string) []time.Time {
	b.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		// strace ends a moment after the agent.
		if !strings.Contains(string(text), "+++ exited with 0 +++") && time.Now().Before(deadline) {
			continue
		}
		var times []time.Time
		for scanner := bufio.NewScanner(strings.NewReader(string(text))); scanner.Scan(); {
			if m := syncCall.FindStringSubmatch(scanner.Text()); m != nil {
				seconds, err := strconv.ParseFloat(m[1], 64)
				if err != nil {
					b.Fatal(err)
				}
				times = append(times, time.UnixMicro(int64(seconds*1e6)))
			}
		}
		return times
	}
}
