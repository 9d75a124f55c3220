package sim

import (
	"bytes"
	"flag"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
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
		sum.Add(&r.Stats)
		if r.Err == nil {
			return true
		}
		t.Errorf("seed %d: %v\nagain: %s", r.Case.Seed, r.Err, r.Case.Command())
		if failures++; failures == 1 {
			s := Shrink(r)
			t.Logf("smaller: %s\n%v", s.Case.Command(), s.Err)
		}
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

// A simulation that never gets anything done, or in which nothing ever goes wrong, proves nothing. Faults count where they took effect, not where they were announced: a
// kind that needs more to strike than lives have never strikes.
func TestLivesAreFull(t *testing.T) {
	if testing.Short() {
		t.Skip("wants many lives")
	}
	const lives = 150
	var sum Stats
	var inLives Struck
	groups := 0
	Explore(1, lives, 5000, runtime.GOMAXPROCS(0), func(r Result) bool {
		if r.Err != nil {
			t.Errorf("seed %d: %v", r.Case.Seed, r.Err)
		}
		sum.Add(&r.Stats)
		for k, n := range r.Stats.Struck {
			inLives[k] += min(n, 1)
		}
		if len(draw(r.Case.Seed).ids) > 1 {
			groups++
		}
		return r.Err == nil
	})
	t.Logf("struck: %v", &sum.Struck)
	t.Logf("in lives: %v", &inLives)
	t.Logf("%d repairs, %d deletions by retention, %d logs started anew; %d of %d groups recovered without some of their members", sum.Repaired, sum.Expired, sum.Resets, sum.Partly, groups)
	for k, n := range sum.Struck {
		if n < 5 || inLives[k] < 3 {
			t.Errorf("%v has struck %d times, in %d lives of %d", kind(k), n, inLives[k], lives)
		}
	}
	if sum.Repaired < 10 || sum.Expired < 50 || sum.Resets < 5 {
		t.Errorf("%d repairs, %d deletions, %d logs started anew", sum.Repaired, sum.Expired, sum.Resets)
	}
	if sum.Partly < groups/2 {
		t.Errorf("%d of %d groups recovered without some of their members", sum.Partly, groups)
	}
	if sum.Acked < 5000 || sum.Undecided < 100 || sum.Reads < 500 || sum.Leaders < 100 || sum.Restarts < 100 {
		t.Errorf("too little happens: %+v", sum)
	}
}

// Damage and lost disks come in mode async as well, damage is repaired there, and most groups recover without some of their members.
func TestAsyncLivesMeetDamageAndLostDisks(t *testing.T) {
	if testing.Short() {
		t.Skip("wants many lives")
	}
	var sum Stats
	lives := 0
	for seed := uint64(1); lives < 80; seed++ {
		s := draw(seed)
		if !s.async || !slices.ContainsFunc(s.kinds, func(k kind) bool { return k == rot || k == badSector || k == wipe }) {
			continue
		}
		lives++
		r := Run(seed, 8000)
		if r.Err != nil {
			t.Fatalf("seed %d: %v", seed, r.Err)
		}
		sum.Add(&r.Stats)
	}
	t.Logf("%d repairs, %d of %d recoveries without some members, struck: %v", sum.Repaired, sum.Partly, lives, &sum.Struck)
	for k, least := range map[kind]int{rot: 4, badSector: 4, wipe: 4} {
		if n := sum.Struck[k]; n < least {
			t.Errorf("%v has struck %d times", k, n)
		}
	}
	if sum.Repaired < 4 || sum.Partly < lives/3 {
		t.Errorf("%d repairs, %d of %d recoveries without some members", sum.Repaired, sum.Partly, lives)
	}
}

// Where power may take what was acknowledged it does so now and then, also of groups, and mostly it does not.
func TestPowerCutsTakeWhatAsyncMayLose(t *testing.T) {
	lives, losing, lost, acked := 0, 0, 0, 0
	for seed := uint64(1); lives < 40; seed++ {
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

// What is left of a failing life after shrinking fails in the same way, has fewer faults, and holds no fault that could be left out alone. The failure takes two faults of dozens, in
// this order, and an answer to a client behind them; a third one may stay since the others would do something else without it.
func TestShrinkLeavesWhatTheFailureNeeds(t *testing.T) {
	const wrong = "a member was killed behind a pause, and then a client was answered"
	forbidden := func(w *world) string {
		paused := slices.IndexFunc(w.faults, func(f Fault) bool { return strings.Contains(f.What, " pauses for ") })
		killed := -1
		for i, f := range w.faults {
			if paused >= 0 && i > paused && strings.HasSuffix(f.What, " is killed") && killed < 0 {
				killed = i
			}
		}
		if killed < 0 {
			return ""
		}
		for _, o := range w.check.ops {
			if o.state == acknowledged && time.Duration(o.at) > w.faults[killed].At {
				return wrong
			}
		}
		return ""
	}
	shrunk := 0
	for seed := uint64(1); shrunk < 3; seed++ {
		r := Case{Seed: seed, Steps: 3000, forbidden: forbidden}.Run()
		if r.Err == nil || len(r.Faults) < 10 {
			continue
		}
		shrunk++
		s := Shrink(r)
		if s.Err == nil || !strings.Contains(s.Err.Error(), wrong) {
			t.Fatalf("seed %d: shrunk to a life that ends with %v", seed, s.Err)
		}
		if len(s.Faults) > len(r.Faults)/2 || len(s.Case.Faults) != len(s.Faults) || s.Case.Clients != 1 || s.Case.Steps >= r.Case.Steps {
			t.Errorf("seed %d: %d events, %d faults, shrunk to %d events of %d, %d clients, faults %v", seed, r.Stats.Steps, len(r.Faults), s.Stats.Steps, s.Case.Steps, s.Case.Clients, s.Faults)
		}
		for i := range s.Case.Faults {
			c := s.Case
			c.Faults = slices.Delete(slices.Clone(c.Faults), i, i+1)
			if c.Run().Err != nil {
				t.Errorf("seed %d: fault %d of %v could be left out", seed, s.Case.Faults[i], s.Faults)
			}
		}
		if again := s.Case.Run(); again.Err == nil || again.Err.Error() != s.Err.Error() || again.Stats != s.Stats {
			t.Errorf("seed %d: the shrunk case lives another life: %v, %v", seed, again.Err, s.Err)
		}
		t.Logf("seed %d: %d events and %d faults, shrunk to %d events and %v", seed, r.Stats.Steps, len(r.Faults), s.Stats.Steps, s.Faults)
	}
}

// A life of which nothing can be left out stays as it is.
func TestShrinkKeepsWhatCannotShrink(t *testing.T) {
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
