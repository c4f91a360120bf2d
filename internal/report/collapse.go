package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// collapse shortens a list of names by writing counting ones as a range:
// mlx5_0, mlx5_1, mlx5_2, mlx5_3 become mlx5_0..3, rdmap79s0, rdmap80s0,
// rdmap81s0 become rdmap79s0..81s0. The order is kept.
func collapse(names []string) []string {
	var out []string
	for len(names) > 0 {
		run := 1
		at := -1
		for run < len(names) {
			i := counts(names[run-1], names[run])
			if i < 0 || at >= 0 && i != at {
				break
			}
			at = i
			run++
		}
		if run < 3 {
			out = append(out, names[0])
			names = names[1:]
			continue
		}
		out = append(out, names[0]+".."+strings.Join(digits(names[run-1])[at:], ""))
		names = names[run:]
	}
	return out
}

// counts tells in which part b is one more than a where all else is equal; -1 if none.
func counts(a, b string) int {
	as, bs := digits(a), digits(b)
	if len(as) != len(bs) {
		return -1
	}
	at := -1
	for i := range as {
		if as[i] == bs[i] {
			continue
		}
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		if at >= 0 || errX != nil || errY != nil || y != x+1 {
			return -1
		}
		at = i
	}
	return at
}

// digits cuts a name where digits begin or end: "rdmap79s0" is rdmap, 79, s, 0.
func digits(name string) []string {
	var parts []string
	start := 0
	for i := 1; i <= len(name); i++ {
		if i == len(name) || unicode.IsDigit(rune(name[i])) != unicode.IsDigit(rune(name[i-1])) {
			parts = append(parts, name[start:i])
			start = i
		}
	}
	return parts
}

// rails writes rail numbers with ranges: "0-3", "0, 2". Unknown ones are left out.
func rails(nics []NIC) string {
	var known []int
	for _, n := range nics {
		if n.Rail != nil {
			known = append(known, *n.Rail)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	var parts []string
	for i := 0; i < len(known); {
		j := i
		for j+1 < len(known) && known[j+1] == known[j]+1 {
			j++
		}
		switch {
		case i == j:
			parts = append(parts, strconv.Itoa(known[i]))
		case i+1 == j:
			parts = append(parts, strconv.Itoa(known[i]), strconv.Itoa(known[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", known[i], known[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
