package slices

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxDevices is the number of devices in a slice: the API takes 128, but half of
// that once a device has taints or consumes counters
// (ResourceSliceMaxDevicesWithTaintsOrConsumesCounters), and a taint can come any
// time.
const maxDevices = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// withinLimits drops what the API would refuse a whole slice for, and tells each.
func withinLimits(devices []resourceapi.Device) ([]resourceapi.Device, []string) {
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	kept := make([]resourceapi.Device, 0, len(devices))
	seen := map[string]bool{}
	for _, d := range devices {
		if errs := validation.IsDNS1123Label(d.Name); len(errs) > 0 {
			problem("device %s is not published: its name is no DNS label: %s", d.Name, errs[0])
			continue
		}
		if seen[d.Name] {
			problem("device %s is not published a second time: names must be unique", d.Name)
			continue
		}
		seen[d.Name] = true
		d.Attributes = maps.Clone(d.Attributes)
		names := slices.Sorted(maps.Keys(d.Attributes))
		for _, name := range names {
			if value, ok := tooLong(d.Attributes[name]); ok {
				problem("attribute %s of device %s is left out: %q has %d characters, the API takes %d",
					name, d.Name, value, len(value), resourceapi.DeviceAttributeMaxValueLength)
				delete(d.Attributes, name)
			}
		}
		names = slices.Sorted(maps.Keys(d.Attributes))
		for len(d.Attributes)+len(d.Capacity) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
			last := names[len(names)-1]
			problem("attribute %s of device %s is left out: the API takes %d attributes",
				last, d.Name, resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
			delete(d.Attributes, last)
			names = names[:len(names)-1]
		}
		kept = append(kept, d)
	}
	return kept, problems
}

func tooLong(a resourceapi.DeviceAttribute) (string, bool) {
	for _, value := range []*string{a.StringValue, a.VersionValue} {
		if value != nil && len(*value) > resourceapi.DeviceAttributeMaxValueLength {
			return *value, true
		}
	}
	return "", false
}
