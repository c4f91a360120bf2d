package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api/v1alpha1"
)

// ErrPodGone means that the pod was deleted, or replaced by one of the same name.
var ErrPodGone = errors.New("the pod is gone")

// Writer writes the keys of a pod in one request.
type Writer struct {
	client kubernetes.Interface
	// budget is how long a request that may succeed later is repeated.
	budget, pause time.Duration
}

// NewWriter returns a Writer.
func NewWriter(client kubernetes.Interface) *Writer {
	return &Writer{client: client, budget: 10 * time.Second, pause: 100 * time.Millisecond}
}

// Write sets the labels and the placement record of a pod, whatever values were
// there before: in a pod template they are under the user's control. The patch
// carries the pod's UID, so it never lands on another pod of the same name.
func (w *Writer) Write(ctx context.Context, pod v1alpha1.PodRef, labels map[string]string, placement v1alpha1.Placement) error {
	record, err := json.Marshal(placement)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"labels":      labels,
		"annotations": map[string]string{v1alpha1.PlacementAnnotation: string(record)},
	}})
	if err != nil {
		return err
	}
	start, pause := time.Now(), w.pause
	for {
		_, err := w.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.Group})
		if err == nil || !passes(err) || time.Since(start)+pause > w.budget {
			return explain(pod, err)
		}
		select {
		case <-ctx.Done():
			return explain(pod, err)
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// passes tells whether a request may succeed when it is repeated. Errors that
// did not come from the API server are connection trouble.
func passes(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) && !otherUID(err)
}

// otherUID tells whether a patch was refused because the pod has another UID.
// API servers answer so with 422 for the immutable field, or with 409 when the
// precondition fails.
func otherUID(err error) bool {
	if apierrors.IsConflict(err) {
		return strings.Contains(err.Error(), "UID in precondition") || strings.Contains(err.Error(), "uid mismatch")
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

func explain(pod v1alpha1.PodRef, err error) error {
	name := pod.Namespace + "/" + pod.Name
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("pod %s was deleted while its claim was being prepared: %w", name, ErrPodGone)
	case otherUID(err):
		return fmt.Errorf("pod %s was replaced by another pod of that name while its claim was being prepared: %w", name, ErrPodGone)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("topology keys of pod %s were refused; compare the agent's ClusterRole and admission policy with the chart's: %w", name, err)
	default:
		return fmt.Errorf("topology keys of pod %s could not be written: %w", name, err)
	}
}
