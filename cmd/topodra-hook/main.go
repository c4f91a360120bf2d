// Command topodra-hook is the CDI hook of claims with NICs: see package gate. It is
// linked statically and copied to the host, where the container runtime runs it before
// every container that has such a claim.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/topodra/topodra/internal/podnet/gate"
)

func main() {
	if len(os.Args) < 4 || len(os.Args) > 5 {
		fmt.Fprintln(os.Stderr, "topodra-hook: usage: topodra-hook RECORDS CLAIMS ADDRESS,... [rdma] < OCI-STATE")
		os.Exit(2)
	}
	g := gate.Gate{Dir: os.Args[1], Claims: os.Args[2], Addresses: strings.Split(os.Args[3], ","), RDMA: len(os.Args) == 5, Proc: "/proc"}
	if err := g.Check(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "topodra:", err)
		os.Exit(1)
	}
}
