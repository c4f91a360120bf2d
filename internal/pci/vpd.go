package pci

import (
	"maps"
	"slices"
	"strings"
)

// maxVPD is the size of the VPD address space (PCI Local Bus 3.0, appendix I: 15 bits).
const maxVPD = 32 * 1024

// VPD holds the keywords of a function's vital product data: "SN", "V3", and ""
// for the identifier string.
type VPD map[string]string

// Large resource tags of vital product data.
const (
	tagIdentifier = 0x82
	tagReadOnly   = 0x90
	tagReadWrite  = 0x91
	tagEnd        = 0x78
)

// ParseVPD reads vital product data. It is total: what is cut short or malformed
// ends the reading, and the keywords up to there are returned.
func ParseVPD(raw []byte) VPD {
	vpd := VPD{}
	for len(raw) >= 3 && raw[0] != tagEnd {
		tag, size := raw[0], int(raw[1])|int(raw[2])<<8
		if tag&0x80 == 0 || len(raw) < 3+size {
			return vpd
		}
		body := raw[3 : 3+size]
		raw = raw[3+size:]
		switch tag {
		case tagIdentifier:
			vpd[""] = clean(body)
		case tagReadOnly, tagReadWrite:
			vpd.keywords(body)
		}
	}
	return vpd
}

func (v VPD) keywords(body []byte) {
	for len(body) >= 3 {
		key, size := string(body[:2]), int(body[2])
		if len(body) < 3+size {
			return
		}
		if key != "RV" && key != "RW" { // checksum and free space
			v[key] = clean(body[3 : 3+size])
		}
		body = body[3+size:]
	}
}

// Mentions tells whether any keyword contains a text.
func (v VPD) Mentions(text string) bool {
	for _, value := range v {
		if strings.Contains(value, text) {
			return true
		}
	}
	return false
}

func clean(b []byte) string {
	return strings.TrimRight(strings.ToValidUTF8(string(b), "?"), " \x00")
}

// Replace returns vital product data with other values for its keywords.
func (v VPD) Replace(value func(key, value string) string) VPD {
	out := VPD{}
	for key, old := range v {
		out[key] = value(key, old)
	}
	return out
}

// Bytes writes vital product data so that ParseVPD reads it again. It is not what
// the card has: all keywords are in the read-only resource, in order.
func (v VPD) Bytes() []byte {
	resource := func(tag byte, body []byte) []byte {
		return append([]byte{tag, byte(len(body)), byte(len(body) >> 8)}, body...)
	}
	var fields []byte
	for _, key := range slices.Sorted(maps.Keys(v)) {
		if value := v[key]; key != "" {
			value = value[:min(len(value), 255)]
			fields = append(append(fields, key...), byte(len(value)))
			fields = append(fields, value...)
		}
	}
	var out []byte
	if v[""] != "" {
		out = resource(tagIdentifier, []byte(v[""]))
	}
	return append(append(out, resource(tagReadOnly, fields)...), tagEnd)
}
