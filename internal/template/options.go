// Package template writes ResourceClaimTemplates for GPUs with the NICs next to
// them, in the form that the scheduler answers fastest.
package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/topodra/topodra/internal/topology"
)

// Driver says whose devices a template asks for.
type Driver string

// The drivers.
const (
	// Topodra publishes pairs: one request for any number of them.
	Topodra Driver = "topodra"
	// Split is NVIDIA's driver for GPUs and DraNet for NICs: a request for each
	// device, tied in twos by their PCIe root.
	Split Driver = "split"
)

// DefaultNICClass is the DeviceClass for DraNet's devices in its documentation;
// its users make the class themselves.
const DefaultNICClass = "dra.net"

// Options say what a template asks for. The zero value of a field that is not
// obligatory means that it does not matter.
type Options struct {
	Name      string // of the ResourceClaimTemplate; obligatory
	Namespace string
	Driver    Driver // obligatory
	Pairs     int    // 1 and up; obligatory

	// Distance is the farthest class that will do.
	Distance topology.Class
	// Prefer are classes, nearest first. The first as which all pairs are at least
	// as near, on the node that the scheduler looks at, is taken; the last is the
	// farthest that will do.
	Prefer []topology.Class
	// Rails that the NICs may be on; pairs whose NICs are on several rails have none.
	Rails Rails
	// SameNUMA wants all pairs on one NUMA node.
	SameNUMA bool

	// NICClass is the DeviceClass of the NICs of the Split driver.
	NICClass string
}

// maxSplitPairs is how many pairs of two requests fit a claim.
const maxSplitPairs = resourceapi.DeviceRequestsMaxSize / 2

// Validate returns one error for each thing that makes no sense, or that the API
// has no room for.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	dns := func(flag, value string, check func(string) []string) {
		if problems := check(value); len(problems) > 0 {
			fault("%s %q: %s", flag, value, strings.Join(problems, "; "))
		}
	}

	dns("--name", o.Name, validation.IsDNS1123Subdomain)
	if o.Namespace != "" {
		dns("--namespace", o.Namespace, validation.IsDNS1123Label)
	}
	most := resourceapi.AllocationResultsMaxSize
	if o.Driver == Split {
		most = maxSplitPairs
	}
	switch {
	case o.Pairs < 1:
		fault("--pairs %d: a claim is for at least one pair", o.Pairs)
	case o.Pairs > most && o.Driver == Split:
		fault("--pairs %d: a claim has room for %d requests, which is %d pairs of a GPU and a NIC each", o.Pairs, resourceapi.DeviceRequestsMaxSize, most)
	case o.Pairs > most:
		fault("--pairs %d: a claim gets at most %d devices; use several claims", o.Pairs, most)
	}
	if len(o.Prefer) > 0 && o.Distance != topology.Unknown {
		fault("--prefer and --distance contradict each other: the last class of --prefer already is the farthest that will do, so give one of them")
	}
	for i := range o.Prefer {
		if i > 0 && o.Prefer[i] <= o.Prefer[i-1] {
			fault("--prefer %s: %v is not farther than %v and would never be tried; name the nearest class first, each once", Classes(o.Prefer), o.Prefer[i], o.Prefer[i-1])
		}
	}
	if o.SameNUMA && (o.Distance == topology.SYS || slices.Contains(o.Prefer, topology.SYS)) {
		fault("--same-numa and SYS contradict each other: a pair at SYS has no NUMA node of its own, so leave one of them out")
	}

	switch o.Driver {
	case Topodra:
		if o.NICClass != "" {
			fault("--nic-class is for --driver split: a pair brings its NICs")
		}
	case Split:
		dns("--nic-class", o.NICClass, validation.IsDNS1123Subdomain)
		if o.Distance != topology.Unknown || len(o.Prefer) > 0 {
			fault("--driver split knows no distance: a PCIe root is the only place that NVIDIA's driver and DraNet both publish, so leave --distance and --prefer out")
		}
		if o.Rails != nil {
			fault("--driver split knows no rails: DraNet publishes none, so leave --rail out")
		}
	default:
		fault("--driver %q is none of %s, %s", o.Driver, Topodra, Split)
	}
	return errors.Join(faults...)
}

// Classes is a list of classes as --prefer takes it.
type Classes []topology.Class

func (c Classes) String() string {
	var names []string
	for _, class := range c {
		names = append(names, class.String())
	}
	return strings.Join(names, ",")
}

// ParseClasses reads what String returns.
func ParseClasses(text string) (Classes, error) {
	var classes Classes
	for name := range strings.SplitSeq(text, ",") {
		class, err := ParseClass(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		classes = append(classes, class)
	}
	return classes, nil
}

// ParseClass reads a distance that devices can have.
func ParseClass(text string) (topology.Class, error) {
	class, err := topology.ParseClass(text)
	if err == nil && class == topology.Unknown {
		err = fmt.Errorf("distance %q is none of PIX, PXB, PHB, NODE and SYS", text)
	}
	return class, err
}
