package bench

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// samples are durations of one kind of work.
type samples []time.Duration

// quantile returns the smallest sample that is not exceeded by a share q of all.
func (s samples) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func (s samples) p50() time.Duration { return s.quantile(0.5) }
func (s samples) p99() time.Duration { return s.quantile(0.99) }

// ms prints a duration in milliseconds.
func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// ratio prints how many times the second duration is in the first.
func ratio(d, of time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(of)) }

func TestQuantile(t *testing.T) {
	var s samples
	for i := range 200 {
		s = append(s, time.Duration(200-i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := s.quantile(q); got != want {
			t.Errorf("quantile %v of 1..200 is %d, want %d", q, got, want)
		}
	}
}
