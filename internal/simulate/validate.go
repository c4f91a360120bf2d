package simulate

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Bounds of a machine file: far above any real machine, low enough that a
// hostile file builds nothing large. maxDepth keeps paths under PATH_MAX.
const (
	maxFunctions = 4096
	maxRoots     = 256
	maxGPUs      = 64 // of the double, nvml/nvml.c
	maxNICs      = 1024
	maxNUMANodes = 1024
	maxPorts     = 16
	maxDepth     = 64 // bridges above a function
	maxErrors    = 10
)

var (
	reAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	reRoot    = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)
	reLabel   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$`)
	reNetdev  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`) // IFNAMSIZ
	reClass   = regexp.MustCompile(`^0x[0-9a-f]{6}$`)
	reID      = regexp.MustCompile(`^0x[0-9a-f]{4}$`)
	reCPUs    = regexp.MustCompile(`^[0-9,-]{0,1000}$`)
	reText    = regexp.MustCompile(`^[ -~]{0,80}$`)
	reUUID    = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	reGUID    = regexp.MustCompile(`^[0-9a-f]{4}(:[0-9a-f]{4}){3}$`)
	rePrefix  = regexp.MustCompile(`^[A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+){0,15}$`)
)

var (
	trees      = []string{"complete", "elided", "partial"}
	archs      = []string{"x86_64", "aarch64", "ppc64le"}
	portStates = []string{"", "DOWN", "INIT", "ARMED", "ACTIVE"}
	linkLayers = []string{"", "Ethernet", "InfiniBand", "Unspecified"}
	roles      = []string{"", "compute", "storage", "storage-dpu", "management", "frontend", "nvlink-management", "virtio"}
	nvlinks    = []string{"nvswitch", "direct", "bridge-pair", "c2c+nvlink", "c2c+nvswitch", "direct-to-cpu-and-peer"}
)

// problems gathers what is wrong with a file, field by field.
type problems []error

