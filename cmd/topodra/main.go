// Command topodra is the node agent of the topodra DRA driver.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "topodra:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return command().ExecuteContext(ctx)
}

func command() *cobra.Command {
	root := agentCommand()
	root.AddCommand(probeCommand(), snapshotCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	root.SilenceUsage = true
	root.SilenceErrors = true
	return root
}

// environment sets every flag that the command line left alone from its variable:
// --kube-api-qps from TOPODRA_KUBE_API_QPS. A few have the names that the
// downward API's examples use.
func environment(flags *pflag.FlagSet) error {
	aliases := map[string]string{"node-name": "NODE_NAME", "pod-uid": "POD_UID"}
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		name := "TOPODRA_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if !ok {
			name = aliases[f.Name]
			value, ok = os.LookupEnv(name)
		}
		if ok {
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
			}
		}
	})
	return errors.Join(errs...)
}
