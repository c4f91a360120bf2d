// Package kubelet tests the agent with the part of the real kubelet that calls it.
package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/agent"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/testing/apiserver"
)

// machine has one NIC below the same PCIe switch as each of its eight GPUs.
const machine = "kvm-8xh200-pxb-switch"

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// node is a node of a real API server: a directory, the agent, and the kubelet's DRA manager. Agent and kubelet can be
// stopped and started again, as processes are.
type node struct {
	name   string // also of the namespace of its pods
	dir    string // kubelet's root directory
	api    kubernetes.Interface
	object *corev1.Node
	config *rest.Config // of the agent; counts its requests
	calls  *calls
	pods   pods

	stopAgent   func()
	kubelet     *dra.Manager
	stopKubelet func()
}

// serial keeps nodes apart when a test runs more than once.
var serial atomic.Int64

// startNode starts a node with agent and kubelet. It ends with the test.
func startNode(t *testing.T) *node {
	t.Helper()
	server := apiserver.Shared(t)
	// Paths of sockets are at most 107 bytes long, and t.TempDir is not short.
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{
		name: fmt.Sprintf("%s-%d", strings.ToLower(t.Name()), serial.Add(1)), dir: dir, api: kubernetes.NewForConfigOrDie(server.Config),
		config: rest.CopyConfig(server.Config), calls: &calls{}, stopAgent: func() {}, stopKubelet: func() {},
	}
	n.config.Wrap(n.calls.count)
	for _, name := range []string{"plugins_registry", "state"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]string{corev1.LabelTopologyZone: "z1", corev1.LabelTopologyRegion: "r1"}
	n.object, err = n.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	if _, err := n.api.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.stopAgent(); n.stopKubelet() })
	n.startAgent(t)
	n.startKubelet(t)
	return n
}

// startAgent starts the agent, after stopping the one that runs.
func (n *node) startAgent(t *testing.T) {
	t.Helper()
	n.stopAgent()
	file := filepath.Join(simulatetest.ModuleRoot(t), "testdata/machines", machine, "machine.yaml")
	m, err := agent.Simulated(file, agent.DataDir(n.dir), t.TempDir(), simulatetest.NVMLDouble(t), "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.New(agent.Options{
		NodeName: n.name, KubeClient: kubernetes.NewForConfigOrDie(n.config), Config: v1alpha1.DefaultDriverConfig(),
		KubeletDir: n.dir, CDIDir: filepath.Join(n.dir, "cdi"), Machine: m,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	n.stopAgent = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("agent ended with %v", err)
		}
	})
}

// startKubelet starts the kubelet's DRA manager and its plugin watcher, after stopping those that run. Like the real one
// it deletes the node's slices first.
func (n *node) startKubelet(t *testing.T) {
	t.Helper()
	n.stopKubelet()
	logger, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	manager, err := dra.NewManager(logger, n.api, filepath.Join(n.dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := manager.Start(ctx, n.pods.list, func(context.Context) (*corev1.Node, error) { return n.object, nil }, ready); err != nil {
		t.Fatal(err)
	}
	plugins := pluginmanager.NewPluginManager(filepath.Join(n.dir, "plugins_registry"), record.NewFakeRecorder(100))
	plugins.AddHandler(registerapi.DRAPlugin, manager.GetWatcherHandler())
	var wg sync.WaitGroup
	wg.Go(func() { plugins.Run(ctx, ready, ctx.Done()) })
	n.kubelet = manager
	n.stopKubelet = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		manager.Stop()
	})
}

// prepare lets the kubelet prepare the claims of a pod. It waits until the agent has registered.
func (n *node) prepare(t *testing.T, pod *corev1.Pod) error {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := n.kubelet.PrepareResources(t.Context(), pod)
		if err == nil || !strings.Contains(err.Error(), "is not registered") || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (n *node) mustPrepare(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := n.prepare(t, pod); err != nil {
		t.Fatalf("prepare pod %s: %v", pod.Name, err)
	}
}

func (n *node) mustUnprepare(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := n.kubelet.UnprepareResources(t.Context(), pod); err != nil {
		t.Fatalf("unprepare pod %s: %v", pod.Name, err)
	}
}

// pods are the pods that the kubelet knows.
type pods struct {
	mu   sync.Mutex
	pods []*corev1.Pod
}

func (p *pods) list() []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.pods)
}

func (p *pods) add(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = append(p.pods, pod)
}

// calls are the agent's requests about pods and claims.
type calls struct {
	mu   sync.Mutex
	list []string
}

func (c *calls) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if parts := strings.Split(r.URL.Path, "/"); slices.Contains(parts, "namespaces") && len(parts) > 2 {
			c.mu.Lock()
			c.list = append(c.list, r.Method+" "+strings.Join(parts[len(parts)-2:], "/"))
			c.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// take returns the requests since the last time, sorted.
func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	slices.Sort(list)
	return list
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// waitFor waits for what happens in the background.
func (n *node) waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
