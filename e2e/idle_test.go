package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/e2e/kube"
)

// memoryLimit is of an agent's working set: what the kubelet counts against limits and kubectl top shows.
const memoryLimit = 60_000_000

// TestIdle: agents at rest, with a claim prepared, write nothing to the API server, and are small.
func TestIdle(t *testing.T) {
	s := newSpace(t)
	s.create(t, s.pod("pod", "node1", defaultTemplate))
	s.running(t, "pod")
	time.Sleep(time.Second) // the agent's part ended before the container started
	if before := s.writes(t, time.Time{}); len(before) == 0 {
		t.Fatal("the audit log has no writes of agents at all, so it would show none now")
	}
	start := time.Now()
	time.Sleep(60 * time.Second)
	if during := s.writes(t, start); len(during) > 0 {
		t.Errorf("idle agents wrote %d times in 60 s:\n%s", len(during), strings.Join(during, "\n"))
	}
	for node := range machines {
		s.checkMemory(t, node)
	}
}

// writes reads the requests of agents since a time from the API server's audit log.
func (s *space) writes(t *testing.T, since time.Time) []string {
	t.Helper()
	file, err := os.Open(os.Getenv(auditLogEnv))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var found []string
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI         string
			RequestReceivedTimestamp metav1.MicroTime
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatal(err)
		}
		if event.RequestReceivedTimestamp.After(since) {
			found = append(found, event.Verb+" "+event.RequestURI)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

func (s *space) checkMemory(t *testing.T, node string) {
	t.Helper()
	text, err := s.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("metrics/resource").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "container_memory_working_set_bytes{") || !strings.Contains(line, `namespace="`+kube.AgentNamespace+`"`) {
			continue
		}
		found = true
		bytes, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("agent of %s: %.1f MB working set; %s", node, bytes/1e6, findAgent(t, node).resident(t))
		if bytes > memoryLimit {
			t.Errorf("the agent of %s uses %.1f MB, want less than %d MB", node, bytes/1e6, memoryLimit/1_000_000)
		}
	}
	if !found {
		t.Errorf("the kubelet of %s does not tell the memory of the agent", node)
	}
}

// resident tells what the kernel counts for the process, pages of the program's file apart: those it can drop at any time.
func (a agent) resident(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(a.pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Rss") {
			parts = append(parts, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(parts, ", ")
}
