package report

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
)

// canvas collects SVG elements.
type canvas struct{ b strings.Builder }

func (c *canvas) String() string { return c.b.String() }

// element writes an element. attributes are names and values in turn; content is
// markup already.
func (c *canvas) element(name, content string, attributes ...any) {
	c.tag(name, attributes)
	if content == "" {
		c.b.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&c.b, ">%s</%s>\n", content, name)
}

// tag writes the beginning of an element up to its last attribute.
func (c *canvas) tag(name string, attributes []any) {
	c.b.WriteString("<" + name)
	for i := 0; i+1 < len(attributes); i += 2 {
		fmt.Fprintf(&c.b, ` %s="%s"`, attributes[i], escape(fmt.Sprint(attributes[i+1])))
	}
}

func (c *canvas) rect(x, y, w, h int, attributes ...any) {
	c.element("rect", "", append([]any{"x", x, "y", y, "width", w, "height", h}, attributes...)...)
}

// line draws a path; without a fill attribute it has none.
func (c *canvas) line(path string, attributes ...any) {
	if !slices.Contains(attributes, any("fill")) {
		attributes = append(attributes, "fill", "none")
	}
	c.element("path", "", append([]any{"d", path}, attributes...)...)
}

func (c *canvas) text(x, y int, s string, attributes ...any) {
	c.element("text", escape(s), append([]any{"x", x, "y", y}, attributes...)...)
}

// open begins a group with a title, which browsers show on hover.
func (c *canvas) open(title string, attributes ...any) {
	c.tag("g", attributes)
	c.b.WriteString(">\n")
	if title != "" {
		c.element("title", escape(title))
	}
}

func (c *canvas) close() { c.b.WriteString("</g>\n") }

// escape makes text safe in markup and attributes.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}

// palette is Paul Tol's "muted" scheme, made to be told apart with every kind of
// color vision, in an order that sets neighbours apart.
var palette = []color{
	{0x33, 0x22, 0x88}, {0xdd, 0xcc, 0x77}, {0x44, 0xaa, 0x99}, {0xcc, 0x66, 0x77}, {0x88, 0xcc, 0xee},
	{0x88, 0x22, 0x55}, {0x99, 0x99, 0x33}, {0xaa, 0x44, 0x99}, {0x11, 0x77, 0x33},
}

var grey = color{0x9a, 0x9a, 0x9a}

type color struct{ r, g, b int }

func (c color) String() string { return fmt.Sprintf("#%02x%02x%02x", c.r, c.g, c.b) }

// tint mixes in percent of the color with white.
func (c color) tint(percent int) color {
	mix := func(v int) int { return 255 - (255-v)*percent/100 }
	return color{mix(c.r), mix(c.g), mix(c.b)}
}

// line is the color made dark enough for a line on a light ground.
func (c color) line() color {
	if c.luma() > 140 {
		return color{c.r * 7 / 10, c.g * 7 / 10, c.b * 7 / 10}
	}
	return c
}

// luma is the brightness as ITU-R BT.601 weighs it, 0 to 255.
func (c color) luma() int { return (299*c.r + 587*c.g + 114*c.b) / 1000 }

// ink is black or white, whichever can be read on the color.
func (c color) ink() string {
	if c.luma() > 140 {
		return "#111111"
	}
	return "#ffffff"
}
