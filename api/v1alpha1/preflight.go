package v1alpha1

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// PreflightCheck names one check of a device before a claim is prepared.
type PreflightCheck string

// The checks.
const (
	CheckPortActive  PreflightCheck = "portActive"  // a port of the RDMA device is ACTIVE
	CheckGID         PreflightCheck = "gid"         // the port has a GID of the wanted type (RoCEv2)
	CheckCharDevices PreflightCheck = "charDevices" // uverbs and rdma_cm are there
	CheckGPUDirect   PreflightCheck = "gpuDirect"   // dma-buf or nvidia_peermem lets the NIC reach GPU memory
	CheckACS         PreflightCheck = "acsRedirect" // no ACS redirect on the PCIe path between GPU and NIC
	CheckPCIeLink    PreflightCheck = "pcieLink"    // the PCIe link is as fast and wide as the device can
	CheckNetnsMode   PreflightCheck = "netnsMode"   // the RDMA subsystem's mode fits what the claim asks for
)

// PreflightLevel says what a failed check does.
type PreflightLevel string

// What a failed check does.
const (
	PreflightFail PreflightLevel = "fail" // the claim is not prepared
	PreflightWarn PreflightLevel = "warn" // the claim is prepared; the claim's condition, the log and a metric tell
	PreflightOff  PreflightLevel = "off"  // not looked at
)

// UnmarshalJSON takes false for off: that is what YAML makes of the word without quotes.
func (l *PreflightLevel) UnmarshalJSON(data []byte) error {
	if string(data) == "false" {
		*l = PreflightOff
		return nil
	}
	return json.Unmarshal(data, (*string)(l))
}

// PreflightChecks lists all checks with their default levels: what certainly keeps
// RDMA from working fails, what only slows it down warns.
var PreflightChecks = map[PreflightCheck]PreflightLevel{
	CheckPortActive:  PreflightFail,
	CheckGID:         PreflightWarn,
	CheckCharDevices: PreflightFail,
	CheckGPUDirect:   PreflightWarn,
	CheckACS:         PreflightWarn,
	CheckPCIeLink:    PreflightWarn,
	CheckNetnsMode:   PreflightFail,
}

// PreflightLevel returns what a check does when it fails: as configured, else its default.
func (c DriverConfig) PreflightLevel(check PreflightCheck) PreflightLevel {
	return cmp.Or(c.Preflight[check], PreflightChecks[check])
}

func validatePreflight(levels map[PreflightCheck]PreflightLevel, fault func(format string, args ...any)) {
	for _, check := range slices.Sorted(maps.Keys(levels)) {
		if _, ok := PreflightChecks[check]; !ok {
			var known []string
			for _, c := range slices.Sorted(maps.Keys(PreflightChecks)) {
				known = append(known, string(c))
			}
			fault("preflight.%s: there is no such check, want one of %s", check, strings.Join(known, ", "))
		}
		if level := levels[check]; !slices.Contains([]PreflightLevel{PreflightFail, PreflightWarn, PreflightOff}, level) {
			fault("preflight.%s: %q is not known, want %s, %s or %s", check, level, PreflightFail, PreflightWarn, PreflightOff)
		}
	}
}
