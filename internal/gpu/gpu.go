// Package gpu tells which GPUs NVML lists and what NVML says about each.
package gpu

import "github.com/topodra/topodra/internal/pci"

// GPU is one physical GPU as NVML describes it. An empty string or a nil
// pointer means that NVML does not tell.
type GPU struct {
	Index   int         // nvmlDeviceGetIndex; not stable over reboots, never a name
	Minor   int         // /dev/nvidia<Minor>, nvmlDeviceGetMinorNumber
	Address pci.Address // nvmlPciInfo_t.busId
	UUID    string      // nvmlDeviceGetUUID
	Name    string      // nvmlDeviceGetName, for example "NVIDIA H200"

	Architecture      string // nvmlDeviceGetArchitecture, for example "Hopper"
	ComputeCapability string // nvmlDeviceGetCudaComputeCapability, "major.minor"
	MemoryBytes       uint64 // nvmlDeviceGetMemoryInfo total; 0 when NVML does not tell (Grace)
	MIGEnabled        bool   // nvmlDeviceGetMigMode, current

	// Fabric is nil unless the NVLink fabric manager has finished registering
	// this GPU (nvmlDeviceGetGpuFabricInfo, state COMPLETED and status success).
	Fabric *Fabric
}

// Fabric identifies the NVLink domain and partition of a GPU.
type Fabric struct {
	ClusterUUID string
	CliqueID    uint32
}

// Driver is what NVML says about the driver itself.
type Driver struct {
	Version     string // nvmlSystemGetDriverVersion, for example "580.65.06"
	CUDAVersion string // nvmlSystemGetCudaDriverVersion as "major.minor", for example "13.0"
}
