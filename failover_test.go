package dledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// body gives entry i of a test's own count.
func body(i int) []byte { return fmt.Appendf(nil, "entry %d", i) }

// appendSome appends entries lo..hi-1 of the test's count, one by one.
func appendSome(c *dledgertest.Cluster, lo, hi int) (last dledger.Entry) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), 2*time.Minute) // of virtual time; a group without leader is not waited for any longer
	defer cancel()
	for i := lo; i < hi; i++ {
		e, err := c.Append(ctx, body(i))
		if err != nil {
			c.T.Fatalf("append %d: %v", i, err)
		}
		last = e
	}
	return last
}

// load appends from several clients until the returned function is called, which waits for them and gives the number of acknowledged
// entries. Undecided appends are left at that; any other error fails the test.
func load(c *dledgertest.Cluster, clients int, pause time.Duration) (stop func() int) {
	ctx, cancel := context.WithCancel(c.T.Context())
	var all sync.WaitGroup
	acked := make([]int, clients)
	for k := range clients {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, err := c.Append(ctx, fmt.Appendf(nil, "client %d, entry %d", k, i))
				switch {
				case err == nil:
					acked[k]++
				case !errors.Is(err, dledger.ErrUndecided) && !errors.Is(err, context.Canceled):
					c.T.Errorf("client %d, entry %d: %v", k, i, err)
				}
				time.Sleep(pause)
			}
		})
	}
	return func() (n int) {
		cancel()
		all.Wait()
		for _, k := range acked {
			n += k
		}
		return n
	}
}

// TestFailoverTakesLessThanASecond measures, over many seeds, from the leader's crash to the next acknowledged append.
func TestFailoverTakesLessThanASecond(t *testing.T) {
	t.Parallel()
	seeds := 60
	if testing.Short() {
		seeds = 15
	}
	var took []time.Duration
	for seed := range seeds {
		dledgertest.Setup{Seed: uint64(seed + 1)}.Run(t, 3, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 20)
			time.Sleep(time.Duration(c.Rand().Int64N(int64(time.Second)))) // somewhere between two heartbeats
			old := c.Leader().ID
			begin := time.Now()
			c.Kill(old)
			appendSome(c, 20, 21)
			d := time.Since(begin)
			took = append(took, d)
			if d >= time.Second {
				t.Errorf("seed %d: append acknowledged only %v after the crash", seed+1, d)
			}
		})
	}
	slices.Sort(took)
	t.Logf("%d crashes of the leader: median %v, slowest %v", seeds, took[len(took)/2], took[len(took)-1])
}

// TestNoElectionWithoutAFault is an hour under load.
func TestNoElectionWithoutAFault(t *testing.T) {
	t.Parallel()
	span := time.Hour
	if testing.Short() {
		span = 10 * time.Minute
	}
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			t.Parallel()
			dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.Compat = compat }}.Run(t, 3, func(c *dledgertest.Cluster) {
				l := c.Leader()
				before, _ := l.Status(c.T.Context())
				stop := load(c, 2, 4*time.Second)
				time.Sleep(span)
				n := stop()
				elections := int64(0)
				for _, m := range c.Running() {
					elections += m.Stats().Elections
				}
				after, _ := l.Status(c.T.Context())
				if after.Term != before.Term || elections != 1 || c.Leader() != l {
					t.Errorf("term %d, %d elections; want term %d, one election", after.Term, elections, before.Term)
				}
				t.Logf("%d appends", n)
			})
		})
	}
}

func TestIsolatedFollowerReturnsWithoutDeposingTheLeader(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		l := c.Leader()
		before, _ := l.Status(c.T.Context())
		f := c.Followers()[0]
		c.Partition([]string{f.ID})
		time.Sleep(time.Minute)
		appendSome(c, 10, 20)
		c.Heal()
		time.Sleep(10 * time.Second)
		last := appendSome(c, 20, 21)
		c.WaitCommitted(last.Index)
		after, _ := l.Status(c.T.Context())
		if after.Term != before.Term || after.Role != "leader" {
			t.Errorf("%s is %s of term %d, want leader of term %d", l.ID, after.Role, after.Term, before.Term)
		}
		c.Agree()
	})
}

// TestOneWayCutsLeaveAGroupThatCommits: a leader that is heard but hears nothing must give way, one that is not heard is replaced.
func TestOneWayCutsLeaveAGroupThatCommits(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"leader hears nothing", "leader is not heard"} {
		t.Run(dir, func(t *testing.T) {
			dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
				appendSome(c, 0, 5)
				old := c.Leader().ID
				for _, f := range c.Followers() {
					if dir == "leader hears nothing" {
						c.Cut(f.ID, old)
					} else {
						c.Cut(old, f.ID)
					}
				}
				c.Wait("another leader", func() bool {
					for _, m := range c.Running() {
						if m.ID != old && m.IsLeader() {
							return true
						}
					}
					return false
				})
				last := appendSome(c, 5, 10)
				c.Heal()
				c.WaitCommitted(last.Index)
				c.Agree()
			})
		})
	}
}

