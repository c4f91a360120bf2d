package podnet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/podnet/gate"
	"github.com/topodra/topodra/internal/simulate/links"
)

// check asks the gate about a process in a namespace.
func (h *host) gate(pod podnet.Sandbox, nic links.NIC) error {
	h.Helper()
	cmd := exec.Command("nsenter", "--net="+pod.Netns, "sleep", "60")
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	g := gate.Gate{Dir: filepath.Join(h.dir, "nics"), Claims: h.dir, Addresses: []string{nic.Address.String()}, Proc: "/proc"}
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		h.Fatal(err)
	}
	for range 100 { // nsenter enters a moment after it starts
		if now, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)); err == nil && now != host {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return g.Check(strings.NewReader(fmt.Sprintf(`{"ociVersion":"1.2.0","pid":%d}`, cmd.Process.Pid)))
}

func (h *host) passes(pod podnet.Sandbox, nic links.NIC) {
	h.Helper()
	if err := h.gate(pod, nic); err != nil {
		h.Errorf("the gate refuses a container: %v", err)
	}
}

func (h *host) refuses(pod podnet.Sandbox, nic links.NIC, want string) {
	h.Helper()
	if err := h.gate(pod, nic); err == nil || !strings.Contains(err.Error(), want) {
		h.Errorf("the gate says %v, want %q", err, want)
	}
}

// TestThereAndBack takes along all that belongs to an interface, twice.
func TestThereAndBack(t *testing.T) {
	ctx := context.Background()
	h := newHost(t, 2)
	nic := h.nics[0]
	ip(t, "route", "add", "203.0.113.0/24", "via", "198.18.0.254", "dev", nic.Name, "metric", "7")
	ip(t, "route", "add", "203.0.113.0/24", "dev", nic.Name, "table", "77")
	ip(t, "rule", "add", "from", addr(0).String(), "table", "77", "priority", "500")
	ip(t, "rule", "add", "iif", nic.Name, "table", "77", "priority", "501")
	ip(t, "neigh", "add", "198.18.0.254", "lladdr", "02:00:00:00:00:fe", "dev", nic.Name, "nud", "permanent")
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+nic.Name+"/rp_filter", []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
	before := []*podnet.State{h.home(nic), h.home(h.nics[1])}
	if len(before[0].Routes) != 2 || len(before[0].Rules) != 2 || len(before[0].Neighbors) != 1 || len(before[0].Addresses) != 2 {
		t.Fatalf("the test has not made what it means to lose: %+v", before[0])
	}
	for range 2 {
		claimed := h.prepare("claim", nic)
		pod := h.pod("pod")
		h.refuses(pod, nic, "it is not in the pod's network namespace yet, because the topodra agent does not run on this node")
		for range 2 { // the second time there is nothing to do
			if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
				t.Fatal(err)
			}
		}
		if s := h.home(nic); s != nil {
			t.Errorf("still on the host: %+v", s)
		}
		h.passes(pod, nic)
		in := h.in(pod, nic)
		if in.Name != nic.Name || in.MTU != links.MTU || !in.Up || !slices.Equal(in.Addresses, before[0].Addresses) || !slices.Equal(in.Neighbors, before[0].Neighbors) {
			t.Errorf("in the pod: %+v\non the host: %+v", in, before[0])
		}
		for _, r := range before[0].Routes {
			if !slices.Contains(in.Routes, r) {
				t.Errorf("the pod lacks route %+v", r)
			}
		}
		for _, r := range before[0].Rules {
			if !slices.Contains(in.Rules, r) {
				t.Errorf("the pod lacks rule %+v", r)
			}
		}
		if in.Sysctls["ipv4/rp_filter"] != "2" || in.Sysctls["ipv4/arp_ignore"] != "1" {
			t.Errorf("sysctls in the pod: %v", in.Sysctls)
		}
		if err := h.mover.Detach(ctx, pod); err != nil {
			t.Fatal(err)
		}
		h.refuses(pod, nic, "it is not in the pod's network namespace yet")
		if err := h.mover.Release(ctx, claimed.Claim.UID); err != nil {
			t.Fatal(err)
		}
		h.refuses(pod, nic, "its claim is not prepared on this node any more")
		h.end(pod)
		h.allHome(before)
	}
}

