// Package nccl reads NCCL topology files. Clouds ship them with virtual machines
// whose PCI tree does not show which GPU and NIC share a physical switch (NCCL
// environment variable NCCL_TOPO_FILE).
package nccl

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/topology"
)

// Bounds of a file. The largest published one has 20 KiB and 90 elements.
const (
	MaxSize     = 1 << 20
	maxDepth    = 64
	maxElements = 16384
)

// File is a topology file: which PCI elements are nested in which.
type File struct {
	name    string
	entries []entry
}

// entry is one pci element.
type entry struct {
	line    int
	busid   string
	bridge  bool // other pci elements are nested in it
	numa    int  // numaid of the cpu element around it; negative when it has none
	parents []int
}

// Parse reads a file. name is for messages only. What is no pci element is
// skipped, as NCCL does with elements that it does not know.
func Parse(r io.Reader, name string) (*File, error) {
	limited := &io.LimitedReader{R: r, N: MaxSize + 1}
	p := parser{File: File{name: name}, decoder: xml.NewDecoder(limited), numa: -1}
	err := p.run()
	if limited.N == 0 {
		return nil, fmt.Errorf("%s: more than %d bytes", name, MaxSize)
	}
	if err != nil {
		line, _ := p.decoder.InputPos()
		return nil, fmt.Errorf("%s:%d: %w", name, line, err)
	}
	return &p.File, nil
}

type parser struct {
	File
	decoder *xml.Decoder
	depth   int
	count   int
	numa    int
	open    []int // pci elements around the current position
	system  bool
}

func (p *parser) run() error {
	for {
		token, err := p.decoder.Token()
		if errors.Is(err, io.EOF) {
			if !p.system {
				return errors.New("no system element: this is no NCCL topology file")
			}
			return nil
		}
		if err != nil {
			return err
		}
		switch token := token.(type) {
		case xml.StartElement:
			err = p.start(token)
		case xml.EndElement:
			p.end(token)
		}
		if err != nil {
			return err
		}
	}
}

func (p *parser) start(e xml.StartElement) error {
	p.depth++
	p.count++
	switch {
	case p.depth > maxDepth:
		return fmt.Errorf("elements are nested more than %d deep", maxDepth)
	case p.count > maxElements:
		return fmt.Errorf("more than %d elements", maxElements)
	}
	switch e.Name.Local {
	case "system":
		p.system = true
	case "cpu":
		numa, err := strconv.Atoi(attr(e, "numaid"))
		if err != nil {
			return fmt.Errorf("cpu element: numaid %q is not a number", attr(e, "numaid"))
		}
		p.numa = numa
	case "pci":
		busid := strings.ToLower(attr(e, "busid"))
		if busid == "" {
			return errors.New("pci element without busid")
		}
		if len(p.open) > 0 {
			p.entries[p.open[len(p.open)-1]].bridge = true
		}
		line, _ := p.decoder.InputPos()
		p.entries = append(p.entries, entry{line: line, busid: busid, numa: p.numa, parents: slices.Clone(p.open)})
		p.open = append(p.open, len(p.entries)-1)
	}
	return nil
}

func (p *parser) end(e xml.EndElement) {
	p.depth--
	switch e.Name.Local {
	case "cpu":
		p.numa = -1
	case "pci":
		p.open = p.open[:len(p.open)-1]
	}
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// Places returns where the file puts functions of a machine, and one sentence
// with file and line for each element that contradicts the machine; such an
// element is ignored. Bridges may be made up by the author of the file. A busid
// can be the beginning of an address, "0000:10" for every function of that bus.
func (f *File) Places(tree *pci.Tree) (map[pci.Address]topology.FilePlace, []string) {
	places := map[pci.Address]topology.FilePlace{}
	lines := map[pci.Address]int{}
	var problems []string
	for _, e := range f.entries {
		problem := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s", f.name, e.line, fmt.Sprintf(format, args...)))
		}
		found := matching(tree, e.busid)
		if len(found) == 0 {
			if !e.bridge {
				problem("busid %s: this machine has no such PCI function; the element is ignored", e.busid)
			}
			continue
		}
		for _, fn := range found {
			if fn.IsBridge() {
				continue // its place in the real tree is no news
			}
			if e.numa >= 0 && fn.NUMANode >= 0 && e.numa != fn.NUMANode {
				problem("busid %s: the file says NUMA node %d, the machine says %d for %s; the element is ignored", e.busid, e.numa, fn.NUMANode, fn.Address)
				continue
			}
			if first, ok := lines[fn.Address]; ok {
				problem("busid %s: %s is in line %d already; the element is ignored", e.busid, fn.Address, first)
				continue
			}
			lines[fn.Address] = e.line
			places[fn.Address] = topology.FilePlace{NUMANode: e.numa, Bridges: f.bridges(e)}
		}
	}
	return places, problems
}

// bridges returns an address for each pci element around an entry. Files repeat
// made-up bus ids such as ffff:ff:01.0 below another cpu element, so the position
// in the file serves as an address that no machine has.
func (f *File) bridges(e entry) []pci.Address {
	var bridges []pci.Address
	for _, i := range e.parents {
		if addr, err := pci.ParseAddress(f.entries[i].busid); err == nil && f.unique(i) {
			bridges = append(bridges, addr)
			continue
		}
		bridges = append(bridges, pci.Address{Domain: 0xffffffff, Bus: uint8(i >> 8), Device: uint8(i >> 3 & 31), Function: uint8(i & 7)})
	}
	return bridges
}

func (f *File) unique(i int) bool {
	for j, e := range f.entries {
		if j != i && e.busid == f.entries[i].busid {
			return false
		}
	}
	return true
}

// matching returns the functions that a busid means, by address.
func matching(tree *pci.Tree, busid string) []*pci.Function {
	if addr, err := pci.ParseAddress(busid); err == nil {
		if fn := tree.Functions[addr]; fn != nil {
			return []*pci.Function{fn}
		}
		return nil
	}
	var found []*pci.Function
	for addr, fn := range tree.Functions {
		rest, ok := strings.CutPrefix(addr.String(), busid)
		// The beginning ends where a part of the address ends: 0000:1 is not 0000:10.
		if ok && (rest == "" || strings.ContainsRune(":.", rune(rest[0]))) {
			found = append(found, fn)
		}
	}
	slices.SortFunc(found, func(a, b *pci.Function) int { return a.Address.Compare(b.Address) })
	return found
}
