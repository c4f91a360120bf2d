package preflight

import (
	"fmt"
	"strings"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
)

// GPUDirect is a way for a NIC to read and write a GPU's memory.
type GPUDirect string

// Ways of GPUDirect RDMA.
const (
	GPUDirectUnknown GPUDirect = ""        // no NVIDIA driver is seen, or it does not tell
	GPUDirectDMABuf  GPUDirect = "dmabuf"  // the kernel's own
	GPUDirectPeermem GPUDirect = "peermem" // a module that joins both drivers
	GPUDirectNone    GPUDirect = "none"
)

// dmaBufKernel is the first kernel that registers dma-bufs for RDMA
// (ibv_reg_dmabuf_mr, Linux 5.12; so says the GPU Operator's documentation, too).
var dmaBufKernel = [2]int{5, 12}

// peermem are files that exist while such a module is loaded. NCCL looks for the
// first three (ibGdrSupportInitOnce; the third since v2.23), UCX for the first and
// those below module/ (ib_md.c), NVSHMEM for the last, too. nvidia_peermem refuses
// to load where ib_core lacks what it needs (nv_mem_client_init), so that a loaded
// one works even without a file in memory_peers.
var peermem = []string{
	"kernel/mm/memory_peers/nv_mem/version",
	"kernel/mm/memory_peers/nv_mem_nc/version",
	"module/nvidia_peermem/version",
	"module/nv_peer_mem/version",
	"module/efa_nv_peermem/version",
	"kernel/mm/memory_peers/nvidia-peermem/version",
}

// FindGPUDirect tells how an RDMA device can reach the memory of NVIDIA GPUs, and
// when it cannot, why and what to do. It is what the node's files say; only
// registering memory would be proof.
func FindGPUDirect(sys, proc sysfs.FS, device string) (way GPUDirect, reason string) {
	if _, err := sys.Attr("module/nvidia/version"); err != nil {
		return GPUDirectUnknown, ""
	}
	// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05 ..." or
	// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03 ...". The proprietary
	// modules export no dma-bufs (GPU Operator documentation, GPUDirect RDMA).
	flavour, errFlavour := proc.Attr("driver/nvidia/version")
	open := strings.Contains(flavour, "Open Kernel Module")
	release, _ := proc.Attr("sys/kernel/osrelease")
	recent, known := atLeast(release, dmaBufKernel)
	if open && recent {
		return GPUDirectDMABuf, ""
	}
	for _, file := range peermem {
		if _, err := sys.Attr(file); err == nil {
			return GPUDirectPeermem, ""
		}
	}
	// AWS's own EFA driver joins NVIDIA's by itself (efa_sysfs.c and efa_nvmem.c in
	// amzn-drivers: p2p is "NVIDIA" or "NVIDIA peermem"; gdr of older ones is 0 or 1).
	gdr, _ := sys.Attr(classRDMA, device, "device/gdr")
	p2p, _ := sys.Attr(classRDMA, device, "device/p2p")
	switch {
	case gdr == "1" || strings.Contains(p2p, "NVIDIA"):
		return GPUDirectPeermem, ""
	case errFlavour != nil || !known:
		return GPUDirectUnknown, ""
	case !open && recent:
		return GPUDirectNone, "NVIDIA's proprietary kernel modules have no dma-buf, and nvidia_peermem is not loaded; use the open kernel modules, or load nvidia_peermem"
	}
	return GPUDirectNone, fmt.Sprintf("Linux %s is older than %d.%d, the first with dma-buf for RDMA, and nvidia_peermem is not loaded; load it, or use a newer kernel with NVIDIA's open kernel modules",
		release, dmaBufKernel[0], dmaBufKernel[1])
}

// atLeast compares a kernel release as "6.8.0-90-generic" with a version.
func atLeast(release string, want [2]int) (yes, known bool) {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false, false
	}
	return major > want[0] || (major == want[0] && minor >= want[1]), true
}

// gpuDirect leaves software devices out: they are for tests.
func (c *Checker) gpuDirect(_ *pci.Tree, s Subject) []problem {
	if !s.usesRDMA() || len(s.GPUs) == 0 || s.NIC.RDMA.Address == nil {
		return nil
	}
	way, reason := FindGPUDirect(c.Sysfs, c.Proc, s.NIC.RDMA.Name)
	if way != GPUDirectNone {
		return nil
	}
	return []problem{s.faultf("%s cannot reach GPU memory by itself (GPUDirect RDMA), so that transfers are copied through the CPU's memory: %s", s.label(), reason)}
}
