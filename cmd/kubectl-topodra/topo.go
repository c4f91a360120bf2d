package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/topodra/topodra/internal/report"
)

// source is where a report comes from: a node, this machine, a copy of sysfs or
// a machine file. Sources are comparable values.
type source interface {
	// report returns the report, and one line for each reason why it says less
	// than it could.
	report(context.Context) (*report.Report, []string, error)
}

// topo is "kubectl topodra topo" with its arguments understood.
type topo struct {
	source source
	format string
	color  string // auto, always or never
}

const topoExamples = `  kubectl topodra topo                                # this machine, without a cluster
  kubectl topodra topo node-17                        # a node of the cluster
  kubectl topodra topo node-17 -o svg > node-17.svg   # a picture for a report
  kubectl topodra topo --machine machine.yaml -o json
  kubectl topodra topo --snapshot topodra-snapshot.tar.gz`

func topoCommand() *cobra.Command { return topoCommandFor(&topoArgs{}) }

func topoCommandFor(a *topoArgs) *cobra.Command {
	c := &cobra.Command{
		Use:     "topo [NODE]",
		Short:   "Show which NICs are near which GPUs",
		Long:    "Show which NICs are near which GPUs: of a node as its agent sees it, of this machine, of a copy of sysfs, of a machine file or of a snapshot.",
		Example: topoExamples,
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.parse(args)
			if err != nil {
				return usageError{err}
			}
			return t.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.StringVar(&a.sysfs, "sysfs", "", "read a copy of /sys in this directory")
	flags.StringVar(&a.machine, "machine", "", "read this machine file")
	flags.StringVar(&a.snapshot, "snapshot", "", "read what \"topodra snapshot\" wrote")
	flags.StringVar(&a.config, "config", "", "look at it under this configuration of the driver: NIC selector, rails, topology file, pairs")
	flags.StringVarP(&a.output, "output", "o", "matrix", "one of matrix, wide, json, yaml, dot, svg")
	flags.StringVar(&a.color, "color", "auto", "colors in text: auto (on a terminal), always or never")
	flags.StringVar(&a.cluster.kubeconfig, "kubeconfig", "", "kubeconfig file; default: $KUBECONFIG, then ~/.kube/config")
	flags.StringVar(&a.cluster.context, "context", "", "context of the kubeconfig file")
	flags.StringVarP(&a.cluster.namespace, "namespace", "n", "", "namespace of the driver's agents; default: all are searched")
	return c
}

// topoArgs are the arguments as typed.
type topoArgs struct {
	sysfs, machine, snapshot, config, output, color string
	cluster                                         cluster
}

func (a topoArgs) parse(args []string) (topo, error) {
	t := topo{format: a.output, color: a.color}
	if _, err := report.ParseFormat(a.output); err != nil {
		return topo{}, err
	}
	switch a.color {
	case "auto", "always", "never":
	default:
		return topo{}, fmt.Errorf("--color %q is none of auto, always, never", a.color)
	}
	var given []string
	choose := func(name, value string, s source) {
		if value != "" {
			given = append(given, name)
			t.source = s
		}
	}
	if len(args) > 1 {
		return topo{}, fmt.Errorf("topo shows one node, not %d: %s", len(args), strings.Join(args, ", "))
	}
	node := strings.Join(args, "")
	choose("NODE", node, clusterNode{cluster: a.cluster, node: node})
	under := rules{path: a.config}
	choose("--sysfs", a.sysfs, sysfsCopy{a.sysfs, under})
	choose("--machine", a.machine, machineFile{a.machine, under})
	choose("--snapshot", a.snapshot, snapshotFile{a.snapshot, under})
	switch {
	case len(given) > 1:
		return topo{}, fmt.Errorf("%s name different machines: give one of them", strings.Join(given, " and "))
	case len(given) == 0 && len(args) > 0:
		return topo{}, errors.New("the node name is empty")
	case len(given) == 0:
		t.source = thisMachine{under}
	}
	if a.config != "" && node != "" {
		return topo{}, errors.New("--config does not go with a node: its agent has a configuration of its own")
	}
	return t, nil
}

// run writes the report to stdout and what is wrong with it to stderr. Nothing
// is written to stdout when it fails.
func (t topo) run(ctx context.Context, stdout, stderr io.Writer) error {
	format, err := report.ParseFormat(t.format)
	if err != nil {
		return err
	}
	r, notes, err := t.source.report(ctx)
	if err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, "Note:", note)
	}
	render := format.Render
	switch {
	case !t.colored(stdout):
	case t.format == "matrix":
		render = report.Text{Color: true}.Render
	case t.format == "wide":
		render = report.Text{Color: true, Wide: true}.Render
	}
	var out bytes.Buffer
	if err := render(&out, r); err != nil {
		return err
	}
	_, err = out.WriteTo(stdout)
	return err
}

// colored follows https://no-color.org in auto mode.
func (t topo) colored(stdout io.Writer) bool {
	if t.color != "auto" {
		return t.color == "always"
	}
	file, ok := stdout.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}
