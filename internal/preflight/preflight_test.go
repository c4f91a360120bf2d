package preflight

import (
	"encoding/binary"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/sysfs"
	"github.com/topodra/topodra/internal/testing/layout"
)

var (
	nicAddress = pci.MustParseAddress("0000:13:00.0")
	gpuAddress = pci.MustParseAddress("0000:14:00.0")
)

// Places of the test machine: a NIC and a GPU at two ports of one switch.
const (
	usp     = "pci0000:10/0000:10:01.0/0000:11:00.0"
	nicPort = usp + "/0000:12:00.0"
	gpuPort = usp + "/0000:12:01.0"
	nicPath = nicPort + "/0000:13:00.0"
	gpuPath = gpuPort + "/0000:14:00.0"
)

// short names of directories in the cases below
var short = map[string]string{
	"nic/": "devices/" + nicPath + "/", "nicPort/": "devices/" + nicPort + "/",
	"gpu/": "devices/" + gpuPath + "/", "gpuPort/": "devices/" + gpuPort + "/",
	"eth1/": "devices/" + nicPath + "/net/eth1/", "rdma/": "devices/" + nicPath + "/infiniband/mlx5_0/", "port1/": "devices/" + nicPath + "/infiniband/mlx5_0/ports/1/",
}

const absent = "<absent>"

func links(speed, width, maxSpeed, maxWidth string) layout.Layout {
	return layout.Layout{"current_link_speed": speed, "current_link_width": width, "max_link_speed": maxSpeed, "max_link_width": maxWidth}
}

func with(l layout.Layout, more layout.Layout) layout.Layout {
	maps.Copy(l, more)
	return l
}

// acs is the configuration space of a port with such an ACS control register.
func acs(control uint16) string {
	config := make([]byte, 4096)
	binary.LittleEndian.PutUint32(config[0x100:], 0x000d|1<<16)
	binary.LittleEndian.PutUint16(config[0x106:], control)
	return string(config)
}

// host is a machine on which all is well, before a case changes it.
func host() (sys, proc, root layout.Layout) {
	const gen5 = "32.0 GT/s PCIe"
	sys = layout.Layout{"module/nvidia/version": "580.95.05"}
	bridge := func() layout.Layout { return with(links(gen5, "16", gen5, "16"), layout.Layout{"class": "0x060400"}) }
	sys.PCI("pci0000:10/0000:10:01.0", bridge())
	sys.PCI(usp, bridge())
	sys.PCI(nicPort, with(bridge(), layout.Layout{"config": acs(0)}))
	sys.PCI(gpuPort, with(bridge(), layout.Layout{"config": acs(0)}))
	sys.PCI(nicPath, with(links(gen5, "16", gen5, "16"), layout.Layout{"class": "0x020000", "vendor": "0x15b3"}))
	sys.PCI(gpuPath, with(links("2.5 GT/s PCIe", "16", gen5, "16"), layout.Layout{"class": "0x030200", "vendor": "0x10de"})) // it idles
	sys.Class("net", nicPath, "eth1", layout.Layout{"flags": "0x1003"})
	sys.Class("infiniband_verbs", nicPath, "uverbs0", layout.Layout{"ibdev": "mlx5_0"})
	sys.Class("infiniband", nicPath, "mlx5_0", layout.Layout{
		"node_type": "1: CA", "device": "-> ../../../0000:13:00.0",
		"ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Ethernet",
		"ports/1/gids/0": "fe80:0000:0000:0000:a288:c2ff:feab:cdef", "ports/1/gid_attrs/types/0": "IB/RoCE v1",
		"ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a09:0001", "ports/1/gid_attrs/types/1": "RoCE v2",
		"ports/1/gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
	})
	proc = layout.Layout{
		"driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
		"sys/kernel/osrelease":  "6.8.0-90-generic",
	}
	root = layout.Layout{"dev/infiniband/uverbs0": "", "dev/infiniband/rdma_cm": ""}
	return sys, proc, root
}

const proprietary = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Thu Apr  3 01:14:19 UTC 2025"

