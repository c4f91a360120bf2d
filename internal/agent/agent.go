// Package agent is the node agent: it scans the machine, publishes what belongs
// together, and serves the kubelet.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/keys"
	"github.com/topodra/topodra/internal/metrics"
	"github.com/topodra/topodra/internal/plugin"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/policy"
	"github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/status"
)

// Options say where the agent runs.
type Options struct {
	NodeName   string
	PodUID     types.UID // of the agent's own pod; empty outside of one
	KubeClient kubernetes.Interface
	Config     v1alpha1.DriverConfig

	KubeletDir  string // the kubelet's root directory
	CDIDir      string // scanned by the container runtime
	HTTPAddress string // metrics and health; empty for none
	HTTPSocket  string // the same on a unix socket; empty for none
	NRISocket   string // of the container runtime
	GateHook    string // path of topodra-hook as the container runtime sees it

	Machine Machine
}

// DataDir is the agent's own directory below the kubelet's. The container
// runtime sees it under the same path.
func DataDir(kubeletDir string) string {
	return filepath.Join(kubeletDir, "plugins", v1alpha1.Group)
}

// Agent is the wired node agent.
type Agent struct {
	Options
	metrics *metrics.Metrics
	watcher *watcher
	claims  *claims.Manager
	plugin  *plugin.Plugin
	nodes   *keys.NodeCache
	mover   *podnet.Mover
	nri     *podnet.NRI
	status  *status.Writer

	view      atomic.Pointer[view]
	published atomic.Bool
	helper    atomic.Pointer[kubeletplugin.Helper]
}

// New reads configuration and wires the parts; it changes nothing on the node.
func New(o Options) (*Agent, error) {
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	rules, err := policy.New(o.Config, o.Machine.Roles, o.NodeName)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		Options: o,
		metrics: metrics.New(),
		nodes:   keys.NewNodeCache(o.KubeClient, o.NodeName),
		status:  status.NewWriter(o.KubeClient),
	}
	a.watcher = &watcher{
		machine: o.Machine, policy: rules, metrics: a.metrics, changed: a.changed, events: make(chan struct{}, 1),
		counters: countersQuestion{client: o.KubeClient, node: o.NodeName, events: newEvents(o.KubeClient, o.NodeName)},
	}
	boot := strings.TrimSpace(string(bootID))
	claimsDir, nicsDir := filepath.Join(DataDir(o.KubeletDir), "claims"), filepath.Join(DataDir(o.KubeletDir), podnet.Dir)
	a.nri = &podnet.NRI{Socket: o.NRISocket}
	a.mover, err = podnet.New(podnet.Options{
		Dir: nicsDir, BootID: boot, Simulated: o.Machine.Simulated != "", SysfsPCI: o.Machine.PCIDir, Ready: a.nri.Ready,
	})
	if err != nil {
		return nil, err
	}
	o.Machine.Scanner.Away = awayNICs(a.mover)
	a.claims, err = claims.New(claims.Options{
		Dir:         claimsDir,
		CDI:         cdi.Store{Dir: o.CDIDir},
		CharDevices: o.Machine.CharDevices,
		Inventory:   inventory{&a.view},
		GPUs:        o.Machine.GPUEdits,
		NICs:        a.mover,
		Gate:        claims.Gate{Path: o.GateHook, Records: nicsDir, Claims: claimsDir},
		Preflight:   newPreflight(o, a.metrics, a.view.Load),
		Recorder:    a.metrics,
		Driver:      v1alpha1.Group,
		Pool:        o.NodeName,
		BootID:      boot,
	})
	if err != nil {
		return nil, err
	}
	a.nri.Mover, a.nri.Claims, a.nri.GIDLevel = a.mover, a.claims, o.Config.PreflightLevel(v1alpha1.CheckGID)
	a.nri.Observer = nicObserver{a.metrics, a.claims, a.mover, a.status}
	a.plugin = &plugin.Plugin{
		Claims: a.claims,
		Keys: &keys.Keys{
			Nodes:  a.nodes,
			Rules:  keys.NodeRules{Rack: o.Config.NodeLabels.Rack},
			Writer: keys.NewWriter(o.KubeClient),
			BootID: boot,
		},
		Recorder: a.metrics,
		Dropped: func([]string) {
			a.watcher.droppedFields.Store(true)
			a.watcher.wake()
		},
	}
	return a, nil
}

