package keys

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
)

// Keys computes and writes everything that a pod carries.
type Keys struct {
	Nodes  *NodeCache
	Rules  Rules
	Writer *Writer
	BootID string
}

// Apply writes the labels and the record of a pod: one PATCH, and no read but
// now and then one of the node. claims are all claims of the pod on this node.
// errors.Is(err, ErrPodGone) tells that there is no such pod any more.
func (k *Keys) Apply(ctx context.Context, pod v1alpha1.PodRef, claims []v1alpha1.ClaimPlacement) error {
	node, err := k.Nodes.Get(ctx)
	if err != nil {
		return err
	}
	labels, refused := k.Rules.Labels(Facts{Node: node, Pod: pod, Claims: claims})
	for _, err := range refused {
		klog.FromContext(ctx).Error(err, "Topology key left out", "pod", klog.KRef(pod.Namespace, pod.Name), "node", node.Name)
	}
	nodeUID := string(node.UID)
	if nodeUID == "" {
		nodeUID = v1alpha1.Unknown
	}
	return k.Writer.Write(ctx, pod, labels, v1alpha1.Placement{
		APIVersion: v1alpha1.APIVersion,
		Node:       v1alpha1.NodeRef{Name: node.Name, UID: nodeUID, BootID: k.BootID},
		Pod:        pod,
		Claims:     claims,
	})
}
