package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// EditorOptions say how the container runtime sees the driver.
type EditorOptions struct {
	// HostRoot is the root given to New as the container runtime sees it;
	// empty when both see the same.
	HostRoot string

	// HookPath is nvidia-cdi-hook as the container runtime sees it. Without it
	// the edits have no hooks: containers get devices, libraries and programs,
	// but no refreshed linker cache.
	HookPath string
}

// Editor makes the CDI edits that give a container the use of GPUs. It is safe
// for concurrent use and keeps results until the driver or the GPUs change.
type Editor struct {
	nvml    *Reader
	options EditorOptions

	mu     sync.Mutex
	valid  validity
	device map[string]*cdispec.ContainerEdits // by UUID
	common *cdispec.ContainerEdits
}

// validity is what cached edits were made from.
type validity struct {
	generation int // of Reader.List
	library    string
	modified   time.Time
}

// NewEditor returns an Editor for the driver that n reads.
func NewEditor(n *Reader, options EditorOptions) *Editor {
	options.HostRoot = cmp.Or(options.HostRoot, n.hostRoot)
	return &Editor{nvml: n, options: options}
}

// Edits returns, for each UUID, what a container needs for this GPU, and what
// it needs once for any. Callers share the results and must not change them.
// Errors are those of List, or name the GPU that is missing or has no device node.
func (e *Editor) Edits(ctx context.Context, uuids []string) (map[string]*cdispec.ContainerEdits, *cdispec.ContainerEdits, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.now(); now != e.valid {
		e.valid, e.device, e.common = now, map[string]*cdispec.ContainerEdits{}, nil
	}
	missing := func(uuid string) bool { return e.device[uuid] == nil }
	if e.common == nil || slices.ContainsFunc(uuids, missing) {
		if err := e.fill(ctx, uuids); err != nil {
			return nil, nil, err
		}
	}
	perDevice := make(map[string]*cdispec.ContainerEdits, len(uuids))
	for _, uuid := range uuids {
		perDevice[uuid] = e.device[uuid]
	}
	return perDevice, e.common, nil
}

func (e *Editor) now() validity {
	v := validity{generation: e.nvml.currentGeneration()}
	if found := findInstalls(e.nvml.hostRoot); len(found) > 0 {
		v.library = found[0].library
		if info, err := os.Stat(v.library); err == nil {
			v.modified = info.ModTime()
		}
	}
	return v
}

// made is what one NVML session yields.
type made struct {
	device map[string]*cdispec.ContainerEdits
	common *cdispec.ContainerEdits
	err    error
}

// fill adds what is missing to the cache. The results travel by value: a call that outlives its
// context must not write to the Editor later.
func (e *Editor) fill(ctx context.Context, uuids []string) error {
	wanted := slices.DeleteFunc(slices.Clone(uuids), func(uuid string) bool { return e.device[uuid] != nil })
	logger := klog.FromContext(ctx)
	r, err := exclusively(ctx, func() (r made) {
		r.device = map[string]*cdispec.ContainerEdits{}
		r.err = e.nvml.session(func(lib nvml.Interface, in install) error {
			generator, err := e.generator(logger, lib, in)
			if err != nil {
				return err
			}
			if r.common, err = e.commonEdits(generator); err != nil {
				return err
			}
			for _, uuid := range wanted {
				if r.device[uuid], err = e.deviceEdits(lib, generator, in, uuid); err != nil {
					return fmt.Errorf("GPU %s: %w", uuid, err)
				}
			}
			return nil
		})
		return r
	})
	if err := errors.Join(err, r.err); err != nil {
		return err
	}
	e.common = r.common
	for uuid, edits := range r.device {
		e.device[uuid] = edits
	}
	return nil
}

func (e *Editor) generator(logger klog.Logger, lib nvml.Interface, in install) (nvcdi.Interface, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	options := []nvcdi.Option{
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDriverRoot(in.root),
		nvcdi.WithDevRoot(in.devRoot),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithLogger(toolkitLogger{logger}),
		// libnvidia-sandboxutils would be a second library that answers the
		// same questions, loaded next to NVML.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	}
	if e.options.HookPath == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		options = append(options, nvcdi.WithNVIDIACDIHookPath(e.options.HookPath))
	}
	generator, err := nvcdi.New(options...)
	if err != nil {
		return nil, fmt.Errorf("CDI edits for NVIDIA GPUs: %w", err)
	}
	return generator, nil
}

func (e *Editor) commonEdits(generator nvcdi.Interface) (*cdispec.ContainerEdits, error) {
	common, err := generator.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("driver files for containers: %w", err)
	}
	if !hasNode(common.ContainerEdits, "/dev/nvidiactl") {
		return nil, errors.New("/dev/nvidiactl is missing; nvidia-modprobe makes it")
	}
	return e.forHost(common.ContainerEdits)
}

func (e *Editor) deviceEdits(lib nvml.Interface, generator nvcdi.Interface, in install, uuid string) (*cdispec.ContainerEdits, error) {
	dev, ret := lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not know it: %w", ret)
	}
	minor, ret := dev.GetMinorNumber()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("minor number: %w", ret)
	}
	specs, err := generator.GetDeviceSpecsByID(uuid)
	if err != nil {
		return nil, err
	}
	// nvcdi leaves out device nodes that it does not find.
	node := fmt.Sprintf("/dev/nvidia%d", minor)
	if len(specs) != 1 || !hasNode(&specs[0].ContainerEdits, node) {
		return nil, fmt.Errorf("%s is missing below %s; nvidia-modprobe makes it", node, in.devRoot)
	}
	return e.forHost(&specs[0].ContainerEdits)
}

// forHost turns paths as this process sees them into paths of the runtime.
func (e *Editor) forHost(edits *cdispec.ContainerEdits) (*cdispec.ContainerEdits, error) {
	spec := &cdispec.Spec{ContainerEdits: *edits}
	transformer := root.New(root.WithRoot(e.nvml.hostRoot), root.WithTargetRoot(e.options.HostRoot), root.WithRelativeTo("host"))
	if err := transformer.Transform(spec); err != nil {
		return nil, err
	}
	return &spec.ContainerEdits, nil
}

func hasNode(edits *cdispec.ContainerEdits, path string) bool {
	return slices.ContainsFunc(edits.DeviceNodes, func(n *cdispec.DeviceNode) bool { return n.Path == path })
}

// toolkitLogger passes messages of the toolkit on as details: it warns about
// every optional file that a driver does not have.
type toolkitLogger struct{ klog.Logger }

func (l toolkitLogger) Debugf(format string, args ...any)   { l.detail(6, format, args) }
func (l toolkitLogger) Tracef(format string, args ...any)   { l.detail(6, format, args) }
func (l toolkitLogger) Infof(format string, args ...any)    { l.detail(6, format, args) }
func (l toolkitLogger) Warningf(format string, args ...any) { l.detail(5, format, args) }
func (l toolkitLogger) Errorf(format string, args ...any)   { l.detail(2, format, args) }

func (l toolkitLogger) detail(level int, format string, args []any) {
	if v := l.V(level); v.Enabled() {
		v.Info("nvidia-container-toolkit: " + fmt.Sprintf(format, args...))
	}
}
