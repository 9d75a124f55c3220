package sim

import (
	"bytes"
	"flag"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "live this seed alone, and print its trace")
	stepsFlag = flag.Int("steps", 20_000, "events of a storm")
)

// TestRandomLives lives many seeds. SIM_RUNS sets how many, SIM_SEED the first; it is the clock's otherwise, and is printed.
func TestRandomLives(t *testing.T) {
	if *seedFlag != 0 {
		r := Case{Seed: *seedFlag, Steps: *stepsFlag, Trace: os.Stdout}.Run()
		t.Logf("%+v", r.Stats)
		if r.Err != nil {
			t.Error(r.Err)
		}
		return
	}
	runs, steps := 200, *stepsFlag
	if testing.Short() { // also under the race detector, which is ten times as slow
		runs, steps = 20, steps/4
	}
	if n, err := strconv.Atoi(os.Getenv("SIM_RUNS")); err == nil {
		runs = n
	}
	first := uint64(time.Now().UnixMilli()) * 1000
	if n, err := strconv.ParseUint(os.Getenv("SIM_SEED"), 10, 64); err == nil {
		first = n
	}
	t.Logf("%d seeds from %d on", runs, first)
	failures := 0
	var sum Stats
	Explore(first, runs, steps, runtime.GOMAXPROCS(0), func(r Result) bool {
		sum.Steps += r.Stats.Steps
		sum.Time += r.Stats.Time
		sum.Committed += r.Stats.Committed
		if r.Err == nil {
			return true
		}
		failures++
		t.Errorf("seed %d: %v\nagain: %s", r.Case.Seed, r.Err, r.Case.Command())
		return failures < 5
	})
	t.Logf("%d events, %v of virtual time, %d entries committed", sum.Steps, sum.Time.Round(time.Second), sum.Committed)
}

// The same seed gives the same life to the last letter, whatever else the process has done.
func TestSameSeedSameTrace(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		var a, b bytes.Buffer
		x := Case{Seed: seed, Steps: 4000, Trace: &a}.Run()
		y := Case{Seed: seed, Steps: 4000, Trace: &b}.Run()
		if !bytes.Equal(a.Bytes(), b.Bytes()) || x.Hash != y.Hash {
			t.Fatalf("seed %d: two lives differ at byte %d", seed, firstDifference(a.Bytes(), b.Bytes()))
		}
		if z := Run(seed, 4000); z.Stats != x.Stats {
			t.Fatalf("seed %d: a life that is traced goes %+v, one that is not %+v", seed, x.Stats, z.Stats)
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// A simulation that never gets anything done, or in which nothing ever goes wrong, proves nothing.
func TestLivesAreFull(t *testing.T) {
	if testing.Short() {
		t.Skip("wants many lives")
	}
	happened := map[kind]bool{}
	var sum Stats
	for seed := uint64(1); seed <= 60; seed++ {
		r := Run(seed, 5000)
		if r.Err != nil {
			t.Fatalf("seed %d: %v", seed, r.Err)
		}
		for _, k := range draw(seed).kinds {
			happened[k] = true
		}
		sum.Acked += r.Stats.Acked
		sum.Undecided += r.Stats.Undecided
		sum.Reads += r.Stats.Reads
		sum.Leaders += r.Stats.Leaders
		sum.Restarts += r.Stats.Restarts
	}
	if len(happened) != int(kinds) {
		t.Errorf("%d kinds of faults of %d were drawn", len(happened), kinds)
	}
	if sum.Acked < 5000 || sum.Undecided < 100 || sum.Reads < 500 || sum.Leaders < 100 || sum.Restarts < 100 {
		t.Errorf("too little happens: %+v", sum)
	}
}

// Where power may take what was acknowledged it does so now and then, also of groups, and mostly it does not.
func TestPowerCutsTakeWhatAsyncMayLose(t *testing.T) {
	lives, losing, lost, acked := 0, 0, 0, 0
	for seed := uint64(1); lives < 20; seed++ {
		if s := draw(seed); !s.losing || len(s.ids) == 1 {
			continue
		}
		lives++
		r := Run(seed, 5000)
		if r.Err != nil {
			t.Fatalf("seed %d: %v", seed, r.Err)
		}
		if r.Stats.Lost > 0 {
			losing++
		}
		lost += r.Stats.Lost
		acked += r.Stats.Acked
	}
	t.Logf("%d of %d lives have lost something, %d entries; %d proposals were acknowledged", losing, lives, lost, acked)
	if losing < 3 || losing == lives || lost > acked/2 {
		t.Error("too little is lost, or too much")
	}
}

// What is left of a failing life after shrinking still fails, and holds no more than before.
func TestShrinkKeepsTheFailure(t *testing.T) {
	c := Case{Seed: 3, Steps: 3000, Faults: []int{0, 1, 2, 3, 4, 5, 6, 7}}
	r := c.Run()
	r.Err = os.ErrInvalid // as if it had failed; every smaller case lives well
	s := Shrink(r)
	if s.Err == nil || !slices.Equal(s.Case.Faults, c.Faults) {
		t.Errorf("shrunk to %v with faults %v", s.Err, s.Case.Faults)
	}
}

func BenchmarkLife(b *testing.B) {
	steps := 0
	for i := range b.N {
		steps += Run(uint64(i+1), 20_000).Stats.Steps
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(steps), "ns/event")
}
