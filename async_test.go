package dledger_test

import (
	"bytes"
	"context"
	"errors"
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
			type acked struct {
				index dledger.Index
				body  []byte
				at    time.Time
			}
			var all []acked
			for i := range 200 {
				e, err := c.Leader().Append(c.T.Context(), body(i))
				if err != nil && !errors.Is(err, dledger.ErrUndecided) && !errors.Is(err, context.Canceled) {
					c.T.Fatal(err)
				}
				if err == nil {
					all = append(all, acked{e.Index, body(i), time.Now()})
				}
				time.Sleep(3 * time.Millisecond)
			}
			crash := time.Now()
			c.Kill(c.IDs()...)
			c.Start(c.IDs()...)
			last := appendSome(c, 200, 220)
			c.WaitCommitted(last.Index)
			// What is gone is the end, and no older than a tenth of a second and a sync: what is left of the acknowledged entries has no gap.
			lost := time.Time{}
			for _, a := range all {
				e, err := c.Leader().Get(a.index)
				switch kept := err == nil && bytes.Equal(e.Body, a.body); {
				case kept && !lost.IsZero():
					c.T.Errorf("entry %d is there, one before it is not", a.index)
				case !kept && lost.IsZero():
					lost = a.at
				}
			}
			if window := 100*time.Millisecond + 20*time.Millisecond; !lost.IsZero() && crash.Sub(lost) > window {
				c.T.Errorf("an entry of %v before the power failure is gone", crash.Sub(lost))
			}
		})
	}
}
