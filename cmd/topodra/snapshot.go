package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/topodra/topodra/internal/agent"
	"github.com/topodra/topodra/internal/archive"
)

func snapshotCommand() *cobra.Command {
	var hardware agent.Hardware
	var output string
	cmd := &cobra.Command{
		Use:   "snapshot --output FILE",
		Short: "Write what discovery reads on this machine into one small file",
		Long: "snapshot scans this machine once and writes what it read: the part of sysfs, what NVML says, and the\n" +
			"network interfaces. GUIDs, MAC and IP addresses, GPU UUIDs and serial numbers are replaced by pseudonyms;\n" +
			"the host's name is not read. \"kubectl topodra topo --snapshot FILE\" shows it anywhere: attach it to a bug report.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := environment(cmd.Flags()); err != nil {
				return err
			}
			recording := archive.Capture(cmd.Context(), agent.Real(hardware).Scanner)
			if err := write(recording, output); err != nil {
				return err
			}
			for _, text := range recording.LeftOut {
				fmt.Fprintln(cmd.ErrOrStderr(), "left out:", text)
			}
			return context.Cause(cmd.Context())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "topodra-snapshot.tar.gz", "file to write, which must not exist; - for standard output")
	cmd.Flags().StringVar(&hardware.SysfsRoot, "sysfs-root", "/sys", "directory with bus, class and devices")
	cmd.Flags().StringVar(&hardware.DriverRoot, "driver-root", "/", "root of the host with the NVIDIA driver")
	return cmd
}

func write(r *archive.Recording, output string) (err error) {
	var w io.Writer = os.Stdout
	if output != "-" {
		// O_EXCL: an earlier snapshot may be the only trace of how things were.
		file, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s exists and is not overwritten: remove it or choose another --output", output)
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		w = file
	}
	return r.Write(w)
}
