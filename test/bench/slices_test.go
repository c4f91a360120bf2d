package bench

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slices measures how long the node has no devices: after a start of the agent, and after the kubelet's start, which
// deletes the slices of the node.
func (x *bench) slices(i installation) {
	x.Helper()
	var started, back samples
	for range starts {
		x.deleteSlices()
		start := time.Now()
		p := i.start(x.B)
		x.complete(p)
		started = append(started, time.Since(start))

		x.deleteSlices()
		start = time.Now()
		x.complete(p)
		back = append(back, time.Since(start))
		p.stop(x.B)
	}
	fmt.Printf("- Start of the agent's process until all devices are in the API server: p50 %s ms, longest %s ms of %d starts.\n",
		ms(started.p50()), ms(started.quantile(1)), starts)
	fmt.Printf("- All devices back after somebody deleted the slices, as every start of a kubelet does: p50 %s ms, longest %s ms of %d times.\n",
		ms(back.p50()), ms(back.quantile(1)), starts)
}

var ourSlices = metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName}

func (x *bench) deleteSlices() {
	x.Helper()
	x.check(x.api.ResourceV1().ResourceSlices().DeleteCollection(x.Context(), metav1.DeleteOptions{}, ourSlices))
}

// complete waits until the API server has every slice of the pool and all devices.
func (x *bench) complete(p *process) {
	x.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		list, err := x.api.ResourceV1().ResourceSlices().List(x.Context(), ourSlices)
		x.check(err)
		missing := slices.Concat(gpus, nics)
		for _, slice := range list.Items {
			for _, device := range slice.Spec.Devices {
				missing = slices.DeleteFunc(missing, func(name string) bool { return name == device.Name })
			}
		}
		if len(missing) == 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount {
			return
		}
		if time.Now().After(deadline) {
			x.Fatalf("%d slices after a minute, devices %v are missing; log of the agent:\n%s", len(list.Items), missing, p.log.String())
		}
	}
}
