package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/e2e/kube"
)

const (
	claimsDir = "/var/lib/kubelet/plugins/topodra.dev/claims"
	cdiDir    = "/var/run/cdi"
)

// traces are the UIDs of claims that have files on a node, by kind of file.
type traces struct{ prepared, preparing, cdi, metadata map[string]bool }

// traces reads them.
func (s *space) traces(ctx context.Context, node string) (traces, error) {
	found := traces{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	text, err := s.In(ctx, node, "find", claimsDir, cdiDir, "-name", "[!.]*.json*")
	for _, path := range strings.Fields(text) {
		dir, file := filepath.Split(path)
		uid, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(file, "topodra.dev-claim_"), "topodra.dev_metadata_"), "_")
		name, isMetadata := uid, rest != ""
		uid, _, _ = strings.Cut(name, ".")
		switch {
		case strings.HasPrefix(dir, claimsDir) && strings.HasSuffix(file, ".preparing.json"):
			found.preparing[uid] = true
		case strings.HasPrefix(dir, claimsDir) && strings.HasSuffix(file, ".json"):
			found.prepared[uid] = true
		case strings.HasPrefix(dir, claimsDir):
			return found, fmt.Errorf("journal file %s on %s was set aside", file, node)
		case isMetadata:
			found.metadata[uid] = true
		default:
			found.cdi[uid] = true
		}
	}
	return found, err
}

// checkNode waits until the files of a node are those of the claims in the API, no more and no less, and checks that no
// device is in two claims.
func (s *space) checkNode(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	err := kube.Until(ctx, 20*time.Second, "files on "+node+" that match the claims", func(ctx context.Context) (string, error) {
		list, err := s.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		want, holder := map[string]bool{}, map[string]string{}
		for _, claim := range list.Items {
			if claim.Status.Allocation == nil {
				continue
			}
			for _, result := range claim.Status.Allocation.Devices.Results {
				if result.Driver != v1alpha1.Group || result.Pool != node {
					continue
				}
				want[string(claim.UID)] = true
				if other, ok := holder[result.Device]; ok {
					t.Errorf("device %s is in claim %s and in claim %s", result.Device, other, claim.Name)
				}
				holder[result.Device] = claim.Name
			}
		}
		found, err := s.traces(ctx, node)
		if err != nil {
			return "", err
		}
		for what, have := range map[string]map[string]bool{"prepared in the journal": found.prepared, "with a CDI file": found.cdi, "with metadata": found.metadata} {
			if !maps.Equal(have, want) {
				return fmt.Sprintf("claims %s: %v, want %v", what, slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want))), nil
			}
		}
		if len(found.preparing) > 0 {
			return fmt.Sprintf("half prepared: %v", found.preparing), nil
		}
		if len(want) == 0 {
			return s.nicsHome(ctx, node)
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// agent is the process of a node's agent, as this machine sees it.
type agent struct {
	pid  int
	node string
}

// findAgent waits for the newest agent of a node. Its control group tells which cluster and node it belongs to.
func findAgent(t *testing.T, node string) agent {
	t.Helper()
	found := agent{node: node}
	err := kube.Until(t.Context(), startLimit, "an agent on "+node, func(context.Context) (string, error) {
		processes, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return "", err
		}
		var pids []int
		for _, dir := range processes {
			command, err1 := os.ReadFile(filepath.Join(dir, "cmdline"))
			groups, err2 := os.ReadFile(filepath.Join(dir, "cgroup"))
			args := strings.Split(string(command), "\x00")
			if err1 != nil || err2 != nil || filepath.Base(args[0]) != "topodra" || len(args) < 2 || args[1] == "probe" ||
				!strings.Contains(string(groups), "/topodra-"+os.Getenv(insideEnv)+"-") || !strings.Contains(string(groups), "/"+node+"/") {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return "", err
			}
			pids = append(pids, pid)
		}
		if len(pids) == 0 {
			return "there is none", nil
		}
		found.pid = slices.MaxFunc(pids, cmp.Compare[int])
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// path is a file of the agent's container.
func (a agent) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(a.pid), "root", name)
}

func (a agent) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(a.pid, signal); err != nil {
		t.Errorf("%v to the agent of %s: %v", signal, a.node, err)
	}
}

// kill ends the agent as the kernel's out-of-memory killer does, and waits until it is gone.
func (a agent) kill(t *testing.T) {
	t.Helper()
	a.signal(t, syscall.SIGKILL)
	err := kube.Until(context.Background(), 20*time.Second, "end of the agent", func(context.Context) (string, error) {
		if status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(a.pid), "stat")); err == nil && !strings.Contains(string(status), ") Z ") {
			return "it lives", nil
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// agentsReady waits until the DaemonSet has all its agents, each of them ready.
func (s *space) agentsReady(t *testing.T) {
	t.Helper()
	err := kube.Until(t.Context(), startLimit, "agents ready", func(ctx context.Context) (string, error) {
		set, err := s.AppsV1().DaemonSets(kube.AgentNamespace).Get(ctx, "topodra", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := set.Status
		if status.ObservedGeneration != set.Generation || status.UpdatedNumberScheduled != int32(len(machines)) || status.NumberReady != int32(len(machines)) {
			return fmt.Sprintf("%d are new, %d ready", status.UpdatedNumberScheduled, status.NumberReady), nil
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
