package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/internal/report"
)

// httpServer serves metrics and health on a TCP address and a unix socket.
type httpServer struct {
	server *http.Server
	cancel context.CancelFunc
}

// portRetry is how often the port is tried again while another agent has it.
const portRetry = 10 * time.Second

// startHTTP serves /metrics, /livez, /healthz and /topology. The agents of a rolling update
// share the host's network: the newer one gets the port when the older has gone.
func (a *Agent) startHTTP(ctx context.Context) (*httpServer, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler())
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case !a.registered():
			http.Error(w, "not registered with the kubelet yet", http.StatusServiceUnavailable)
		case !a.published.Load():
			http.Error(w, "no ResourceSlices published yet", http.StatusServiceUnavailable)
		default:
			fmt.Fprintln(w, "ok")
		}
	})
	mux.HandleFunc("GET /topology", a.serveTopology)
	s := &httpServer{server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}
	ctx, s.cancel = context.WithCancel(ctx)
	if a.HTTPSocket != "" {
		if err := os.Remove(a.HTTPSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("http socket: %w", err)
		}
		listener, err := net.Listen("unix", a.HTTPSocket)
		if err != nil {
			return nil, fmt.Errorf("http socket: %w", err)
		}
		go s.serve(ctx, listener)
	}
	if a.HTTPAddress != "" {
		if _, err := net.ResolveTCPAddr("tcp", a.HTTPAddress); err != nil {
			return nil, fmt.Errorf("http address %q: %w", a.HTTPAddress, err)
		}
		go s.serveTCP(ctx, a.HTTPAddress)
	}
	return s, nil
}

// serveTopology tells "kubectl topodra topo NODE" what this node has.
func (a *Agent) serveTopology(w http.ResponseWriter, _ *http.Request) {
	v := a.view.Load()
	if v == nil {
		http.Error(w, "the agent has just started and has not scanned this node yet", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = report.JSON(w, report.New(a.NodeName, v.snapshot, v.topology))
}

func (s *httpServer) serveTCP(ctx context.Context, address string) {
	logger := klog.FromContext(ctx)
	for said := false; ; {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			logger.Info("Serving metrics", "address", listener.Addr())
			s.serve(ctx, listener)
			return
		}
		if !said {
			logger.Info("The metrics port is taken, probably by the agent that this one replaces; trying again", "address", address, "reason", err.Error(), "every", portRetry)
			said = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(portRetry):
		}
	}
}

func (s *httpServer) serve(ctx context.Context, l net.Listener) {
	if err := s.server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Metrics and health are not served any more", "address", l.Addr())
	}
}

func (s *httpServer) stop() {
	s.cancel()
	_ = s.server.Close()
}
