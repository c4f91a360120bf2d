package podnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/podnet/gate"
)

// DefaultNRISocket is where container runtimes listen for NRI plugins.
const DefaultNRISocket = api.DefaultSocketPath

// Claims knows the prepared claims of pods.
type Claims interface {
	// NICsOf returns the prepared claims of a pod that have NICs.
	NICsOf(ctx context.Context, pod types.UID) ([]Claimed, error)
}

// Observer is told what happens to claims.
type Observer interface {
	// Attached is called for every claim with NICs of a sandbox that starts, and again
	// when the connection is made. err is why its NICs are not in the pod; those of a
	// sandbox without a network namespace of its own (hostNetwork) stay on the host.
	Attached(claim Claimed, sandbox Sandbox, took time.Duration, err error)
	// NRIConnected is called on every change.
	NRIConnected(connected bool)
	// PreflightFound is called for every finding.
	PreflightFound(check v1alpha1.PreflightCheck, level v1alpha1.PreflightLevel)
}

// NRI is the driver's NRI plugin. The container runtime calls it when sandboxes start and
// stop; between calls it needs nothing.
type NRI struct {
	Socket   string
	Mover    *Mover
	Claims   Claims
	Observer Observer
	GIDLevel v1alpha1.PreflightLevel // of a NIC that has no GID in its pod

	mu   sync.Mutex
	down error // why there is no connection; nil while there is one
}

// index orders plugins of one runtime; nobody depends on the place of this one.
const index = "20"

// retryInterval is when the connection is tried without an event: the socket may be
// there while nobody listens, or its directory be made anew.
const retryInterval = 10 * time.Second

// Ready is nil while the runtime tells this process of sandboxes, else one sentence.
func (n *NRI) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down == nil {
		return nil
	}
	return fmt.Errorf("NICs cannot be moved into pods, because the driver has no connection to the container runtime's NRI: %w", n.down)
}

// Run keeps the connection until the context ends.
func (n *NRI) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	changed := n.watchSocket(ctx)
	n.setDown(errors.New("it is being made"))
	for said := ""; ctx.Err() == nil; {
		started := time.Now()
		err := n.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		n.setDown(n.explain(err))
		if text := n.Ready().Error(); text != said || time.Since(started) > retryInterval {
			logger.Info("No connection to the container runtime; it is made as soon as it can be", "reason", text)
			said = text
		}
		if time.Since(started) > time.Second {
			continue // it was connected: the runtime restarts
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(retryInterval):
		}
	}
}

// watchSocket wakes Run when the socket is made. On failure the interval has to do.
func (n *NRI) watchSocket(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(filepath.Dir(n.Socket))
	}
	if err != nil {
		klog.FromContext(ctx).Info("The NRI socket is looked for from time to time only", "interval", retryInterval, "reason", err.Error())
		return changed
	}
	go func() {
		defer watcher.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-watcher.Events:
				if e.Name == n.Socket && e.Has(fsnotify.Create) {
					// The socket is made a moment before somebody listens.
					time.Sleep(50 * time.Millisecond)
					select {
					case changed <- struct{}{}:
					default:
					}
				}
			case err := <-watcher.Errors:
				klog.FromContext(ctx).V(4).Info("NRI socket: an event was lost", "cause", err)
			}
		}
	}()
	return changed
}

func (n *NRI) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: switch NRI on in the container runtime (containerd 2 and CRI-O have it on by default), and check the chart's nriSocket", n.Socket)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("nobody listens on %s: the container runtime is restarting, or has NRI switched off", n.Socket)
	case err == nil:
		return errors.New("the container runtime closed it")
	}
	return err
}

func (n *NRI) setDown(err error) {
	n.mu.Lock()
	changed := (n.down == nil) != (err == nil)
	n.down = err
	n.mu.Unlock()
	file := filepath.Join(n.Mover.Dir, gate.StatusFile)
	if err == nil {
		_ = os.Remove(file)
	} else {
		_ = os.WriteFile(file, []byte(err.Error()+"\n"), 0o644)
	}
	if changed {
		n.Observer.NRIConnected(err == nil)
	}
}

// serve makes one connection and serves it to its end.
func (n *NRI) serve(ctx context.Context) error {
	closed := make(chan struct{})
	connection, end := context.WithCancel(ctx)
	defer end()
	s, err := stub.New(&handler{NRI: n, ctx: connection},
		stub.WithPluginName("topodra"), stub.WithPluginIdx(index), stub.WithSocketPath(n.Socket),
		stub.WithOnClose(sync.OnceFunc(func() { close(closed) })), stub.WithLogger(nriLog{}))
	if err != nil {
		return err
	}
	if err := start(ctx, s); err != nil {
		return err
	}
	defer s.Stop()
	select {
	case <-ctx.Done():
	case <-closed:
	}
	return nil
}

