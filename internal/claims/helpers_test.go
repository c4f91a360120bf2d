package claims

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/rdma"
)

const (
	driver = "topodra.dev"
	pool   = "node-1"
	boot   = "boot-1"
)

// node is a machine with eight GPUs and eight NICs, and directories that outlive
// the Managers on it.
type node struct {
	t       testing.TB
	dir     string
	boot    string
	devices fakeInventory
	gpus    fakeGPUs
	nics    fakeNICs

	preflight fakePreflight
	metrics   fakeRecorder
}

func newNode(t testing.TB) *node {
	n := &node{t: t, dir: t.TempDir(), boot: boot, devices: fakeInventory{}}
	if err := os.MkdirAll(filepath.Join(n.dir, "root/dev/infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.node("rdma_cm")
	for i := range 8 {
		gpuAddress := pci.MustParseAddress(fmt.Sprintf("0000:%d1:00.0", i))
		nicAddress := pci.MustParseAddress(fmt.Sprintf("0000:%d2:00.0", i))
		rail := i
		n.devices.add(Device{
			Name: gpuName(i), Type: v1alpha1.GPUKind, Address: gpuAddress,
			GPU:           &gpu.GPU{Address: gpuAddress, UUID: fmt.Sprintf("GPU-%d", i)},
			AffinityGroup: fmt.Sprintf("pcie-0000-%d0-00-0", i),
		})
		n.devices.add(Device{
			Name: nicName(i), Type: v1alpha1.NICKind, Address: nicAddress,
			NIC: &machine.NIC{
				Address: nicAddress,
				Links:   []netdev.Link{{Name: fmt.Sprintf("eth%d", i)}},
				RDMA: &rdma.Device{
					Name: fmt.Sprintf("mlx5_%d", i), NodeGUID: fmt.Sprintf("guid-%d", i), Uverbs: fmt.Sprintf("uverbs%d", i),
					Umad: []string{fmt.Sprintf("umad%d", i)}, Ports: []rdma.Port{{Number: 1, LinkLayer: "InfiniBand"}},
				},
			},
			AffinityGroup: fmt.Sprintf("pcie-0000-%d0-00-0", i), Rail: &rail,
			Distances:  map[pci.Address]string{gpuAddress: "PIX"},
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"topodra.dev/rail": {IntValue: new(int64)}},
		})
		n.node(fmt.Sprintf("uverbs%d", i))
	}
	return n
}

func gpuName(i int) string { return fmt.Sprintf("gpu-0000-%d1-00-0", i) }
func nicName(i int) string { return fmt.Sprintf("nic-0000-%d2-00-0", i) }

// node makes a character device, for which a plain file does as nobody opens it.
func (n *node) node(name string) {
	if err := os.WriteFile(filepath.Join(n.dir, "root/dev/infiniband", name), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) store() cdi.Store   { return cdi.Store{Dir: filepath.Join(n.dir, "cdi")} }
func (n *node) journalDir() string { return filepath.Join(n.dir, "claims") }

// manager starts a Manager as after a crash: nothing but the directories is left
// of the one before.
func (n *node) manager() *Manager {
	n.t.Helper()
	m := n.unrecovered()
	if err := m.Recover(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	return m
}

func (n *node) unrecovered() *Manager {
	n.t.Helper()
	m, err := New(Options{
		Dir: n.journalDir(), CDI: n.store(),
		CharDevices: cdi.CharDevices{Root: filepath.Join(n.dir, "root"), HostRoot: "/"},
		Inventory:   &n.devices, GPUs: &n.gpus, NICs: &n.nics, Preflight: &n.preflight, Recorder: &n.metrics,
		Gate:   Gate{Path: "/hook", Records: "/records", Claims: "/claims"},
		Driver: driver, Pool: pool, BootID: n.boot,
		Retry: &Retry{},
		Now:   func() time.Time { return time.Date(2026, 11, 30, 14, 3, 0, 0, time.UTC) },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = m.Close() })
	return m
}

// files lists what a directory holds, without set-aside and lock files.
func (n *node) files(dir string) []string {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.dir, dir))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") {
			names = append(names, e.Name())
		}
	}
	return names
}

type fakeInventory struct {
	mu   sync.Mutex
	byID map[string]Device
}

func (f *fakeInventory) add(d Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID == nil {
		f.byID = map[string]Device{}
	}
	f.byID[d.Name] = d
}

func (f *fakeInventory) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byID, name)
}

