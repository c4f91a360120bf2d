package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// Options say where the kubelet finds the plugin.
type Options struct {
	Driver   string
	NodeName string
	Client   kubernetes.Interface

	RegistrarDir string // kubelet's plugins_registry
	DataDir      string // <kubelet root>/plugins/<driver>; made if missing
	CDIDir       string // for the files of the device metadata

	// PodUID is the UID of the agent's pod. It is part of the names of sockets, so
	// that the old and the new pod of a rolling update can serve side by side.
	// Empty outside of a pod.
	PodUID types.UID
}

// maxSocketPath is sizeof(sockaddr_un.sun_path) less the final NUL.
const maxSocketPath = 107

// Start opens the sockets. Claims must have been recovered before. The helper
// that it returns publishes ResourceSlices and must be stopped at the end.
func (p *Plugin) Start(ctx context.Context, o Options) (*kubeletplugin.Helper, error) {
	if err := os.MkdirAll(o.DataDir, 0o750); err != nil {
		return nil, fmt.Errorf("directory of the plugin: %w", err)
	}
	socket := "dra.sock"
	if o.PodUID != "" {
		socket = "dra-" + string(o.PodUID) + ".sock"
	}
	if path := filepath.Join(o.DataDir, socket); len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, the kernel allows %d: choose a shorter kubelet directory", path, len(path), maxSocketPath)
	}
	metadata := metadataFiles{cdiDir: o.CDIDir, dataDir: o.DataDir}
	metadata.restore(ctx, p.Claims.Known)
	return kubeletplugin.Start(ctx, p,
		kubeletplugin.DriverName(o.Driver),
		kubeletplugin.NodeName(o.NodeName),
		kubeletplugin.KubeClient(o.Client),
		kubeletplugin.RegistrarDirectoryPath(o.RegistrarDir),
		kubeletplugin.PluginDataDirectoryPath(o.DataDir),
		kubeletplugin.RollingUpdate(o.PodUID),
		// Claims lock themselves, one by one.
		kubeletplugin.Serialize(false),
		// Nothing reports health yet. The kubelet would ask, and each of its questions be logged as an error.
		kubeletplugin.HealthService(false),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		kubeletplugin.CDIDirectory(o.CDIDir),
		kubeletplugin.MetadataFileOps(metadata.operations()),
	)
}
