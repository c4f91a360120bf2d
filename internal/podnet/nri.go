package podnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

var (
	_ stub.SynchronizeInterface     = &handler{}
	_ stub.RunPodInterface          = &handler{}
	_ stub.StopPodInterface         = &handler{}
	_ stub.RemovePodInterface       = &handler{}
	_ stub.CreateContainerInterface = &handler{}
)

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
