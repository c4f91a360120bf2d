package machine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/topodra/topodra/internal/gpu"
	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/sysfs"
)

// GPUs is where a scanner learns which GPUs NVML lists.
type GPUs interface {
	// List returns what could be read with one error for each thing that could not.
	List(ctx context.Context) (gpu.Driver, []gpu.GPU, []error)
}

// Scanner reads snapshots. It is not safe for concurrent use.
type Scanner struct {
	// Sysfs is the root that holds bus, class and devices.
	Sysfs sysfs.FS
	// GPUs may be nil where NVML is not wanted.
	GPUs GPUs
	// Host completes the links of sysfs from the live kernel; nil for copies of
	// sysfs and simulated machines. See netdev.Host.
	Host func([]netdev.Link) ([]netdev.Link, error)
	// Away returns the NICs that are in pods; nil for none. See Away.
	Away func() ([]Away, error)
	// Simulated and Unknown describe a simulated machine; see Snapshot and pci.Tree.
	Simulated string
	Unknown   *pci.Unknown

	pci   *pci.Reader
	rates map[portKey]int // of ports when they were active last, Gbit/s
	links []netdev.Link   // when netlink answered last
}

// Away is what a NIC is on the host while a pod has its interface, its RDMA device or
// both. Devices must not change while they are in use.
type Away struct {
	Address pci.Address
	Link    *netdev.Link // nil when the interface stays on the host, or there is none
	RDMA    *rdma.Device // nil when the RDMA device stays, or there is none
}

type portKey struct {
	device string
	port   int
}

// Scan reads the machine once. It always returns a snapshot: a part that cannot
// be read is named in Missing.
func (s *Scanner) Scan(ctx context.Context) *Snapshot {
	if s.pci == nil {
		s.pci = pci.NewReader(s.Sysfs)
		s.rates = map[portKey]int{}
	}
	snap := &Snapshot{Simulated: s.Simulated, Taken: time.Now()}
	var errs []error

	snap.PCI, errs = s.pci.Read()
	snap.PCI.Unknown = s.Unknown
	snap.missing(PartPCI, errs)

	devices, errs := rdma.Read(s.Sysfs)
	snap.missing(PartRDMA, errs)
	s.keepRates(devices)

	snap.Links, errs = netdev.Read(s.Sysfs)
	if s.Host != nil {
		links, err := s.Host(snap.Links)
		switch {
		case err == nil:
			snap.Links, s.links = links, links
		case s.links != nil: // better old than without the uplink
			snap.Links = s.links
			errs = append(errs, err)
		default:
			snap.UplinkUnknown = true
			errs = append(errs, err)
		}
	}
	snap.missing(PartNetdev, errs)
	slices.SortFunc(snap.Links, func(a, b netdev.Link) int { return cmp.Compare(a.Name, b.Name) })

	if s.GPUs != nil {
		snap.Driver, snap.GPUs, errs = s.GPUs.List(ctx)
		snap.missing(PartNVML, errs)
	}
	slices.SortFunc(snap.GPUs, func(a, b gpu.GPU) int { return a.Address.Compare(b.Address) })

	snap.joinNICs(devices)
	if s.Away != nil {
		away, err := s.Away()
		snap.keepAway(away)
		if err != nil {
			snap.missing(PartNetdev, []error{err})
		}
	}
	return snap
}

// keepAway gives NICs that are in pods what they have on the host. One that is just
// coming back may be there under another name; what it has at home counts.
func (s *Snapshot) keepAway(away []Away) {
	for _, a := range away {
		for i := range s.NICs {
			if s.NICs[i].Address != a.Address {
				continue
			}
			if a.Link != nil {
				s.NICs[i].Links = []netdev.Link{*a.Link}
			}
			if a.RDMA != nil {
				s.NICs[i].RDMA = a.RDMA
			}
		}
	}
}

// keepRates gives ports that are down the rate that they had when they were
// active: a port without a link shows a rate of its own, and a flapping link must
// not rewrite slices.
func (s *Scanner) keepRates(devices []rdma.Device) {
	for _, d := range devices {
		for i := range d.Ports {
			key := portKey{d.Name, d.Ports[i].Number}
			if d.Ports[i].State == "ACTIVE" {
				s.rates[key] = d.Ports[i].RateGbps
			}
			d.Ports[i].RateGbps = s.rates[key]
		}
	}
}

// missing joins the errors of one part into one reason.
func (s *Snapshot) missing(part Part, errs []error) {
	if err := errors.Join(errs...); err != nil {
		s.Missing = append(s.Missing, Missing{Part: part, Reason: err.Error()})
	}
}

// joinNICs makes one NIC of every PCI function that is a network controller or
// has a network interface or an RDMA device below it. Software RDMA devices have
// no function of their own; they stand on an interface and are kept apart.
func (s *Snapshot) joinNICs(devices []rdma.Device) {
	nics := map[pci.Address]*NIC{}
	at := func(addr pci.Address) *NIC {
		if nics[addr] == nil {
			nics[addr] = &NIC{Address: addr}
		}
		return nics[addr]
	}
	for addr, fn := range s.PCI.Functions {
		if fn.IsNetwork() {
			at(addr)
		}
	}
	for _, l := range s.Links {
		if l.Address != nil && s.PCI.Functions[*l.Address] != nil {
			nic := at(*l.Address)
			nic.Links = append(nic.Links, l)
		}
	}
	for _, d := range devices {
		if d.Address == nil {
			s.SoftwareRDMA = append(s.SoftwareRDMA, d)
			continue
		}
		if s.PCI.Functions[*d.Address] == nil {
			continue
		}
		nic := at(*d.Address)
		// A function with scalable functions has several; its own comes first by name.
		if nic.RDMA == nil {
			nic.RDMA = &d
		}
	}
	for _, nic := range nics {
		// The interface of the function itself comes first.
		slices.SortStableFunc(nic.Links, func(a, b netdev.Link) int { return cmp.Compare(a.Stands, b.Stands) })
		s.NICs = append(s.NICs, *nic)
	}
	slices.SortFunc(s.NICs, func(a, b NIC) int { return a.Address.Compare(b.Address) })
}
