package topology

import (
	"slices"

	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
)

// Config is what the administrator says about a machine beyond what it shows.
type Config struct {
	// Excluded NICs are not handed out, for the reason given. It holds what the
	// nicSelector refuses and, on simulated machines, roles other than compute.
	Excluded map[pci.Address]string
	// File places functions where a vendor's NCCL topology file puts them.
	File map[pci.Address]FilePlace
	// Rails numbers the rails of NICs, see RailConfig.
	Rails RailConfig
	// AllowSoftwareRDMA lets rxe and siw devices count as RDMA devices of the NIC
	// that they run on.
	AllowSoftwareRDMA bool
	Pairs             PairConfig
}

// PairConfig says what a pair of a GPU and NICs may be. The zero value means the
// nearest NICs of any class, all that a GPU's share has.
type PairConfig struct {
	// Farthest is the farthest class that still makes a pair; Unknown means SYS.
	Farthest Class
	// NICs bounds the NICs of a pair; 0 means no bound.
	NICs int
}

// Topology is what belongs together on one machine.
type Topology struct {
	GPUs []GPU // by address
	NICs []NIC // by address

	places places
}

// GPU is where a GPU sits among the NICs.
type GPU struct {
	Address pci.Address
	// Group is the affinity group; empty when no fabric NIC is near.
	Group string
	// Nearest is the nearest class that has a fabric NIC, Unknown when there is
	// none or the facts do not tell, and NearestNICs all fabric NICs of that class.
	Nearest     Class
	NearestNICs []pci.Address
	// Pair is this GPU's share of the nearest NICs; NoPair says why it has none.
	// Where there are fewer NICs than GPUs, a NIC is in the pairs of several.
	Pair   []pci.Address
	NoPair string
}

// NIC is what a network function is among the GPUs.
type NIC struct {
	Address pci.Address
	// Published NICs may be handed out; Reason says why another may not.
	Published bool
	Reason    string
	// Fabric NICs are published and have an RDMA device: they count as near.
	Fabric bool
	// RDMA is the RDMA device that the NIC offers: its own or, where that is
	// allowed, a software device on one of its interfaces (Software).
	RDMA     *rdma.Device
	Software bool
	// Group is the affinity group; empty when no GPU has this NIC as a nearest one.
	Group string
	// Card is the lowest address among the functions of one physical card.
	Card pci.Address
	// Rail is the absolute rail number, nil for NICs that are not fabric.
	Rail       *int
	RailSource RailSource
}

// Compute returns the topology of a snapshot.
func Compute(s *machine.Snapshot, c Config) *Topology {
	t := &Topology{places: newPlaces(s, c.File)}
	cards := cards(s)
	reasons := exclusions(s, c)
	for _, n := range s.NICs {
		device, software := rdmaOf(s, n, c)
		reason := reasons[n.Address]
		t.NICs = append(t.NICs, NIC{
			Address:   n.Address,
			Published: reason == "",
			Reason:    reason,
			Fabric:    reason == "" && device != nil,
			RDMA:      device,
			Software:  software,
			Card:      cards[n.Address],
		})
	}
	for _, g := range s.GPUs {
		t.GPUs = append(t.GPUs, GPU{Address: g.Address})
	}
	// A snapshot is sorted, but a caller may have made one by hand.
	slices.SortFunc(t.NICs, func(a, b NIC) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(t.GPUs, func(a, b GPU) int { return a.Address.Compare(b.Address) })
	t.findNearest()
	t.findGroups()
	t.assign(c.Pairs)
	t.numberRails(s, c.Rails)
	return t
}

// Distance returns the class of two functions of the machine, or Unknown.
func (t *Topology) Distance(a, b pci.Address) Class { return t.places.distance(a, b) }

// GPU returns the GPU at an address.
func (t *Topology) GPU(a pci.Address) (GPU, bool) {
	i, ok := slices.BinarySearchFunc(t.GPUs, a, func(g GPU, a pci.Address) int { return g.Address.Compare(a) })
	if !ok {
		return GPU{}, false
	}
	return t.GPUs[i], true
}

// NIC returns the NIC at an address.
func (t *Topology) NIC(a pci.Address) (NIC, bool) {
	if n := t.nic(a); n != nil {
		return *n, true
	}
	return NIC{}, false
}

func (t *Topology) nic(a pci.Address) *NIC {
	i, ok := slices.BinarySearchFunc(t.NICs, a, func(n NIC, a pci.Address) int { return n.Address.Compare(a) })
	if !ok {
		return nil
	}
	return &t.NICs[i]
}

// findNearest gives every GPU its nearest class and the NICs of it. When the
// facts leave open whether another NIC is as near, nothing is said.
func (t *Topology) findNearest() {
	type bound struct {
		nic    pci.Address
		lo, hi Class
	}
	for i := range t.GPUs {
		g := &t.GPUs[i]
		var bounds []bound
		best := Unknown
		for _, n := range t.NICs {
			if !n.Fabric {
				continue
			}
			lo, hi := t.places.bounds(g.Address, n.Address)
			bounds = append(bounds, bound{n.Address, lo, hi})
			if best == Unknown || hi < best {
				best = hi
			}
		}
		for _, b := range bounds {
			if b.lo > best {
				continue
			}
			if b.lo != b.hi {
				g.Nearest, g.NearestNICs = Unknown, nil
				break
			}
			g.Nearest = best
			g.NearestNICs = append(g.NearestNICs, b.nic)
		}
	}
}
