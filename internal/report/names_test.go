package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCollapse(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"mlx5_0":                           "mlx5_0",
		"mlx5_0 mlx5_1":                    "mlx5_0 mlx5_1",
		"mlx5_0 mlx5_1 mlx5_2 mlx5_4":      "mlx5_0..2 mlx5_4",
		"mlx5_8 mlx5_9 mlx5_10":            "mlx5_8..10",
		"rdmap79s0 rdmap80s0 rdmap81s0":    "rdmap79s0..81s0",
		"rdmap0s27 rdmap0s28 rdmap0s29":    "rdmap0s27..29",
		"a0b0 a1b0 a1b1 a1b2":              "a0b0 a1b0..2",
		"eth0 eth2 eth4":                   "eth0 eth2 eth4",
		"mlx5_0 mlx5_1 mlx5_2 ib0 ib1 ib2": "mlx5_0..2 ib0..2",
		"0 1 2 3":                          "0..3",
		"mlx5_bond_0 mlx5_bond_1":          "mlx5_bond_0 mlx5_bond_1",
	} {
		if got := strings.Join(collapse(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestLetter(t *testing.T) {
	for i, want := range map[int]string{0: "A", 25: "Z", 26: "AA", 51: "AZ", 52: "BA", 702: "AAA"} {
		if got := letter(i); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

func TestRails(t *testing.T) {
	var nics []NIC
	for _, rail := range []int{7, 0, 1, 2, 5, 4, 4} {
		nics = append(nics, NIC{Rail: &rail})
	}
	if got := rails(append(nics, NIC{})); got != "0-2, 4, 5, 7" {
		t.Error(got)
	}
}

func TestWrap(t *testing.T) {
	got := wrap(strings.Fields("one two three four fiiiiiiive"), ", ", 9)
	if diff := cmp.Diff([]string{"one, two,", "three,", "four,", "fiiiiiiive"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
