package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/pci"
)

const classBridge = "0x060400"

// domainOf returns the PCI domain of an address, "" of a placeholder.
func domainOf(address string) string {
	if !reAddress.MatchString(address) {
		return ""
	}
	domain, _, _ := strings.Cut(address, ":")
	return domain
}

func rootDomain(root string) string {
	domain, _, _ := strings.Cut(strings.TrimPrefix(root, "pci"), ":")
	return domain
}

// sysfs lays out /sys of a machine. What the file does not know is made up
// where the tree could not exist without it: names of unknown roots, bridges
// that were left out, addresses of placeholders. They get free bus numbers from
// the top of their PCI domain.
type sysfs struct {
	tree
	m      *Machine
	paths  map[string]string          // of functions, by address or placeholder
	madeUp map[string]string          // directories made up, by what they stand for
	buses  map[string]map[string]bool // bus numbers in use, by domain

	unknown pci.Unknown // what is made up and stands for something that nobody published
}

var errNoBus = errors.New("no free bus number left for what has to be made up")

func (m *Machine) sysfs() (tree, error) {
	s, err := m.layout()
	if err != nil {
		return nil, err
	}
	return s.tree, nil
}

// Unknown tells which bridges and roots of the sysfs tree are made up and stand
// for something that nobody published.
func (m *Machine) Unknown() (*pci.Unknown, error) {
	s, err := m.layout()
	if err != nil {
		return nil, err
	}
	return &s.unknown, nil
}

func (m *Machine) layout() (*sysfs, error) {
	s := &sysfs{
		tree: tree{}, m: m, paths: map[string]string{}, madeUp: map[string]string{}, buses: map[string]map[string]bool{},
		unknown: pci.Unknown{Bridges: map[pci.Address]bool{}, Roots: map[string]bool{}, Chains: map[string]bool{}, Names: map[string]bool{}},
	}
	for _, f := range m.PCI {
		if !f.AddressUnknown {
			parts := strings.Split(f.Address, ":")
			s.use(parts[0], parts[1])
		}
	}
	for _, r := range m.Roots {
		if !r.Unknown {
			domain, bus, _ := strings.Cut(strings.TrimPrefix(r.Name, "pci"), ":")
			s.use(domain, bus)
		}
	}
	for i := range m.PCI {
		if _, err := s.place(&m.PCI[i]); err != nil {
			return nil, fmt.Errorf("PCI function %s: %w", m.PCI[i].Address, err)
		}
	}
	s.virtualFunctions()
	s.nics()
	for _, n := range m.NUMANodes {
		s.file(fmt.Sprintf("devices/system/node/node%d/cpulist", n.ID), n.CPUs)
	}
	return s, nil
}

// doubtBridges marks bridges that stand for an unknown number of bridges.
func (s *sysfs) doubtBridges(dir string, n int) {
	for range n {
		if addr, err := pci.ParseAddress(path.Base(dir)); err == nil {
			s.unknown.Bridges[addr] = true
		}
		dir = path.Dir(dir)
	}
}

func (s *sysfs) use(domain, bus string) {
	if s.buses[domain] == nil {
		s.buses[domain] = map[string]bool{}
	}
	s.buses[domain][bus] = true
}

func (s *sysfs) freeBus(domain string) (string, error) {
	for i := 255; i >= 0; i-- {
		if bus := fmt.Sprintf("%02x", i); !s.buses[domain][bus] {
			s.use(domain, bus)
			return bus, nil
		}
	}
	return "", errNoBus
}

// domain returns the domain of an address, or that of the first function below
// a placeholder or root.
func (s *sysfs) domain(name string) string {
	if d := domainOf(name); d != "" {
		return d
	}
	for _, child := range s.m.children[name] {
		return s.domain(child)
	}
	return "0000"
}

// numaNode returns that of the function, else that of its root.
func (s *sysfs) numaNode(f *Function) int {
	if f.NUMANode != nil {
		return *f.NUMANode
	}
	for f.Parent != nil {
		if root := s.m.roots[*f.Parent]; root != nil {
			if root.NUMANode != nil {
				return *root.NUMANode
			}
			break
		}
		f = s.m.functions[*f.Parent]
	}
	return -1
}

// place lays out a function after everything above it, and returns its directory.
func (s *sysfs) place(f *Function) (string, error) {
	if dir, ok := s.paths[f.Address]; ok {
		return dir, nil
	}
	domain, numa := s.domain(f.Address), s.numaNode(f)
	above, err := s.above(f, domain, numa)
	if err != nil {
		return "", err
	}
	address := f.Address
	if f.AddressUnknown {
		bus, err := s.freeBus(domain)
		if err != nil {
			return "", err
		}
		address = fmt.Sprintf("%s:%s:00.0", domain, bus)
	}
	dir := path.Join(above, address)
	s.paths[f.Address] = dir
	s.function(dir, f, numa)
	return dir, nil
}

