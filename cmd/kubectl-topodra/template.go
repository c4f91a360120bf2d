package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/spf13/cobra"

	"github.com/topodra/topodra/internal/template"
)

const templateExamples = `  kubectl topodra template --pairs 4                                  # 4 GPUs, each with the NICs nearest to it
  kubectl topodra template --pairs 4 --rail 0-3 --name prefill        # on the first four rails
  kubectl topodra template --pairs 2 --prefer PIX,PXB,NODE            # as near as the node allows
  kubectl topodra template --pairs 4 --server-dry-run | kubectl apply -f -
  kubectl topodra template --pairs 4 --driver split                   # for NVIDIA's driver and DraNet`

// templateArgs are the arguments as typed.
type templateArgs struct {
	template.Options
	driver, distance, prefer, rail, output string
	serverDryRun                           bool
	cluster                                cluster
}

// claimTemplate is "kubectl topodra template" with its arguments understood.
type claimTemplate struct {
	options template.Options
	output  string
	server  *cluster // asked whether it would take the template; nil: not asked
}

func templateCommand() *cobra.Command { return templateCommandFor(&templateArgs{}) }

func templateCommandFor(a *templateArgs) *cobra.Command {
	c := &cobra.Command{
		Use:   "template",
		Short: "Write a ResourceClaimTemplate for GPUs with the NICs next to them",
		Long: "Write a ResourceClaimTemplate for GPUs with the NICs next to them. It is checked by the rules of the API before it is printed;\n" +
			"with --server-dry-run the cluster is asked too. Nothing is created.",
		Example: templateExamples,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			w, err := a.parse()
			if err != nil {
				return usageError{err}
			}
			return w.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.IntVar(&a.Pairs, "pairs", 1, "how many GPUs, each with the NICs nearest to it")
	flags.StringVar(&a.distance, "distance", "", "the farthest that GPU and NIC may be: PIX, PXB, PHB, NODE or SYS")
	flags.StringVar(&a.prefer, "prefer", "", "distances to try one after the other, nearest first: PIX,PXB,NODE")
	flags.StringVar(&a.rail, "rail", "", "rails that the NICs may be on: 3, 0-3 or 0,2,4-7")
	flags.BoolVar(&a.SameNUMA, "same-numa", false, "all on one NUMA node")
	flags.StringVar(&a.driver, "driver", string(template.Topodra), "topodra, or split for NVIDIA's driver and DraNet")
	flags.StringVar(&a.NICClass, "nic-class", "", "DeviceClass of NICs, with --driver split (default "+template.DefaultNICClass+")")
	flags.StringVar(&a.Name, "name", "", "name of the template (default: pair, pairs-4 and so on)")
	flags.StringVarP(&a.output, "output", "o", "yaml", "yaml, with comments, or json")
	flags.BoolVar(&a.serverDryRun, "server-dry-run", false, "ask the cluster whether it would take the template")
	flags.StringVarP(&a.cluster.namespace, "namespace", "n", "", "namespace of the template")
	flags.StringVar(&a.cluster.kubeconfig, "kubeconfig", "", "kubeconfig file; default: $KUBECONFIG, then ~/.kube/config")
	flags.StringVar(&a.cluster.context, "context", "", "context of the kubeconfig file")
	return c
}

// parse returns an error for each argument that cannot be understood, or else for
// each two that contradict each other.
func (a templateArgs) parse() (claimTemplate, error) {
	o := a.Options
	o.Driver, o.Namespace = template.Driver(a.driver), a.cluster.namespace
	var errs []error
	read := func(flag, text string, parse func() error) {
		if text == "" {
			return
		}
		if err := parse(); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	var err error
	read("distance", a.distance, func() error { o.Distance, err = template.ParseClass(a.distance); return err })
	read("prefer", a.prefer, func() error { o.Prefer, err = template.ParseClasses(a.prefer); return err })
	read("rail", a.rail, func() error { o.Rails, err = template.ParseRails(a.rail); return err })
	if a.output != "yaml" && a.output != "json" {
		errs = append(errs, fmt.Errorf("--output %q is none of yaml, json", a.output))
	}
	if len(errs) > 0 {
		return claimTemplate{}, errors.Join(errs...)
	}
	if o.Driver == template.Split && o.NICClass == "" {
		o.NICClass = template.DefaultNICClass
	}
	if o.Name == "" {
		o.Name = defaultName(o)
	}
	w := claimTemplate{options: o, output: a.output}
	if a.serverDryRun {
		w.server = &a.cluster
	}
	return w, o.Validate()
}

func defaultName(o template.Options) string {
	switch {
	case o.Driver == template.Split && o.Pairs == 1:
		return "gpu-nic"
	case o.Driver == template.Split:
		return fmt.Sprintf("gpu-nic-%d", o.Pairs)
	case o.Pairs == 1:
		return "pair"
	}
	return fmt.Sprintf("pairs-%d", o.Pairs)
}

// run writes the template to stdout, and nothing when anything is wrong with it.
func (w claimTemplate) run(ctx context.Context, stdout, stderr io.Writer) error {
	text, err := template.YAML(w.options)
	if err != nil {
		return err
	}
	if w.server != nil {
		client, err := w.server.client()
		if err != nil {
			return err
		}
		notes, err := dryRun(ctx, client, text)
		for _, note := range notes {
			fmt.Fprintln(stderr, "Note:", note)
		}
		if err != nil {
			return err
		}
	}
	if w.output == "json" {
		if text, err = template.JSON(text); err != nil {
			return err
		}
	}
	_, err = stdout.Write(text)
	return err
}

// dryRun asks the API server to create the template without keeping it. The notes
// tell what keeps pods from getting devices although the template is right.
func dryRun(ctx context.Context, client kubernetes.Interface, text []byte) (notes []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	object, err := template.Decode(text)
	if err != nil {
		return nil, err
	}
	namespace := object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	_, err = client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsAlreadyExists(err):
		notes = append(notes, fmt.Sprintf("namespace %s has a ResourceClaimTemplate %s already, and templates cannot be changed: delete it first, or choose another --name", namespace, object.Name))
	case err != nil:
		return nil, fmt.Errorf("the cluster refuses this template: %w", err)
	}
	for _, class := range classesOf(object) {
		if _, err := client.ResourceV1().DeviceClasses().Get(ctx, class, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			notes = append(notes, fmt.Sprintf("the cluster has no DeviceClass %s: pods with this claim stay pending until it is there", class))
		}
	}
	return notes, nil
}

// classesOf returns each DeviceClass of a template once.
func classesOf(t *resourceapi.ResourceClaimTemplate) (classes []string) {
	seen := map[string]bool{}
	add := func(class string) {
		if !seen[class] {
			seen[class] = true
			classes = append(classes, class)
		}
	}
	for _, r := range t.Spec.Spec.Devices.Requests {
		if r.Exactly != nil {
			add(r.Exactly.DeviceClassName)
		}
		for _, sub := range r.FirstAvailable {
			add(sub.DeviceClassName)
		}
	}
	return classes
}
