package podnet_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/simulate/links"
)

func (h *host) recordFile(nic links.NIC) string {
	return filepath.Join(h.dir, "nics", nic.Address.String()+".json")
}

// change edits the record of a NIC as somebody else would.
func (h *host) change(nic links.NIC, edit func(record map[string]any)) {
	h.Helper()
	content, err := os.ReadFile(h.recordFile(nic))
	record := map[string]any{}
	if err == nil {
		err = json.Unmarshal(content, &record)
	}
	if err == nil {
		edit(record)
		content, err = json.Marshal(record)
	}
	if err == nil {
		err = os.WriteFile(h.recordFile(nic), content, 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
}

// TestRunningPodKeepsWhatItHas: one of two NICs is lost; a new connection to the runtime leaves the other where it is.
func TestRunningPodKeepsWhatItHas(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 2)
	claimed := []podnet.Claimed{h.prepare("claim", h.nics...)}
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, claimed); err != nil {
		t.Fatal(err)
	}
	if out, err := inside(t, pod, "ip", "link", "del", "fabric0"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := h.mover.Complete(ctx, pod, claimed); err == nil || !strings.Contains(err.Error(), "NIC nic-0000-10-00-0 of claim ns/claim: it is neither on the host nor in the pod") {
		t.Errorf("got %v", err)
	}
	h.passes(pod, h.nics[1])
	// A sandbox that starts does without neither.
	if err := h.mover.Attach(ctx, pod, claimed); err == nil {
		t.Error("a sandbox starts without its NIC")
	}
	if h.in(pod, h.nics[1]) != nil {
		t.Error("what was moved into a sandbox that must not start is still there")
	}
}

// TestHomeIsWhatWasThere: a NIC that the kernel has just returned is restored before the next claim looks at it.
func TestHomeIsWhatWasThere(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	before := []*podnet.State{h.home(h.nics[0])}
	first := h.prepare("first", h.nics[0])
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{first}); err != nil {
		t.Fatal(err)
	}
	go links.Keep(ctx, h.nics)
	h.end(pod)
	eventually(t, func() string {
		if h.home(h.nics[0]) == nil {
			return "the NIC does not come back"
		}
		return ""
	})
	h.change(h.nics[0], func(r map[string]any) { r["released"] = true }) // Unprepare, and nobody has looked since
	second := h.prepare("second", h.nics[0])
	if d := diff(before[0].Addresses, second.Plans[0].Pod.Addresses); d != "" || second.Plans[0].Pod.MTU != before[0].MTU {
		t.Errorf("MTU %d, addresses (-home +plan):\n%s", second.Plans[0].Pod.MTU, d)
	}
	if err := errors.Join(h.mover.Release(ctx, second.Claim.UID)); err != nil {
		t.Fatal(err)
	}
	h.allHome(before)
}

// TestTornRecord: what a power loss leaves of a record blocks nobody.
func TestTornRecord(t *testing.T) {
	h := newHost(t, 1)
	before := []*podnet.State{h.home(h.nics[0])}
	for _, content := range []string{"", `{"version":1,"add`} {
		if err := os.WriteFile(h.recordFile(h.nics[0]), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		claimed := h.prepare("claim", h.nics[0])
		if err := h.mover.Release(t.Context(), claimed.Claim.UID); err != nil {
			t.Fatal(err)
		}
		h.allHome(before)
	}
}

// TestForeignRules: a rule that says more than the driver can tell is not taken along, and nothing is added on the host.
func TestForeignRules(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	ip(t, "rule", "add", "iif", "fabric0", "fwmark", "0x10", "table", "77", "priority", "500")
	ip(t, "rule", "add", "from", addr(0).String(), "table", "77", "priority", "501")
	rules := ip(t, "rule")
	claimed := h.prepare("claim", h.nics[0])
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	if out, err := inside(t, pod, "ip", "rule"); err != nil || strings.Contains(out, "500:") || !strings.Contains(out, "501:") {
		t.Errorf("rules in the pod: %v %s", err, out)
	}
	if err := errors.Join(h.mover.Detach(ctx, pod), h.mover.Release(ctx, claimed.Claim.UID)); err != nil {
		t.Fatal(err)
	}
	if now := ip(t, "rule"); now != rules {
		t.Errorf("rules on the host:\n%swere\n%s", now, rules)
	}
}

// TestNextNamespaceOfTheSameNumber: the kernel gives numbers of namespaces out again.
func TestNextNamespaceOfTheSameNumber(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	claimed := []podnet.Claimed{h.prepare("claim", h.nics[0])}
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, claimed); err != nil {
		t.Fatal(err)
	}
	inode := 0.0
	h.change(h.nics[0], func(r map[string]any) { inode = r["attached"].(float64) })
	if err := h.mover.Detach(ctx, pod); err != nil {
		t.Fatal(err)
	}
	// As if an earlier sandbox had had this number, and nobody had seen its end.
	h.change(h.nics[0], func(r map[string]any) {
		r["attached"], r["sandbox"], r["away"], r["interface"] = inode, "earlier", true, ""
	})
	if err := h.mover.Attach(ctx, pod, claimed); err != nil {
		t.Fatal(err)
	}
	h.passes(pod, h.nics[0])
}

// TestRestoresAllItCan: one thing that cannot be restored does not keep the rest from it.
func TestRestoresAllItCan(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	before := h.home(h.nics[0])
	claimed := h.prepare("claim", h.nics[0])
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	h.change(h.nics[0], func(r map[string]any) { r["home"].(map[string]any)["mtu"] = 70000 }) // veth allows 65535
	if err := errors.Join(h.mover.Detach(ctx, pod), h.mover.Release(ctx, claimed.Claim.UID)); err != nil {
		t.Fatal(err)
	}
	if now := h.home(h.nics[0]); now == nil || !now.Up || diff(before.Addresses, now.Addresses) != "" {
		t.Errorf("on the host: %+v", now)
	}
	if _, err := h.mover.Plan(ctx, claim("next"), []podnet.Request{request(h.nics[0], v1alpha1.NICConfig{})}); err != nil {
		t.Error(err)
	}
	if err := h.mover.Release(ctx, claim("next").UID); err != nil {
		t.Error(err)
	}
}
