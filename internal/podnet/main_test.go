package podnet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/simulate/links"
)

// The tests move real interfaces between real network namespaces. TestMain runs them in a
// network and a mount namespace of their own, which stand for the host.
const (
	insideEnv = "TOPODRA_PODNET_INSIDE"
	actionEnv = "TOPODRA_PODNET_ACTION" // "attach" or "detach": what a process does that dies at a step
	crashEnv  = "TOPODRA_PODNET_CRASH"  // "N STEP": it dies when it comes to the step for the Nth time
	dirEnv    = "TOPODRA_PODNET_DIR"
	nodeName  = "node1"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(actionEnv) != "":
		os.Exit(act())
	case os.Getenv(insideEnv) != "" || os.Getuid() != 0:
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "podnet tests:", err)
		os.Exit(1)
	}
}

// host is a node with NICs.
type host struct {
	testing.TB
	dir   string
	nics  []links.NIC
	mover *podnet.Mover
}

// newHost makes a node with n NICs and sees to it that nothing is left of it.
func newHost(t testing.TB, n int) *host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("moving interfaces needs root")
	}
	h := &host{TB: t, dir: t.TempDir()}
	for i := range n {
		h.nics = append(h.nics, links.NIC{
			Address: pci.MustParseAddress(fmt.Sprintf("0000:%02x:00.0", 0x10+i)), Name: fmt.Sprintf("fabric%d", i),
		})
	}
	if err := links.Make(nodeName, h.nics); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for exec.Command("ip", "rule", "del", "table", "77").Run() == nil {
		}
		list, err := netlink.LinkList()
		for _, l := range list {
			if strings.HasPrefix(l.Attrs().Name, "tpf") || l.Attrs().Name == links.Fabric {
				_ = netlink.LinkDel(l)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	for _, nic := range h.nics {
		if err := os.MkdirAll(filepath.Join(h.dir, "pci", nic.Address.String()), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.restart()
	return h
}

// restart stands for a new process of the driver.
func (h *host) restart() {
	h.Helper()
	var err error
	if h.mover, err = newMover(h.dir); err != nil {
		h.Fatal(err)
	}
}

func newMover(dir string) (*podnet.Mover, error) {
	return podnet.New(podnet.Options{
		Dir: filepath.Join(dir, "nics"), BootID: "boot", SysfsPCI: filepath.Join(dir, "pci"), Simulated: true,
	})
}

func request(nic links.NIC, c v1alpha1.NICConfig) podnet.Request {
	return podnet.Request{
		Device: "nic-" + nic.Address.DNSLabel(), NIC: machine.NIC{Address: nic.Address}, Config: c, Path: "config",
	}
}

func claim(name string) podnet.Claim {
	return podnet.Claim{UID: types.UID(name + "-uid"), Namespace: "ns", Name: name}
}

// prepare plans a claim with NICs that have no configuration.
func (h *host) prepare(name string, nics ...links.NIC) podnet.Claimed {
	h.Helper()
	var requests []podnet.Request
	for _, nic := range nics {
		requests = append(requests, request(nic, v1alpha1.NICConfig{}))
	}
	plans, err := h.mover.Plan(context.Background(), claim(name), requests)
	if err != nil {
		h.Fatal(err)
	}
	return podnet.Claimed{Claim: claim(name), Plans: plans}
}

func parent(nic links.NIC) string { return podnet.SimulatedAlias(nic.Address.String()) }

// home returns the state of a NIC on the host, nil if it is not there.
func (h *host) home(nic links.NIC) *podnet.State {
	h.Helper()
	s, err := h.mover.CaptureHost(parent(nic))
	if err != nil {
		h.Fatal(err)
	}
	return s
}

func (h *host) in(pod podnet.Sandbox, nic links.NIC) *podnet.State {
	h.Helper()
	s, err := podnet.CapturePod(parent(nic), pod.Netns)
	if err != nil {
		h.Fatal(err)
	}
	return s
}

// pod makes a network namespace as a container runtime does: a mount that holds it.
func (h *host) pod(name string) podnet.Sandbox {
	h.Helper()
	path := filepath.Join(h.dir, "netns-"+name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		h.Fatal(err)
	}
	done := make(chan error)
	go func() {
		// A thread that ended in another namespace could be that of the process itself.
		runtime.LockOSThread()
		back, err := netns.Get()
		if err == nil {
			err = unix.Unshare(unix.CLONE_NEWNET)
		}
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}
		if err := netns.Set(back); err != nil {
			panic(err)
		}
		_ = back.Close()
		runtime.UnlockOSThread()
		done <- err
	}()
	if err := <-done; err != nil {
		h.Fatal(err)
	}
	s := podnet.Sandbox{ID: "sandbox-" + name, Namespace: "ns", Name: name, UID: types.UID(name + "-pod"), Netns: path}
	h.Cleanup(func() { h.end(s) })
	return s
}

// end makes the kernel destroy the namespace of a pod.
func (h *host) end(s podnet.Sandbox) {
	if err := unix.Unmount(s.Netns, unix.MNT_DETACH); err == nil {
		_ = os.Remove(s.Netns)
	}
}

func ip(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// inside runs a command in the network namespace of a pod.
func inside(t testing.TB, s podnet.Sandbox, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + s.Netns}, args...)...).CombinedOutput()
	return string(out), err
}

func addr(nic int) netip.Addr { return links.Addresses(nodeName, nic)[0].Addr() }

// act is a process of the driver that dies at a step.
func act() int {
	number, at, _ := strings.Cut(os.Getenv(crashEnv), " ")
	left, err := strconv.Atoi(number)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	podnet.SetStep(func(name string) {
		if name != at {
			return
		}
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // it takes a moment
		}
	})
	m, err := newMover(os.Getenv(dirEnv))
	if err == nil {
		var job crashJob
		if err = job.read(os.Getenv(dirEnv)); err == nil && os.Getenv(actionEnv) == "attach" {
			err = m.Attach(context.Background(), job.Sandbox, job.Claims)
		} else if err == nil {
			err = m.Detach(context.Background(), job.Sandbox)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// diff compares as JSON, where addresses are text.
func diff(before, after any) string {
	text := func(v any) string {
		content, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			panic(err)
		}
		return string(content)
	}
	return cmp.Diff(text(before), text(after))
}
