package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in classes that are at most a sixty-fourth of their value wide, so that percentiles of any number of
// values cost the same little memory.
//
//	class of v: v itself below 128, else 64 classes for each power of two
type histogram struct {
	counts [64 * 60]int64
	total  int64
	max    time.Duration
}

const fine = 64 // classes to a power of two

func class(v uint64) int {
	if v < 2*fine {
		return int(v)
	}
	shift := bits.Len64(v) - bits.Len64(2*fine-1)
	return shift*fine + int(v>>shift)
}

// upper is the largest value of a class.
func upper(class int) uint64 {
	if class < 2*fine {
		return uint64(class)
	}
	shift := class/fine - 1
	return (uint64(class-shift*fine)+1)<<shift - 1
}

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.counts[class(uint64(d))]++
	h.total++
	h.max = max(h.max, d)
}

// at gives a duration that the share q of all values does not exceed; 0 without values.
func (h *histogram) at(q float64) time.Duration {
	want := int64(q*float64(h.total) + 0.5)
	seen := int64(0)
	for i, n := range h.counts {
		if seen += n; seen >= max(want, 1) {
			return min(time.Duration(upper(i)), h.max)
		}
	}
	return 0
}
