package podnet

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// handler is one connection.
type handler struct {
	*NRI
	ctx context.Context // of the connection; that of a call ends with the call
}

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

func sandboxOf(p *api.PodSandbox) Sandbox {
	s := Sandbox{ID: p.GetId(), Namespace: p.GetNamespace(), Name: p.GetName(), UID: types.UID(p.GetUid())}
	for _, ns := range p.GetLinux().GetNamespaces() {
		if ns.GetType() == "network" {
			s.Netns = ns.GetPath()
		}
	}
	return s
}