// TestKernelReturnsIt: the namespace of a pod ends while the driver is dead, and the
// kernel returns the interface under a name that it makes up.
func TestKernelReturnsIt(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 2)
	before := []*podnet.State{h.home(h.nics[0]), h.home(h.nics[1])}
	go links.Keep(ctx, h.nics)
	claimed := h.prepare("claim", h.nics...)
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	if out, err := inside(t, pod, "sh", "-c", "ip link set fabric0 down && ip link set fabric0 name net1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.restart()
	h.end(pod)
	go h.mover.Run(ctx)
	eventually(t, func() string { return diff(before[0], h.home(h.nics[0])) + diff(before[1], h.home(h.nics[1])) })
	// The claim has them still: a second sandbox of its pod gets them again.
	second := h.pod("second")
	if err := h.mover.Attach(ctx, second, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	h.passes(second, h.nics[0])
	// A pod that is deleted by force: the claim ends while the sandbox runs.
	if err := h.mover.Release(ctx, claimed.Claim.UID); err != nil {
		t.Fatal(err)
	}
	h.allHome(before)
}

func eventually(t testing.TB, missing func() string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		text := missing()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestNextClaimWaits: a NIC that is in a pod of another claim is not planned; once it is
// back it is.
func TestNextClaimWaits(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	before := []*podnet.State{h.home(h.nics[0])}
	first := h.prepare("first", h.nics[0])
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{first}); err != nil {
		t.Fatal(err)
	}
	h.restart() // it does not know which sandboxes run
	if err := h.mover.Release(ctx, first.Claim.UID); err != nil {
		t.Fatal(err)
	}
	_, err := h.mover.Plan(ctx, claim("second"), []podnet.Request{request(h.nics[0], v1alpha1.NICConfig{})})
	if away := (*podnet.AwayError)(nil); !errors.As(err, &away) || !strings.Contains(err.Error(), "still on its way back from pod ns/pod") {
		t.Errorf("got %v, want an AwayError that names the pod", err)
	}
	if err := h.mover.Detach(ctx, pod); err != nil {
		t.Fatal(err)
	}
	second := h.prepare("second", h.nics[0])
	if err := h.mover.Release(ctx, second.Claim.UID); err != nil {
		t.Fatal(err)
	}
	h.allHome(before)
}

// TestNamesTaken: in the pod, and on the host at the return.
func TestNamesTaken(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 2)
	before := []*podnet.State{h.home(h.nics[0]), h.home(h.nics[1])}
	claimed := h.prepare("claim", h.nics...)
	pod := h.pod("pod")
	if out, err := inside(t, pod, "ip", "link", "add", "fabric1", "type", "veth", "peer", "name", "x"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed})
	if err == nil || !strings.Contains(err.Error(), "NIC nic-0000-11-00-0 of claim ns/claim: the pod has an interface fabric1 already") {
		t.Errorf("got %v", err)
	}
	if d := diff(before, []*podnet.State{h.home(h.nics[0]), h.home(h.nics[1])}); d != "" {
		t.Errorf("a failed attach leaves something behind (-before +after):\n%s", d)
	}
	if _, err := inside(t, pod, "ip", "link", "del", "fabric1"); err != nil {
		t.Fatal(err)
	}
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	ip(t, "link", "add", "fabric0", "type", "veth", "peer", "name", "x")
	if err := h.mover.Detach(ctx, pod); err == nil || !strings.Contains(err.Error(), "its name fabric0 is taken by another interface on the host") {
		t.Errorf("got %v", err)
	}
	if s := h.home(h.nics[0]); s == nil || s.Name == "fabric0" {
		t.Errorf("the NIC is not on the host under another name: %+v", s)
	}
	ip(t, "link", "del", "fabric0")
	if err := h.mover.Release(ctx, claimed.Claim.UID); err != nil {
		t.Error(err)
	}
	h.allHome(before)
}