// above returns the directory that holds a function. Functions of one bus share
// the bridges that are made up above them.
func (s *sysfs) above(f *Function, domain string, numa int) (string, error) {
	segment := f.Address
	if !f.AddressUnknown {
		segment = segment[:strings.LastIndexByte(segment, ':')]
	}
	if f.Parent == nil {
		return s.once("bus "+segment, func() (string, error) {
			bus, err := s.freeBus(domain)
			if err != nil {
				return "", err
			}
			root := fmt.Sprintf("devices/pci%s:%s", domain, bus)
			s.file(root+"/uevent", "")
			s.unknown.Chains[path.Base(root)] = true
			s.unknown.Names[path.Base(root)] = true
			return s.bridges(root, 1, domain, numa)
		})
	}
	var dir string
	var err error
	if root := s.m.roots[*f.Parent]; root != nil {
		dir, err = s.root(root)
	} else {
		dir, err = s.place(s.m.functions[*f.Parent])
	}
	if n := f.Elided.made(); err == nil && n > 0 {
		dir, err = s.once("elided "+*f.Parent+" "+segment, func() (string, error) {
			dir, err := s.bridges(dir, n, domain, numa)
			if f.Elided.Unknown {
				s.doubtBridges(dir, n)
			}
			return dir, err
		})
	}
	return dir, err
}

func (s *sysfs) once(key string, lay func() (string, error)) (string, error) {
	if dir, ok := s.madeUp[key]; ok {
		return dir, nil
	}
	dir, err := lay()
	if err == nil {
		s.madeUp[key] = dir
	}
	return dir, err
}

func (s *sysfs) root(r *HostBridge) (string, error) {
	return s.once("root "+r.Name, func() (string, error) {
		name := r.Name
		if r.Unknown {
			domain := s.domain(r.Name)
			bus, err := s.freeBus(domain)
			if err != nil {
				return "", err
			}
			name = fmt.Sprintf("pci%s:%s", domain, bus)
			s.unknown.Names[name] = true
		}
		dir := path.Join("devices", r.SysfsPrefix, name)
		s.file(dir+"/uevent", "")
		if r.Unknown && !r.Distinct {
			s.unknown.Roots[name] = true
		}
		return dir, nil
	})
}

// bridges makes up n bridges, one below the other, and returns the last.
func (s *sysfs) bridges(dir string, n int, domain string, numa int) (string, error) {
	for range n {
		bus, err := s.freeBus(domain)
		if err != nil {
			return "", err
		}
		dir = path.Join(dir, fmt.Sprintf("%s:%s:00.0", domain, bus))
		s.function(dir, &Function{Class: classBridge}, numa)
	}
	return dir, nil
}

func (s *sysfs) function(dir string, f *Function, numa int) {
	address := path.Base(dir)
	s.file(dir+"/class", cmp.Or(f.Class, "0x000000"))
	s.file(dir+"/vendor", cmp.Or(f.Vendor, "0x0000"))
	s.file(dir+"/device", cmp.Or(f.Device, "0x0000"))
	s.file(dir+"/subsystem_vendor", cmp.Or(f.SubVendor, "0x0000"))
	s.file(dir+"/subsystem_device", cmp.Or(f.SubDevice, "0x0000"))
	s.file(dir+"/numa_node", strconv.Itoa(numa))
	s.file(dir+"/uevent", "PCI_SLOT_NAME="+address)
	if f.LinkSpeed != "" {
		s.file(dir+"/current_link_speed", f.LinkSpeed)
	}
	if f.LinkWidth != nil {
		s.file(dir+"/current_link_width", strconv.Itoa(*f.LinkWidth))
	}
	for _, n := range s.m.NUMANodes {
		if n.ID == numa && n.CPUs != "" {
			s.file(dir+"/local_cpulist", n.CPUs)
		}
	}
	if f.VPDV3 != "" {
		s.tree[dir+"/vpd"] = node{data: vpd(f.VPDV3), mode: 0o644}
	}
	s.symlink("bus/pci", dir+"/subsystem")
	s.symlink(dir, "bus/pci/devices/"+address)
}

// vpd encodes vital product data with one vendor keyword, V3: an identifier
// string (tag 0x82), a read-only section (0x90), the end tag (0x78).
func vpd(v3 string) []byte {
	keyword := append([]byte{'V', '3', byte(len(v3))}, v3...)
	data := append([]byte{0x82, 3, 0}, "zoo"...)
	data = append(data, 0x90, byte(len(keyword)), byte(len(keyword)>>8))
	return append(append(data, keyword...), 0x78)
}

func (s *sysfs) virtualFunctions() {
	count := map[string]int{}
	for _, f := range s.m.PCI {
		if f.PhysFn == "" {
			continue
		}
		pf, vf := s.paths[f.PhysFn], s.paths[f.Address]
		s.symlink(pf, vf+"/physfn")
		s.symlink(vf, fmt.Sprintf("%s/virtfn%d", pf, count[pf]))
		count[pf]++
	}
	for pf, n := range count {
		s.file(pf+"/sriov_numvfs", strconv.Itoa(n))
	}
}
