// Package nvml speaks with NVML: it lists GPUs and makes the CDI edits that give
// containers the use of them.
package nvml

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/pci"
)

// Why NVML does not answer. Each comes wrapped in a sentence that says what to
// do; errors.Is tells them apart.
var (
	ErrNoDriver        = errors.New("no NVIDIA driver is installed")
	ErrDriverNotLoaded = errors.New("the NVIDIA kernel driver is not loaded")
	ErrVersionMismatch = errors.New("libnvidia-ml.so.1 and the NVIDIA kernel driver have different versions")
	ErrNVML            = errors.New("NVML does not answer")
)

// Reader lists GPUs through the libnvidia-ml.so.1 of the host. It is safe for
// concurrent use.
//
// go-nvml calls the library through the symbol table of the process, so the
// first library that is loaded stays for the life of the process: two drivers
// cannot be read side by side, and after a driver upgrade the process must be
// started again (ErrVersionMismatch).
type Reader struct {
	hostRoot string

	mu         sync.Mutex
	lib        nvml.Interface
	library    string // path that lib was made for
	driver     gpu.Driver
	gpus       []gpu.GPU
	generation int // counts changes of driver and gpus
}

// New returns a reader for the NVIDIA driver below hostRoot, the root of the
// host as this process sees it. The driver is looked for on each List, since it
// may be installed or loaded later.
func New(hostRoot string) *Reader { return &Reader{hostRoot: hostRoot} }

// List returns the driver and its GPUs by address. A GPU that cannot be read is
// left out and has its own error; the others are valid. When NVML itself does
// not answer there is one error, of a kind above.
//
// Each call opens and closes an NVML session: only a new session sees GPUs that
// were added, and an open one keeps the kernel driver from being reloaded.
func (n *Reader) List(ctx context.Context) (gpu.Driver, []gpu.GPU, []error) {
	type result struct {
		driver gpu.Driver
		gpus   []gpu.GPU
		errs   []error
	}
	r, err := exclusively(ctx, func() (r result) {
		err := n.session(func(lib nvml.Interface, _ install) error {
			r.driver, r.gpus, r.errs = read(lib)
			return nil
		})
		if err != nil {
			r.errs = []error{err}
		}
		return r
	})
	if err != nil {
		return gpu.Driver{}, nil, []error{err}
	}
	n.note(r.driver, r.gpus)
	return r.driver, r.gpus, r.errs
}

// turn lets one goroutine at a time into NVML. It is one for all instances:
// go-nvml keeps the functions it calls in package variables.
var turn = make(chan struct{}, 1)

// exclusively runs f when NVML is free. A call into a hung driver cannot be
// interrupted; it then keeps its turn, and callers get the end of their context.
func exclusively[T any](ctx context.Context, f func() T) (T, error) {
	var none T
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("%w: an earlier call has not returned (%w); the NVIDIA driver may hang, see dmesg", ErrNVML, ctx.Err())
	}
	done := make(chan T, 1)
	go func() {
		defer func() { <-turn }()
		done <- f()
	}()
	select {
	case r := <-done:
		return r, nil
	case <-ctx.Done():
		return none, fmt.Errorf("%w in time (%w); the NVIDIA driver may hang, see dmesg", ErrNVML, ctx.Err())
	}
}

// session calls f with an initialized library. The caller has the turn.
func (n *Reader) session(f func(nvml.Interface, install) error) error {
	installs := findInstalls(n.hostRoot)
	if len(installs) == 0 {
		return fmt.Errorf("%w: no %s below %s; install the driver or point --driver-root to it", ErrNoDriver, libraryName, n.hostRoot)
	}
	in := installs[0]
	n.mu.Lock()
	if n.lib == nil || n.library != in.library {
		n.lib, n.library = nvml.New(nvml.WithLibraryPath(in.library)), in.library
	}
	lib := n.lib
	n.mu.Unlock()

	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%w: %s found no kernel driver; load it with nvidia-modprobe or wait for the driver container", ErrDriverNotLoaded, in.library)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%w: %s does not fit; reboot or reload the kernel driver, then restart this process", ErrVersionMismatch, in.library)
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%w: %s cannot be loaded; it needs this container's architecture and a C library as new as the driver's", ErrNVML, in.library)
	default:
		return fmt.Errorf("%w: initializing %s: %w; see dmesg for messages of the NVIDIA driver", ErrNVML, in.library, ret)
	}
	defer func() { _ = lib.Shutdown() }()
	return f(lib, in)
}