// TestOldLeaderAcknowledgesNothingBehindAPartition: R4, seen by clients that reach only the old leader.
func TestOldLeaderAcknowledgesNothingBehindAPartition(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.Compat = compat }}.Run(t, 3, func(c *dledgertest.Cluster) {
				appendSome(c, 0, 10)
				old := c.Leader()
				c.Partition([]string{old.ID})
				var tries sync.WaitGroup
				for i := range 40 {
					tries.Go(func() {
						time.Sleep(time.Duration(i) * 250 * time.Millisecond)
						if e, err := old.Append(c.T.Context(), fmt.Appendf(nil, "lost %d", i)); err == nil {
							t.Errorf("the old leader acknowledged entry %d", e.Index)
						} else if !errors.Is(err, dledger.ErrUndecided) && !errors.Is(err, dledger.ErrNotLeader) {
							t.Errorf("the old leader says %v", err)
						}
					})
				}
				c.Wait("another leader", func() bool { l := c.Leader(); return l != old })
				appendSome(c, 10, 20)
				tries.Wait()
				c.Heal()
				c.Agree()
			})
		})
	}
}

// TestAcknowledgedEntriesOutliveACrashOfEachMember: under load each member in turn loses its power and what it had not synced.
func TestAcknowledgedEntriesOutliveACrashOfEachMember(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("%d members", n), func(t *testing.T) {
			dledgertest.Setup{Loss: dledgertest.LoseAll}.Run(t, n, func(c *dledgertest.Cluster) {
				stop := load(c, 4, 10*time.Millisecond)
				for _, id := range c.IDs() {
					time.Sleep(300 * time.Millisecond)
					c.Kill(id)
					time.Sleep(time.Second)
					c.Start(id)
					c.Leader()
				}
				time.Sleep(300 * time.Millisecond)
				acked := stop()
				last := c.Agree()
				t.Logf("%d entries acknowledged, log ends at %d", acked, last)
			})
		})
	}
}

// TestAcknowledgedEntriesOutliveRandomFaults lets crashes, partitions, one-way cuts, slow links, slow and hanging disks, hand-overs and planned
// restarts come as the seed has it.
func TestAcknowledgedEntriesOutliveRandomFaults(t *testing.T) {
	t.Parallel()
	runs := 8
	if testing.Short() {
		runs = 4
	}
	for i := range runs {
		n, compat := 3+2*(i%2), []dledger.Compat{dledger.CompatGo, dledger.CompatGo, dledger.Compat04, dledger.Compat03}[i%4]
		t.Run(fmt.Sprintf("%d, %d members, %v", i, n, compat), func(t *testing.T) {
			t.Parallel()
			setup := dledgertest.Setup{Config: func(_ string, c *dledger.Config) {
				c.Compat = compat
				c.DataFileSize, c.IndexFileSize = 16<<10, 32*64 // so that files roll
				c.Heartbeat, c.MinVoteInterval, c.MaxVoteInterval = 200*time.Millisecond, 50*time.Millisecond, 250*time.Millisecond
			}}
			setup.Run(t, n, func(c *dledgertest.Cluster) {
				c.Leader()
				stop, faults := load(c, 2, 30*time.Millisecond), 15
				for r := c.Rand(); faults > 0; faults-- {
					fault(c, r)
				}
				acked := stop()
				last := c.Agree()
				t.Logf("%d entries acknowledged, log ends at %d", acked, last)
				if acked < 50 {
					t.Errorf("only %d entries were acknowledged: there was next to nothing that could be lost", acked)
				}
			})
		})
	}
}

// fault does one bad thing for a while.
func fault(c *dledgertest.Cluster, r *rand.Rand) {
	ids := c.IDs()
	id, other := ids[r.IntN(len(ids))], ids[r.IntN(len(ids))]
	while := time.Duration(200+r.IntN(2000)) * time.Millisecond
	switch r.IntN(9) {
	case 0:
		c.Kill(id)
		time.Sleep(while)
		c.Start(id)
	case 1:
		c.Kill(ids...)
		time.Sleep(while)
		c.Start(ids...)
	case 2:
		c.Stop(id)
		c.Start(id)
	case 3:
		c.Partition([]string{id})
		time.Sleep(while)
		c.Heal()
	case 4:
		c.Partition([]string{id, other})
		time.Sleep(while)
		c.Heal()
	case 5:
		c.Cut(id, other)
		time.Sleep(while)
		c.Heal()
	case 6:
		c.Delay(id, other, 50*time.Millisecond)
		time.Sleep(while)
		c.Heal()
	case 7:
		c.Disk(id).Hang()
		time.Sleep(while)
		c.Disk(id).Resume()
	case 8:
		ctx, cancel := context.WithTimeout(c.T.Context(), while)
		_ = c.Leader().TransferLeadership(ctx, id) // to itself, to a member far behind: whatever it answers, nothing may be lost
		cancel()
	}
}

