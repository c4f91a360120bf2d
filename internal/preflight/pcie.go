package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/sysfs"
)

const pciDevices = "bus/pci/devices"

// acsRedirect looks at the two ports at which the ways of NIC and GPU part, below
// their nearest common switch: only there a switch decides between the peer and the
// root complex. What counts is the direction of GPUDirect RDMA: requests come from
// the NIC, completions from the GPU. The other bits may be on: rdma-core's rdma_topo
// sets them like that for a Data Direct function and its GPU.
func (c *Checker) acsRedirect(tree *pci.Tree, s Subject) []problem {
	if !s.usesRDMA() {
		return nil
	}
	var problems []problem
	for _, gpu := range s.GPUs {
		for _, from := range dmaFunctions(tree, s.NIC.Address) {
			nicPort, gpuPort, ok := parting(tree, from, gpu)
			if !ok {
				continue
			}
			var redirected []string
			if c.redirects(nicPort, pci.ACSRequestRedirect) {
				redirected = append(redirected, fmt.Sprintf("requests at the switch port %s", nicPort))
			}
			if c.redirects(gpuPort, pci.ACSCompletionRedirect) {
				redirected = append(redirected, fmt.Sprintf("completions at the switch port %s", gpuPort))
			}
			if len(redirected) == 0 {
				continue
			}
			advice := fmt.Sprintf("boot with 'pci=disable_acs_redir=%s;%s', or switch ACS off in the firmware setup", nicPort, gpuPort)
			if from != s.NIC.Address {
				advice = "set ACS as 'rdma_topo write-grub-acs' of rdma-core does, and boot again"
			}
			problems = append(problems, s.faultf("transfers between %s and GPU %s go through the CPU's root complex, slower and a known cause of hangs, "+
				"since ACS redirects %s: %s", s.label(), gpu, strings.Join(redirected, " and "), advice))
		}
	}
	return problems
}

// redirects is false where that depends on more than the register's bit: on a vector
// of peer ports, or on the NIC's use of translated addresses (ATS), for which an
// administrator must have set the bit on purpose.
func (c *Checker) redirects(port pci.Address, bit pci.ACS) bool {
	acs, err := pci.ReadACS(c.Sysfs, port)
	return err == nil && acs&bit != 0 && acs&(pci.ACSEgressControl|pci.ACSDirectTranslated) == 0
}

// dmaFunctions are where a NIC's data enters the machine: at the NIC, and at the Data
// Direct functions of the same card, which have the same VPD keyword V3.
func dmaFunctions(tree *pci.Tree, nic pci.Address) []pci.Address {
	functions := []pci.Address{nic}
	fn := physical(tree, nic)
	if fn == nil || fn.VPD["V3"] == "" {
		return functions
	}
	for _, addr := range slices.SortedFunc(maps.Keys(tree.Functions), pci.Address.Compare) {
		if other := tree.Functions[addr]; other.IsDataDirect() && other.VPD["V3"] == fn.VPD["V3"] {
			functions = append(functions, addr)
		}
	}
	return functions
}

// parting returns the ports below the nearest common bridge of two functions; not ok
// when they have none, or when one of them sits right at it.
func parting(tree *pci.Tree, a, b pci.Address) (atA, atB pci.Address, ok bool) {
	fa, fb := tree.Functions[a], tree.Functions[b]
	if fa == nil || fb == nil || fa.Root != fb.Root || fa.Prefix != fb.Prefix {
		return atA, atB, false
	}
	for i := range min(len(fa.Bridges), len(fb.Bridges)) {
		if fa.Bridges[i] != fb.Bridges[i] {
			return fa.Bridges[i], fb.Bridges[i], i > 0
		}
	}
	return atA, atB, false
}

// pcieLink compares the links of the NIC and the GPUs with what both of their ends can
// do: a card in a slower slot is as it was bought. A GPU that idles lowers its speed,
// so that only its width counts.
func (c *Checker) pcieLink(tree *pci.Tree, s Subject) []problem {
	var problems []problem
	look := func(device pci.Address, label string, speedCounts bool) {
		fn := physical(tree, device)
		if fn == nil || len(fn.Bridges) == 0 { // a guest may not see what is above
			return
		}
		now, most := readLink(c.Sysfs, fn.Address, "current"), readLink(c.Sysfs, fn.Address, "max")
		port := readLink(c.Sysfs, fn.Bridges[len(fn.Bridges)-1], "max")
		most = link{min(most.speed, port.speed), min(most.width, port.width)}
		if !speedCounts {
			now.speed, most.speed = 0, 0
		}
		if (now.width > 0 && now.width < most.width) || (now.speed > 0 && now.speed < most.speed) {
			problems = append(problems, problem{device, fmt.Sprintf("the PCIe link of %s has %s, of the %s that card and slot can do: "+
				"reseat the card, and look at its slot in the firmware setup", label, now, most)})
		}
	}
	look(s.NIC.Address, s.label(), true)
	for _, gpu := range s.GPUs {
		look(gpu, "GPU "+gpu.String(), false)
	}
	return problems
}

// physical returns the function that has the card's link and VPD. A virtual function
// shows neither; nil when its physical one is not on this machine.
func physical(tree *pci.Tree, addr pci.Address) *pci.Function {
	fn := tree.Functions[addr]
	if fn != nil && fn.PhysFn != nil {
		return tree.Functions[*fn.PhysFn]
	}
	return fn
}

// link is a PCIe link; zero for what is not known.
type link struct {
	speed float64 // GT/s
	width int     // lanes
}

func (l link) String() string {
	if l.speed == 0 {
		return fmt.Sprintf("%d lanes", l.width)
	}
	return fmt.Sprintf("%d lanes at %.1f GT/s", l.width, l.speed)
}

// readLink reads current_link_* or max_link_*. What is not known reads as "Unknown",
// 0 or 255 lanes (PCIE_LNK_WIDTH_UNKNOWN, include/linux/pci.h).
func readLink(root sysfs.FS, addr pci.Address, which string) link {
	var l link
	text, _ := root.Attr(pciDevices, addr.String(), which+"_link_speed")
	if number, _, ok := strings.Cut(text, " GT/s"); ok {
		l.speed, _ = strconv.ParseFloat(number, 64)
	}
	const widest = 32 // lanes that the PCI Express specification has
	if width, err := root.Int(pciDevices, addr.String(), which+"_link_width"); err == nil && width <= widest {
		l.width = width
	}
	return l
}

// label names the NIC as users know it.
func (s Subject) label() string {
	for _, name := range []string{s.NIC.RDMAName(), s.NIC.IfName()} {
		if name != "" {
			return fmt.Sprintf("%s (%s)", name, s.NIC.Address)
		}
	}
	return "NIC " + s.NIC.Address.String()
}