func (f *fakeInventory) Device(name string) (Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.byID[name]
	if !ok {
		return Device{}, fmt.Errorf("device %s is no longer on this node", name)
	}
	return d, nil
}

type fakeGPUs struct {
	mu  sync.Mutex
	err error
	// noNodes are GPUs whose device nodes are missing.
	noNodes map[string]bool
}

func (f *fakeGPUs) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeGPUs) Edits(_ context.Context, uuids []string) (map[string]*cdi.Edits, *cdi.Edits, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, nil, f.err
	}
	per := map[string]*cdi.Edits{}
	for _, uuid := range uuids {
		per[uuid] = &cdi.Edits{}
		if !f.noNodes[uuid] {
			per[uuid].DeviceNodes = []*cdi.DeviceNode{{Path: "/dev/nvidia" + strings.TrimPrefix(uuid, "GPU-")}}
		}
	}
	return per, &cdi.Edits{DeviceNodes: []*cdi.DeviceNode{{Path: "/dev/nvidiactl"}}}, nil
}

type fakeRecorder struct {
	mu       sync.Mutex
	prepared int
	aside    []string
}

func (f *fakeRecorder) PreparedClaims(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prepared = n
}

func (f *fakeRecorder) JournalSetAside(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aside = append(f.aside, reason)
}

// claimOption changes a claim under test.
type claimOption func(*resourceapi.ResourceClaim)

// claim returns an allocated claim; devices are given as "request=device".
func claim(uid string, devices []string, options ...claimOption) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + uid, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + uid, UID: types.UID("pod-" + uid)}},
		},
	}
	for _, s := range devices {
		request, device, _ := strings.Cut(s, "=")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: pool, Device: device})
	}
	for _, o := range options {
		o(c)
	}
	return c
}

func pair(uid string, i int, options ...claimOption) *resourceapi.ResourceClaim {
	return claim(uid, []string{"gpu=" + gpuName(i), "nic=" + nicName(i)}, options...)
}

// withConfig adds an opaque configuration for some requests, all if empty.
func withConfig(source resourceapi.AllocationConfigSource, parameters string, requests ...string) claimOption {
	return func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: source, Requests: requests,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		})
	}
}

func withAdminAccess(c *resourceapi.ResourceClaim) {
	yes := true
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].AdminAccess = &yes
	}
}

func mustPrepare(t testing.TB, m *Manager, c *resourceapi.ResourceClaim, siblings ...*resourceapi.ResourceClaim) Prepared {
	t.Helper()
	p, err := m.Prepare(context.Background(), c, siblings...)
	if err != nil {
		t.Fatalf("Prepare(%s): %v", c.UID, err)
	}
	return p
}

func unprepare(m *Manager, c *resourceapi.ResourceClaim) error {
	return m.Unprepare(context.Background(), c.UID, types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
}

func mustUnprepare(t testing.TB, m *Manager, c *resourceapi.ResourceClaim) {
	t.Helper()
	if err := unprepare(m, c); err != nil {
		t.Fatalf("Unprepare(%s): %v", c.UID, err)
	}
}

// fakeNICs stays at home with every NIC unless told otherwise.
type fakeNICs struct {
	mu       sync.Mutex
	moves    bool
	err      error
	held     map[types.UID]bool
	released []types.UID
}

func (f *fakeNICs) Plan(_ context.Context, claim podnet.Claim, requests []podnet.Request) ([]podnet.Plan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	var plans []podnet.Plan
	for _, r := range requests {
		p := podnet.Plan{Device: r.Device, Address: r.NIC.Address, Uses: r.NIC.RDMAName()}
		if f.moves {
			p.Parent, p.HardwareAddr = "pci/"+r.NIC.Address.String(), "02:00:00:00:00:01"
			p.Pod = podnet.State{Name: "rail0", Addresses: []podnet.Address{{Prefix: netip.MustParsePrefix("10.1.0.5/24")}}}
		}
		plans = append(plans, p)
	}
	if f.held == nil {
		f.held = map[types.UID]bool{}
	}
	f.held[claim.UID] = true
	return plans, nil
}

func (f *fakeNICs) Release(_ context.Context, claim types.UID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, claim)
	f.released = append(f.released, claim)
	return nil
}

func (f *fakeNICs) Holds(claim types.UID, plans []podnet.Plan) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(plans) == 0 || !f.moves || f.held[claim]
}

func (f *fakeNICs) Recover(context.Context, func(types.UID) bool) error { return nil }
