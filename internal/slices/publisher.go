package slices

import (
	"context"
	"fmt"
	"reflect"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/topodra/topodra/api/v1alpha1"
)

// The kubelet deletes a node's slices whenever it starts. kubeletplugin's own
// PublishResources runs the same controller with a delay of 30 s and an add cache
// of 60 s, for which time the node has no devices. Slices of one node are few, so
// short delays cost the API server nothing.
const (
	// syncDelay is how long after a change by somebody else the pool is put right.
	syncDelay = 500 * time.Millisecond
	// mutationCacheTTL is how long a slice that we wrote counts as there although
	// the watch has not shown it yet.
	mutationCacheTTL = 5 * time.Second
)

// Publisher keeps the pool of this node in the API server as it should be.
type Publisher struct {
	controller *resourceslice.Controller
	node       string
	published  resourceslice.Pool
}

// PublisherOptions say for which node to publish.
type PublisherOptions struct {
	KubeClient kubernetes.Interface
	NodeName   string
	NodeUID    types.UID
	// HandleError hears what the API server refuses. The publisher goes on trying
	// by itself, except for a *resourceslice.DroppedFieldsError.
	HandleError func(ctx context.Context, err error, msg string)
}

// StartPublisher publishes a pool and keeps it published until the context ends.
// It returns when the watch of our slices is established, after about a second.
// Slices stay when it ends: pods may go on using the devices.
func StartPublisher(ctx context.Context, pool resourceslice.Pool, o PublisherOptions) (*Publisher, error) {
	delay, ttl := syncDelay, mutationCacheTTL
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName:       v1alpha1.Group,
		KubeClient:       o.KubeClient,
		Owner:            &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: o.NodeName, UID: o.NodeUID},
		Resources:        resources(o.NodeName, pool),
		ErrorHandler:     o.HandleError,
		SyncDelay:        &delay,
		MutationCacheTTL: &ttl,
	})
	if err != nil {
		return nil, fmt.Errorf("publish ResourceSlices of node %s: %w", o.NodeName, err)
	}
	return &Publisher{controller: controller, node: o.NodeName, published: pool}, nil
}

// Publish changes the pool and tells whether there was anything to change. It
// must not be called concurrently.
func (p *Publisher) Publish(pool resourceslice.Pool) bool {
	if reflect.DeepEqual(pool, p.published) {
		return false
	}
	p.controller.Update(resources(p.node, pool))
	p.published = pool
	return true
}

// Stop ends publishing and waits for requests in flight.
func (p *Publisher) Stop() { p.controller.Stop() }

func resources(node string, pool resourceslice.Pool) *resourceslice.DriverResources {
	return &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
}

// Stored tells whether the API server has a complete pool of a node: every slice
// of one generation.
func Stored(ctx context.Context, client kubernetes.Interface, node string) (bool, error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node + "," + resourceapi.ResourceSliceSelectorDriver + "=" + v1alpha1.Group,
	})
	if err != nil {
		return false, fmt.Errorf("list ResourceSlices of node %s: %w", node, err)
	}
	var newest, count, want int64
	for _, s := range list.Items {
		pool := s.Spec.Pool
		if pool.Generation > newest {
			newest, count = pool.Generation, 0
		}
		if pool.Generation == newest {
			count++
			want = pool.ResourceSliceCount
		}
	}
	return count > 0 && count == want, nil
}
