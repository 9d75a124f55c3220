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
	"testing"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
)

var keepFlag = flag.Bool("keep", false, "shrink the lives that find planted faults, and keep them")

// Each fault that can be planted in the product must be found within so many seeds.
const plantedSeeds = 500

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
			*all[name] = true
			defer func() { *all[name] = false }()
			var found *Result
			seeds := 0
			Explore(1, plantedSeeds, *stepsFlag, runtime.GOMAXPROCS(0), func(r Result) bool {
				seeds++
				if r.Err != nil {
					found = &r
				}
				return found == nil
			})
			if found == nil {
				t.Fatalf("not found within %d seeds", seeds)
			}
			t.Logf("found after %d seeds, by seed %d: %.200v", seeds, found.Case.Seed, found.Err)
			if *keepFlag {
				s := Shrink(*found)
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
		if r := k.c.Run(); r.Err == nil {
			t.Errorf("%s is not found any more by: %s", k.name, k.c.Command())
		}
		*on = false
	}
}
