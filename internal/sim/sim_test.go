package sim

import (
	"flag"
	"os"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "")
	nFlag    = flag.Uint64("n", 100, "")
)

func TestSmoke(t *testing.T) {
	t0 := time.Now()
	if *seedFlag != 0 {
		r := Case{Seed: *seedFlag, Steps: 20000, Trace: os.Stdout}.Run()
		t.Logf("%+v\n%v", r.Stats, r.Err)
		return
	}
	n := 0
	fails := 0
	for seed := uint64(1); seed <= *nFlag; seed++ {
		r := Run(seed, 20000)
		n++
		if r.Err != nil {
			fails++
			t.Errorf("seed %d: %.600v", seed, r.Err)
		} else {
			t.Logf("seed %d: %+v", seed, r.Stats)
		}
	}
	t.Log(fails, time.Since(t0)/time.Duration(n))
}
