// Command driver makes the root of an NVIDIA driver for the GPU stand-ins of a guest: a double of NVML that lists the GPUs of a
// machine file, and their device nodes.
//
//	driver MACHINE_FILE DOUBLE DIR       makes DIR/driver; DOUBLE is what internal/simulate/nvml/build.sh built
package main

import (
	"fmt"
	"os"

	"github.com/topodra/topodra/internal/simulate"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want MACHINE_FILE, DOUBLE and DIR, not %d arguments", len(args))
	}
	machine, err := simulate.Load(args[0])
	if err != nil {
		return err
	}
	root, err := machine.BuildDriver(args[2], args[1])
	if err != nil {
		return err
	}
	for _, note := range root.Notes {
		fmt.Fprintln(os.Stderr, "driver:", note)
	}
	return nil
}
