// Package pci reads PCI functions and the tree of bridges above them from sysfs.
package pci

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Address is the canonical address of a PCI function. It is comparable and
// serves as the identity of devices all over the driver.
type Address struct {
	Domain   uint32
	Bus      uint8
	Device   uint8 // 0..31
	Function uint8 // 0..7
}

// ParseAddress reads the forms that the kernel, NVML and NCCL print:
// "0000:1b:00.0", "10000:e1:00.0" (VMD and some virtual machines have domains
// above ffff), "00000000:1B:00.0" (NVML) and "1b:00.0" (domain 0).
func ParseAddress(s string) (Address, error) {
	rest, function, ok := strings.Cut(s, ".")
	parts := strings.Split(rest, ":")
	if !ok || len(parts) < 2 || len(parts) > 3 {
		return Address{}, fmt.Errorf("PCI address %q: want DDDD:BB:DD.F", s)
	}
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	var n [4]uint64
	for i, field := range []struct {
		name, digits string
		width        int
		max          uint64
	}{
		{"domain", parts[0], 8, 1<<32 - 1},
		{"bus", parts[1], 2, 255},
		{"device", parts[2], 2, 31},
		{"function", function, 1, 7},
	} {
		v, err := strconv.ParseUint(field.digits, 16, 32)
		// ParseUint takes a sign or an underscore in no base we use; the width
		// check refuses padded nonsense such as "0000000000:1b:00.0".
		if err != nil || len(field.digits) > field.width || v > field.max {
			return Address{}, fmt.Errorf("PCI address %q: %s %q is not a hexadecimal number up to %x", s, field.name, field.digits, field.max)
		}
		n[i] = v
	}
	return Address{Domain: uint32(n[0]), Bus: uint8(n[1]), Device: uint8(n[2]), Function: uint8(n[3])}, nil
}

// MustParseAddress is ParseAddress for constants; it panics on a bad one.
func MustParseAddress(s string) Address {
	a, err := ParseAddress(s)
	if err != nil {
		panic(err)
	}
	return a
}

// String returns the form of sysfs: lower case, a domain of at least four digits.
func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// DNSLabel returns the address as part of a Kubernetes name: "0000-1b-00-0".
func (a Address) DNSLabel() string {
	return fmt.Sprintf("%04x-%02x-%02x-%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses by domain, bus, device and function.
func (a Address) Compare(b Address) int {
	return cmp.Or(
		cmp.Compare(a.Domain, b.Domain),
		cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device),
		cmp.Compare(a.Function, b.Function),
	)
}

// MarshalText makes addresses plain strings in JSON and YAML, also as map keys.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText accepts what ParseAddress accepts.
func (a *Address) UnmarshalText(text []byte) (err error) {
	*a, err = ParseAddress(string(text))
	return err
}
