package podnet

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
)

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