// Run serves until the context ends or something breaks that a new process may
// repair. What pods use stays: claims remain prepared and slices published.
func (a *Agent) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.plugin.Fatal = func(err error) { cancel(err) }
	defer func() {
		if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		err = errors.Join(err, a.claims.Close())
	}()
	if a.Machine.Simulated != "" {
		klog.FromContext(ctx).Info("This node is SIMULATED: it shows a machine that it is not, and hands out harmless devices", "machine", a.Machine.Simulated)
	}
	server, err := a.startHTTP(ctx)
	if err != nil {
		return err
	}
	defer server.stop()

	// The kubelet can unprepare claims from here on, whatever state the hardware
	// and its drivers are in. A claim to prepare waits for the first scan.
	if err := a.claims.Recover(ctx); err != nil {
		return err
	}
	go a.mover.Run(ctx)
	go a.nri.Run(ctx)
	go a.status.Run(ctx)
	helper, err := a.plugin.Start(ctx, plugin.Options{
		Driver:       v1alpha1.Group,
		NodeName:     a.NodeName,
		Client:       a.KubeClient,
		RegistrarDir: filepath.Join(a.KubeletDir, "plugins_registry"),
		DataDir:      DataDir(a.KubeletDir),
		CDIDir:       a.CDIDir,
		PodUID:       a.PodUID,
	})
	if err != nil {
		return err
	}
	defer helper.Stop()
	a.helper.Store(helper)

	a.watcher.askCounters(ctx)
	first := a.watcher.scan(ctx)
	a.view.Store(first)
	publisher, err := a.startPublisher(ctx, first)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer publisher.Stop()
	a.watcher.publisher = publisher
	go a.waitPublished(ctx)
	a.watcher.run(ctx)
	return nil
}

func (a *Agent) startPublisher(ctx context.Context, v *view) (*slices.Publisher, error) {
	// The owner reference wants the node's UID; without it the publisher asks itself.
	var uid types.UID
	if node, err := a.nodes.Get(ctx); err == nil {
		uid = node.UID
	}
	publisher, err := slices.StartPublisher(ctx, v.pool, slices.PublisherOptions{
		KubeClient:  a.KubeClient,
		NodeName:    a.NodeName,
		NodeUID:     uid,
		HandleError: a.plugin.PublishError,
	})
	if err == nil {
		a.metrics.Published(v.counts(), v.excluded(), metav1.Now().Time)
	}
	return publisher, err
}

// registered tells whether the kubelet knows this plugin.
func (a *Agent) registered() bool {
	helper := a.helper.Load()
	if helper == nil {
		return false
	}
	status := helper.RegistrationStatus()
	return status != nil && status.PluginRegistered
}

// waitPublished makes the agent ready once the API server has a complete pool of
// this node: an agent whose slices are refused must not take the place of one
// whose slices are there. It asks at growing intervals, and not at all afterwards.
func (a *Agent) waitPublished(ctx context.Context) {
	for pause := 100 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 10*time.Second) {
		stored, err := slices.Stored(ctx, a.KubeClient, a.NodeName)
		if stored {
			a.published.Store(true)
			return
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Not ready yet")
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// changed takes over a newer view.
func (a *Agent) changed(ctx context.Context, v *view) {
	a.view.Store(v)
	if a.watcher.publisher != nil && a.watcher.publisher.Publish(v.pool) {
		a.metrics.Published(v.counts(), v.excluded(), metav1.Now().Time)
		klog.FromContext(ctx).Info("ResourceSlices changed", "devices", v.counts())
	}
}
