package e2e

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/topodra/topodra/e2e/kube"
)

// TestClaims applies each manifest of docs/claims.md and looks at what its pods got.
func TestClaims(t *testing.T) {
	for name, want := range map[string]struct{ pods, pairs int }{ // pairs of each pod
		"one-pair":        {2, 1},
		"tensor-parallel": {1, 4},
		"claim-per-rank":  {1, 4},
		"rails":           {1, 4},
		"prefill-decode":  {2, 4},
		"no-switch":       {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			file := filepath.Join(s.Root, "examples/claims", name+".yaml")
			if text, err := s.Kubectl(t.Context(), "", "apply", "-n", s.name, "-f", file); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			t.Cleanup(func() { // whatever makes pods goes first, without them; the space ends the pods, and soon
				for _, what := range [][]string{{"-f", file, "--grace-period=1"}, {"replicasets", "--all"}} {
					args := append([]string{"delete", "-n", s.name, "--wait=false", "--cascade=orphan"}, what...)
					if text, err := s.Kubectl(context.Background(), "", args...); err != nil {
						t.Errorf("%v: %s", err, text)
					}
				}
			})
			rails := s.checkPairs(t, want.pods, want.pairs)
			if name == "prefill-decode" && len(rails) != 1 {
				t.Errorf("prefill and decode are on rails %v, want one set", rails)
			}
		})
	}
}

// checkPairs waits for the pods of a space and checks that each has so many pairs, nearest on its machine, and that no part is
// in two of them. It returns the sets of rails that the pods are labelled with.
func (s *space) checkPairs(t *testing.T, podCount, pairCount int) map[string]bool {
	t.Helper()
	pods, err := s.Running(t.Context(), s.name, "", podCount, startLimit)
	if err != nil {
		t.Fatal(err)
	}
	rails, owner := map[string]bool{}, map[string]string{}
	for _, pod := range pods {
		rails[pod.Labels["topodra.dev/rails"]] = true
		placement, err := kube.Placement(&pod)
		if err != nil {
			t.Fatal(err)
		}
		pairs, err := kube.Pairs(placement)
		if err != nil {
			t.Fatal(err)
		}
		if len(pairs) != pairCount {
			t.Errorf("pod %s has %d pairs, want %d", pod.Name, len(pairs), pairCount)
		}
		machine, err := kube.ReadMachine(s.Root, machines[pod.Spec.NodeName])
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range pairs {
			if err := machine.Check(pair); err != nil {
				t.Errorf("pod %s: %v", pod.Name, err)
			}
			for _, device := range []string{pair.GPU.Name, pair.NIC.Name} {
				key := pod.Spec.NodeName + "/" + device
				if other, taken := owner[key]; taken {
					t.Errorf("%s is in pod %s and in pod %s", key, other, pod.Name)
				}
				owner[key] = pod.Name
			}
		}
	}
	return rails
}
