package report

import (
	"io"
	"strings"
	"unicode/utf8"
)

// maxWidth is how many columns text output may take.
const maxWidth = 120

// style is how a terminal shows a cell: parameters of the ANSI sequence SGR.
type style string

const (
	plain  style = ""
	strong style = "1"    // bold
	near   style = "1;32" // bold green
	faint  style = "2"
)

// cell is one cell of a table.
type cell struct {
	text  string
	style style
	right bool // right-aligned
}

func text(s string) cell { return cell{text: s} }

// table is text in columns, two spaces apart.
type table struct{ rows [][]cell }

func (t *table) row(cells ...cell) { t.rows = append(t.rows, cells) }

// heading adds a row of column names.
func (t *table) heading(names ...string) {
	var cells []cell
	for _, n := range names {
		cells = append(cells, cell{text: n, style: faint})
	}
	t.row(cells...)
}

func (t *table) widths() []int {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	return widths
}

func (t *table) write(w io.Writer, color bool) error {
	widths := t.widths()
	var b strings.Builder
	for _, row := range t.rows {
		spaces := 0 // not written before a cell with text follows
		for i, c := range row {
			padding := widths[i] - utf8.RuneCountInString(c.text)
			if c.right {
				spaces += padding
				padding = 0
			}
			if c.text != "" {
				b.WriteString(strings.Repeat(" ", spaces))
				b.WriteString(paint(c.text, c.style, color))
				spaces = 0
			} else {
				padding = widths[i]
				if c.right {
					padding = 0
				}
			}
			spaces += padding + 2
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func paint(s string, st style, color bool) string {
	if !color || st == plain {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

// wrap joins words with separators into lines of at most width columns.
func wrap(words []string, separator string, width int) []string {
	lines := []string{}
	line := ""
	for i, word := range words {
		if i < len(words)-1 {
			word += strings.TrimRight(separator, " ")
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
