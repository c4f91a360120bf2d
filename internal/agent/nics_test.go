package agent

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/metrics"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/preflight"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

// TestPreflightLevels: a port without a link keeps the claim from being prepared, warns at the NIC, or nobody looks, as the
// driver's configuration says; and what is found is counted.
func TestPreflightLevels(t *testing.T) {
	const path = "pci0000:10/0000:15:00.0"
	nic := machine.NIC{
		Address: pci.MustParseAddress("0000:15:00.0"),
		RDMA:    &rdma.Device{Name: "mlx5_0", Uverbs: "uverbs0", Ports: []rdma.Port{{Number: 1, LinkLayer: "InfiniBand"}}},
	}
	l := layout.Layout{"dev/infiniband/uverbs0": "", "dev/infiniband/rdma_cm": ""}
	l.Class("infiniband", path, "mlx5_0", layout.Layout{
		"ports/1/state": "1: DOWN", "ports/1/link_layer": "InfiniBand", "ports/1/gids/0": "fe80:0000:0000:0000:a288:c2ff:feab:cdef",
	})
	root := l.Write(t)
	const found = "preflight portActive: "
	for level, want := range map[v1alpha1.PreflightLevel]struct{ fault, warning, counted bool }{
		v1alpha1.PreflightFail: {fault: true, counted: true},
		v1alpha1.PreflightWarn: {warning: true, counted: true},
		v1alpha1.PreflightOff:  {},
	} {
		t.Run(string(level), func(t *testing.T) {
			config := v1alpha1.DefaultDriverConfig()
			config.Preflight = map[v1alpha1.PreflightCheck]v1alpha1.PreflightLevel{v1alpha1.CheckPortActive: level}
			m := metrics.New()
			p := newPreflight(Options{
				Config: config,
				Machine: Machine{
					Simulated: "test", Scanner: &machine.Scanner{Sysfs: sysfs.Dir(root)},
					CharDevices: cdi.CharDevices{Root: root, HostRoot: "/"},
				},
			}, m, func() *view { return &view{snapshot: &machine.Snapshot{PCI: &pci.Tree{}}} })
			p.checker.NetnsMode = func() (string, error) { return "shared", nil }
			warnings, err := p.Check(t.Context(), []preflight.Subject{{NIC: nic}})
			if fault := err != nil && strings.HasPrefix(err.Error(), found); fault != want.fault {
				t.Errorf("fault: %v, want one %t", err, want.fault)
			}
			if w := warnings[nic.Address]; (len(w) == 1 && strings.HasPrefix(w[0], found)) != want.warning {
				t.Errorf("warnings: %v, want one %t", warnings, want.warning)
			}
			answer := httptest.NewRecorder()
			m.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			body, err := io.ReadAll(answer.Body)
			line := `topodra_preflight_findings_total{check="portActive",level="` + string(level) + `"} 1`
			if err != nil || strings.Contains(string(body), line) != want.counted {
				t.Errorf("the metrics have %q: %t, want %t (%v)", line, !want.counted, want.counted, err)
			}
		})
	}
}
