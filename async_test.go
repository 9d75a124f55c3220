package dledger_test

import (
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

func async(_ string, c *dledger.Config) { c.Durability = dledger.Async }

// TestAsyncOutlivesTheCrashOfAllProcesses: what is in the page cache survives everything but a power failure.
func TestAsyncOutlivesTheCrashOfAllProcesses(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Loss: dledgertest.LoseNothing, Config: async}.Run(t, 3, func(c *dledgertest.Cluster) {
		for k := range 5 {
			appendSome(c, 50*k, 50*k+50)
			c.Kill(c.IDs()...)
			c.Start(c.IDs()...)
		}
		c.Agree()
	})
}

// TestAsyncGroupGoesOnAfterThePowerFailureOfAll: entries may be lost, that is what async means. Some members know that they lost something, some do
// not; together they find a leader again, and take new entries.
func TestAsyncGroupGoesOnAfterThePowerFailureOfAll(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		dledgertest.Setup{Seed: seed + 1, Config: async}.Run(t, 3, func(c *dledgertest.Cluster) {
			for i := range 200 {
				if _, err := c.Leader().Append(c.T.Context(), body(i)); err != nil && !undecided(err) {
					c.T.Fatal(err)
				}
				time.Sleep(3 * time.Millisecond)
			}
			c.Kill(c.IDs()...)
			c.Start(c.IDs()...)
			last := appendSome(c, 200, 220)
			// At most what was written since the last sync, a tenth of a second ago, is gone.
			if last.Index < 160 {
				c.T.Errorf("the log ends at %d", last.Index)
			}
		})
	}
}
