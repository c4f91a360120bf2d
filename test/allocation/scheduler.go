package allocation

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/topodra/topodra/api/v1alpha1"
)

// defaultFeatures are the feature gates that are on in Kubernetes 1.37 unless
// somebody switches them off, as the scheduler's DynamicResources plugin hands
// them to the allocator.
var defaultFeatures = structured.Features{
	AdminAccess:             true,
	PrioritizedList:         true,
	PartitionableDevices:    true,
	DeviceTaints:            true,
	DeviceBindingAndStatus:  true,
	ConsumableCapacity:      true,
	FractionalCapacityRange: true,
}

// Scheduler allocates as the scheduler does: one allocator for a pod, asked about
// one node, with a cache of compiled expressions that outlives pods.
type Scheduler struct {
	features structured.Features
	classes  classes
	cache    *cel.Cache
}

// NewScheduler knows the DeviceClasses of the chart, and those of NVIDIA's driver
// and DraNet.
func NewScheduler() *Scheduler {
	return &Scheduler{
		features: defaultFeatures,
		cache:    cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}),
		classes: classes{
			"pair.topodra.dev": Class(v1alpha1.PairKind),
			"gpu.topodra.dev":  Class(v1alpha1.GPUKind),
			"nic.topodra.dev":  Class(v1alpha1.NICKind),
			"gpu.nvidia.com":   class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`),
			"dra.net":          class("dra.net", `device.driver == "dra.net"`),
		},
	}
}

// WithoutCounters returns a scheduler of a cluster that has no partitionable
// devices.
func (s *Scheduler) WithoutCounters() *Scheduler {
	other := *s
	other.features.PartitionableDevices = false
	return &other
}

// InUse are the devices that claims hold, by name.
type InUse = sets.Set[string]

// Allocate returns a result for each claim, or nil when the node has no room for
// all of them. An error means that the context ended first, or that a claim
// makes no sense.
func (s *Scheduler) Allocate(ctx context.Context, slices []*resourceapi.ResourceSlice, inUse InUse, claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	allocated := sets.New[structured.DeviceID]()
	for name := range inUse {
		allocated.Insert(structured.MakeDeviceID(v1alpha1.Group, NodeName, name))
	}
	state := structured.AllocatedState{
		AllocatedDevices:         allocated,
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, s.features, state, s.classes, slices, s.cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}}, claims)
}

// Devices returns the names of all devices in results.
func Devices(results []resourceapi.AllocationResult) []string {
	var names []string
	for _, r := range results {
		for _, d := range r.Devices.Results {
			names = append(names, d.Device)
		}
	}
	return names
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %s", name)
}

// Class returns the DeviceClass of a kind, as the chart makes it.
func Class(kind v1alpha1.DeviceKind) *resourceapi.DeviceClass {
	return class(string(kind)+"."+v1alpha1.Group, fmt.Sprintf(`device.driver == "topodra.dev" && device.attributes["topodra.dev"].type == "%s"`, kind))
}

func class(name, expression string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
	}}
}