// startLimit bounds the registration, which the library lets wait for ever if the runtime
// ends in the middle of it.
const startLimit = 15 * time.Second

func start(ctx context.Context, s stub.Stub) error {
	started := make(chan error, 1)
	go func() { started <- s.Start(ctx) }()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startLimit):
		return errors.New("the container runtime does not answer")
	}
}

// handler is one connection.
type handler struct {
	*NRI
	ctx context.Context // of the connection; that of a call ends with the call
}

var (
	_ stub.SynchronizeInterface     = &handler{}
	_ stub.RunPodInterface          = &handler{}
	_ stub.StopPodInterface         = &handler{}
	_ stub.RemovePodInterface       = &handler{}
	_ stub.CreateContainerInterface = &handler{}
)

// Synchronize gets all sandboxes when the connection is made. Those that started while
// there was none get their NICs now; their containers have been kept from starting.
func (h *handler) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	var sandboxes []Sandbox
	for _, p := range pods {
		s := sandboxOf(p)
		if _, err := inode(s.Netns); s.Netns == "" || err == nil {
			sandboxes = append(sandboxes, s)
		}
	}
	h.Mover.replaceSandboxes(sandboxes)
	h.setDown(nil)
	klog.FromContext(h.ctx).Info("Connected to the container runtime", "sandboxes", len(sandboxes))
	go h.catchUp(sandboxes)
	return nil, nil
}

// catchUp moves NICs into sandboxes that lack them, and tries again as long as they run: a
// NIC may be on its way back from an earlier sandbox.
func (h *handler) catchUp(sandboxes []Sandbox) {
	if _, err := h.Mover.Reconcile(); err != nil {
		klog.FromContext(h.ctx).Error(err, "NICs are not all home; it is tried again")
	}
	for pause := firstLook; len(sandboxes) > 0; pause = min(2*pause, lastLook) {
		var left []Sandbox
		for _, s := range sandboxes {
			if !h.Mover.knows(s) {
				continue // it has ended meanwhile
			}
			if err := h.attach(h.ctx, s, false); err != nil {
				klog.FromContext(h.ctx).Error(err, "NICs of a running pod could not be moved into it; it is tried again", "pod", s.pod())
				left = append(left, s)
			}
		}
		select {
		case <-h.ctx.Done():
			return
		case <-time.After(pause):
		}
		sandboxes = left
	}
}

// RunPodSandbox moves NICs in before any container of the pod is made. Its error is what
// the user reads at the pod.
func (h *handler) RunPodSandbox(ctx context.Context, p *api.PodSandbox) error {
	return h.attach(ctx, sandboxOf(p), true)
}

func (h *handler) attach(ctx context.Context, s Sandbox, starting bool) error {
	claims, err := h.Claims.NICsOf(ctx, s.UID)
	if err != nil {
		return fmt.Errorf("topodra: %w", err)
	}
	if len(claims) == 0 {
		if starting {
			h.Mover.remember(s)
		}
		return nil
	}
	start, move := time.Now(), h.Mover.Complete
	if starting {
		move = h.Mover.Attach
	}
	err = move(ctx, s, claims)
	took := time.Since(start)
	for _, c := range claims {
		h.Observer.Attached(c, s, took, err)
	}
	if err != nil {
		return fmt.Errorf("topodra: %w", err)
	}
	klog.FromContext(h.ctx).V(2).Info("NICs are in the pod", "pod", s.pod(), "claims", len(claims), "took", took, "starting", starting)
	return nil
}

// StopPodSandbox brings NICs home while their namespace still exists. An error does not
// keep the runtime from ending it; then the kernel returns them.
func (h *handler) StopPodSandbox(ctx context.Context, p *api.PodSandbox) error {
	return h.detach(ctx, p)
}

// RemovePodSandbox is called without StopPodSandbox when a sandbox fails to start.
func (h *handler) RemovePodSandbox(ctx context.Context, p *api.PodSandbox) error {
	return h.detach(ctx, p)
}

func (h *handler) detach(ctx context.Context, p *api.PodSandbox) error {
	s := sandboxOf(p)
	start := time.Now()
	if err := h.Mover.Detach(ctx, s); err != nil {
		klog.FromContext(h.ctx).Error(err, "NICs could not be brought home; it is tried again", "pod", s.pod())
		return fmt.Errorf("topodra: %w", err)
	}
	klog.FromContext(h.ctx).V(4).Info("Sandbox ended", "pod", s.pod(), "took", time.Since(start))
	return nil
}

