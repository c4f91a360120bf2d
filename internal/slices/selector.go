package slices

import (
	"context"
	"fmt"

	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
)

// NICSelector is the administrator's choice of NICs: a CEL expression over the
// device, in the language of claims. A NIC for which it is false is not published.
type NICSelector struct {
	expression string
	program    cel.CompilationResult
}

// NewNICSelector compiles an expression; the error tells the position. An empty
// expression selects every NIC.
func NewNICSelector(expression string) (*NICSelector, error) {
	if expression == "" {
		return nil, nil
	}
	program := cel.GetCompiler(cel.Features{}).CompileCELExpression(expression, cel.Options{})
	if program.Error != nil {
		return nil, fmt.Errorf("nicSelector does not compile: %s", program.Error.Detail)
	}
	return &NICSelector{expression: expression, program: program}, nil
}

// Excluded evaluates the selector on every NIC. A NIC on which it fails, for
// example by reading an attribute that the NIC lacks, is not excluded; the errors
// tell which.
func (s *NICSelector) Excluded(ctx context.Context, snap *machine.Snapshot) (map[pci.Address]string, []error) {
	if s == nil {
		return nil, nil
	}
	excluded := map[pci.Address]string{}
	var errs []error
	for _, n := range snap.NICs {
		match, _, err := s.program.DeviceMatches(ctx, cel.Device{Driver: v1alpha1.Group, Attributes: nicFacts(snap, n)})
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("nicSelector on %s: %w", n.Address, err))
		case !match:
			excluded[n.Address] = "nicSelector: " + s.expression
		}
	}
	return excluded, errs
}
