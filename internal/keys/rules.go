// Package keys writes topology keys onto pods: the labels that request routers
// read, and the placement record as an annotation.
package keys

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/topodra/topodra/api/v1alpha1"
)

// Labels that this package writes, and no others: the chart's admission policy
// allows the agent exactly these.
const (
	HostnameLabel = "kubernetes.io/hostname"
	RackLabel     = "topology.kubernetes.io/rack"
	ZoneLabel     = "topology.kubernetes.io/zone"
	RegionLabel   = "topology.kubernetes.io/region"
	RailsLabel    = v1alpha1.Group + "/rails"
)

// Labels lists all of them.
var Labels = []string{HostnameLabel, RackLabel, ZoneLabel, RegionLabel, RailsLabel}

// Node is what keys need to know about this node.
type Node struct {
	Name   string
	UID    types.UID
	Labels map[string]string
}

// Facts are what rules may look at.
type Facts struct {
	Node   Node
	Pod    v1alpha1.PodRef
	Claims []v1alpha1.ClaimPlacement // all claims of the pod on this node
}

// Rules compute the labels of a pod. A fact that is unknown gives no label:
// routers compare values for equality, so a made-up one would match another
// made-up one, and an empty one would leave a stale value in the router. A value
// that is no valid label value is left out as well and comes back as an error.
type Rules interface {
	Labels(Facts) (labels map[string]string, refused []error)
}

// NodeRules are the rules of the first release: the node's own labels, and the
// rails of the pod's NICs.
type NodeRules struct {
	Rack []string // label keys of the node; the first that it has is the rack
}

// Labels implements Rules.
func (r NodeRules) Labels(f Facts) (map[string]string, []error) {
	hostname := f.Node.Labels[HostnameLabel]
	if hostname == "" {
		hostname = f.Node.Name
	}
	wanted := map[string]string{
		HostnameLabel: hostname,
		ZoneLabel:     f.Node.Labels[ZoneLabel],
		RegionLabel:   f.Node.Labels[RegionLabel],
		RailsLabel:    rails(f.Claims),
	}
	for _, key := range r.Rack {
		if value := f.Node.Labels[key]; value != "" {
			wanted[RackLabel] = value
			break
		}
	}
	labels := map[string]string{}
	var refused []error
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		value := wanted[key]
		if value == "" {
			continue
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			refused = append(refused, fmt.Errorf("label %s is left out: %q is not a label value: %s", key, value, strings.Join(problems, "; ")))
			continue
		}
		labels[key] = value
	}
	return labels, refused
}

// rails joins the rails of all NICs in one canonical form, "r0-r1-r2-r3". It is
// empty unless every NIC's rail is known: a part of the set would match pods
// that it should not match.
func rails(claims []v1alpha1.ClaimPlacement) string {
	found := map[int]bool{}
	for _, claim := range claims {
		for _, device := range claim.Devices {
			if device.Type != v1alpha1.NICKind {
				continue
			}
			rail, err := strconv.Atoi(device.Rail)
			if err != nil {
				return ""
			}
			found[rail] = true
		}
	}
	names := make([]string, 0, len(found))
	for _, rail := range slices.Sorted(maps.Keys(found)) {
		names = append(names, "r"+strconv.Itoa(rail))
	}
	return strings.Join(names, "-")
}
