package podnet

import (
	"strings"
	"testing"

	"github.com/topodra/topodra/api/v1alpha1"
)

type counter struct {
	Observer
	found map[v1alpha1.PreflightLevel]int
}

func (c counter) PreflightFound(_ v1alpha1.PreflightCheck, level v1alpha1.PreflightLevel) {
	c.found[level]++
}

// TestGIDLevels: a NIC without a GID in its pod keeps the container from starting, is told of, or nobody cares.
func TestGIDLevels(t *testing.T) {
	missing := []Plan{{Uses: "mlx5_0", Pod: State{Name: "rail0"}}}
	for level, want := range map[v1alpha1.PreflightLevel]struct {
		text  string
		count int
	}{
		v1alpha1.PreflightFail: {"topodra: preflight gid: RDMA device mlx5_0 has no RoCEv2 GID in pod ns/pod: give its interface rail0 an address", 1},
		v1alpha1.PreflightWarn: {"", 1},
		v1alpha1.PreflightOff:  {"", 0},
	} {
		found := map[v1alpha1.PreflightLevel]int{}
		h := &handler{NRI: &NRI{GIDLevel: level, Observer: counter{found: found}}, ctx: t.Context()}
		err := h.judgeGIDs(Sandbox{Namespace: "ns", Name: "pod"}, missing)
		if (err == nil) != (want.text == "") || err != nil && !strings.HasPrefix(err.Error(), want.text) || found[level] != want.count {
			t.Errorf("%s: got %v and %d findings, want %q and %d", level, err, found[level], want.text, want.count)
		}
	}
}
