package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/metrics"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/preflight"
	"github.com/topodra/topodra/internal/status"
	"github.com/topodra/topodra/internal/sysfs"
)

// awayNICs tells the scanner what NICs in pods are at home.
func awayNICs(m *podnet.Mover) func() ([]machine.Away, error) {
	return func() ([]machine.Away, error) {
		records, err := m.AwayRecords()
		var out []machine.Away
		for _, r := range records {
			away := machine.Away{Address: r.Address, Link: r.Link}
			if r.RDMA != "" {
				away.RDMA = r.Device
			}
			out = append(out, away)
		}
		return out, err
	}
}

// nicObserver puts what happens to NICs into metrics and the status of claims.
type nicObserver struct {
	*metrics.Metrics
	claims *claims.Manager
	mover  *podnet.Mover
	status *status.Writer
}

// Attached implements podnet.Observer.
func (o nicObserver) Attached(claim podnet.Claimed, sandbox podnet.Sandbox, took time.Duration, err error) {
	o.NICsAttached(took, err)
	prepared, ok := o.claims.PreparedClaim(claim.Claim.UID)
	if !ok {
		return
	}
	since := prepared.At
	switch moved := o.mover.Since(claim); {
	case err != nil:
		since = time.Now()
	case !moved.IsZero():
		since = moved
	}
	o.status.Store(claim.Claim, status.Outcome{
		Driver: v1alpha1.Group, Claim: prepared, Plans: claim.Plans, Sandbox: sandbox, Since: since, Err: err,
	})
}

// preflightCheck implements claims.Preflight on the newest view.
type preflightCheck struct {
	checker preflight.Checker
	view    func() *view
	metrics *metrics.Metrics
}

func newPreflight(o Options, m *metrics.Metrics, v func() *view) *preflightCheck {
	proc := sysfs.Dir("/proc")
	if o.Machine.Simulated != "" {
		proc = sysfs.Memory(nil) // this kernel is not the machine's
	}
	return &preflightCheck{
		checker: preflight.Checker{
			Sysfs: o.Machine.Scanner.Sysfs, Proc: proc, CharDevices: o.Machine.CharDevices,
			NetnsMode: podnet.RDMANetnsMode, Level: o.Config.PreflightLevel,
		},
		view: v, metrics: m,
	}
}

// Check implements claims.Preflight.
func (p *preflightCheck) Check(ctx context.Context, subjects []preflight.Subject) (map[pci.Address][]string, error) {
	v := p.view()
	if v == nil {
		return nil, errors.New("the agent has just started and has not scanned this node yet")
	}
	warnings := map[pci.Address][]string{}
	var faults []error
	for _, f := range p.checker.Check(v.snapshot.PCI, subjects...) {
		p.metrics.PreflightFound(f.Check, f.Level)
		klog.FromContext(ctx).Info("Preflight", "check", f.Check, "level", f.Level, "device", f.Device, "finding", f.Text)
		if f.Level == v1alpha1.PreflightFail {
			faults = append(faults, fmt.Errorf("preflight %s: %s", f.Check, f.Text))
			continue
		}
		warnings[f.Device] = append(warnings[f.Device], fmt.Sprintf("preflight %s: %s", f.Check, f.Text))
	}
	return warnings, errors.Join(faults...)
}
