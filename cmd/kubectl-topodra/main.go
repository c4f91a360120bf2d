// Command kubectl-topodra shows what the topodra driver knows. As a file of this
// name in PATH it is "kubectl topodra".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitError = 1 // the command could not do what it was asked
	exitUsage = 2 // the arguments make no sense
)

// usageError is one that the reader of the help text can avoid.
type usageError struct{ error }

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	return exitCode(err)
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usageError{}):
		return exitUsage
	default:
		return exitError
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-topodra",
		Short:         "Look at the GPU and NIC topology of Kubernetes nodes",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl topodra"},
		Args:          usage(cobra.NoArgs),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(topoCommand())
	root.AddCommand(templateCommand())
	return root
}

// usage marks the errors of argument checks.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
