//go:build planted

package sim

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
)

var keepFlag = flag.Bool("keep", false, "shrink the lives that find planted faults, and keep them")

// Each fault that can be planted in the product must be found within so many seeds.
const plantedSeeds = 500

// told is how the simulation tells of each planted fault: what it says has to hold one of these texts. A life that ends otherwise, in a panic say, has met the fault and not
// seen it.
var told = map[string][]string{
	"acknowledged before the sync":    {"R4: "},
	"campaign in the same term again": {"R8: "},
	"commit index beyond the end":     {"R7: "},
	"committed by counting":           {" by counting"},
	"damage served":                   {" holds a bad entry "},
	"loss forgotten":                  {"R2: ", "R4: ", " confirms a read up to "},
	"lost wake-up":                    {" has not woken the loop"},
	"no-op without checksum":          {" has lost entries that were on its disk", "R7: the commit index of "},
	"position not checked":            {"R3: "},
	"previous entry not checked":      {"R2: ", "R3: "},
	"push of a deposed leader":        {"R5: "},
	"stale read":                      {" confirms a read up to "},
	"sync covers what is later":       {"R4: "},
	"tail lost on a file roll":        {" has lost entries that were on its disk", ": entry is damaged "},
	"term given for that of the end":  {"R6: "},
	"term not synced":                 {"R6: ", ": term and vote are not readable"},
	"term of a killed process":        {"R6: "},
	"truncate of a deposed leader":    {"R5: "},
	"vote not stored":                 {"R6: "},
	"wiped member counts as whole":    {"R4: "},
}

// tells gives whether a life has seen this planted fault.
func tells(name string) func(Result) bool {
	return func(r Result) bool {
		return r.Err != nil && !strings.Contains(r.Err.Error(), "panic: ") && slices.ContainsFunc(told[name], func(text string) bool { return strings.Contains(r.Err.Error(), text) })
	}
}

// switches are those of all faults that can be planted, by name.
func switches() map[string]*bool {
	all := map[string]*bool{}
	for _, m := range []map[string]*bool{raft.Planted, replica.Planted, logstore.Planted} {
		maps.Copy(all, m)
	}
	return all
}

// TestPlantedFaultsAreFound plants one fault at a time and counts the seeds that it takes to see it.
func TestPlantedFaultsAreFound(t *testing.T) {
	all := switches()
	var keep bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			if told[name] == nil {
				t.Fatal("nothing says how the simulation tells of it")
			}
			*all[name] = true
			defer func() { *all[name] = false }()
			var found *Result
			seeds := 0
			var others []string
			Explore(1, plantedSeeds, *stepsFlag, runtime.GOMAXPROCS(0), func(r Result) bool {
				seeds++
				switch {
				case tells(name)(r):
					found = &r
				case r.Err != nil:
					others = append(others, fmt.Sprintf("seed %d: %.150v", r.Case.Seed, r.Err))
				}
				return found == nil
			})
			if found == nil {
				t.Fatalf("%v not found within %d seeds, but %q", told[name], seeds, others)
			}
			t.Logf("found after %d seeds, by seed %d: %.200v; beside it %d lives ended otherwise", seeds, found.Case.Seed, found.Err, len(others))
			if *keepFlag {
				s := shrink(*found, tells(name))
				t.Logf("shrunk to %d steps and %d faults: %.200v", s.Case.Steps, len(s.Faults), s.Err)
				fmt.Fprintln(&keep, kept{name, s.Case})
			}
		})
	}
	if *keepFlag {
		for _, k := range readKept(t) { // what was found in the product itself stays
			if all[k.name] == nil {
				fmt.Fprintln(&keep, k)
			}
		}
		if err := os.WriteFile(keptFile, keep.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// A kept life that no longer finds its fault, since seeds draw something else now, has to be replaced: see the flag -keep.
func TestKeptLivesFindTheirPlantedFaults(t *testing.T) {
	all := switches()
	for _, k := range readKept(t) {
		on := all[k.name]
		if on == nil {
			continue // a fault of the product itself, mended since
		}
		*on = true
		if r := k.c.Run(); !tells(k.name)(r) {
			t.Errorf("%s is not found any more by: %s\n%.200v, want one of %q", k.name, k.c.Command(), r.Err, told[k.name])
		}
		*on = false
	}
}
