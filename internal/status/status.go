// Package status tells at the ResourceClaim what became of its NICs: the interface that a
// pod has, and whether network and RDMA are ready in it.
package status

import (
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/podnet"
)

// Types of conditions.
const (
	Ready        = "Ready"        // all that was asked for is in the pod
	NetworkReady = "NetworkReady" // the interface is in the pod with its addresses
	RDMAReady    = "RDMAReady"    // the RDMA device answers in the pod
)

// Reasons of conditions.
const (
	ReasonInPod        = "InPod"        // moved into the pod
	ReasonShared       = "Shared"       // reached from the pod, while the device stays on the host
	ReasonHostNetwork  = "HostNetwork"  // the pod is on the host's network, as the NIC
	ReasonOnHost       = "OnHost"       // the interface stays on the host, for the reason in the message
	ReasonNone         = "None"         // the NIC has no such thing, or the claim asked for none
	ReasonAttachFailed = "AttachFailed" // it could not be moved
)

// Outcome is what became of a claim's NICs in a sandbox.
type Outcome struct {
	Driver  string
	Claim   claims.Prepared
	Plans   []podnet.Plan
	Sandbox podnet.Sandbox
	Since   time.Time
	Err     error // why NICs are not in the pod
}

// devices returns the entries of status.devices, one for each allocated device that has
// a NIC.
func (o Outcome) devices() []resourceapi.AllocatedDeviceStatus {
	var out []resourceapi.AllocatedDeviceStatus
	for _, d := range o.Claim.Devices {
		plans := o.plansOf(d)
		if len(plans) == 0 {
			continue
		}
		network, rdma := o.network(plans), o.rdma(plans)
		s := resourceapi.AllocatedDeviceStatus{
			Driver: o.Driver, Pool: d.Pool, Device: d.Name,
			Conditions: []metav1.Condition{o.ready(d.Warnings), network.condition(NetworkReady, o.Since), rdma.condition(RDMAReady, o.Since)},
		}
		if d.ShareID != nil {
			s.ShareID = ptr.To(string(*d.ShareID))
		}
		if o.Err == nil && o.Sandbox.Netns != "" {
			s.NetworkData = d.Network
		}
		out = append(out, s)
	}
	return out
}

func (o Outcome) plansOf(d claims.PreparedDevice) []podnet.Plan {
	var out []podnet.Plan
	for _, p := range o.Plans {
		if slices.ContainsFunc(d.Placements, func(part v1alpha1.DevicePlacement) bool { return part.PCIAddress == p.Address.String() }) {
			out = append(out, p)
		}
	}
	return out
}

// verdict is a condition to be.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func (v verdict) condition(kind string, since time.Time) metav1.Condition {
	return metav1.Condition{Type: kind, Status: v.status, Reason: v.reason, Message: cut(v.message), LastTransitionTime: metav1.NewTime(since)}
}

// maxMessage is the longest message of a condition in bytes (metav1.Condition).
const maxMessage = 32768

func cut(text string) string { return text[:min(len(text), maxMessage)] }

// network judges the interfaces of a device's NICs; the worst counts.
func (o Outcome) network(plans []podnet.Plan) verdict {
	worst := verdict{metav1.ConditionTrue, ReasonNone, "there is no network interface to move"}
	var names []string
	for _, p := range plans {
		switch {
		case o.Err != nil:
			return verdict{metav1.ConditionFalse, ReasonAttachFailed, o.Err.Error()}
		case p.Stays != "":
			return verdict{metav1.ConditionFalse, ReasonOnHost, p.Device + " stays on the host: " + p.Stays}
		case p.Parent == "":
		case o.Sandbox.Netns == "":
			worst = verdict{metav1.ConditionTrue, ReasonHostNetwork, "the pod is on the host's network, where the interface stays"}
		default:
			names = append(names, p.Pod.Name)
			worst = verdict{metav1.ConditionTrue, ReasonInPod, "interface " + strings.Join(names, ", ") + " is in the pod"}
		}
	}
	return worst
}

func (o Outcome) rdma(plans []podnet.Plan) verdict {
	worst := verdict{metav1.ConditionFalse, ReasonNone, "the NIC has no RDMA device, or the claim asks for none"}
	var names []string
	for _, p := range plans {
		if p.Uses == "" {
			continue
		}
		names = append(names, p.Uses)
		all := strings.Join(names, ", ")
		switch {
		case o.Err != nil:
			return verdict{metav1.ConditionFalse, ReasonAttachFailed, o.Err.Error()}
		case o.Sandbox.Netns == "":
			worst = verdict{metav1.ConditionTrue, ReasonHostNetwork, "the pod is on the host's network, as RDMA device " + all}
		case p.RDMA != "":
			worst = verdict{metav1.ConditionTrue, ReasonInPod, "RDMA device " + all + " is in the pod"}
		default:
			worst = verdict{metav1.ConditionTrue, ReasonShared, "RDMA device " + all + " stays on the host and is open to the pod"}
		}
	}
	return worst
}

// ready is true when all that was asked for is there; what preflight found worth a word
// is in its message.
func (o Outcome) ready(warnings []string) metav1.Condition {
	v := verdict{metav1.ConditionTrue, "Prepared", "the pod has what the claim asked for"}
	if len(warnings) > 0 {
		v.reason = "PreparedWithWarnings"
	}
	if o.Err != nil {
		v = verdict{metav1.ConditionFalse, ReasonAttachFailed, o.Err.Error()}
	}
	v.message = strings.Join(append([]string{v.message}, warnings...), "; ")
	return v.condition(Ready, o.Since)
}