// note remembers what was listed, so that results made from it can be told old.
func (n *Reader) note(driver gpu.Driver, gpus []gpu.GPU) {
	n.mu.Lock()
	defer n.mu.Unlock()
	same := func(a, b gpu.GPU) bool { return a.UUID == b.UUID && a.Minor == b.Minor && a.Address == b.Address }
	if driver != n.driver || !slices.EqualFunc(gpus, n.gpus, same) {
		n.driver, n.gpus = driver, gpus
		n.generation++
	}
}

func (n *Reader) currentGeneration() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.generation
}

func read(lib nvml.Interface) (driver gpu.Driver, gpus []gpu.GPU, errs []error) {
	if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		driver.Version = v
	}
	if v, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		driver.CUDAVersion = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return driver, nil, []error{fmt.Errorf("%w: count of GPUs: %w", ErrNVML, ret)}
	}
	for i := range count {
		g, err := readGPU(lib, i)
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU with NVML index %d is left out: %w", i, err))
			continue
		}
		gpus = append(gpus, g)
	}
	slices.SortFunc(gpus, func(a, b gpu.GPU) int { return a.Address.Compare(b.Address) })
	return driver, gpus, errs
}

// readGPU needs the identity of the GPU and takes the rest as far as it is told.
func readGPU(lib nvml.Interface, index int) (gpu.GPU, error) {
	dev, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return gpu.GPU{}, fmt.Errorf("handle: %w", ret)
	}
	g := gpu.GPU{Index: index}
	if g.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return gpu.GPU{}, fmt.Errorf("UUID: %w", ret)
	}
	if g.Minor, ret = dev.GetMinorNumber(); ret != nvml.SUCCESS {
		return gpu.GPU{}, fmt.Errorf("minor number: %w", ret)
	}
	info, ret := dev.GetPciInfo()
	if ret != nvml.SUCCESS {
		return gpu.GPU{}, fmt.Errorf("PCI address: %w", ret)
	}
	var err error
	if g.Address, err = pci.ParseAddress(text(info.BusId[:])); err != nil {
		return gpu.GPU{}, err
	}

	if name, ret := dev.GetName(); ret == nvml.SUCCESS {
		g.Name = name
	}
	if memory, ret := dev.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.MemoryBytes = memory.Total
	}
	if major, minor, ret := dev.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		g.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}
	// Older drivers lack these functions, and to call a missing function ends
	// the process.
	has := func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	if has("nvmlDeviceGetArchitecture") {
		if arch, ret := dev.GetArchitecture(); ret == nvml.SUCCESS {
			g.Architecture = architectures[arch]
		}
	}
	if has("nvmlDeviceGetMigMode") {
		current, _, ret := dev.GetMigMode()
		g.MIGEnabled = ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
	}
	if has("nvmlDeviceGetGpuFabricInfo") {
		if info, ret := dev.GetGpuFabricInfo(); ret == nvml.SUCCESS {
			g.Fabric = fabric(info)
		}
	}
	return g, nil
}

// architectures has the names that NVIDIA's own driver publishes.
var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER:    "Kepler",
	nvml.DEVICE_ARCH_MAXWELL:   "Maxwell",
	nvml.DEVICE_ARCH_PASCAL:    "Pascal",
	nvml.DEVICE_ARCH_VOLTA:     "Volta",
	nvml.DEVICE_ARCH_TURING:    "Turing",
	nvml.DEVICE_ARCH_AMPERE:    "Ampere",
	nvml.DEVICE_ARCH_ADA:       "Ada Lovelace",
	nvml.DEVICE_ARCH_HOPPER:    "Hopper",
	nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
	nvml.DEVICE_ARCH_RUBIN:     "Rubin",
}

// fabric returns nil unless registration has ended well. HGX systems without
// links to other nodes register too, with a cluster UUID of zeros that would be
// equal on all of them.
func fabric(info nvml.GpuFabricInfo) *gpu.Fabric {
	if info.State != nvml.GPU_FABRIC_STATE_COMPLETED || nvml.Return(info.Status) != nvml.SUCCESS || info.ClusterUuid == [16]uint8{} {
		return nil
	}
	h := hex.EncodeToString(info.ClusterUuid[:])
	return &gpu.Fabric{
		ClusterUUID: fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:]),
		CliqueID:    info.CliqueId,
	}
}

// text returns a C string without what follows its end.
func text[C int8 | uint8](chars []C) string {
	var b []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
