package pci

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/topodra/topodra/internal/sysfs"
)

// ACS is the control register of a port's Access Control Services (PCI Express
// base specification 6.12; include/uapi/linux/pci_regs.h).
type ACS uint16

// Bits of ACS that decide the way of peer traffic at a switch's downstream port.
const (
	ACSRequestRedirect    ACS = 1 << 2 // requests to a peer go up to the root complex
	ACSCompletionRedirect ACS = 1 << 3 // so do completions
	ACSUpstreamForwarding ACS = 1 << 4 // what was redirected below is passed on upwards, not turned back
	ACSEgressControl      ACS = 1 << 5 // a vector decides per peer port
	ACSDirectTranslated   ACS = 1 << 6 // requests with translated addresses (ATS) are not redirected
)

const (
	configSpace       = 4096 // with the extended part of PCI Express
	extendedConfig    = 0x100
	capabilityACS     = 0x000d
	capabilityHeader  = 4
	acsControl        = 6
	noCapability      = 0
	deviceAnswersNone = 0xffffffff
)

// ReadACS returns the ACS control register of a function; zero where it has none.
// It is an error when that cannot be told: without CAP_SYS_ADMIN the kernel shows
// 64 bytes of configuration space.
func ReadACS(root sysfs.FS, addr Address) (ACS, error) {
	config, err := root.Bytes(configSpace, devicesDir, addr.String(), "config")
	if err != nil {
		return 0, err
	}
	acs, err := ParseACS(config)
	if err != nil {
		return 0, fmt.Errorf("configuration space of %s: %w", addr, err)
	}
	return acs, nil
}

// ParseACS finds the ACS control register in a function's configuration space.
func ParseACS(config []byte) (ACS, error) {
	if len(config) <= extendedConfig {
		return 0, fmt.Errorf("only %d bytes, without the extended part", len(config))
	}
	for offset, hops := extendedConfig, 0; ; hops++ {
		if offset+capabilityHeader > len(config) || hops > configSpace/capabilityHeader {
			return 0, errors.New("its list of extended capabilities does not end")
		}
		header := binary.LittleEndian.Uint32(config[offset:])
		switch {
		case header == deviceAnswersNone:
			return 0, errors.New("the device does not answer")
		case header == noCapability:
			return 0, nil
		case header&0xffff == capabilityACS:
			if offset+acsControl+2 > len(config) {
				return 0, errors.New("its ACS capability is cut off")
			}
			return ACS(binary.LittleEndian.Uint16(config[offset+acsControl:])), nil
		}
		offset = int(header>>20) &^ 3
		if offset < extendedConfig {
			return 0, nil
		}
	}
}
