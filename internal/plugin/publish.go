package plugin

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// PublishError gets trouble with ResourceSlices. Whoever publishes them goes on
// trying.
func (p *Plugin) PublishError(ctx context.Context, err error, msg string) {
	reason, advice := classify(err)
	p.Recorder.PublishFailed(reason)
	klog.FromContext(ctx).Error(err, msg, "reason", reason, "advice", advice)
	if dropped := asDropped(err); dropped != nil && p.Dropped != nil {
		p.Dropped(dropped.DisabledFeatures())
	}
}

// classify tells what kind of trouble publishing ran into, and one sentence for
// whoever reads the log.
func classify(err error) (reason, advice string) {
	switch {
	case asDropped(err) != nil:
		features := asDropped(err).DisabledFeatures()
		if len(features) == 0 {
			return "dropped-fields", "the API server did not store all fields of our ResourceSlices; it is probably too old for them"
		}
		return "dropped-fields", "the devices are published without some fields because this cluster has switched off " +
			strings.Join(features, ", ") + ": switch it on in kube-apiserver, or choose device kinds that do without"
	case apierrors.IsInvalid(err):
		return "invalid", "the API server refuses our ResourceSlices and will go on doing so: this is a fault in the driver, please report it with this message"
	case apierrors.IsForbidden(err):
		return "other", "the agent may not write its ResourceSlices: compare its ClusterRole and admission policy with the chart's"
	default:
		return "other", "it is tried again without end; nothing to do if it is rare"
	}
}

func asDropped(err error) *resourceslice.DroppedFieldsError {
	var dropped *resourceslice.DroppedFieldsError
	errors.As(err, &dropped)
	return dropped
}
