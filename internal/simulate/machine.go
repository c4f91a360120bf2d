// Package simulate turns a machine file into what the driver reads on a real
// node: a sysfs tree, an NVIDIA driver root with a double of libnvidia-ml.so.1,
// and harmless device nodes. testdata/machines/README.md documents the format.
package simulate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// MaxFileSize is the largest machine file accepted, in bytes. The largest of
// testdata/machines has 41 KiB.
const MaxFileSize = 4 << 20

// Machine is the content of a machine file. A pointer is nil, a string empty,
// where the source of the facts does not tell.
type Machine struct {
	Schema     int          `json:"schema"`
	Slug       string       `json:"slug"`
	Title      string       `json:"title"`
	Special    string       `json:"special,omitempty"`
	Source     []Source     `json:"source,omitempty"`
	SourceDate string       `json:"sourceDate,omitempty"`
	Evidence   []string     `json:"evidence,omitempty"`
	Arch       string       `json:"arch"`
	Virtual    bool         `json:"virtual"`
	Tree       string       `json:"tree"` // complete, elided or partial
	Partial    bool         `json:"partial"`
	NUMANodes  []NUMANode   `json:"numaNodes,omitempty"`
	Notes      []string     `json:"notes,omitempty"`
	Roots      []HostBridge `json:"roots"`
	PCI        []Function   `json:"pci"`
	GPUs       []GPU        `json:"gpus"`
	NICs       []NIC        `json:"nics"`

	functions map[string]*Function   // by address or placeholder
	roots     map[string]*HostBridge // by name
	children  map[string][]string    // by address, placeholder or root name
}

// Source is where facts of the file were published.
type Source struct {
	URL string `json:"url"`
}

// NUMANode is one node of /sys/devices/system/node; ids need not be dense.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus,omitempty"`
}

// HostBridge is the root of a PCI hierarchy.
type HostBridge struct {
	Name              string `json:"name"` // "pci0000:10", or "unknown-..." with Unknown
	Unknown           bool   `json:"unknown,omitempty"`
	Distinct          bool   `json:"distinct,omitempty"`
	NUMANode          *int   `json:"numaNode,omitempty"`
	Socket            *int   `json:"socket,omitempty"`
	SysfsPrefix       string `json:"sysfsPrefix,omitempty"`
	SysfsPrefixMadeUp bool   `json:"sysfsPrefixMadeUp,omitempty"`
}

// Function is one PCI function. Hexadecimal values are as sysfs prints them.
type Function struct {
	Address        string   `json:"address"` // or a placeholder "sw..." with AddressUnknown
	Parent         *string  `json:"parent"`  // address, placeholder or root name; nil: not published
	Elided         Elided   `json:"elided,omitempty"`
	Class          string   `json:"class,omitempty"`
	Vendor         string   `json:"vendor,omitempty"`
	Device         string   `json:"device,omitempty"`
	SubVendor      string   `json:"subVendor,omitempty"`
	SubDevice      string   `json:"subDevice,omitempty"`
	NUMANode       *int     `json:"numaNode,omitempty"`
	LinkSpeed      string   `json:"linkSpeed,omitempty"`
	LinkWidth      *int     `json:"linkWidth,omitempty"`
	LinkGBps       *float64 `json:"linkGBps,omitempty"`
	VF             bool     `json:"vf,omitempty"`
	PhysFn         string   `json:"physfn,omitempty"`
	AddressUnknown bool     `json:"addressUnknown,omitempty"`
	IOMMUGroup     *int     `json:"iommuGroup,omitempty"`
	VPDV3          string   `json:"vpdV3,omitempty"`
	Inferred       []string `json:"inferred,omitempty"`
}

// GPU is what NVML lists.
type GPU struct {
	Index      int     `json:"index"`
	IndexKnown *bool   `json:"index_known,omitempty"`
	Address    *string `json:"address"`
	Name       string  `json:"name,omitempty"`
	UUID       string  `json:"uuid"`
	NVLink     *NVLink `json:"nvlink,omitempty"`
	NUMANode   *int    `json:"numaNode,omitempty"`
	Note       string  `json:"note,omitempty"`
}

// NVLink says how the NVLinks of a GPU are wired.
type NVLink struct {
	Kind  string `json:"kind"`
	Links *int   `json:"links,omitempty"`
	Gen   int    `json:"gen,omitempty"`
}

// NIC is one network function.
type NIC struct {
	ID             string   `json:"id"`
	Address        *string  `json:"address"`
	AddressOneOf   []string `json:"addressOneOf,omitempty"`
	Netdev         string   `json:"netdev,omitempty"`
	NetdevUp       *bool    `json:"netdevUp,omitempty"`
	RDMA           string   `json:"rdma,omitempty"`
	RDMAExpected   bool     `json:"rdmaExpected,omitempty"`
	NodeGUID       string   `json:"nodeGuid,omitempty"`
	Ports          []Port   `json:"ports,omitempty"`
	Card           string   `json:"card,omitempty"`
	Role           string   `json:"role,omitempty"`
	VF             bool     `json:"vf,omitempty"`
	Bond           bool     `json:"bond,omitempty"`
	NUMANode       *int     `json:"numaNode,omitempty"`
	SecondFunction string   `json:"secondFunction,omitempty"`
	DMAFunction    string   `json:"dmaFunction,omitempty"`
	Note           string   `json:"note,omitempty"`
	Inferred       []string `json:"inferred,omitempty"`
}

// Port is one port of an RDMA device.
type Port struct {
	Port      int    `json:"port"`
	State     string `json:"state,omitempty"` // DOWN, INIT, ARMED, ACTIVE
	LinkLayer string `json:"linkLayer,omitempty"`
	Rate      string `json:"rate,omitempty"`
}

// Elided counts the bridges left out between a function and its parent.
type Elided struct {
	Bridges int
	Unknown bool
}

// UnmarshalJSON accepts a number or the word "unknown".
func (e *Elided) UnmarshalJSON(data []byte) error {
	if string(data) == `"unknown"` {
		*e = Elided{Unknown: true}
		return nil
	}
	if _, err := fmt.Sscanf(string(data), "%d", &e.Bridges); err != nil || fmt.Sprint(e.Bridges) != string(data) {
		return fmt.Errorf("elided: %s is neither a number nor \"unknown\"", data)
	}
	return nil
}

// made is the number of bridges to make up; an unknown number counts as one.
func (e Elided) made() int {
	if e.Unknown {
		return 1
	}
	return e.Bridges
}

// Load reads and checks a machine file. Errors name the file and the field.
func Load(path string) (*Machine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("machine file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("machine file %s: %w", path, err)
	}
	m, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("machine file %s: %w", path, err)
	}
	return m, nil
}

// Parse checks the content of a machine file. Unknown and repeated keys are
// errors, as is everything that Build could not turn into a directory tree.
func Parse(data []byte) (*Machine, error) {
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("more than %d bytes", MaxFileSize)
	}
	var m Machine
	if err := yaml.UnmarshalStrict(data, &m); err != nil {
		// The YAML library repeats its own steps in front of the reason.
		reason := err.Error()
		for _, step := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: ", "yaml: "} {
			reason = strings.TrimPrefix(reason, step)
		}
		return nil, errors.New(reason)
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	return &m, nil
}
