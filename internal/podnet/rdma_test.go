package podnet

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// TestPickRDMA: a device that has been renamed is known by its GUID, if that tells one from the others.
func TestPickRDMA(t *testing.T) {
	const zero, own = "00:00:00:00:00:00:00:00", "01:02:03:04:05:06:07:08"
	device := func(name, guid string) *netlink.RdmaLink {
		return &netlink.RdmaLink{Attrs: netlink.RdmaLinkAttrs{Name: name, NodeGuid: guid}}
	}
	for name, test := range map[string]struct {
		devices []*netlink.RdmaLink
		guid    string
		want    string
	}{
		"by name":           {[]*netlink.RdmaLink{device("a", own), device("mlx5_0", zero)}, own, "mlx5_0"},
		"renamed":           {[]*netlink.RdmaLink{device("a", zero), device("b", own)}, own, "b"},
		"no GUIDs":          {[]*netlink.RdmaLink{device("a", zero)}, zero, ""},
		"nothing recorded":  {[]*netlink.RdmaLink{device("a", "")}, "", ""},
		"two with one GUID": {[]*netlink.RdmaLink{device("a", own), device("b", own)}, own, ""},
	} {
		got := ""
		if d := pickRDMA(test.devices, "mlx5_0", test.guid); d != nil {
			got = d.Attrs.Name
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
