// Package plugin is what the kubelet calls. It has no logic of its own: it hands
// the claims of a call to the claim manager and the pods to the keys.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/keys"
)

// Claims prepares and unprepares single claims; *claims.Manager is one.
type Claims interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim, siblings ...*resourceapi.ResourceClaim) (claims.Prepared, error)
	Unprepare(ctx context.Context, uid types.UID, name types.NamespacedName) error
	Placements(pod types.UID) []v1alpha1.ClaimPlacement
	// Known tells whether a claim is prepared or being prepared.
	Known(uid types.UID) bool
}

// Keys writes topology keys onto pods; *keys.Keys does.
type Keys interface {
	Apply(ctx context.Context, pod v1alpha1.PodRef, claims []v1alpha1.ClaimPlacement) error
}

// Recorder is told what metrics are made of.
type Recorder interface {
	// Call is called once per call of the kubelet; method is "prepare" or
	// "unprepare", err joins the errors of all claims.
	Call(method string, took time.Duration, err error)
	// PublishFailed is called for trouble with ResourceSlices; reason is
	// "dropped-fields", "invalid" or "other".
	PublishFailed(reason string)
}

// Plugin implements kubeletplugin.DRAPlugin.
type Plugin struct {
	Claims   Claims
	Keys     Keys
	Recorder Recorder
	// Fatal is called with an error after which the process must end; cancel the
	// main context with it as the cause.
	Fatal func(error)
	// Dropped, if set, is called when the API server does not store fields of our
	// slices, with the feature gates that the cluster lacks.
	Dropped func(features []string)
}

var _ kubeletplugin.DRAPlugin = &Plugin{}

// PrepareResourceClaims prepares the claims of one pod in parallel, then writes
// the keys of their pods, so that they are there before any container starts.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, batch []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	start := time.Now()
	prepared := make([]claims.Prepared, len(batch))
	faults := make([]error, len(batch))
	var wg sync.WaitGroup
	for i, claim := range batch {
		wg.Go(func() { prepared[i], faults[i] = p.Claims.Prepare(ctx, claim, batch...) })
	}
	wg.Wait()
	p.applyKeys(ctx, prepared, faults)

	results := make(map[types.UID]kubeletplugin.PrepareResult, len(batch))
	for i, claim := range batch {
		if faults[i] != nil {
			klog.FromContext(ctx).Error(faults[i], "Claim could not be prepared", "claim", klog.KObj(claim), "claimUID", claim.UID)
			results[claim.UID] = kubeletplugin.PrepareResult{Err: faults[i]}
			continue
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices(prepared[i])}
	}
	p.Recorder.Call("prepare", time.Since(start), errors.Join(faults...))
	return results, nil
}

// applyKeys writes the keys of every pod that consumes one of the claims, once
// per pod. A failure is put on the claims of that pod. A pod that is gone is a
// failure only for claims that no other pod consumes.
func (p *Plugin) applyKeys(ctx context.Context, prepared []claims.Prepared, faults []error) {
	pods := map[types.UID]v1alpha1.PodRef{}
	for i := range prepared {
		if faults[i] == nil {
			for _, pod := range prepared[i].Pods {
				pods[pod.UID] = pod
			}
		}
	}
	var mu sync.Mutex
	failed := map[types.UID]error{}
	var wg sync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() {
			if err := p.Keys.Apply(ctx, pod, p.Claims.Placements(pod.UID)); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[pod.UID] = err
			}
		})
	}
	wg.Wait()
	for i := range prepared {
		if faults[i] == nil {
			faults[i] = keysFault(prepared[i].Pods, failed)
		}
	}
}

// keysFault is the fault of a claim whose pods could not be written. One of several
// pods may be gone, or be refused because it is not bound to this node yet: the
// scheduler reserves a claim for a pod before it binds the pod.
func keysFault(pods []v1alpha1.PodRef, failed map[types.UID]error) error {
	var gone, other []error
	for _, pod := range pods {
		switch err := failed[pod.UID]; {
		case err == nil:
		case errors.Is(err, keys.ErrPodGone), len(pods) > 1 && apierrors.IsForbidden(err):
			gone = append(gone, err)
		default:
			other = append(other, err)
		}
	}
	if len(other) == 0 && len(gone) < len(pods) {
		return nil
	}
	return errors.Join(append(other, gone...)...)
}

func devices(prepared claims.Prepared) []kubeletplugin.Device {
	out := make([]kubeletplugin.Device, 0, len(prepared.Devices))
	for _, d := range prepared.Devices {
		out = append(out, kubeletplugin.Device{
			Requests:     []string{d.Request},
			PoolName:     d.Pool,
			DeviceName:   d.Name,
			CDIDeviceIDs: d.CDIDeviceIDs,
			ShareID:      d.ShareID,
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: d.Attributes, NetworkData: d.Network},
		})
	}
	return out
}

// UnprepareResourceClaims undoes PrepareResourceClaims. Claims that are not
// prepared are fine.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, batch []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	start := time.Now()
	faults := make([]error, len(batch))
	var wg sync.WaitGroup
	for i, claim := range batch {
		wg.Go(func() { faults[i] = p.Claims.Unprepare(ctx, claim.UID, claim.NamespacedName) })
	}
	wg.Wait()
	results := make(map[types.UID]error, len(batch))
	for i, claim := range batch {
		if faults[i] != nil {
			klog.FromContext(ctx).Error(faults[i], "Claim could not be unprepared", "claim", claim)
		}
		results[claim.UID] = faults[i]
	}
	p.Recorder.Call("unprepare", time.Since(start), errors.Join(faults...))
	return results, nil
}

// WatchHealthStatus says that there is no health stream.
func (p *Plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// HandleError gets errors from the background of the helper. A gRPC server that
// ended is fatal: the kubelet cannot reach this process any more.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		klog.FromContext(ctx).Error(err, msg)
		return
	}
	p.Fatal(fmt.Errorf("%s: %w", msg, err))
}
