package agent

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	nodeslices "github.com/topodra/topodra/internal/slices"
)

// countersQuestion is whether this cluster stores shared counters, without which
// pairs and their parts cannot be published side by side.
type countersQuestion struct {
	client kubernetes.Interface
	node   string
	events record.EventRecorder

	answered bool // asked with success since the last doubt
	missing  bool
}

// askAgain is the pause after a question that was not answered.
const askAgain = 10 * time.Second

// newEvents returns a recorder of events on the node object.
func newEvents(client kubernetes.Interface, node string) record.EventRecorder {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: v1alpha1.Group, Host: node})
}

// publish says what to publish on this cluster now.
func (w *watcher) publish() nodeslices.Options {
	o := w.policy.Publish
	// Without an answer the safe side: GPUs and NICs without pairs.
	o.NoCounters = w.counters.missing || !w.counters.answered
	return o
}

// askCounters asks the API server before the first publication and, as long as
// the answer was no, before each later one. It asks before publishing: fields
// that are dropped would let the scheduler hand out a pair and its parts at once.
func (w *watcher) askCounters(ctx context.Context) {
	c := &w.counters
	if !slices.Contains(w.policy.Publish.Kinds, v1alpha1.PairKind) {
		return
	}
	if w.droppedFields.Swap(false) {
		c.answered = false
	}
	if c.answered && !c.missing {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stored, err := nodeslices.CountersStored(ctx, c.client, c.node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Until this is answered, pairs are not published beside their parts", "askingAgainAfter", askAgain)
		time.AfterFunc(askAgain, w.wake)
		return
	}
	c.answered = true
	if stored == !c.missing {
		return
	}
	c.missing = !stored
	w.metrics.WithoutCounters(c.missing)
	// "kubectl describe node" looks for events whose UID is the node's name, as the
	// kubelet writes them.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.node, UID: types.UID(c.node)}
	if c.missing {
		text := "This cluster has no partitionable devices (feature gate DRAPartitionableDevices, on by default since Kubernetes 1.36): " +
			"GPUs and NICs are published without pairs. Set devices: [pair] in the driver's configuration for pairs alone, which need no counters."
		if len(w.policy.Publish.Kinds) == 1 {
			text = "This cluster has no partitionable devices (feature gate DRAPartitionableDevices, on by default since Kubernetes 1.36): " +
				"of pairs that share a NIC only one is published."
		}
		klog.FromContext(ctx).Info("Pairs are not published beside their parts", "reason", text)
		c.events.Event(node, corev1.EventTypeWarning, "PairsNotPublished", text)
		return
	}
	klog.FromContext(ctx).Info("This cluster has partitionable devices now: pairs are published")
	c.events.Event(node, corev1.EventTypeNormal, "PairsPublished", "This cluster has partitionable devices now: pairs are published.")
}