func (p *problems) addf(field, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

func (p *problems) match(field, value string, re *regexp.Regexp) {
	if value != "" && !re.MatchString(value) {
		p.addf(field, "%q does not look like %s", shorten(value), re)
	}
}

func (p *problems) oneOf(field, value string, allowed []string) {
	if !slices.Contains(allowed, value) {
		p.addf(field, "%q is none of %q", shorten(value), allowed)
	}
}

func (p *problems) most(field string, n, limit int) {
	if n > limit {
		p.addf(field, "%d entries, at most %d are allowed", n, limit)
	}
}

func (p *problems) err() error {
	errs := *p
	if len(errs) > maxErrors {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more problems", len(*p)-maxErrors))
	}
	return errors.Join(errs...)
}

func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

// validate checks the file and fills the lookup tables.
func (m *Machine) validate() error {
	var p problems
	if m.Schema != 1 {
		p.addf("schema", "%d, this version reads 1", m.Schema)
	}
	if m.Slug == "" {
		p.addf("slug", "missing")
	}
	p.match("slug", m.Slug, reLabel)
	p.oneOf("arch", m.Arch, archs)
	p.oneOf("tree", m.Tree, trees)
	if m.Partial != (m.Tree != "complete") {
		p.addf("partial", "%t contradicts tree %q", m.Partial, m.Tree)
	}
	p.most("numaNodes", len(m.NUMANodes), maxNUMANodes)
	p.most("roots", len(m.Roots), maxRoots)
	p.most("pci", len(m.PCI), maxFunctions)
	p.most("gpus", len(m.GPUs), maxGPUs)
	p.most("nics", len(m.NICs), maxNICs)
	if err := p.err(); err != nil {
		return err
	}

	m.validateNUMANodes(&p)
	m.validateRoots(&p)
	m.validateFunctions(&p)
	if err := p.err(); err != nil {
		return err
	}
	// The chains need every parent to exist.
	m.validateChains(&p)
	m.validateGPUs(&p)
	m.validateNICs(&p)
	return p.err()
}

func (m *Machine) validateNUMANodes(p *problems) {
	seen := map[int]bool{}
	for i, n := range m.NUMANodes {
		field := fmt.Sprintf("numaNodes[%d]", i)
		if n.ID < 0 || n.ID > 4095 || seen[n.ID] {
			p.addf(field+".id", "%d is repeated or out of range", n.ID)
		}
		seen[n.ID] = true
		p.match(field+".cpus", n.CPUs, reCPUs)
	}
}

func (m *Machine) validateRoots(p *problems) {
	m.roots = map[string]*HostBridge{}
	for i := range m.Roots {
		r, field := &m.Roots[i], fmt.Sprintf("roots[%d]", i)
		switch {
		case m.roots[r.Name] != nil:
			p.addf(field+".name", "%q is repeated", shorten(r.Name))
		case r.Unknown && !(strings.HasPrefix(r.Name, "unknown-") && reLabel.MatchString(r.Name)):
			p.addf(field+".name", "%q: the label of an unknown root begins with \"unknown-\"", shorten(r.Name))
		case !r.Unknown && !reRoot.MatchString(r.Name):
			p.addf(field+".name", "%q is not a host bridge such as pci0000:00", shorten(r.Name))
		}
		m.roots[r.Name] = r
		p.match(field+".sysfsPrefix", r.SysfsPrefix, rePrefix)
		if r.SysfsPrefix != "" && (path.Clean(r.SysfsPrefix) != r.SysfsPrefix || strings.HasPrefix(r.SysfsPrefix, ".")) {
			p.addf(field+".sysfsPrefix", "%q is not a clean relative path", shorten(r.SysfsPrefix))
		}
	}
}

func (m *Machine) validateFunctions(p *problems) {
	m.functions, m.children = map[string]*Function{}, map[string][]string{}
	for i := range m.PCI {
		f, field := &m.PCI[i], fmt.Sprintf("pci[%d]", i)
		switch {
		case m.functions[f.Address] != nil:
			p.addf(field+".address", "%q is repeated", shorten(f.Address))
		case f.AddressUnknown && !(strings.HasPrefix(f.Address, "sw") && reLabel.MatchString(f.Address)):
			p.addf(field+".address", "%q: a placeholder begins with \"sw\"", shorten(f.Address))
		case !f.AddressUnknown && !reAddress.MatchString(f.Address):
			p.addf(field+".address", "%q is not a PCI address DDDD:BB:DD.F in lower case", shorten(f.Address))
		}
		m.functions[f.Address] = f
		p.match(field+".class", f.Class, reClass)
		p.match(field+".vendor", f.Vendor, reID)
		p.match(field+".device", f.Device, reID)
		p.match(field+".subVendor", f.SubVendor, reID)
		p.match(field+".subDevice", f.SubDevice, reID)
		p.match(field+".linkSpeed", f.LinkSpeed, reText)
		p.match(field+".vpdV3", f.VPDV3, reText)
		if f.Elided.Bridges < 0 || f.Elided.Bridges > maxDepth {
			p.addf(field+".elided", "%d is not between 0 and %d", f.Elided.Bridges, maxDepth)
		}
		if m.Tree == "complete" && (f.Parent == nil || f.AddressUnknown || f.Elided != (Elided{})) {
			p.addf(field, "a complete tree has no unknown parent, address or number of bridges")
		}
		if m.Tree == "elided" && f.Parent == nil {
			p.addf(field+".parent", "unknown, which only a partial tree may have")
		}
		if f.Parent != nil {
			m.children[*f.Parent] = append(m.children[*f.Parent], f.Address)
		}
	}
	for i, f := range m.PCI {
		field := fmt.Sprintf("pci[%d]", i)
		if f.Parent != nil {
			parent, isFunction := m.functions[*f.Parent]
			_, isRoot := m.roots[*f.Parent]
			switch {
			case !isFunction && !isRoot:
				p.addf(field+".parent", "%q is neither in pci nor in roots", shorten(*f.Parent))
			case isFunction && parent.Class != "" && parent.Class != classBridge:
				p.addf(field+".parent", "%q is no bridge (class %s)", *f.Parent, parent.Class)
			}
		}
		if f.PhysFn != "" && (m.functions[f.PhysFn] == nil || f.PhysFn == f.Address) {
			p.addf(field+".physfn", "%q is not another function of pci", shorten(f.PhysFn))
		}
	}
}

// validateChains follows each function up to its root. The number of steps is
// bounded, so a loop ends as a chain that is too long.
func (m *Machine) validateChains(p *problems) {
	for i := range m.PCI {
		f, depth := &m.PCI[i], 0
		for f != nil && f.Parent != nil && depth <= maxDepth {
			depth += 1 + f.Elided.made()
			if root := m.roots[*f.Parent]; root != nil && m.functions[*f.Parent] == nil {
				if d := domainOf(m.PCI[i].Address); !root.Unknown && d != "" && d != rootDomain(root.Name) {
					p.addf(fmt.Sprintf("pci[%d]", i), "%s is below %s, another PCI domain", m.PCI[i].Address, root.Name)
				}
				break
			}
			f = m.functions[*f.Parent]
		}
		if depth > maxDepth {
			p.addf(fmt.Sprintf("pci[%d].parent", i), "%s is below a loop or below more than %d bridges", m.PCI[i].Address, maxDepth)
		}
	}
}

func (m *Machine) validateGPUs(p *problems) {
	indexes, uuids, addresses := map[int]bool{}, map[string]bool{}, map[string]bool{}
	for i, g := range m.GPUs {
		field := fmt.Sprintf("gpus[%d]", i)
		if g.Index < 0 || g.Index >= maxGPUs || indexes[g.Index] {
			p.addf(field+".index", "%d is repeated or out of range", g.Index)
		}
		if !reUUID.MatchString(g.UUID) || uuids[g.UUID] {
			p.addf(field+".uuid", "%q is repeated or not GPU- and a UUID", shorten(g.UUID))
		}
		indexes[g.Index], uuids[g.UUID] = true, true
		p.match(field+".name", g.Name, reText)
		if g.NVLink != nil {
			p.oneOf(field+".nvlink.kind", g.NVLink.Kind, nvlinks)
			if n := g.NVLink.Links; n != nil && (*n < 0 || *n > 64) {
				p.addf(field+".nvlink.links", "%d is not between 0 and 64", *n)
			}
		}
		if g.Address == nil {
			continue
		}
		// NVML prints function 0 whatever the function is.
		if f := m.functions[*g.Address]; f == nil || f.AddressUnknown || !strings.HasSuffix(*g.Address, ".0") {
			p.addf(field+".address", "%q is not a function .0 of pci", shorten(*g.Address))
		}
		if addresses[*g.Address] {
			p.addf(field+".address", "%q is repeated", shorten(*g.Address))
		}
		addresses[*g.Address] = true
	}
}

func (m *Machine) validateNICs(p *problems) {
	ids, names := map[string]bool{}, map[string]bool{}
	unique := func(field, kind, name string) {
		if name != "" && names[kind+name] {
			p.addf(field, "%q is repeated", name)
		}
		names[kind+name] = true
	}
	for i, n := range m.NICs {
		field := fmt.Sprintf("nics[%d]", i)
		if n.ID == "" || ids[n.ID] {
			p.addf(field+".id", "%q is empty or repeated", shorten(n.ID))
		}
		ids[n.ID] = true
		p.match(field+".netdev", n.Netdev, reNetdev)
		p.match(field+".rdma", n.RDMA, reLabel)
		unique(field+".netdev", "netdev ", n.Netdev)
		unique(field+".rdma", "rdma ", n.RDMA)
		p.match(field+".nodeGuid", n.NodeGUID, reGUID)
		p.oneOf(field+".role", n.Role, roles)
		p.most(field+".ports", len(n.Ports), maxPorts)
		for j, port := range n.Ports {
			field := fmt.Sprintf("%s.ports[%d]", field, j)
			if port.Port < 1 || port.Port > 254 {
				p.addf(field+".port", "%d is not between 1 and 254", port.Port)
			}
			unique(field+".port", "port "+n.ID+" ", fmt.Sprint(port.Port))
			p.oneOf(field+".state", port.State, portStates)
			p.oneOf(field+".linkLayer", port.LinkLayer, linkLayers)
			p.match(field+".rate", port.Rate, reText)
		}
		for _, ref := range append([]string{n.DMAFunction}, n.AddressOneOf...) {
			if ref != "" && m.functions[ref] == nil {
				p.addf(field, "%q is not in pci", shorten(ref))
			}
		}
		if n.Address != nil && m.functions[*n.Address] == nil {
			p.addf(field+".address", "%q is not in pci", shorten(*n.Address))
		}
	}
}
