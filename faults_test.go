package dledger_test

import (
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// What the original gets wrong and the core has no part in, beside the stories of internal/raft. The numbers are those of docs/compat.md.

// Fault 15: a log whose first files are gone, and a state machine without a snapshot of them, keep no append from being acknowledged, before and after a restart; also with a
// machine that has its snapshot.
func TestAppendsAreAcknowledgedBehindRetention(t *testing.T) {
	t.Parallel()
	for _, snapshots := range []bool{false, true} {
		dledgertest.Setup{Config: expiring(dledger.Compat04), Loss: dledgertest.LoseNothing}.Run(t, 1, func(c *dledgertest.Cluster) {
			var kept *store
			run := func() (mc *dledger.Machine, end <-chan error) {
				kept = newStore()
				return machine(c, c.Member("n0"), kept)
			}
			last := set(c, 0, 1900)
			if snapshots {
				mc, _ := run()
				if err := mc.Wait(c.T.Context(), last.Index); err != nil {
					c.T.Fatal(err)
				}
			}
			set(c, 1900, 2000)
			expire(c, 500, c.Member("n0"))
			c.Stop("n0")
			c.Start("n0")
			mc, end := run()
			last = set(c, 2000, 2100)
			if !snapshots {
				if err := <-end; err == nil {
					c.T.Error("a machine without a snapshot runs behind the gap")
				}
				return
			}
			if err := mc.Wait(c.T.Context(), last.Index); err != nil {
				c.T.Fatal(err)
			}
			if got := kept.copy(); len(got) != 2100 {
				c.T.Errorf("the machine has %d values, want 2100", len(got))
			}
		})
	}
}

// slow is a store that applies nothing until it is let go on.
type slow struct {
	*store
	on chan struct{}
}

func (s *slow) Apply(e dledger.Entry) error {
	<-s.on
	return s.store.Apply(e)
}

// Fault 20: entries that are committed while a machine is busy are all applied later, without another commit that would tell of them, however many they are.
func TestBusyMachineMissesNothing(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		s := &slow{newStore(), make(chan struct{})}
		mc, err := dledger.NewMachine(c.Leader().Ledger, s, dledger.SnapshotConfig{Dir: "/machine"})
		if err != nil {
			c.T.Fatal(err)
		}
		go mc.Run(c.T.Context())
		last := set(c, 0, 3000)
		if got := mc.Applied(); got >= 0 {
			c.T.Errorf("applied up to %d while it was held", got)
		}
		close(s.on)
		if err := mc.Wait(c.T.Context(), last.Index); err != nil {
			c.T.Fatal(err)
		}
		if got := s.copy(); len(got) != 3000 {
			c.T.Errorf("%d values, want 3000", len(got))
		}
	})
}

// Fault 23: nothing waits for a timer on the way of an append: it takes what the links and the disks take, which here is less than the period of any timer.
func TestAppendWaitsForNoTimer(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		const hop = 100 * time.Microsecond
		dledgertest.Setup{Config: config, Delay: hop, SyncTime: hop}.Run(t, 3, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 10)
			l := c.Leader()
			longest := time.Duration(0)
			for i := range 200 {
				time.Sleep(7 * time.Millisecond) // so that each finds nothing under way
				begin := time.Now()
				if _, err := l.Append(c.T.Context(), body(i)); err != nil {
					c.T.Fatal(err)
				}
				longest = max(longest, time.Since(begin))
			}
			// There and back, a quarter more each at random, and a sync; what is synced meanwhile may have to end before.
			if limit := 2*hop*5/4 + 2*hop; longest > limit {
				c.T.Errorf("an append took %v, links and disks take at most %v", longest, limit)
			}
			c.T.Logf("at most %v", longest)
		})
	})
}

// A disk that stands still for 500 ms, the leader's, a follower's or all of them, again and again under load, costs no election and changes no term: the appends wait.
func TestStalledSyncChangesNothing(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 10)
			l := c.Leader().ID
			before, held := mustStatus(c, l), elections(c)
			stop := load(c, 2, 20*time.Millisecond)
			stall := func(ids ...string) {
				for _, id := range ids {
					c.Disk(id).Hang()
				}
				time.Sleep(500 * time.Millisecond)
				for _, id := range ids {
					c.Disk(id).Resume()
				}
				time.Sleep(300 * time.Millisecond)
			}
			rounds := 20
			if testing.Short() {
				rounds = 5
			}
			for range rounds {
				for _, id := range c.IDs() {
					stall(id)
				}
				stall(c.IDs()...)
			}
			if n := stop(); n < 25*rounds {
				c.T.Errorf("%d appends were acknowledged", n)
			}
			if after := mustStatus(c, l); elections(c) != held || after.Term != before.Term || c.Leader().ID != l {
				c.T.Errorf("%d elections, term %d, was %d; %s leads, %s did", elections(c)-held, after.Term, before.Term, c.Leader().ID, l)
			}
			c.Agree()
		})
	})
}
