package v1alpha1

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/internal/testing/deviceconfigs"
)

// Each mistake of the table is named with its path, and nothing else is refused.
func TestDeviceConfigFaults(t *testing.T) {
	for _, test := range deviceconfigs.Read(t, "../..") {
		t.Run(test.Name, func(t *testing.T) {
			_, err := DecodeDeviceConfig(runtime.RawExtension{Raw: test.Parameters()}, "config[3]")
			if diff := cmp.Diff(test.Faults, faults(err, "config[3]")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.Parameters(), diff)
			}
		})
	}
}

// faults are what an error says after the path, line by line.
func faults(err error, path string) (lines []string) {
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		line, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), path)
		if !ok {
			line = "without the path: " + line
		}
		lines = append(lines, line)
	}
	return lines
}

func TestRouteDestination(t *testing.T) {
	for route, want := range map[Route]string{
		{To: "default", Via: "10.1.0.1"}:    "0.0.0.0/0",
		{To: "default", Via: "fd00::1"}:     "::/0",
		{To: "10.0.0.0/8"}:                  "10.0.0.0/8",
		{To: "fd00:0::/64", Via: "fe80::1"}: "fd00::/64",
	} {
		if got, err := route.Destination(); err != nil || got.String() != want {
			t.Errorf("%v: got %s (%v), want %s", route, got, err, want)
		}
	}
}

// FuzzDecodeDeviceConfig: what is accepted can be given to the kernel as it is, and
// written and read again; what is not begins with the path.
func FuzzDecodeDeviceConfig(f *testing.F) {
	for _, test := range deviceconfigs.Read(f, "../..") {
		f.Add(test.Parameters())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		const path = "config[0]"
		config, err := DecodeDeviceConfig(runtime.RawExtension{Raw: text}, path)
		if err != nil {
			if !strings.HasPrefix(err.Error(), path) {
				t.Fatalf("%q does not begin with the path", err)
			}
			return
		}
		if nic, ok := config.(*NICConfig); ok {
			checkAccepted(t, nic)
		}
		again, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeDeviceConfig(runtime.RawExtension{Raw: again}, path)
		if err != nil {
			t.Fatalf("%s became %s: %v", text, again, err)
		}
		third, err := json.Marshal(got)
		if diff := cmp.Diff(string(again), string(third)); diff != "" || err != nil {
			t.Fatalf("%v (-first +second):\n%s", err, diff)
		}
	})
}

func checkAccepted(t *testing.T, c *NICConfig) {
	t.Helper()
	if len(strings.Replace(c.Interface, "%d", "0", 1)) > MaxInterfaceName || strings.ContainsAny(c.Interface, "/: \x00\n\u00a0") {
		t.Errorf("interface %q", c.Interface)
	}
	seen := map[netip.Addr]bool{}
	for _, text := range c.Addresses {
		address := netip.MustParsePrefix(text).Addr()
		if seen[address] || c.DHCP {
			t.Errorf("addresses %q, DHCP %v", c.Addresses, c.DHCP)
		}
		seen[address] = true
	}
	routes := map[netip.Prefix]bool{}
	for _, route := range c.Routes {
		to, err := route.Destination()
		if err != nil || routes[to] {
			t.Errorf("routes %v: %v", c.Routes, err)
		}
		routes[to] = true
		if route.Via != "" {
			if via := netip.MustParseAddr(route.Via); via.Is4() != to.Addr().Is4() {
				t.Errorf("route %v", route)
			}
		}
	}
}
