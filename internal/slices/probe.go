package slices

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api/v1alpha1"
)

// CountersStored asks the API server, by a dry run, whether it stores shared
// counters (feature gate DRAPartitionableDevices). Without the gate it drops them
// silently: pairs and their parts would look as if all could be allocated at
// once, until the publisher notices.
func CountersStored(ctx context.Context, client kubernetes.Interface, node string) (bool, error) {
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: v1alpha1.Group + "-probe-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:   v1alpha1.Group,
			NodeName: &node,
			// A pool of its own: the probe must not look like a slice of the node's.
			Pool:           resourceapi.ResourcePool{Name: node + "/probe", ResourceSliceCount: 1},
			SharedCounters: []resourceapi.CounterSet{{Name: "probe", Counters: map[string]resourceapi.Counter{"probe": counter(1)}}},
		},
	}
	stored, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return false, fmt.Errorf("ask whether this cluster has partitionable devices: %w", err)
	}
	return len(stored.Spec.SharedCounters) > 0, nil
}