// CreateContainer gives containers with an RDMA device what CDI cannot: memory that they
// may lock, and the GID that is valid in the pod.
func (h *handler) CreateContainer(ctx context.Context, p *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	s := sandboxOf(p)
	claims, err := h.Claims.NICsOf(ctx, s.UID)
	if err != nil {
		return nil, nil, fmt.Errorf("topodra: %w", err)
	}
	var plans []Plan
	for _, claim := range claims {
		for _, plan := range claim.Plans {
			if hasDevice(c, plan.Uverbs) {
				plans = append(plans, plan)
			}
		}
	}
	if len(plans) == 0 {
		return nil, nil, nil
	}
	adjust := &api.ContainerAdjustment{}
	// What is set already is by the user, or by the agent that this one replaces: the
	// runtime refuses a container that two plugins change alike.
	if !hasRlimit(c, memlock) {
		limit := memoryLock()
		adjust.AddRlimit(memlock, limit, limit)
	}
	found, err := readGIDs(s.Netns, plans)
	if err != nil {
		klog.FromContext(h.ctx).Error(err, "GIDs of a pod could not be read; its containers start without their index", "pod", s.pod())
	}
	if err := h.judgeGIDs(s, found.missing); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"UCX_IB_GID_INDEX", "NCCL_IB_GID_INDEX"} {
		if found.same && !hasEnv(c, name) {
			adjust.AddEnv(name, strconv.Itoa(found.index))
		}
	}
	return adjust, nil, nil
}

// judgeGIDs is the preflight check of GIDs for NICs that have moved: the kernel makes them
// anew in the pod.
func (h *handler) judgeGIDs(s Sandbox, missing []Plan) error {
	if h.GIDLevel == v1alpha1.PreflightOff {
		return nil
	}
	for _, p := range missing {
		err := fmt.Errorf("preflight %s: RDMA device %s has no RoCEv2 GID in pod %s: give its interface %s an address, on the host or in the claim's NICConfig", v1alpha1.CheckGID, p.Uses, s.pod(), p.Pod.Name)
		h.Observer.PreflightFound(v1alpha1.CheckGID, h.GIDLevel)
		if h.GIDLevel == v1alpha1.PreflightFail {
			return fmt.Errorf("topodra: %w", err)
		}
		klog.FromContext(h.ctx).Info("Preflight", "level", h.GIDLevel, "finding", err.Error())
	}
	return nil
}

const memlock = "RLIMIT_MEMLOCK"

func hasRlimit(c *api.Container, kind string) bool {
	return slices.ContainsFunc(c.GetRlimits(), func(l *api.POSIXRlimit) bool { return l.GetType() == kind })
}

func hasEnv(c *api.Container, name string) bool {
	return slices.ContainsFunc(c.GetEnv(), func(text string) bool { return strings.HasPrefix(text, name+"=") })
}

func hasDevice(c *api.Container, uverbs string) bool {
	for _, d := range c.GetLinux().GetDevices() {
		if uverbs != "" && d.GetPath() == "/dev/infiniband/"+uverbs {
			return true
		}
	}
	return false
}

// memoryLock is how much memory containers may lock, in bytes: no limit, or as much as
// this process itself where it may not raise limits.
func memoryLock() uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own); err != nil || own.Max == unix.RLIM_INFINITY {
		return math.MaxUint64
	}
	if raised := (unix.Rlimit{Cur: own.Cur, Max: unix.RLIM_INFINITY}); unix.Setrlimit(unix.RLIMIT_MEMLOCK, &raised) == nil {
		return math.MaxUint64
	}
	return own.Max
}

func sandboxOf(p *api.PodSandbox) Sandbox {
	s := Sandbox{ID: p.GetId(), Namespace: p.GetNamespace(), Name: p.GetName(), UID: types.UID(p.GetUid())}
	for _, ns := range p.GetLinux().GetNamespaces() {
		if ns.GetType() == "network" {
			s.Netns = ns.GetPath()
		}
	}
	return s
}

// nriLog hands the library's log to klog, at a level that is normally off.
type nriLog struct{}

func (nriLog) Debugf(ctx context.Context, format string, args ...any) {
	klog.FromContext(cmp.Or(ctx, context.Background())).V(6).Info("NRI: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}
func (l nriLog) Infof(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}
func (l nriLog) Warnf(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}
func (l nriLog) Errorf(ctx context.Context, format string, args ...any) {
	klog.FromContext(cmp.Or(ctx, context.Background())).V(4).Info("NRI: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}
