// Package e2e tests the driver on a real cluster of hack/cluster, which it starts and ends itself. Run it with
//
//	go test -v -count=1 -timeout 15m ./e2e
//
// It needs root; without it, or where the cluster cannot be built, every test is skipped with the reason. With
// TOPODRA_REQUIRE_CLUSTER set that is a failure.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/topodra/topodra/e2e/kube"
)

// machines are what the nodes simulate: one has a NIC below the switch of each GPU, the other tells NUMA nodes only.
var machines = map[string]string{"node1": "kvm-8xh200-pxb-switch", "node2": "azure-nd-gb300-v6"}

const (
	// agentLabel lets a test take the agent from a node: nodes without it get none.
	agentLabel = "e2e/agent"

	insideEnv   = "TOPODRA_E2E_CLUSTER" // name of the cluster whose network this process is in
	auditLogEnv = "TOPODRA_E2E_AUDIT"   // its audit log
)

var (
	cluster    *kube.Cluster
	skipReason string
)

// TestMain starts the cluster and runs this program once more inside its network.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if os.Getenv(insideEnv) != "" {
		var err error
		if cluster, err = kube.Connect(".."); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	work, err := os.MkdirTemp("", "topodra-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(work)
	e := &environment{name: "e2e-" + strconv.Itoa(os.Getpid()), work: work, start: time.Now()}
	defer e.down()
	if err := e.up(ctx); err != nil {
		if ctx.Err() != nil || os.Getenv("TOPODRA_REQUIRE_CLUSTER") != "" {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		skipReason = err.Error()
		return m.Run()
	}
	if err := e.install(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	e.say("tests")
	err = e.runInside(ctx)
	e.say("takes the cluster down")
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	default:
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
}

// environment is the cluster of one run.
type environment struct {
	name, work string
	start      time.Time
	exists     bool
}

func (e *environment) say(text string) {
	fmt.Fprintf(os.Stderr, "e2e: %3.0f s  %s\n", time.Since(e.start).Seconds(), text)
}

// up starts the cluster. Its errors are reasons why there can be none here.
func (e *environment) up(ctx context.Context) error {
	if testing.Short() {
		return errors.New("skipped with -short: starts a cluster")
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: the cluster is made of namespaces and mounts")
	}
	policy, err := os.ReadFile("testdata/audit-policy.yaml")
	if err != nil {
		return err
	}
	// The API server's arguments are split at blanks, which the path of a checkout may have.
	policyFile := filepath.Join(e.work, "audit-policy.yaml")
	if err := os.WriteFile(policyFile, policy, 0o600); err != nil {
		return err
	}
	e.say("builds what is missing, and starts two nodes")
	e.exists = true
	cmd := e.hack(ctx, "cluster", "--name", e.name, "up", "--nodes", "2",
		"--labels", agentLabel+"=yes,topology.kubernetes.io/zone=zone-a,topology.kubernetes.io/region=region-1",
		"--labels", "node1:topology.kubernetes.io/rack=rack-7", "--labels", "node2:topology.kubernetes.io/rack=rack-8")
	cmd.Env = append(os.Environ(),
		"APISERVER_ARGS=--audit-policy-file="+policyFile+" --audit-log-path="+e.auditLog(),
		// Tests kill agents often: they come back after 1 s each time, and claims are tried again as soon.
		"KUBELET_CONFIG=crashLoopBackOff: {maxContainerRestartPeriod: 1s}",
		"KUBELET_ARGS=--sync-frequency=1s",
	)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("no cluster can be started here (hack/cluster says above why): %w", err)
	}
	return nil
}

func (e *environment) auditLog() string { return filepath.Join(e.work, "audit.log") }

func (e *environment) install(ctx context.Context) error {
	e.say("installs the driver")
	args := []string{"--name", e.name}
	for node, machine := range machines {
		args = append(args, node+"="+machine)
	}
	args = append(args, "--", "--set-string", "nodeSelector."+strings.ReplaceAll(agentLabel, ".", `\.`)+"=yes")
	if err := e.hack(ctx, "install", args...).Run(); err != nil {
		return fmt.Errorf("hack/install: %w", err)
	}
	for node := range machines {
		// what manifests for every cluster call busybox
		cmd := e.hack(ctx, "cluster", "--name", e.name, "in", "-n", node, "ctr", "-n", "k8s.io", "images", "tag", "topodra.local/busybox:1", "docker.io/library/busybox:1")
		cmd.Stdout = nil
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("tag an image on %s: %w", node, err)
		}
	}
	return nil
}

// runInside runs the tests, by this very program in the cluster's network.
func (e *environment) runInside(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := e.hack(ctx, "cluster", append([]string{"--name", e.name, "net", self}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), insideEnv+"="+e.name, auditLogEnv+"="+e.auditLog())
	return cmd.Run()
}

// hack is a command of the folder hack that speaks to the caller's terminal. It is told to end, not killed, so that it can clean up.
func (e *environment) hack(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join("..", "hack", name), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

func (e *environment) down() {
	if !e.exists {
		return
	}
	if err := e.hack(context.Background(), "cluster", "--name", e.name, "down").Run(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: cluster %s is left over, end it with 'hack/cluster --name %s down': %v\n", e.name, e.name, err)
	}
}
