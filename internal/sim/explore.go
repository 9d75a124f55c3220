package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Explore lives one life for each of runs seeds from first on, each with a storm of so many events, several at a time, and gives the results to report, one at a time and in no
// order, until it says false or all are done.
func Explore(first uint64, runs, steps, workers int, report func(Result) bool) {
	var next atomic.Int64
	var mu sync.Mutex // held while report runs
	var wg sync.WaitGroup
	stopped := false
	for range max(workers, 1) {
		wg.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(runs) {
					return
				}
				r := Run(first+uint64(n), steps)
				mu.Lock()
				stopped = stopped || !report(r)
				end := stopped
				mu.Unlock()
				if end {
					return
				}
			}
		})
	}
	wg.Wait()
}

// Command is the command line that lives the case again.
func (c Case) Command() string {
	s := fmt.Sprintf("dledger sim --seed %d --steps %d", c.Seed, c.Steps)
	if c.Faults != nil {
		s += " --faults " + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(c.Faults), "[]")), ",")
	}
	if c.Clients > 0 {
		s += fmt.Sprintf(" --clients %d", c.Clients)
	}
	return s
}

// shrinkMost bounds the lives that Shrink lives.
const shrinkMost = 150

// Shrink looks for a smaller case that fails too: with fewer faults, fewer clients and a shorter storm. It gives the smallest failing result
// that it found, which is r itself if nothing could be left out.
func Shrink(r Result) Result {
	return shrink(r, func(x Result) bool { return x.Err != nil })
}

// shrink is Shrink for failures of one kind, which fails tells.
func shrink(r Result, fails func(Result) bool) Result {
	lives := 0
	live := func(c Case) bool {
		if lives++; lives > shrinkMost {
			return false
		}
		c.Trace = nil
		x := c.Run()
		if !fails(x) {
			return false
		}
		r = x
		return true
	}
	shorter := func() {
		c := r.Case
		c.Steps = min(c.Steps, r.Stats.Steps)
		for live(c) && r.Case.Steps > 20 {
			c = r.Case
			c.Steps = c.Steps * 3 / 4
		}
	}
	most := r.Case.Steps
	less := func() Case { // with room for a failure that comes later without something
		c := r.Case
		c.Steps = min(most, 2*r.Stats.Steps)
		return c
	}
	numbers := make([]int, 0, len(r.Faults))
	for _, f := range r.Faults {
		numbers = append(numbers, f.No)
	}
	for size := max(len(numbers)/2, 1); len(numbers) > 0; {
		smaller := false
		for at := 0; at < len(numbers); {
			c := less()
			c.Faults = slices.Delete(slices.Clone(numbers), at, min(at+size, len(numbers)))
			if live(c) {
				numbers, smaller = c.Faults, true
			} else {
				at += size
			}
		}
		if size == 1 && !smaller || lives > shrinkMost {
			break
		}
		size = max(size/2, 1)
	}
	for n := 1; n < 4; n++ {
		c := less()
		if c.Clients = n; live(c) {
			break
		}
	}
	shorter()
	return r
}
