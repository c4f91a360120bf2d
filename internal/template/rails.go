package template

import (
	"fmt"
	"strconv"
	"strings"
)

// Rails are intervals of rail numbers, ends included.
type Rails [][2]int

// maxRail keeps a typing error from becoming a template that nothing fits.
const maxRail = 1023

// ParseRails reads numbers and intervals: "3", "0-3", "0,2,4-7".
func ParseRails(text string) (Rails, error) {
	var rails Rails
	for part := range strings.SplitSeq(text, ",") {
		low, high, isInterval := strings.Cut(strings.TrimSpace(part), "-")
		if !isInterval {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		switch {
		case err1 != nil || err2 != nil || last > maxRail:
			return nil, fmt.Errorf("rails %q: %q is neither a number from 0 to %d nor an interval like 0-3", text, part, maxRail)
		case last < first:
			return nil, fmt.Errorf("rails %q: interval %q ends before it begins", text, part)
		}
		rails = append(rails, [2]int{int(first), int(last)})
	}
	return rails, nil
}

// String is the shortest text for ParseRails.
func (r Rails) String() string {
	var parts []string
	for _, interval := range r {
		part := strconv.Itoa(interval[0])
		if interval[1] != interval[0] {
			part += "-" + strconv.Itoa(interval[1])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// expression is true for a number on one of the rails.
func (r Rails) expression(number string) string {
	var terms []string
	for _, interval := range r {
		if interval[0] == interval[1] {
			terms = append(terms, fmt.Sprintf("%s == %d", number, interval[0]))
		} else {
			terms = append(terms, fmt.Sprintf("%s >= %d && %s <= %d", number, interval[0], number, interval[1]))
		}
	}
	if len(terms) == 1 {
		return terms[0]
	}
	for i, term := range terms {
		if strings.Contains(term, "&&") {
			terms[i] = "(" + term + ")"
		}
	}
	return "(" + strings.Join(terms, " || ") + ")"
}