// TestContainerWaitsForLink: a port that has no link yet would send a library to TCP.
func TestContainerWaitsForLink(t *testing.T) {
	h := newHost(t, 1)
	claimed := h.prepare("claim", h.nics[0])
	pod := h.pod("pod")
	if err := h.mover.Attach(t.Context(), pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	ip(t, "link", "set", "tpf010000", "down") // the other end of the cable
	const pause = 500 * time.Millisecond
	start := time.Now()
	go func() {
		time.Sleep(pause)
		_ = exec.Command("ip", "link", "set", "tpf010000", "up").Run()
	}()
	h.passes(pod, h.nics[0])
	if took := time.Since(start); took < pause {
		t.Errorf("the container started after %v, %v before the link", took, pause-took)
	}
}

// TestOnePodPerClaim: a second pod with the same claim gets nothing, and its containers
// do not start.
func TestOnePodPerClaim(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	claimed := h.prepare("claim", h.nics[0])
	first, second := h.pod("first"), h.pod("second")
	if err := h.mover.Attach(ctx, first, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	const want = "it is in pod ns/first: a claim with a NIC serves one pod, give each pod its own by a ResourceClaimTemplate"
	if err := h.mover.Attach(ctx, second, []podnet.Claimed{claimed}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	h.passes(first, h.nics[0])
	h.refuses(second, h.nics[0], want)
}

// TestRails: of several NICs in one network each answers, and is answered, on its own.
func TestRails(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 4)
	pods := []podnet.Sandbox{h.pod("a"), h.pod("b")}
	for i, pod := range pods {
		claimed := h.prepare(pod.Name, h.nics[2*i:2*i+2]...)
		if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
			t.Fatal(err)
		}
	}
	for from := range 2 {
		for to := 2; to < 4; to++ {
			for i := range links.Addresses(nodeName, 0) {
				target := links.Addresses(nodeName, to)[i].Addr()
				source := links.Addresses(nodeName, from)[i].Addr()
				if out, err := inside(t, pods[0], "ip", "route", "get", target.String(), "from", source.String()); err != nil || !strings.Contains(out, fmt.Sprintf("dev fabric%d", from)) {
					t.Errorf("from %s to %s: %v %s", source, target, err, out)
				}
			}
			if out, err := inside(t, pods[0], "busybox", "ping", "-c", "3", "-W", "2", "-I", addr(from).String(), addr(to).String()); err != nil {
				t.Errorf("ping: %v: %s", err, out)
			}
		}
	}
}

// TestPlanFaults: every fault is a sentence with the field, and leaves nothing behind.
func TestPlanFaults(t *testing.T) {
	h := newHost(t, 4)
	ip(t, "link", "add", "macvlan0", "link", "fabric2", "type", "macvlan")
	before := []*podnet.State{h.home(h.nics[0]), h.home(h.nics[1]), h.home(h.nics[2]), h.home(h.nics[3])}
	for name, test := range map[string]struct {
		nics   []links.NIC
		config v1alpha1.NICConfig
		want   string
	}{
		"MTU":              {h.nics[:1], v1alpha1.NICConfig{MTU: 9000}, "config.mtu: 9000 is more than the 4200 bytes of fabric0 on the host: set the MTU there first"},
		"gateway":          {h.nics[:1], v1alpha1.NICConfig{Routes: []v1alpha1.Route{{To: "10.0.0.0/8", Via: "192.0.2.1"}}}, "config.routes[0].via: 192.0.2.1 is in no network of fabric0"},
		"one name for two": {h.nics[:2], v1alpha1.NICConfig{Interface: "rail"}, `config.interface: "rail" would be the name of nic-0000-10-00-0 and of nic-0000-11-00-0: put %d into it`},
		"one address":      {h.nics[:2], v1alpha1.NICConfig{Addresses: []string{"10.0.0.1/24"}}, "config.addresses: 10.0.0.1/24 would be the address of nic-0000-10-00-0 and of nic-0000-11-00-0"},
		"in use":           {h.nics[2:3], v1alpha1.NICConfig{Interface: "rail"}, "config.interface: nic-0000-12-00-0 has no interface in the pod, because the macvlan macvlan0 of the host stands on its interface fabric2"},
		"long name":        {h.nics[:1], v1alpha1.NICConfig{Interface: "sixteen-letters-"}, `config.interface: "sixteen-letters-" has 16 bytes, the kernel allows 15`},
	} {
		t.Run(name, func(t *testing.T) {
			var requests []podnet.Request
			for _, nic := range test.nics {
				requests = append(requests, request(nic, test.config))
			}
			_, err := h.mover.Plan(t.Context(), claim("claim"), requests)
			if fault := (podnet.ConfigError{}); !errors.As(err, &fault) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %s", err, test.want)
			}
			if err := h.mover.Release(t.Context(), claim("claim").UID); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("uplink", func(t *testing.T) {
		ip(t, "route", "add", "default", "via", "198.18.0.254", "dev", "fabric3")
		defer ip(t, "route", "del", "default")
		_, err := h.mover.Plan(t.Context(), claim("claim"), []podnet.Request{request(h.nics[3], v1alpha1.NICConfig{})})
		if err == nil || !strings.Contains(err.Error(), "is the node's uplink, the default route leaves through fabric3") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("member", func(t *testing.T) {
		ip(t, "link", "add", "br0", "type", "bridge")
		ip(t, "link", "set", "fabric0", "master", "br0")
		defer ip(t, "link", "del", "br0")
		plans, err := h.mover.Plan(t.Context(), claim("claim"), []podnet.Request{request(h.nics[0], v1alpha1.NICConfig{})})
		if err != nil || plans[0].Moves() || plans[0].Stays != "its interface fabric0 belongs to the bridge br0 of the host" {
			t.Errorf("got %+v, %v", plans, err)
		}
	})
	h.allHome(before)
}

// TestConfigured: what a claim's NICConfig says is what the pod has.
func TestConfigured(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 2)
	before := []*podnet.State{h.home(h.nics[0]), h.home(h.nics[1])}
	config := v1alpha1.NICConfig{
		Interface: "rail%d", Addresses: []string{"10.1.0.5/24", "fd00:1::5/64"}, MTU: 1400,
		Routes: []v1alpha1.Route{{To: "10.0.0.0/8", Via: "10.1.0.1"}, {To: "default", Via: "10.1.0.254"}},
	}
	plans, err := h.mover.Plan(ctx, claim("claim"), []podnet.Request{request(h.nics[0], config), request(h.nics[1], v1alpha1.NICConfig{Interface: "rail%d"})})
	if err != nil {
		t.Fatal(err)
	}
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{{Claim: claim("claim"), Plans: plans}}); err != nil {
		t.Fatal(err)
	}
	in := h.in(pod, h.nics[0])
	var addresses []string
	for _, a := range in.Addresses {
		addresses = append(addresses, a.Prefix.String())
	}
	if in.Name != "rail0" || in.MTU != 1400 || !slices.Equal(addresses, config.Addresses) {
		t.Errorf("in the pod: %+v", in)
	}
	if name := h.in(pod, h.nics[1]).Name; name != "rail1" {
		t.Errorf("the second NIC is %s", name)
	}
	for args, want := range map[string]string{
		"route get 10.7.0.1":                    "via 10.1.0.1 dev rail0",
		"route get 192.0.2.1 from 10.1.0.5":     "via 10.1.0.254 dev rail0",
		"route get 10.1.0.9 from 10.1.0.5":      "dev rail0",
		"-6 route get fd00:1::9 from fd00:1::5": "dev rail0",
	} {
		if out, err := inside(t, pod, strings.Fields("ip "+args)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("ip %s: %v: %s, want %s", args, err, out, want)
		}
	}
	if out, err := inside(t, pod, "ip", "route", "get", "192.0.2.1"); err == nil {
		t.Errorf("the NIC is the pod's default route: %s", out)
	}
	if err := errors.Join(h.mover.Detach(ctx, pod), h.mover.Release(ctx, claim("claim").UID)); err != nil {
		t.Fatal(err)
	}
	h.allHome(before)
}

// TestRemoved: a virtual function is removed while a pod has it.
func TestRemoved(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 1)
	claimed := h.prepare("claim", h.nics[0])
	pod := h.pod("pod")
	if err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	if out, err := inside(t, pod, "ip", "link", "del", "fabric0"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Remove(filepath.Join(h.dir, "pci", h.nics[0].Address.String())); err != nil {
		t.Fatal(err)
	}
	h.refuses(pod, h.nics[0], "its interface fabric0 has left the pod")
	if err := errors.Join(h.mover.Detach(ctx, pod), h.mover.Release(ctx, claimed.Claim.UID)); err != nil {
		t.Error(err)
	}
	if records, _ := filepath.Glob(filepath.Join(h.dir, "nics", "*.json")); len(records) > 0 {
		t.Errorf("records left: %v", records)
	}
}

// TestHostNetwork: nothing moves, and containers start.
func TestHostNetwork(t *testing.T) {
	h := newHost(t, 1)
	before := []*podnet.State{h.home(h.nics[0])}
	claimed := h.prepare("claim", h.nics[0])
	pod := podnet.Sandbox{ID: "s", Namespace: "ns", Name: "pod", UID: "pod"}
	if err := h.mover.Attach(t.Context(), pod, []podnet.Claimed{claimed}); err != nil {
		t.Fatal(err)
	}
	g := gate.Gate{Dir: filepath.Join(h.dir, "nics"), Claims: h.dir, Addresses: []string{h.nics[0].Address.String()}, Proc: "/proc"}
	if err := g.Check(strings.NewReader(fmt.Sprintf(`{"pid":%d}`, os.Getpid()))); err != nil {
		t.Error(err)
	}
	if err := errors.Join(h.mover.Detach(t.Context(), pod), h.mover.Release(t.Context(), claimed.Claim.UID)); err != nil {
		t.Error(err)
	}
	h.allHome(before)
}

// TestNothingLeaks: fifty pods with eight NICs each, one after another.
func TestNothingLeaks(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 8)
	var before []*podnet.State
	for _, nic := range h.nics {
		before = append(before, h.home(nic))
	}
	round := func(i int) {
		claimed := h.prepare(fmt.Sprintf("claim%d", i), h.nics...)
		pod := h.pod(fmt.Sprintf("pod%d", i))
		err := h.mover.Attach(ctx, pod, []podnet.Claimed{claimed})
		if err == nil {
			err = errors.Join(h.mover.Detach(ctx, pod), h.mover.Release(ctx, claimed.Claim.UID))
		}
		if err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		h.end(pod)
	}
	round(0)
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	for i := range 50 {
		round(i + 1)
	}
	eventually(t, func() string { // what earlier tests have left may still be ending
		if f, g := openFiles(t), runtime.NumGoroutine(); f > files || g > goroutines {
			return fmt.Sprintf("%d open files and %d goroutines, %d and %d before", f, g, files, goroutines)
		}
		return ""
	})
	h.allHome(before)
}

func openFiles(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestAfterReboot: records of an earlier boot say nothing, and claims that are not known lose their NICs.
func TestAfterReboot(t *testing.T) {
	ctx := t.Context()
	h := newHost(t, 2)
	before := []*podnet.State{h.home(h.nics[0]), h.home(h.nics[1])}
	h.prepare("forgotten", h.nics[0])
	known := h.prepare("known", h.nics[1])
	if err := h.mover.Recover(ctx, func(uid types.UID) bool { return uid == known.Claim.UID }); err != nil {
		t.Fatal(err)
	}
	h.prepare("next", h.nics[0]) // it is free
	next, err := podnet.New(podnet.Options{Dir: filepath.Join(h.dir, "nics"), BootID: "next boot", SysfsPCI: filepath.Join(h.dir, "pci"), Simulated: true})
	if err != nil {
		t.Fatal(err)
	}
	h.mover = next
	again := h.prepare("again", h.nics...)
	if err := h.mover.Release(ctx, again.Claim.UID); err != nil {
		t.Fatal(err)
	}
	h.allHome(before)
}
