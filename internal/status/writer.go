package status

import (
	"context"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/topodra/topodra/internal/podnet"
)

// FieldManager owns the driver's entries in status.devices.
const FieldManager = "topodra"

// Writer stores outcomes at claims in the background: a pod never waits for the API
// server here. It tries again until the newest outcome of a claim is stored, or the
// claim has gone.
type Writer struct {
	client kubernetes.Interface
	queue  workqueue.TypedRateLimitingInterface[types.UID]

	mu     sync.Mutex
	newest map[types.UID]entry
	count  int
}

type entry struct {
	claim   podnet.Claim
	outcome Outcome
	number  int // of all outcomes, to tell a newer one
}

// firstPause and lastPause bound the pauses between tries for one claim.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
)

// NewWriter returns a Writer; Run makes it work.
func NewWriter(client kubernetes.Interface) *Writer {
	return &Writer{
		client: client,
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](firstPause, lastPause)),
		newest: map[types.UID]entry{},
	}
}

// Store makes an outcome the newest of its claim.
func (w *Writer) Store(claim podnet.Claim, o Outcome) {
	w.mu.Lock()
	w.count++
	w.newest[claim.UID] = entry{claim, o, w.count}
	w.mu.Unlock()
	w.queue.Add(claim.UID)
}

// Run works until the context ends.
func (w *Writer) Run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		w.queue.ShutDown()
	}()
	for {
		uid, end := w.queue.Get()
		if end {
			return
		}
		w.work(ctx, uid)
		w.queue.Done(uid)
	}
}

func (w *Writer) work(ctx context.Context, uid types.UID) {
	w.mu.Lock()
	e, ok := w.newest[uid]
	w.mu.Unlock()
	if !ok {
		w.queue.Forget(uid)
		return
	}
	err := w.write(ctx, e)
	switch {
	case err == nil, apierrors.IsNotFound(err): // the claim has gone
		w.queue.Forget(uid)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.newest[uid].number == e.number {
			delete(w.newest, uid)
		}
	case ctx.Err() != nil:
	default:
		klog.FromContext(ctx).Error(err, "Status of a claim could not be stored; it is tried again", "claim", e.claim, "tries", w.queue.NumRequeues(uid)+1)
		w.queue.AddRateLimited(uid)
	}
}

// write replaces the driver's entries of the outcome's devices, and leaves all others. It
// does not use server-side apply: Kubernetes 1.37 takes an apply to the status of a claim
// with opaque parameters for one that removes the allocation, and refuses it.
func (w *Writer) write(ctx context.Context, e entry) error {
	devices := e.outcome.devices()
	if len(devices) == 0 {
		return nil
	}
	client := w.client.ResourceV1().ResourceClaims(e.claim.Namespace)
	claim, err := client.Get(ctx, e.claim.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if claim.UID != e.claim.UID || claim.Status.Allocation == nil {
		return nil // another claim of that name, or one that has just ended
	}
	after := claim.DeepCopy()
	for _, d := range devices {
		set(&after.Status.Devices, d)
	}
	if equality.Semantic.DeepEqual(claim.Status.Devices, after.Status.Devices) {
		return nil
	}
	_, err = client.UpdateStatus(ctx, after, metav1.UpdateOptions{FieldManager: FieldManager})
	return err
}

// set puts an entry in the place of that with its key. A condition that stays keeps its time.
func set(all *[]resourceapi.AllocatedDeviceStatus, d resourceapi.AllocatedDeviceStatus) {
	for i, old := range *all {
		if old.Driver == d.Driver && old.Pool == d.Pool && old.Device == d.Device && ptr.Equal(old.ShareID, d.ShareID) {
			for j, c := range d.Conditions {
				if before := meta.FindStatusCondition(old.Conditions, c.Type); before != nil && before.Status == c.Status {
					d.Conditions[j].LastTransitionTime = before.LastTransitionTime
				}
			}
			(*all)[i] = d
			return
		}
	}
	*all = append(*all, d)
}
