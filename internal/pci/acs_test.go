package pci

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/topodra/topodra/internal/sysfs"
)

// configWith returns a configuration space with extended capabilities at offsets.
func configWith(size int, capabilities ...[3]uint32) []byte { // offset, id, next
	config := make([]byte, size)
	for _, c := range capabilities {
		binary.LittleEndian.PutUint32(config[c[0]:], c[1]|1<<16|c[2]<<20)
	}
	return config
}

func TestParseACS(t *testing.T) {
	// A PLX switch has its ACS capability at f24, behind others.
	plx := configWith(4096, [3]uint32{0x100, 0x0003, 0xfb4}, [3]uint32{0xfb4, 0x0001, 0xf24}, [3]uint32{0xf24, capabilityACS, 0})
	binary.LittleEndian.PutUint16(plx[0xf24+acsControl:], 0x1d)
	silent := make([]byte, 4096)
	for i := range silent {
		silent[i] = 0xff
	}
	for name, test := range map[string]struct {
		config []byte
		want   ACS
		err    string
	}{
		"behind other capabilities": {config: plx, want: 0x1d},
		"no capabilities":           {config: make([]byte, 4096)},
		"others only":               {config: configWith(4096, [3]uint32{0x100, 0x0001, 0})},
		"a next one below 100":      {config: configWith(4096, [3]uint32{0x100, 0x0001, 0x40})},
		"not root":                  {config: plx[:64], err: "only 64 bytes"},
		"conventional PCI":          {config: plx[:256], err: "only 256 bytes"},
		"cut short":                 {config: plx[:0xf24], err: "does not end"},
		"cut inside ACS":            {config: configWith(0x106, [3]uint32{0x100, capabilityACS, 0}), err: "cut off"},
		"a circle":                  {config: configWith(4096, [3]uint32{0x100, 0x0001, 0x100}), err: "does not end"},
		"a dead device":             {config: silent, err: "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseACS(test.config)
			if test.err == "" {
				if err != nil || got != test.want {
					t.Errorf("%#x, %v, want %#x", got, err, test.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}

	port := MustParseAddress("0000:12:00.0")
	root := sysfs.Memory(map[string]sysfs.Node{"bus/pci/devices/0000:12:00.0/config": {Data: plx}})
	if got, err := ReadACS(root, port); got != 0x1d || err != nil {
		t.Errorf("%#x, %v", got, err)
	}
	if _, err := ReadACS(root, MustParseAddress("0000:13:00.0")); err == nil {
		t.Error("a function without configuration space can be read")
	}
}

func FuzzParseACS(f *testing.F) {
	f.Add(configWith(4096, [3]uint32{0x100, 0x0001, 0x148}, [3]uint32{0x148, capabilityACS, 0}))
	f.Fuzz(func(t *testing.T, config []byte) {
		if acs, err := ParseACS(config); err != nil && acs != 0 {
			t.Errorf("%#x and %v", acs, err)
		}
	})
}
