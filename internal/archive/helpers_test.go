package archive

import (
	"context"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/pci"
)

func simpleGPUs(context.Context) (gpu.Driver, []gpu.GPU, []error) {
	return gpu.Driver{Version: "580.65.06"}, []gpu.GPU{{
		Address: pci.MustParseAddress("0000:20:00.0"), UUID: "GPU-secret", Fabric: &gpu.Fabric{ClusterUUID: "cluster-secret", CliqueID: 7},
	}}, nil
}
