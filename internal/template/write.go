package template

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/topodra/topodra/internal/topology"
)

var (
	//go:embed pair.yaml.tmpl
	pairText string
	//go:embed split.yaml.tmpl
	splitText string

	pairTemplate  = template.Must(template.New("pair").Parse(pairText))
	splitTemplate = template.Must(template.New("split").Parse(splitText))
)

// YAML returns a ResourceClaimTemplate with a comment on each part. It has been
// checked as the API server would check it.
func YAML(o Options) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	var err error
	if o.Driver == Split {
		err = splitTemplate.Execute(&text, newSplitView(o))
	} else {
		err = pairTemplate.Execute(&text, newPairView(o))
	}
	if err != nil {
		return nil, err
	}
	object, err := Decode(text.Bytes())
	if err != nil {
		return nil, err
	}
	if err := Check(object); err != nil {
		return nil, fmt.Errorf("the API server would refuse this template: %w", err)
	}
	return text.Bytes(), nil
}

// view is what both texts show.
type view struct {
	Options
	Title, Command string
}

// pairView is what pair.yaml.tmpl shows: one request, or one for each rung of the
// ladder.
type pairView struct {
	view
	Only  requestView
	Rungs []requestView
}

type requestView struct {
	Name, Comment string
	Pairs         int
	Selectors     []selectorView
}

type selectorView struct{ Comment, Expression string }

type splitView struct {
	view
	Pairs []int // numbers, for the template to range over
}

func newPairView(o Options) pairView {
	what := fmt.Sprintf("%d GPUs, each with the NICs nearest to it", o.Pairs)
	if o.Pairs == 1 {
		what = "One GPU with the NICs nearest to it"
	}
	v := pairView{view: newView(o, what)}
	v.Only = newRequest(o, o.Distance)
	for _, class := range o.Prefer {
		rung := newRequest(o, class)
		rung.Name = "at-least-" + strings.ToLower(class.String())
		rung.Comment = explain[class]
		v.Rungs = append(v.Rungs, rung)
	}
	return v
}

func newSplitView(o Options) splitView {
	what := fmt.Sprintf("%d GPUs, each with a NIC of its PCIe root", o.Pairs)
	if o.Pairs == 1 {
		what = "One GPU with a NIC of its PCIe root"
	}
	v := splitView{view: newView(o, what)}
	for i := range o.Pairs {
		v.Pairs = append(v.Pairs, i)
	}
	return v
}

func newView(o Options, what string) view {
	if o.Rails != nil {
		what += ", on rails " + o.Rails.String()
	}
	if o.SameNUMA {
		what += ", on one NUMA node"
	}
	return view{Options: o, Title: what + ".", Command: o.Command()}
}

// explain says in words what at least as near as a class means.
var explain = map[topology.Class]string{
	topology.PIX:  "PIX: at most one PCIe bridge on each side of a common one.",
	topology.PXB:  "PXB or nearer: below a common PCIe switch.",
	topology.PHB:  "PHB or nearer: below one host bridge.",
	topology.NODE: "NODE or nearer: on one NUMA node.",
	topology.SYS:  "SYS or nearer: anywhere in the machine.",
}

func newRequest(o Options, farthest topology.Class) requestView {
	r := requestView{Pairs: o.Pairs}
	if farthest != topology.Unknown {
		comment := explain[farthest]
		if len(o.Prefer) > 0 {
			comment = "GPU and NICs at this distance or nearer."
		}
		r.Selectors = append(r.Selectors, selectorView{comment, atLeastAsNear(farthest)})
	}
	if o.Rails != nil {
		r.Selectors = append(r.Selectors, selectorView{
			"Pairs whose NICs are on several rails have no rail.",
			`"rail" in device.attributes["topodra.dev"] && ` + o.Rails.expression(`device.attributes["topodra.dev"].rail`),
		})
	}
	return r
}

func atLeastAsNear(farthest topology.Class) string {
	var names []string
	for class := topology.PIX; class <= farthest; class++ {
		names = append(names, fmt.Sprintf("%q", class))
	}
	return `device.attributes["topodra.dev"].distance in [` + strings.Join(names, ", ") + "]"
}

// Command is the command line that writes this template.
func (o Options) Command() string {
	line := fmt.Sprintf("kubectl topodra template --name %s --pairs %d", o.Name, o.Pairs)
	add := func(flag, value string) {
		if value != "" {
			line += " " + flag + " " + value
		}
	}
	add("--namespace", o.Namespace)
	if o.Driver != Topodra {
		add("--driver", string(o.Driver))
		if o.NICClass != DefaultNICClass {
			add("--nic-class", o.NICClass)
		}
	}
	if o.Distance != topology.Unknown {
		add("--distance", o.Distance.String())
	}
	add("--prefer", Classes(o.Prefer).String())
	add("--rail", o.Rails.String())
	if o.SameNUMA {
		line += " --same-numa"
	}
	return line
}
