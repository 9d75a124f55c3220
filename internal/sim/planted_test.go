//go:build planted

package sim

import (
	"flag"
	"maps"
	"runtime"
	"slices"
	"testing"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
)

var onlyFlag = flag.String("planted", "", "plant this fault alone, and shrink the life that finds it")

// Each fault that can be planted in the product must be found within so many seeds.
const plantedSeeds = 500

// TestPlantedFaultsAreFound plants one fault at a time and counts the seeds that it takes to see it.
func TestPlantedFaultsAreFound(t *testing.T) {
	all := map[string]*bool{}
	for _, m := range []map[string]*bool{raft.Planted, replica.Planted, logstore.Planted} {
		maps.Copy(all, m)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if *onlyFlag != "" && name != *onlyFlag {
			continue
		}
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
			if *onlyFlag != "" {
				s := Shrink(*found)
				t.Logf("shrunk: %s\n%v\n%s", s.Case.Command(), s.Err, s.Setup)
			}
		})
	}
}