// TestConfirmAfterAnElectionSeesWhatWasAcknowledged: the new leader may not know yet what is committed, and must not answer before it does.
func TestConfirmAfterAnElectionSeesWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		dledgertest.Setup{Seed: seed + 1}.Run(t, 3, func(c *dledgertest.Cluster) {
			last := appendSome(c, 0, 50)
			old := c.Leader()
			c.Kill(old.ID)
			var l *dledgertest.Member
			c.Wait("a leader", func() bool {
				for _, m := range c.Running() {
					if m.IsLeader() {
						l = m
					}
				}
				return l != nil
			})
			i, err := l.Confirm(c.T.Context())
			if err != nil || i < last.Index {
				t.Fatalf("Confirm gives %d, %v; want at least %d", i, err, last.Index)
			}
			if e, err := l.Get(last.Index); err != nil || string(e.Body) != string(last.Body) {
				t.Errorf("Get gives %q, %v; want %q", e.Body, err, last.Body)
			}
		})
	}
}

func TestConfirmIsRefusedWithoutAMajority(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		f := c.Followers()[0]
		var not *dledger.NotLeaderError
		if _, err := f.Confirm(c.T.Context()); !errors.As(err, &not) || not.Leader != l.ID {
			t.Errorf("a follower says %v, want that %s leads", err, l.ID)
		}
		c.Partition([]string{l.ID})
		if i, err := l.Confirm(c.T.Context()); !errors.Is(err, dledger.ErrNotLeader) {
			t.Errorf("a leader behind a partition gives %d, %v; want ErrNotLeader", i, err)
		}
	})
}

func TestHandOverUnderLoadFailsNoAppend(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		lost := failingLoad(c, 3)
		for range 12 {
			time.Sleep(200 * time.Millisecond)
			to := c.Followers()[0].ID
			if err := c.Leader().TransferLeadership(c.T.Context(), to); err != nil {
				t.Errorf("transfer to %s: %v", to, err)
			}
			if got := c.Leader().ID; got != to {
				t.Errorf("%s leads, want %s", got, to)
			}
		}
		if n := lost(); n > 0 {
			t.Errorf("%d appends failed", n)
		}
		c.Agree()
	})
}

// TestPlannedStopFailsNoAppend: a leader that is closed hands over first, and answers what it had accepted.
func TestPlannedStopFailsNoAppend(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		lost := failingLoad(c, 3)
		for range 6 {
			time.Sleep(300 * time.Millisecond)
			old := c.Leader().ID
			begin := time.Now()
			c.Stop(old)
			if d := time.Since(begin); d > 300*time.Millisecond {
				t.Errorf("the stop took %v", d)
			}
			c.Leader()
			c.Start(old)
		}
		if n := lost(); n > 0 {
			t.Errorf("%d appends failed", n)
		}
		c.Agree()
	})
}

// failingLoad is load by clients that repeat an append only where it was refused. The returned function stops them and gives the number of
// appends that failed or were left undecided.
func failingLoad(c *dledgertest.Cluster, clients int) (stop func() int) {
	done := make(chan struct{})
	var all sync.WaitGroup
	failed := make([]int, clients)
	for k := range clients {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if _, err := c.Append(context.Background(), fmt.Appendf(nil, "client %d, entry %d", k, i)); err != nil {
					failed[k]++
					c.T.Logf("client %d, entry %d: %v", k, i, err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	return func() (n int) {
		close(done)
		all.Wait()
		for _, k := range failed {
			n += k
		}
		return n
	}
}

func TestPreferredMemberLeads(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.PreferredIDs = []string{"n2"} }}.Run(t, 3, func(c *dledgertest.Cluster) {
		c.Wait("n2 to lead", func() bool { return c.Leader().ID == "n2" })
		c.Kill("n2")
		appendSome(c, 0, 10)
		c.Start("n2")
		c.Wait("n2 to lead again", func() bool { return c.Leader().ID == "n2" })
		c.Agree()
	})
}

// TestWholeGroupStopsAndStarts: after a planned stop of all, and after a power failure of all, everything is there.
func TestWholeGroupStopsAndStarts(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Loss: dledgertest.LoseAll}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 30)
		c.Stop(c.IDs()...)
		c.Start(c.IDs()...)
		appendSome(c, 30, 60)
		c.Kill(c.IDs()...)
		c.Start(c.IDs()...)
		appendSome(c, 60, 90)
		synctest.Wait()
		c.Agree()
	})
}
