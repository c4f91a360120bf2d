package pci

import (
	"slices"
	"testing"
)

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"0000:1b:00.0":     "0000:1b:00.0",
		"10000:e1:00.0":    "10000:e1:00.0", // Intel VMD
		"00000000:1B:00.0": "0000:1b:00.0",  // NVML
		"00010000:1B:1F.7": "10000:1b:1f.7",
		"1b:00.0":          "0000:1b:00.0", // lspci without -D
	} {
		got, err := ParseAddress(in)
		if err != nil || got.String() != want {
			t.Errorf("ParseAddress(%q) = %v, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "0000:1b:00", "0000:1b:00.8", "0000:1b:20.0", "0000:1bb:00.0", "000000000:1b:00.0",
		"0000:1b:00.0.0", "0000:1b:00.", ":1b:00.0", "0000:+b:00.0", "0000:0x:00.0", "x", "0000:1b:0_.0", "pci0000:10",
	} {
		if got, err := ParseAddress(in); err == nil {
			t.Errorf("ParseAddress(%q) = %v, want an error", in, got)
		}
	}
}

func TestAddressOrder(t *testing.T) {
	sorted := []string{"0000:00:1f.0", "0000:02:00.0", "0000:02:00.1", "0000:10:00.0", "0001:00:00.0", "10000:00:00.0"}
	var got []Address
	for _, s := range sorted {
		got = append(got, MustParseAddress(s))
	}
	slices.Reverse(got)
	slices.SortFunc(got, Address.Compare)
	for i, a := range got {
		if a.String() != sorted[i] {
			t.Fatalf("order %v, want %v", got, sorted)
		}
	}
}

func TestDNSLabel(t *testing.T) {
	if got := MustParseAddress("10000:E1:00.0").DNSLabel(); got != "10000-e1-00-0" {
		t.Errorf("DNSLabel = %q", got)
	}
}
