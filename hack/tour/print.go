package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// printer writes the tour, and keeps what was not as it should be.
type printer struct {
	out    io.Writer
	color  bool
	checks int
	faults []string
}

const (
	bold = "1"
	dim  = "2"
	red  = "31"
)

func (p *printer) paint(style, text string) string {
	if !p.color {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// section begins a part of the tour; text tells what to look at.
func (p *printer) section(title string, text ...string) {
	fmt.Fprintf(p.out, "\n%s\n", p.paint(bold, title))
	for _, line := range text {
		fmt.Fprintln(p.out, line)
	}
}

// command shows what the reader would type to see the same.
func (p *printer) command(format string, args ...any) {
	fmt.Fprintf(p.out, "\n%s\n", p.paint(dim, "  $ "+fmt.Sprintf(format, args...)))
}

func (p *printer) note(format string, args ...any) {
	fmt.Fprintln(p.out, p.paint(dim, "  "+fmt.Sprintf(format, args...)))
}

// lines prints text indented.
func (p *printer) lines(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(p.out, "  ", line)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		fmt.Fprintln(p.out)
	}
}

// table prints rows in columns; the first row is the head.
func (p *printer) table(rows [][]string) {
	w := tabwriter.NewWriter(p.out, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
	}
	_ = w.Flush() // to a terminal: nobody to tell
}

// check counts a thing that was verified, and shows at once when it is wrong.
func (p *printer) check(err error) {
	p.checks++
	if err != nil {
		p.faults = append(p.faults, err.Error())
		fmt.Fprintln(p.out, p.paint(red, "  NOT AS PRINTED: "+err.Error()))
	}
}

// want checks that two values are the same.
func want[T comparable](p *printer, what string, got, want T) {
	var err error
	if got != want {
		err = fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	p.check(err)
}
