// Package preflight looks at a NIC, and at the GPUs that are to reach it, before a
// claim is prepared, and says in one sentence each what is wrong and what to do.
//
// What cannot be told is no finding: an attribute that is absent or unreadable must
// not keep a claim from being prepared.
package preflight

import (
	"fmt"
	"slices"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
)

// Subject is a NIC as a claim asks for it.
type Subject struct {
	NIC  machine.NIC
	GPUs []pci.Address     // that should read and write each other's memory through the NIC; may be empty
	RDMA v1alpha1.RDMAMode // as the claim asks; empty: as the node is

	// Moves says that the network interface goes into the pod, where the driver sets
	// it up. What the host's namespace shows of it then says less: the interface may
	// be down, and its addresses and GIDs come later.
	Moves bool
}

// Finding is one fault. Two findings are equal when they say the same.
type Finding struct {
	Check  v1alpha1.PreflightCheck
	Level  v1alpha1.PreflightLevel // fail or warn
	Device pci.Address             // the NIC, or the GPU whose link is slow
	Text   string                  // names the device, the fact and what to do
}

// Checker looks at devices. It keeps nothing between calls and may be used by
// several goroutines.
type Checker struct {
	Sysfs, Proc sysfs.FS // /sys and /proc of the node, in the host's network namespace
	CharDevices cdi.CharDevices
	// NetnsMode returns the mode of the RDMA subsystem, "shared" or "exclusive".
	NetnsMode func() (string, error)
	// Level returns what a check does when it fails; DriverConfig.PreflightLevel.
	Level func(v1alpha1.PreflightCheck) v1alpha1.PreflightLevel
}

// problem is a finding of a check that does not know its own name.
type problem struct {
	device pci.Address
	text   string
}

// checks in the order in which one thing rests on the other.
var checks = []struct {
	name v1alpha1.PreflightCheck
	look func(*Checker, *pci.Tree, Subject) []problem
}{
	{v1alpha1.CheckCharDevices, (*Checker).charDevices},
	{v1alpha1.CheckNetnsMode, (*Checker).netnsMode},
	{v1alpha1.CheckPortActive, (*Checker).portActive},
	{v1alpha1.CheckGID, (*Checker).gid},
	{v1alpha1.CheckGPUDirect, (*Checker).gpuDirect},
	{v1alpha1.CheckACS, (*Checker).acsRedirect},
	{v1alpha1.CheckPCIeLink, (*Checker).pcieLink},
}

// Check returns what is wrong with the NICs of a claim, each finding once, in a
// fixed order. Call it before anything of the claim is set up: an RDMA device that
// has gone into its pod is missed in the host's namespace.
func (c *Checker) Check(tree *pci.Tree, subjects ...Subject) []Finding {
	var findings []Finding
	for _, s := range subjects {
		for _, check := range checks {
			level := c.Level(check.name)
			if level == v1alpha1.PreflightOff {
				continue
			}
			for _, p := range check.look(c, tree, s) {
				// One GPU has several NICs.
				if f := (Finding{check.name, level, p.device, p.text}); !slices.Contains(findings, f) {
					findings = append(findings, f)
				}
			}
		}
	}
	return findings
}

// faultf makes a problem of the NIC itself.
func (s Subject) faultf(format string, args ...any) problem {
	return problem{s.NIC.Address, fmt.Sprintf(format, args...)}
}

// usesRDMA tells whether the pod is to get the NIC's RDMA device.
func (s Subject) usesRDMA() bool { return s.NIC.RDMA != nil && s.RDMA != v1alpha1.RDMANone }
