package topology_test

import (
	"fmt"
	"testing"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/topology"
)

func BenchmarkCompute(b *testing.B) {
	snapshot, err := simulatetest.Load(b, "aws-p5-48xl").Snapshot(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		topology.Compute(snapshot, topology.Config{})
	}
}

// BenchmarkMatrix shows how the cost grows with GPUs times NICs.
func BenchmarkMatrix(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		const gpus = 8
		s := &machine.Snapshot{PCI: &pci.Tree{Functions: map[pci.Address]*pci.Function{}}}
		add := func(i int, bus uint8) pci.Address {
			sw := pci.Address{Domain: uint32(i % gpus), Bus: 1}
			a := pci.Address{Domain: sw.Domain, Bus: bus, Device: uint8(i / gpus % 32), Function: uint8(i / gpus / 32)}
			s.PCI.Functions[a] = &pci.Function{Address: a, Root: fmt.Sprintf("pci%04x:00", sw.Domain), Bridges: []pci.Address{sw}}
			return a
		}
		for i := range gpus {
			s.GPUs = append(s.GPUs, gpu.GPU{Address: add(i, 2)})
		}
		for i := range n {
			a := add(i, 3)
			s.NICs = append(s.NICs, machine.NIC{Address: a, RDMA: &rdma.Device{Name: a.String(), Address: &a}})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				topology.Compute(s, topology.Config{})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n*gpus), "ns/cell")
		})
	}
}
