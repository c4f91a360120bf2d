package archive

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/topodra/topodra/internal/netdev"
	"github.com/topodra/topodra/internal/pci"
)

// pseudonyms replaces identifying values. Equal values get equal pseudonyms and
// values keep their order, as pairing and rails depend on both; nothing leads
// back to the value.
type pseudonyms struct {
	made func(n int) string
	of   map[string]string
}

func newPseudonyms(values []string, made func(n int) string) pseudonyms {
	slices.Sort(values)
	p := pseudonyms{made: made, of: map[string]string{}}
	for i, v := range slices.Compact(values) {
		p.of[v] = made(i + 1)
	}
	return p
}

// replace keeps empty and all-zero values: that a value says nothing is a fact.
func (p pseudonyms) replace(v string) string {
	if strings.Trim(v, "0:-") == "" {
		return v
	}
	return p.of[v]
}

// sensitive files by the name of the attribute.
var (
	guidFiles = map[string]bool{"node_guid": true, "sys_image_guid": true}
	macFiles  = map[string]bool{"address": true}
)

// pseudonymize replaces GUIDs, MACs, GPU UUIDs, IP addresses and the serial
// numbers in vital product data.
func (r *Recording) pseudonymize() {
	var guids, macs, uuids, serials []string
	var clusters []string
	for name, n := range r.nodes {
		text := strings.TrimRight(string(n.Data), "\n")
		switch base := path.Base(name); {
		case guidFiles[base]:
			guids = append(guids, text)
		case macFiles[base]:
			macs = append(macs, text)
		case base == "vpd":
			serials = append(serials, identifying(pci.ParseVPD(n.Data))...)
		}
	}
	for _, l := range r.facts.Links {
		macs = append(macs, l.HardwareAddr)
	}
	for _, g := range r.facts.GPUs {
		uuids = append(uuids, g.UUID)
		if g.Fabric != nil {
			clusters = append(clusters, g.Fabric.ClusterUUID)
		}
	}
	guid := newPseudonyms(guids, func(n int) string { return fmt.Sprintf("02ff:00ff:fe00:%04x", n) })
	mac := newPseudonyms(macs, func(n int) string { return fmt.Sprintf("02:00:00:00:%02x:%02x", n>>8, n&255) })
	uuid := newPseudonyms(uuids, func(n int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", n) })
	cluster := newPseudonyms(clusters, func(n int) string { return fmt.Sprintf("00000000-0000-4000-9000-%012d", n) })
	serial := newPseudonyms(serials, func(n int) string { return fmt.Sprintf("pseudonym-%d", n) })

	for name, n := range r.nodes {
		text := strings.TrimRight(string(n.Data), "\n")
		switch base := path.Base(name); {
		case guidFiles[base]:
			n.Data = []byte(guid.replace(text) + "\n")
		case macFiles[base]:
			n.Data = []byte(mac.replace(text) + "\n")
		case base == "vpd":
			n.Data = pci.ParseVPD(n.Data).Replace(func(key, value string) string {
				if keptKeywords[key] || strings.Contains(value, "SW_MNG") {
					return value
				}
				return serial.replace(value)
			}).Bytes()
		default:
			continue
		}
		r.nodes[name] = n
	}
	for i := range r.facts.GPUs {
		g := &r.facts.GPUs[i]
		g.UUID = uuid.replace(g.UUID)
		if g.Fabric != nil {
			fabric := *g.Fabric
			fabric.ClusterUUID = cluster.replace(fabric.ClusterUUID)
			g.Fabric = &fabric
		}
	}
	for i := range r.facts.Links {
		r.facts.Links[i].HardwareAddr = mac.replace(r.facts.Links[i].HardwareAddr)
	}
	replaceAddresses(r.facts.Links)
}

// keptKeywords of vital product data say what a card is, not which one.
var keptKeywords = map[string]bool{"": true, "PN": true, "EC": true, "V0": true}

func identifying(vpd pci.VPD) []string {
	var values []string
	for key, value := range vpd {
		if !keptKeywords[key] {
			values = append(values, value)
		}
	}
	return values
}

// replaceAddresses numbers the subnets in order and keeps their lengths, so that
// addresses share a subnet exactly where they did. Loopback and link-local
// addresses are equal everywhere and stay.
func replaceAddresses(links []netdev.Link) {
	var subnets []netip.Prefix
	each := func(f func(*netip.Prefix)) {
		for i := range links {
			links[i].Addrs = slices.Clone(links[i].Addrs)
			for j := range links[i].Addrs {
				if a := &links[i].Addrs[j]; !a.Addr().IsLoopback() && !a.Addr().IsLinkLocalUnicast() {
					f(a)
				}
			}
		}
	}
	each(func(a *netip.Prefix) { subnets = append(subnets, a.Masked()) })
	slices.SortFunc(subnets, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	subnets = slices.Compact(subnets)
	hosts := map[netip.Prefix]int{}
	each(func(a *netip.Prefix) {
		subnet := a.Masked()
		hosts[subnet]++
		*a = madeUpAddress(*a, 1+slices.Index(subnets, subnet), hosts[subnet])
	})
}

// madeUpAddress is the host-th address of the n-th made-up subnet of the same
// length. The number counts up from 10.0.0.0 or fd00:: in the subnet's own bits.
func madeUpAddress(a netip.Prefix, n, host int) netip.Prefix {
	if a.Addr().Is4() {
		free := 32 - a.Bits()
		v := (uint32(10<<24)>>free+uint32(n))<<free | uint32(host)&(1<<free-1)
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, v))), a.Bits())
	}
	free := max(0, 64-a.Bits())
	v := (uint64(0xfd<<56)>>free + uint64(n)) << free
	b := binary.BigEndian.AppendUint64(nil, v)
	b = binary.BigEndian.AppendUint64(b, uint64(host))
	return netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), a.Bits())
}
