package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPreflight(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want map[PreflightCheck]PreflightLevel // other than the defaults
		err  string
	}{
		"absent":  {},
		"changed": {text: "preflight: {gid: fail, portActive: off}", want: map[PreflightCheck]PreflightLevel{CheckGID: PreflightFail, CheckPortActive: PreflightOff}},
		"faults, all at once": {
			text: `preflight: {gid: loud, charDevices: skip, pcieLink: "", speed: warn}`,
			err: "driver configuration: preflight.charDevices: \"skip\" is not known, want fail, warn or off\n" +
				"preflight.gid: \"loud\" is not known, want fail, warn or off\n" +
				"preflight.pcieLink: \"\" is not known, want fail, warn or off\n" +
				"preflight.speed: there is no such check, want one of acsRedirect, charDevices, gid, gpuDirect, netnsMode, pcieLink, portActive",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := ParseDriverConfig([]byte(header + test.text))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.err, got); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if err != nil {
				return
			}
			for check, level := range PreflightChecks {
				if changed, ok := test.want[check]; ok {
					level = changed
				}
				if got := config.PreflightLevel(check); got != level {
					t.Errorf("%s: %s, want %s", check, got, level)
				}
			}
		})
	}
}
