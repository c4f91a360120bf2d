package status

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

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

// Forget drops what is not stored of a claim that is unprepared.
func (w *Writer) Forget(claim types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.newest, claim)
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
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Not found and conflict: the claim has gone, or another one has its name.
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

func (w *Writer) write(ctx context.Context, e entry) error {
	devices := e.outcome.devices()
	if len(devices) == 0 {
		return nil
	}
	claim := resourceapply.ResourceClaim(e.claim.Name, e.claim.Namespace).WithUID(e.claim.UID).
		WithStatus(resourceapply.ResourceClaimStatus().WithDevices(devices...))
	_, err := w.client.ResourceV1().ResourceClaims(e.claim.Namespace).ApplyStatus(ctx, claim, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return err
}