func TestCheck(t *testing.T) {
	const (
		infiniBand = "InfiniBand"
		down       = "1: DOWN"
		zero       = "0000:0000:0000:0000:0000:0000:0000:0000"
		noGUID     = "port 1 of RDMA device mlx5_0 has no port GUID, so that rdma_cm cannot use it: give a virtual function one on its physical function ('ip link set PF vf N port_guid GUID', or by the SR-IOV operator) and bind its driver again"
		noGID      = "port 1 of RDMA device mlx5_0 has no RoCE v2 GID: give its interface eth1 an IP address in the node's network namespace, and see that the driver has RoCE v2 switched on"
		noDirect   = "mlx5_0 (0000:13:00.0) cannot reach GPU memory by itself (GPUDirect RDMA), so that transfers are copied through the CPU's memory: "
		noDMABuf   = noDirect + "NVIDIA's proprietary kernel modules have no dma-buf, and nvidia_peermem is not loaded; use the open kernel modules, or load nvidia_peermem"
		detour     = "transfers between mlx5_0 (0000:13:00.0) and GPU 0000:14:00.0 go through the CPU's root complex, slower and a known cause of hangs, since ACS redirects "
		bootACS    = ": boot with 'pci=disable_acs_redir=0000:12:00.0;0000:12:01.0', or switch ACS off in the firmware setup"
		reseat     = " that card and slot can do: reseat the card, and look at its slot in the firmware setup"
	)
	moves := func(s *Subject) { s.Moves = true }
	asks := func(mode v1alpha1.RDMAMode) func(*Subject) { return func(s *Subject) { s.RDMA = mode } }

	for name, test := range map[string]struct {
		set     map[string]string // files that differ
		subject func(*Subject)
		mode    string // of the RDMA subsystem; empty: cannot be told
		skip    v1alpha1.PreflightCheck
		want    []string // check: sentence
	}{
		"all is well":                 {mode: "shared"},
		"a NIC alone":                 {subject: func(s *Subject) { s.GPUs = nil }},
		"nothing of RDMA can be told": {set: map[string]string{"port1/state": absent, "port1/link_layer": absent, "port1/gids/0": absent, "port1/gids/1": absent, "port1/gids/2": absent}},
		"EFA": {set: map[string]string{"port1/link_layer": "Unspecified", "root:dev/infiniband/rdma_cm": absent, "port1/gid_attrs/types/1": absent},
			subject: func(s *Subject) { s.NIC.RDMA.Ports[0].LinkLayer = "Unspecified" }},
		"no RDMA wanted: its faults are not": {set: map[string]string{"port1/state": down, "nicPort/config": acs(0x1d), "root:dev/infiniband/uverbs0": absent}, subject: asks(v1alpha1.RDMANone)},

		"no uverbs": {set: map[string]string{"root:dev/infiniband/uverbs0": absent},
			want: []string{"charDevices: RDMA device mlx5_0: /dev/infiniband/uverbs0 does not exist: load the kernel module ib_uverbs"}},
		"no rdma_cm": {set: map[string]string{"root:dev/infiniband/rdma_cm": absent},
			want: []string{"charDevices: RDMA device mlx5_0: /dev/infiniband/rdma_cm does not exist: load the kernel module rdma_ucm"}},
		"no RDMA device": {subject: func(s *Subject) { s.NIC.RDMA, s.RDMA = nil, v1alpha1.RDMAShared },
			want: []string{"charDevices: NIC 0000:13:00.0 has no RDMA device: load its RDMA driver (mlx5_ib, bnxt_re, irdma), or ask for 'rdma: none'"}},
		"no RDMA device, none asked for": {subject: func(s *Subject) { s.NIC.RDMA = nil }},

		"exclusive on an exclusive node":   {mode: "exclusive", subject: asks(v1alpha1.RDMAExclusive)},
		"shared on a shared node":          {mode: "shared", subject: asks(v1alpha1.RDMAShared)},
		"as the node is":                   {mode: "exclusive"},
		"a mode that cannot be told":       {subject: asks(v1alpha1.RDMAExclusive)},
		"exclusive on a shared node":       {mode: "shared", subject: asks(v1alpha1.RDMAExclusive), want: []string{"netnsMode: the claim asks for RDMA device mlx5_0 exclusively, but the node's RDMA subsystem is shared: run 'rdma system set netns exclusive' before the first container of the node starts (or load ib_core with netns_mode=0), or ask for 'rdma: shared'"}},
		"shared on an exclusive node":      {mode: "exclusive", subject: asks(v1alpha1.RDMAShared), want: []string{"netnsMode: the claim asks for RDMA device mlx5_0 shared, but the node's RDMA subsystem is exclusive: ask for 'rdma: exclusive', or run 'rdma system set netns shared' before the first container of the node starts (or load ib_core with netns_mode=1)"}},
		"a check that is off says nothing": {mode: "shared", subject: asks(v1alpha1.RDMAExclusive), skip: v1alpha1.CheckNetnsMode},
		"a device in another namespace":    {set: map[string]string{"class/infiniband/mlx5_0": absent}, want: []string{"portActive: RDMA device mlx5_0 is not in the node's network namespace: another pod has it still, or its driver was unloaded; look for it with 'rdma dev' there"}},
		"no carrier":                       {set: map[string]string{"port1/state": down}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Ethernet) is DOWN: its interface eth1 has no carrier; check the cable and the switch port"}},
		"an interface that is off":         {set: map[string]string{"port1/state": down, "eth1/flags": "0x1002"}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Ethernet) is DOWN: its interface eth1 is switched off; run 'ip link set eth1 up'"}},
		"an interface that nobody sees":    {set: map[string]string{"port1/state": down, "eth1/flags": absent}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Ethernet) is DOWN: check the cable and the switch port, and run 'ip link set eth1 up'"}},
		"no interface":                     {set: map[string]string{"port1/state": down}, subject: func(s *Subject) { s.NIC.Links = nil }, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Ethernet) is DOWN: check the cable and the switch port"}},
		"off, but the pod switches it on":  {set: map[string]string{"port1/state": down, "eth1/flags": "0x1002"}, subject: moves},
		"on, no carrier, goes to the pod":  {set: map[string]string{"port1/state": down}, subject: moves, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Ethernet) is DOWN: its interface eth1 has no carrier; check the cable and the switch port"}},
		"one of two ports is active":       {set: map[string]string{"port1/state": down, "rdma/ports/2/state": "4: ACTIVE", "rdma/ports/2/link_layer": infiniBand}},
		"none of two ports is active":      {set: map[string]string{"port1/state": down, "rdma/ports/2/state": "2: INIT", "rdma/ports/2/link_layer": "Ethernet"}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Ethernet) is DOWN, port 2 of RDMA device mlx5_0 (Ethernet) is INIT: its interface eth1 has no carrier; check the cable and the switch port"}},
		"InfiniBand without a cable":       {set: map[string]string{"port1/state": down, "port1/link_layer": infiniBand}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (InfiniBand) is DOWN: check the cable and the switch port"}},
		"no subnet manager":                {set: map[string]string{"port1/state": "2: INIT", "port1/link_layer": infiniBand}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (InfiniBand) is INIT: no subnet manager has set it up; start one, on a switch or with 'opensm'"}},
		"a subnet manager that stopped":    {set: map[string]string{"port1/state": "3: ARMED", "port1/link_layer": infiniBand}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (InfiniBand) is ARMED: its subnet manager has not finished; look into that one's log"}},
		"EFA that is down":                 {set: map[string]string{"port1/state": down, "port1/link_layer": "Unspecified"}, want: []string{"portActive: port 1 of RDMA device mlx5_0 (Unspecified) is DOWN: look for its driver's messages in 'dmesg'"}},
		"no RoCE v2 GID":                   {set: map[string]string{"port1/gids/1": zero, "port1/gid_attrs/types/1": absent}, want: []string{"gid: " + noGID}},
		"no RoCE v2 GID before it moves":   {set: map[string]string{"port1/gids/1": zero, "port1/gid_attrs/types/1": absent}, subject: moves},
		"GIDs of types that nobody tells":  {set: map[string]string{"port1/gid_attrs/types/0": absent, "port1/gid_attrs/types/1": absent}},
		"iWARP has no RoCE":                {set: map[string]string{"rdma/node_type": "4: RNIC", "port1/gids/1": zero, "port1/gid_attrs/types/1": absent}},
		"InfiniBand has a GUID":            {set: map[string]string{"port1/link_layer": infiniBand}},
		"a virtual function without GUID":  {set: map[string]string{"port1/link_layer": infiniBand, "port1/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0000"}, want: []string{"gid: " + noGUID}},
		"a port without any GID":           {set: map[string]string{"port1/link_layer": infiniBand, "port1/gids/0": zero, "port1/gids/1": zero}, want: []string{"gid: " + noGUID}},
		"proprietary modules, no peermem":  {set: map[string]string{"proc:driver/nvidia/version": proprietary}, want: []string{"gpuDirect: " + noDMABuf}},
		"no peermem, but no GPU":           {set: map[string]string{"proc:driver/nvidia/version": proprietary}, subject: func(s *Subject) { s.GPUs = nil }},
		"no peermem, but software":         {set: map[string]string{"proc:driver/nvidia/version": proprietary}, subject: func(s *Subject) { s.NIC.RDMA.Address = nil }},
		"an old kernel":                    {set: map[string]string{"proc:sys/kernel/osrelease": "5.4.0-216-generic"}, want: []string{"gpuDirect: " + noDirect + "Linux 5.4.0-216-generic is older than 5.12, the first with dma-buf for RDMA, and nvidia_peermem is not loaded; load it, or use a newer kernel with NVIDIA's open kernel modules"}},
		"requests are redirected":          {set: map[string]string{"nicPort/config": acs(0x05)}, want: []string{"acsRedirect: " + detour + "requests at the switch port 0000:12:00.0" + bootACS}},
		"as the kernel sets ACS":           {set: map[string]string{"nicPort/config": acs(0x1d), "gpuPort/config": acs(0x1d)}, want: []string{"acsRedirect: " + detour + "requests at the switch port 0000:12:00.0 and completions at the switch port 0000:12:01.0" + bootACS}},
		"as rdma_topo sets ACS":            {set: map[string]string{"nicPort/config": acs(0x19), "gpuPort/config": acs(0x15)}},
		"translated addresses go straight": {set: map[string]string{"nicPort/config": acs(0x5d)}},
		"ACS that cannot be read":          {set: map[string]string{"nicPort/config": acs(0x1d)[:64], "gpuPort/config": absent}},

		"half the lanes at half the speed": {set: map[string]string{"nic/current_link_speed": "16.0 GT/s PCIe", "nic/current_link_width": "8"},
			want: []string{"pcieLink: the PCIe link of mlx5_0 (0000:13:00.0) has 8 lanes at 16.0 GT/s, of the 16 lanes at 32.0 GT/s" + reseat}},
		"half the speed":                      {set: map[string]string{"nic/current_link_speed": "16.0 GT/s PCIe"}, want: []string{"pcieLink: the PCIe link of mlx5_0 (0000:13:00.0) has 16 lanes at 16.0 GT/s, of the 16 lanes at 32.0 GT/s" + reseat}},
		"a slower slot":                       {set: map[string]string{"nic/current_link_speed": "16 GT/s", "nicPort/max_link_speed": "16.0 GT/s PCIe"}},
		"a faster slot":                       {set: map[string]string{"nicPort/max_link_speed": "64.0 GT/s PCIe", "nicPort/max_link_width": "32"}},
		"a slot that nobody sees":             {set: map[string]string{"nic/current_link_width": "8", "nicPort/max_link_speed": absent, "nicPort/max_link_width": absent}},
		"a link that nobody sees":             {set: map[string]string{"nic/current_link_speed": "Unknown", "nic/current_link_width": "0"}},
		"a function that is gone":             {set: map[string]string{"nic/current_link_speed": "Unknown", "nic/current_link_width": "255", "nic/max_link_width": "63"}},
		"a card that does not tell its lanes": {set: map[string]string{"nic/current_link_width": "8", "nic/max_link_width": "255"}},
		"a GPU on half of its lanes":          {set: map[string]string{"gpu/current_link_width": "8"}, want: []string{"pcieLink: the PCIe link of GPU 0000:14:00.0 has 8 lanes, of the 16 lanes" + reseat}},
	} {
		t.Run(name, func(t *testing.T) {
			c := change(t, test.set)
			s := subject()
			if test.subject != nil {
				test.subject(&s)
			}
			c.NetnsMode = func() (string, error) {
				if test.mode == "" {
					return "", errors.New("not supported")
				}
				return test.mode, nil
			}
			c.Level = v1alpha1.DriverConfig{Preflight: map[v1alpha1.PreflightCheck]v1alpha1.PreflightLevel{test.skip: v1alpha1.PreflightOff}}.PreflightLevel
			// A second NIC of the same GPU does not say the GPU's faults again.
			got := c.Check(readTree(t, c.Sysfs), s, s)
			var texts []string
			for _, f := range got {
				texts = append(texts, string(f.Check)+": "+f.Text)
				if f.Level != v1alpha1.PreflightChecks[f.Check] {
					t.Errorf("level %q", f.Level)
				}
				if about := map[bool]pci.Address{true: gpuAddress, false: nicAddress}[strings.HasPrefix(f.Text, "the PCIe link of GPU")]; f.Device != about {
					t.Errorf("device %s, want %s", f.Device, about)
				}
			}
			if diff := cmp.Diff(test.want, texts); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// change returns a checker of the host with other files: below /sys, or with "proc:"
// below /proc, or with "root:" below the root that has dev.
func change(t *testing.T, files map[string]string) *Checker {
	t.Helper()
	sys, proc, root := host()
	for file, text := range files {
		l := sys
		if rest, ok := strings.CutPrefix(file, "proc:"); ok {
			l, file = proc, rest
		} else if rest, ok := strings.CutPrefix(file, "root:"); ok {
			l, file = root, rest
		}
		for name, dir := range short {
			if rest, ok := strings.CutPrefix(file, name); ok {
				file = dir + rest
				break
			}
		}
		if _, ok := l[file]; !ok && text == absent {
			t.Fatalf("%s: there is no such file that could be absent", file)
		}
		l[file] = text
		if text == absent {
			delete(l, file)
		}
	}
	return &Checker{
		Sysfs: memory(sys), Proc: memory(proc), CharDevices: cdi.CharDevices{Root: root.Write(t), HostRoot: "/"},
		Level: v1alpha1.DriverConfig{}.PreflightLevel,
	}
}

func memory(l layout.Layout) sysfs.FS {
	nodes := map[string]sysfs.Node{}
	for name, text := range l {
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			nodes[name] = sysfs.Node{Link: target}
		} else {
			nodes[name] = sysfs.Node{Data: []byte(text + "\n")}
		}
	}
	return sysfs.Memory(nodes)
}

// subject is the NIC of host as its snapshot had it.
func subject() Subject {
	return Subject{
		NIC: machine.NIC{
			Address: nicAddress,
			Links:   []netdev.Link{{Name: "eth1"}},
			RDMA:    &rdma.Device{Name: "mlx5_0", Address: &nicAddress, Uverbs: "uverbs0", Ports: []rdma.Port{{Number: 1, LinkLayer: "Ethernet"}}},
		},
		GPUs: []pci.Address{gpuAddress},
	}
}

func readTree(t *testing.T, root sysfs.FS) *pci.Tree {
	t.Helper()
	tree, errs := pci.NewReader(root).Read()
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return tree
}

func TestFindGPUDirect(t *testing.T) {
	for name, test := range map[string]struct {
		set  map[string]string
		want GPUDirect
	}{
		"open modules":                    {want: GPUDirectDMABuf},
		"peermem":                         {set: map[string]string{"proc:driver/nvidia/version": proprietary, "module/nvidia_peermem/version": "535.216.03"}, want: GPUDirectPeermem},
		"Mellanox's peermem":              {set: map[string]string{"proc:driver/nvidia/version": proprietary, "kernel/mm/memory_peers/nv_mem/version": "1.3"}, want: GPUDirectPeermem},
		"peermem on an old kernel":        {set: map[string]string{"proc:sys/kernel/osrelease": "5.11.22", "module/nv_peer_mem/version": "1.3"}, want: GPUDirectPeermem},
		"EFA with NVIDIA's driver":        {set: map[string]string{"proc:driver/nvidia/version": proprietary, "nic/p2p": "NVIDIA"}, want: GPUDirectPeermem},
		"EFA of old":                      {set: map[string]string{"proc:driver/nvidia/version": proprietary, "nic/gdr": "1"}, want: GPUDirectPeermem},
		"EFA without NVIDIA's driver":     {set: map[string]string{"proc:driver/nvidia/version": proprietary, "nic/p2p": ""}, want: GPUDirectNone},
		"proprietary modules":             {set: map[string]string{"proc:driver/nvidia/version": proprietary}, want: GPUDirectNone},
		"a kernel too old":                {set: map[string]string{"proc:sys/kernel/osrelease": "5.11.0"}, want: GPUDirectNone},
		"the first kernel":                {set: map[string]string{"proc:sys/kernel/osrelease": "5.12.0-rc1"}, want: GPUDirectDMABuf},
		"a kernel that is not told":       {set: map[string]string{"proc:sys/kernel/osrelease": absent}},
		"modules whose kind is not told":  {set: map[string]string{"proc:driver/nvidia/version": absent}},
		"no NVIDIA driver, or simulation": {set: map[string]string{"module/nvidia/version": absent, "proc:driver/nvidia/version": absent}},
	} {
		t.Run(name, func(t *testing.T) {
			c := change(t, test.set)
			got, reason := FindGPUDirect(c.Sysfs, c.Proc, "mlx5_0")
			if got != test.want || (reason != "") != (got == GPUDirectNone) {
				t.Errorf("%q, %q, want %q", got, reason, test.want)
			}
		})
	}
}

// A ConnectX-8's data enters the machine at a Data Direct function beside the GPU,
// and that of a virtual function at its physical one's port.
func TestOtherFunctions(t *testing.T) {
	const vpd = "\x90\x07\x00V3\x04card\x78"
	for name, test := range map[string]struct {
		set  map[string]string
		want string
	}{
		"a Data Direct function": {
			set: map[string]string{
				"bus/pci/devices/0000:13:00.0":                        "-> ../../../devices/pci0000:40/0000:40:01.0/0000:13:00.0",
				"devices/pci0000:40/0000:40:01.0/0000:13:00.0/class":  "0x020000",
				"devices/pci0000:40/0000:40:01.0/0000:13:00.0/vendor": "0x15b3", "devices/pci0000:40/0000:40:01.0/0000:13:00.0/vpd": vpd,
				"bus/pci/devices/0000:15:00.0": "-> ../../../devices/" + nicPort + "/0000:15:00.0",
				"nicPort/0000:15:00.0/class":   "0x080100", "nicPort/0000:15:00.0/vendor": "0x15b3", "nicPort/0000:15:00.0/device": "0x2100", "nicPort/0000:15:00.0/vpd": vpd,
				"nicPort/config": acs(0x1d), "gpuPort/config": acs(0x15),
			},
			want: "acsRedirect: transfers between mlx5_0 (0000:13:00.0) and GPU 0000:14:00.0 go through the CPU's root complex, slower and a known cause of hangs, " +
				"since ACS redirects requests at the switch port 0000:12:00.0: set ACS as 'rdma_topo write-grub-acs' of rdma-core does, and boot again",
		},
		"a GPU at a root port of its own": {
			set: map[string]string{
				"bus/pci/devices/0000:14:00.0":                       "-> ../../../devices/pci0000:10/0000:10:02.0/0000:14:00.0",
				"devices/pci0000:10/0000:10:02.0/0000:14:00.0/class": "0x030200",
				"devices/pci0000:10/0000:10:01.0/config":             acs(0x1d), "nicPort/config": acs(0x1d),
			},
		},
		"a virtual function": {
			set: map[string]string{
				"bus/pci/devices/0000:13:00.2": "-> ../../../devices/" + nicPort + "/0000:13:00.2",
				"nicPort/0000:13:00.2/class":   "0x020000", "nicPort/0000:13:00.2/vendor": "0x15b3", "nicPort/0000:13:00.2/physfn": "-> ../0000:13:00.0",
				"nic/current_link_width": "4",
			},
			want: "pcieLink: the PCIe link of mlx5_0 (0000:13:00.2) has 4 lanes at 32.0 GT/s, of the 16 lanes at 32.0 GT/s that card and slot can do: reseat the card, and look at its slot in the firmware setup",
		},
		"a virtual function in a guest": {
			set: map[string]string{
				"bus/pci/devices/0000:13:00.2": "-> ../../../devices/" + nicPort + "/0000:13:00.2",
				"nicPort/0000:13:00.2/class":   "0x020000", "nicPort/0000:13:00.2/current_link_speed": "Unknown", "nicPort/0000:13:00.2/current_link_width": "0",
				"nicPort/0000:13:00.2/max_link_speed": "32.0 GT/s PCIe", "nicPort/0000:13:00.2/max_link_width": "16",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := change(t, test.set)
			s := subject()
			if strings.Contains(name, "virtual") {
				s.NIC.Address = pci.MustParseAddress("0000:13:00.2")
			}
			var got []string
			for _, f := range c.Check(readTree(t, c.Sysfs), s) {
				got = append(got, string(f.Check)+": "+f.Text)
			}
			if diff := cmp.Diff(test.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
