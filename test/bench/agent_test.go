package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/topodra/topodra/internal/agent"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/testing/apiserver"
)

const (
	nodeName = "bench"
	machine  = "kvm-8xh200-pxb-switch" // eight GPUs and eight NICs
)

// installation is what one node has: the agent's binary, its flags and its directories.
type installation struct {
	dir  string // kubelet's root directory
	args []string
}

// install builds the agent as the Dockerfile does.
func install(b *testing.B, server *apiserver.Server) installation {
	b.Helper()
	root := simulatetest.ModuleRoot(b)
	// Not b.TempDir: paths of sockets are at most 107 bytes long.
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	// On a node CDI files lie below /var/run, which is a tmpfs.
	shm, err := os.MkdirTemp("/dev/shm", "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(shm) })
	binary := filepath.Join(b.TempDir(), "topodra")
	hook := filepath.Join(b.TempDir(), "topodra-hook")
	for program, file := range map[string]string{"./cmd/topodra": binary, "./cmd/topodra-hook": hook} {
		build := exec.CommandContext(b.Context(), "go", "build", "-tags=netgo,osusergo", "-ldflags=-s -w", "-o", file, program)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("build %s: %v\n%s", program, err, out)
		}
	}
	for _, name := range []string{"plugins_registry", "host"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o750); err != nil {
			b.Fatal(err)
		}
	}
	return installation{dir: dir, args: []string{
		binary, "--node-name=" + nodeName, "--kubeconfig=" + server.Kubeconfig(b), "--kubelet-dir=" + dir,
		"--cdi-dir=" + shm, "--http-address=", "--cdi-hook=", "--gate-hook=" + hook, "--nri-socket=" + filepath.Join(dir, "nri.sock"),
		// An empty host: on a machine with GPUs the agent would refuse to simulate others.
		"--driver-root=" + filepath.Join(dir, "host"),
		"--simulate=" + filepath.Join(root, "testdata/machines", machine, "machine.yaml"), "--nvml-double=" + simulatetest.NVMLDouble(b),
	}}
}

// process is a running agent with the connection that a kubelet would have to it.
type process struct {
	drapb.DRAPluginClient
	cmd  *exec.Cmd
	conn *grpc.ClientConn
	log  bytes.Buffer
}

// start starts the agent, below a tracer if there is one. The process has been started when it returns, nothing more.
func (i installation) start(b *testing.B, tracer ...string) *process {
	b.Helper()
	p := &process{}
	line := slices.Concat(tracer, i.args)
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	p.conn, err = grpc.NewClient("unix://"+filepath.Join(agent.DataDir(i.dir), "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	p.DRAPluginClient = drapb.NewDRAPluginClient(p.conn)
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return p
}

// stop ends the agent as its DaemonSet does.
func (p *process) stop(b *testing.B) {
	b.Helper()
	_ = p.conn.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		b.Errorf("agent ended with %v; its log:\n%s", err, p.log.String())
	}
}

// prepare does what the kubelet does for a pod with one claim.
func (p *process) prepare(ctx context.Context, w work) error {
	r, err := p.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{w.request()}})
	if err != nil {
		return err
	}
	if answer := r.Claims[string(w.claim.UID)]; answer == nil || answer.Error != "" || len(answer.Devices) != len(w.claim.Status.Allocation.Devices.Results) {
		return fmt.Errorf("prepare claim %s: %v", w.claim.Name, answer)
	}
	return nil
}

func (p *process) unprepare(ctx context.Context, w work) error {
	r, err := p.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{w.request()}})
	if err != nil {
		return err
	}
	if answer := r.Claims[string(w.claim.UID)]; answer == nil || answer.Error != "" {
		return fmt.Errorf("unprepare claim %s: %v", w.claim.Name, answer)
	}
	return nil
}

// ready waits until the agent answers and has scanned the machine.
func (p *process) ready(b *testing.B, w work) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for {
		err := p.prepare(ctx, w)
		if err == nil {
			err = p.unprepare(ctx, w)
		}
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			b.Fatalf("agent is not ready: %v; its log:\n%s", err, p.log.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cpu returns the processor time that the agent has used. The clock has ticks of 10 ms.
func (p *process) cpu(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	// Fields 14 and 15 of proc_pid_stat(5), counted from the end of the command's name, which may have spaces.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory returns the agent's resident set and its anonymous part, as /proc/PID/status prints them.
func (p *process) memory(b *testing.B) (resident, anonymous string) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		kib, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch name {
		case "VmRSS":
			resident = fmt.Sprintf("%d MiB", kib/1024)
		case "RssAnon":
			anonymous = fmt.Sprintf("%d MiB", kib/1024)
		}
	}
	return resident, anonymous
}
