// Package topology says which GPUs and NICs of a machine belong together. It
// consists of pure, total functions over a machine.Snapshot: equal facts in any
// order give equal answers, and what the facts do not tell is unknown.
package topology

import "fmt"

// Class is how near two PCI functions are, in the words of "nvidia-smi topo -m".
// Smaller is nearer; Unknown is not a distance.
type Class uint8

// The classes, nearest first.
const (
	Unknown Class = iota
	PIX           // at most one bridge between each function and a common bridge
	PXB           // a common bridge, more bridges in between
	PHB           // only the host bridge in common
	NODE          // different host bridges of one NUMA node
	SYS           // different NUMA nodes
)

var classNames = [...]string{"unknown", "PIX", "PXB", "PHB", "NODE", "SYS"}

func (c Class) String() string { return classNames[c] }

// ParseClass reads what String returns.
func ParseClass(s string) (Class, error) {
	for c, name := range classNames {
		if s == name {
			return Class(c), nil
		}
	}
	return Unknown, fmt.Errorf("distance %q is none of PIX, PXB, PHB, NODE and SYS", s)
}

// MarshalText makes classes plain strings in JSON and YAML.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (c *Class) UnmarshalText(text []byte) (err error) {
	*c, err = ParseClass(string(text))
	return err
}
