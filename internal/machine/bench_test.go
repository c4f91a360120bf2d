package machine_test

import (
	"fmt"
	"testing"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

// BenchmarkScan reads the largest published machine, 64 network functions below
// 8 switches, from files, without NVML.
func BenchmarkScan(b *testing.B) {
	root := simulatetest.Build(b, "aws-p5-48xl")
	scanner := &machine.Scanner{Sysfs: sysfs.Dir(root.Sysfs)}
	b.ReportAllocs()
	for b.Loop() {
		if s := scanner.Scan(b.Context()); len(s.NICs) != 64 {
			b.Fatalf("%d NICs", len(s.NICs))
		}
	}
}

// BenchmarkTree shows how the cost of the PCI tree grows with the functions.
func BenchmarkTree(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := layout.Layout{}
			for i := range n {
				l.PCI(fmt.Sprintf("pci%04x:00/%04x:00:01.0/%04x:%02x:00.0", i/64, i/64, i/64, 2+i%64),
					layout.Layout{"class": "0x020000", "vendor": "0x1d0f", "device": "0xefa1", "numa_node": "0"})
			}
			root := sysfs.Dir(l.Write(b))
			b.ReportAllocs()
			for b.Loop() {
				if tree, errs := pci.NewReader(root).Read(); len(tree.Functions) != n || errs != nil {
					b.Fatal(len(tree.Functions), errs)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/function")
		})
	}
}
