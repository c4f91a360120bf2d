package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func probeCommand() *cobra.Command {
	var socket string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "probe /healthz|/livez",
		Short: "Ask this pod's own agent how it is",
		Long: "probe asks through a unix socket: during a rolling update two agents share the node's network,\n" +
			"and an HTTP probe would reach whichever has the port.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), max(wait, 3*time.Second))
			defer cancel()
			deadline := time.Now().Add(wait)
			for {
				err := probe(ctx, socket, args[0])
				if err == nil || !time.Now().Before(deadline) {
					return err
				}
				select {
				case <-ctx.Done():
					return err
				case <-time.After(200 * time.Millisecond):
				}
			}
		},
	}
	cmd.Flags().StringVar(&socket, "http-socket", "/run/topodra/http.sock", "unix socket of the agent")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for a good answer")
	return cmd
}

func probe(ctx context.Context, socket, path string) error {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, strings.TrimSpace(string(body)))
	}
	return err
}
