package podnet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/topodra/topodra/internal/podnet"
)

// crashJob is what a process that dies is told to do.
type crashJob struct {
	Sandbox podnet.Sandbox
	Claims  []podnet.Claimed
}

func (j *crashJob) read(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, "job.json"))
	if err == nil {
		err = json.Unmarshal(content, j)
	}
	return err
}

// steps of a move for each NIC, in their order.
var steps = map[string][]string{
	"attach": {"attach: before", "attach: recorded", "attach: interface moved", "attach: RDMA moved", "attach: set up"},
	"detach": {"detach: RDMA moved", "detach: interface moved", "home: restored"},
}

// dies runs a process that is killed by SIGKILL when it comes to a step.
func (h *host) dies(action, step string, number int, job crashJob) {
	h.Helper()
	content, err := json.Marshal(job)
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, "job.json"), content, 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), actionEnv+"="+action, fmt.Sprintf("%s=%d %s", crashEnv, number, step), dirEnv+"="+h.dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		h.Fatalf("the process did not die at %q: %v: %s", step, err, out)
	}
}

// TestDriverKilled kills the driver at every step of the moves of 1 and of 8 NICs. The
// next process finishes the move, or brings all home when the claim ends instead.
func TestDriverKilled(t *testing.T) {
	ctx := context.Background()
	for action, names := range steps {
		for _, step := range names {
			for _, count := range []int{1, 8} {
				for _, number := range slices.Compact([]int{1, count}) {
					for _, ends := range []bool{false, true} {
						t.Run(fmt.Sprintf("%s/%s/%d of %d/claim ends %t", action, step, number, count, ends), func(t *testing.T) {
							h := newHost(t, count)
							before := make([]*podnet.State, count)
							for i, nic := range h.nics {
								before[i] = h.home(nic)
							}
							claimed := h.prepare("claim", h.nics...)
							pod := h.pod("pod")
							if action == "detach" {
								if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
									t.Fatal(err)
								}
							}
							h.dies(action, step, number, crashJob{pod, []podnet.Claimed{claimed}})
							h.restart()
							if !ends {
								if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
									t.Fatalf("attach after the crash: %v", err)
								}
								for i, nic := range h.nics {
									if d := diff(before[i].Addresses, h.in(pod, nic).Addresses); d != "" {
										t.Errorf("addresses of NIC %d in the pod (-home +pod):\n%s", i, d)
									}
									h.passes(pod, nic)
								}
							}
							if err := h.mover.Detach(ctx, pod); err != nil {
								t.Errorf("detach after the crash: %v", err)
							}
							if err := h.mover.Release(ctx, claimed.Claim.UID); err != nil {
								t.Error(err)
							}
							h.allHome(before)
						})
					}
				}
			}
		}
	}
}

// allHome checks that every NIC is on the host as it was, and that no record is left.
func (h *host) allHome(before []*podnet.State) {
	h.Helper()
	for i, nic := range h.nics {
		if d := diff(before[i], h.home(nic)); d != "" {
			h.Errorf("NIC %d on the host (-before +after):\n%s", i, d)
		}
	}
	if records, _ := filepath.Glob(filepath.Join(h.dir, "nics", "*.json")); len(records) > 0 {
		h.Errorf("records left: %v", records)
	}
}
