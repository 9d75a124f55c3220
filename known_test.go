package dledger_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// The known cases: situations in which replicated logs have gone wrong, each with what has to come out. docs/testing.md lists all of them.

// everyCompat runs a case once for each dialect.
func everyCompat(t *testing.T, f func(t *testing.T, config func(string, *dledger.Config))) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			f(t, func(_ string, c *dledger.Config) { c.Compat = compat })
		})
	}
}

// electionTime is the longest silence of a leader that followers bear, and the longest pause of a candidate.
func electionTime(config func(string, *dledger.Config)) time.Duration {
	var c dledger.Config
	if config("n0", &c); c.Compat == dledger.CompatGo {
		return 3*200*time.Millisecond + 250*time.Millisecond
	}
	return 3*2*time.Second + time.Second
}

// batches appends n entries at the leader, a hundred at a time.
func batches(c *dledgertest.Cluster, n int) {
	c.T.Helper()
	l := c.Leader()
	for i := 0; i < n; i += 100 {
		var batch [][]byte
		for k := range 100 {
			batch = append(batch, body(i+k))
		}
		if _, err := l.Propose(batch, nil).Wait(c.T.Context()); err != nil {
			c.T.Fatalf("append %d: %v", i, err)
		}
	}
}

// setTerm makes a member that does not run believe that it has seen this term.
func setTerm(c *dledgertest.Cluster, id string, term dledger.Term) {
	c.T.Helper()
	text := fmt.Sprintf("voteLeader=\ncurrTerm=%d\n", term)
	text += fmt.Sprintf("#crc32c=%08x\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
	f, err := c.Disk(id).Mem().OpenFile("/"+id+"/dledger-"+id+"/currterm", os.O_RDWR|os.O_TRUNC)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		c.T.Fatal(err)
	}
}

func elections(c *dledgertest.Cluster) (n int64) {
	for _, m := range c.Running() {
		n += m.Stats().Elections
	}
	return n
}

// A follower is cut off for 20 election time-outs while 10,000 entries are appended. It comes back in the term it knew, or in a much higher one: within
// 5 s it follows, all are in one term, and there was at most one election more.
func TestFollowerCutOffForLongFollowsWithinFiveSeconds(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		for _, higher := range []bool{false, true} {
			dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
				appendSome(c, 0, 10)
				f := c.Followers()[0].ID
				before := mustStatus(c, c.Leader().ID)
				c.Partition([]string{f})
				begin := time.Now()
				batches(c, 10_000)
				time.Sleep(time.Until(begin.Add(20 * electionTime(config))))
				if higher {
					c.Kill(f)
					setTerm(c, f, before.Term+20)
					c.Start(f)
					time.Sleep(time.Second)
				}
				held := elections(c)
				c.Heal()
				time.Sleep(5 * time.Second)
				l := c.Leader()
				s := mustStatus(c, f)
				if s.Role != "follower" || s.Leader != l.ID {
					c.T.Errorf("after 5 s %s is %s and follows %q, want %s", f, s.Role, s.Leader, l.ID)
				}
				for _, m := range c.Running() {
					if got, want := mustStatus(c, m.ID).Term, mustStatus(c, l.ID).Term; got != want {
						c.T.Errorf("%s is in term %d, the leader in %d", m.ID, got, want)
					}
				}
				if n := elections(c) - held; n > 1 || n > 0 && !higher {
					c.T.Errorf("%d elections more (term higher: %t)", n, higher)
				}
				c.WaitCommitted(before.Last+10_000, f)
				c.Agree()
			})
		}
	})
}

// Figure 8 of the Raft paper, with n0 as S1 to n4 as S5: an entry of an earlier term on a majority is not committed by that, since S5 may still replace it; once an
// entry of S1's own term lies behind it on a majority, S5 can no longer win. In compat 0.3 leaders write no entries of their own accord, so both ends can be had; in the others
// S1's no-op decides at once.
func TestFigure8CommitsNothingThatIsReplaced(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		for _, replaced := range []bool{true, false} {
			stands := map[string]bool{"n0": true} // who may lead
			setup := dledgertest.Setup{Loss: dledgertest.LoseNothing, Config: func(id string, c *dledger.Config) {
				config(id, c)
				c.NoElection = !stands[id]
			}}
			setup.Run(t, 5, func(c *dledgertest.Cluster) {
				if replaced && compatOf(config) != dledger.Compat03 {
					return
				}
				durable := func(id string, i dledger.Index) {
					c.T.Helper()
					c.Wait(fmt.Sprintf("entry %d on the disk of %s", i, id), func() bool { return mustStatus(c, id).Durable >= i })
				}
				// (a) S1 leads and brings entry 1 to S2 alone.
				last := appendSome(c, 0, 1)
				c.WaitCommitted(last.Index)
				i := last.Index + 1
				c.Partition([]string{"n0", "n1"}, []string{"n2", "n3", "n4"})
				first := c.Member("n0").Propose([][]byte{[]byte("of S1")}, nil)
				durable("n0", i)
				durable("n1", i)
				c.Kill("n0", "n1")
				// (b) S5 leads with the votes of S3 and S4, and stores another entry 1, alone.
				stands["n4"] = true
				c.Kill("n4")
				c.Start("n4")
				if l := c.Leader(); l.ID != "n4" {
					c.T.Fatalf("%s leads, want n4", l.ID)
				}
				c.Partition([]string{"n4"}, []string{"n0", "n1", "n2", "n3"})
				second := c.Member("n4").Propose([][]byte{[]byte("of S5")}, nil)
				durable("n4", i)
				c.Kill("n4")
				// (c) S1 leads again and brings its entry 1 to S3: it is on a majority.
				c.Start("n0", "n1")
				if l := c.Leader(); l.ID != "n0" {
					c.T.Fatalf("%s leads, want n0", l.ID)
				}
				durable("n2", i)
				time.Sleep(20 * electionTime(config))
				own := compatOf(config) != dledger.Compat03 // S1 has written an entry of its own
				if got := c.Member("n0").Commit(); own && got <= i || !own && got >= i {
					c.T.Fatalf("the commit index is %d (no-op written: %t)", got, own)
				}
				if !replaced {
					if _, err := c.Member("n0").Append(c.T.Context(), []byte("of S1's later term")); err != nil {
						c.T.Fatal(err)
					}
				}
				c.Kill("n0")
				c.Heal()
				// (d) S5 comes back: it wins unless an entry of S1's later term is on a majority (e).
				c.Start("n4")
				if replaced {
					c.Wait("n4 to lead", func() bool { return c.Leader().ID == "n4" })
					appendSome(c, 1, 2)
				} else {
					time.Sleep(20 * electionTime(config))
					if c.Member("n4").IsLeader() {
						c.T.Error("S5 leads without what is committed")
					}
				}
				c.Start("n0")
				c.Agree()
				want := "of S1"
				if replaced {
					want = "of S5"
				}
				for _, m := range c.Running() {
					if e, err := m.Get(i); err != nil || string(e.Body) != want {
						c.T.Errorf("%s: entry %d is %q, %v; want %q", m.ID, i, e.Body, err, want)
					}
				}
				for _, p := range []*dledger.Pending{first, second} {
					if e, err := p.Wait(c.T.Context()); err == nil {
						c.T.Errorf("entry %d of term %d was acknowledged", e.First, e.Term)
					}
				}
			})
		}
	})
}

func compatOf(config func(string, *dledger.Config)) dledger.Compat {
	var c dledger.Config
	config("", &c)
	return c.Compat
}

// The leader is killed when its last entry is on a majority and nobody knows; and nobody writes afterwards. Within an election and 2 s the next leader answers
// confirmed reads and takes appends, and the entry is everywhere or nowhere. In compat 0.3, where a leader writes nothing of its own accord, it takes the append
// first: docs/adr/0005.
func TestNewLeaderServesThoughNobodyWrites(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		for _, on := range []int{1, 2} { // of the followers
			dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
				last := appendSome(c, 0, 10)
				c.WaitCommitted(last.Index)
				old, fs := c.Leader(), c.Followers()
				for i, f := range fs {
					if c.Cut(f.ID, old.ID); i >= on {
						c.Cut(old.ID, f.ID)
					}
				}
				p := old.Propose([][]byte{[]byte("the tail")}, nil)
				for _, f := range fs[:on] {
					c.Wait(f.ID+" to have the tail", func() bool { return mustStatus(c, f.ID).Durable > last.Index })
				}
				if old.Commit() > last.Index {
					c.T.Fatal("the tail is committed")
				}
				c.Kill(old.ID)
				c.Heal()
				begin, limit := time.Now(), electionTime(config)+2*time.Second
				l := c.Leader()
				if compatOf(config) == dledger.Compat03 {
					appendSome(c, 10, 11)
				}
				if i, err := l.Confirm(c.T.Context()); err != nil || i <= last.Index {
					c.T.Errorf("a read is confirmed to %d, %v; want behind %d", i, err, last.Index)
				}
				if d := time.Since(begin); d > limit {
					c.T.Errorf("reads are answered %v after the kill, want %v at most", d, limit)
				}
				appendSome(c, 11, 12)
				if d := time.Since(begin); d > limit {
					c.T.Errorf("appends are taken %v after the kill, want %v at most", d, limit)
				}
				c.Start(old.ID)
				c.Agree()
				if _, err := p.Wait(c.T.Context()); err == nil {
					c.T.Error("the killed leader acknowledged the tail")
				}
				if e, err := l.Get(last.Index + 1); err != nil || string(e.Body) != "the tail" {
					c.T.Errorf("behind the last acknowledged entry lies %q, %v; a majority had the tail", e.Body, err)
				}
			})
		}
	})
}

// A leader cut off from the majority acknowledges nothing and confirms no read; what it stored meanwhile is gone after the healing.
func TestTailOfALeaderCutOffIsGone(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		dledgertest.Setup{Config: config}.Run(t, 5, func(c *dledgertest.Cluster) {
			last := appendSome(c, 0, 10)
			c.WaitCommitted(last.Index)
			old, near := c.Leader(), c.Followers()[0]
			c.Partition([]string{old.ID, near.ID})
			var tries sync.WaitGroup
			for k := range 40 {
				tries.Go(func() {
					time.Sleep(time.Duration(k) * electionTime(config) / 10)
					if e, err := old.Append(c.T.Context(), fmt.Appendf(nil, "lost %d", k)); err == nil {
						c.T.Errorf("the leader without a majority acknowledges entry %d", e.Index)
					}
				})
				tries.Go(func() {
					time.Sleep(time.Duration(k) * electionTime(config) / 10)
					if i, err := old.Confirm(c.T.Context()); err == nil {
						c.T.Errorf("the leader without a majority confirms reads up to %d", i)
					}
				})
			}
			c.Wait("a tail on both", func() bool { return mustStatus(c, near.ID).Last > last.Index })
			c.Wait("another leader", func() bool { l := c.Leader(); return l != old })
			appendSome(c, 10, 20)
			tries.Wait()
			c.Heal()
			end := c.Agree()
			for i := range end + 1 {
				if e, err := old.Get(i); err != nil || strings.HasPrefix(string(e.Body), "lost") {
					c.T.Errorf("entry %d is %q, %v", i, e.Body, err)
				}
			}
		})
	})
}

// A follower loses its disk while nobody appends: it has everything again within 10 s of its start, and no majority counts it before.
func TestWipedFollowerOfAnIdleLeaderCountsOnceItIsWhole(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
			batches(c, 2000)
			last := appendSome(c, 2000, 2001)
			c.WaitCommitted(last.Index)
			time.Sleep(time.Minute)
			f, other := c.Followers()[0].ID, c.Followers()[1].ID
			c.Wipe(f)
			c.Start(f)
			begin := time.Now()
			c.WaitCommitted(last.Index, f)
			if d := time.Since(begin); d > 10*time.Second {
				c.T.Errorf("it caught up after %v", d)
			}
			// Once more, with nobody else and over a long line: an append is acknowledged when it has all of the log, and not before.
			l := c.Leader()
			c.Delay(l.ID, f, 100*time.Millisecond)
			c.Wipe(f)
			c.Start(f)
			var set dledger.Config
			if config(f, &set); set.Compat == dledger.CompatGo {
				c.Cut(l.ID, other)
				c.Cut(other, l.ID) // it is not there for the leader, but can be asked for its term
			} else {
				c.Kill(other)
			}
			begin = time.Now()
			e, err := l.Append(c.T.Context(), body(2001))
			if err != nil {
				c.T.Fatal(err)
			}
			if s := mustStatus(c, f); s.Durable < e.Index || s.First > 0 {
				c.T.Errorf("entry %d is acknowledged, %s has %d to %d", e.Index, f, s.First, s.Durable)
			}
			if d := time.Since(begin); d < 200*time.Millisecond {
				c.T.Errorf("acknowledged after %v: the log cannot have been there", d)
			}
			c.Heal()
			c.Agree()
		})
	})
}

// The files that a follower needs next are deleted while it catches up: it goes on at the leader's first entry.
func TestFilesDeletedDuringTheCatchUp(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			setup := dledgertest.Setup{Config: func(id string, c *dledger.Config) {
				expiring(compat)(id, c)
				c.DataFileSize, c.IndexFileSize = 1<<20, 32<<10
			}}
			setup.Run(t, 3, func(c *dledgertest.Cluster) {
				had := appendSome(c, 0, 20)
				c.WaitCommitted(had.Index)
				l, f := c.Leader(), c.Followers()[0].ID
				c.Kill(f)
				const count, size = 1200, 16 << 10
				for i := 0; i < count; i += 40 {
					var batch [][]byte
					for k := range 40 {
						batch = append(batch, make([]byte, size))
						copy(batch[k], body(i+k))
					}
					if _, err := l.Propose(batch, nil).Wait(c.T.Context()); err != nil {
						c.T.Fatal(err)
					}
				}
				c.Limit(l.ID, f, 1<<20)
				c.Start(f)
				c.Wait("the catch-up to be under way", func() bool { return mustStatus(c, f).Last > had.Index+40 })
				expire(c, had.Index+count-200, slices.DeleteFunc(c.Running(), func(m *dledgertest.Member) bool { return m.ID == f })...)
				if s := mustStatus(c, f); s.Last > had.Index+count-200 {
					c.T.Fatalf("the catch-up is over before the files are gone: %d", s.Last)
				}
				c.Limit(l.ID, f, 0)
				last := appendSome(c, 600, 610)
				c.WaitCommitted(last.Index, f)
				if s := mustStatus(c, f); s.First <= had.Index {
					c.T.Errorf("the follower's log begins at %d", s.First)
				}
				c.Agree()
				c.Stop(f)
				c.Start(f)
				c.WaitCommitted(last.Index, f)
				c.Agree()
			})
		})
	}
}

// Only the link between two members is cut, one way or both, for a minute: at most one change of leader, the term grows by two at most, and appends go on.
func TestOneLinkLessCostsOneElectionAtMost(t *testing.T) {
	span := time.Minute
	if testing.Short() {
		span = 20 * time.Second
	}
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		for _, n := range []int{3, 5} {
			for _, ends := range []string{"leader-follower", "follower-leader", "leader=follower", "follower-follower", "follower=follower"} {
				dledgertest.Setup{Config: config}.Run(t, n, func(c *dledgertest.Cluster) {
					appendSome(c, 0, 10)
					l, f := c.Leader(), c.Followers()
					from, to := l.ID, f[0].ID
					if strings.HasPrefix(ends, "follower") {
						from = f[0].ID
						if to = f[1].ID; strings.HasSuffix(ends, "leader") {
							to = l.ID
						}
					}
					before, held := mustStatus(c, l.ID).Term, elections(c)
					if c.Cut(from, to); strings.Contains(ends, "=") {
						c.Cut(to, from)
					}
					longest := time.Duration(0)
					for end := time.Now().Add(span); time.Now().Before(end); {
						begin := time.Now()
						appendSome(c, 10, 11)
						longest = max(longest, time.Since(begin))
						time.Sleep(250 * time.Millisecond)
					}
					after := mustStatus(c, c.Leader().ID).Term
					if e := elections(c) - held; e > 1 || after > before+2 || longest > electionTime(config)+2*time.Second {
						c.T.Errorf("%d members, %s: %d elections, term %d to %d, longest append %v", n, ends, e, before, after, longest)
					}
					c.Heal()
					time.Sleep(10 * time.Second)
					if e := elections(c) - held; e > 1 {
						c.T.Errorf("%d members, %s: healing costs an election", n, ends)
					}
					c.Agree()
				})
			}
		}
	})
}

// A follower at 256 KiB a second gets four times that: how long the clients wait and how far the other follower is behind stay as they were.
func TestSlowFollowerSlowsNobodyElse(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		if testing.Short() && compatOf(config) != dledger.CompatGo {
			t.Skip("JSON makes it slow")
		}
		dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
			l, slow, other := c.Leader(), c.Followers()[0], c.Followers()[1]
			before := mustStatus(c, l.ID)
			measure := func(span time.Duration) (p99 time.Duration, lag dledger.Index) {
				c.T.Helper()
				var mu sync.Mutex
				var took []time.Duration
				var clients sync.WaitGroup
				end := time.Now().Add(span)
				for k := range 4 {
					clients.Go(func() {
						for i := 0; time.Now().Before(end); i++ {
							b := make([]byte, 8<<10)
							copy(b, fmt.Sprintf("client %d, entry %d", k, i))
							begin := time.Now()
							_, err := l.Append(c.T.Context(), b)
							d := time.Since(begin)
							if err != nil {
								c.T.Errorf("client %d, entry %d: %v", k, i, err)
								return
							}
							mu.Lock()
							took, lag = append(took, d), max(lag, l.Commit()-other.Commit())
							mu.Unlock()
							time.Sleep(31 * time.Millisecond)
						}
					})
				}
				clients.Wait()
				slices.Sort(took)
				return took[len(took)*99/100], lag
			}
			calm, near := measure(10 * time.Second)
			had := slow.Commit()
			c.Limit(l.ID, slow.ID, 256<<10)
			p99, lag := measure(20 * time.Second)
			c.T.Logf("p99 %v, then %v; lag of the other %d, then %d; the slow one has %d of %d", calm, p99, near, lag, slow.Commit(), l.Commit())
			if n := slow.Commit() - had; n < 250 || slow.Commit() > l.Commit()-500 {
				c.T.Errorf("the slow follower has got %d entries of %d", n, l.Commit()-had)
			}
			if p99 > calm+calm/5 || lag > near+10 {
				c.T.Errorf("p99 %v, before %v; lag %d entries, before %d", p99, calm, lag, near)
			}
			c.Heal()
			c.Agree()
			if s := mustStatus(c, l.ID); s.Term != before.Term || s.Role != "leader" {
				c.T.Errorf("%s is %s of term %d, was leader of term %d", l.ID, s.Role, s.Term, before.Term)
			}
		})
	})
}

// The leader's disk becomes read-only, or fails every write: another member leads, and that one not again before a restart on a disk that is well.
func TestLeaderWhoseDiskTakesNoWritesIsReplaced(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		for _, broken := range []error{syscall.EROFS, syscall.EIO} {
			for _, preferred := range []bool{false, true} {
				setup := dledgertest.Setup{Config: func(id string, c *dledger.Config) {
					if config(id, c); preferred {
						c.PreferredIDs = []string{"n2"}
					}
				}}
				setup.Run(t, 3, func(c *dledgertest.Cluster) {
					appendSome(c, 0, 10)
					if preferred {
						c.Wait("n2 to lead", func() bool { return c.Leader().ID == "n2" })
					}
					old := c.Leader()
					c.Disk(old.ID).Fail(broken)
					begin := time.Now()
					for i := 10; ; i++ {
						if _, err := c.Append(c.T.Context(), body(i)); err == nil {
							break
						} else if !errors.Is(err, dledger.ErrUndecided) {
							c.T.Fatal(err)
						}
					}
					c.Wait("another leader", func() bool { return c.Leader() != old })
					if d := time.Since(begin); d > 5*electionTime(config) {
						c.T.Errorf("%v: replaced after %v", broken, d)
					}
					for range 100 {
						appendSome(c, 20, 21)
						time.Sleep(electionTime(config) / 5)
						if old.IsLeader() {
							c.T.Fatalf("%v: %s leads again", broken, old.ID)
						}
					}
					if n := elections(c); n > 4 {
						c.T.Errorf("%v: %d elections", broken, n)
					}
					c.Kill(old.ID)
					if err := c.TryStart(old.ID); err == nil {
						c.T.Errorf("%v: it starts on this disk", broken)
					}
					c.Disk(old.ID).Fail(nil)
					c.Start(old.ID)
					if preferred {
						c.Wait("n2 to lead again", func() bool { return c.Leader().ID == "n2" })
					}
					appendSome(c, 30, 40)
					c.Agree()
				})
			}
		}
	})
}

// A follower with a backlog gets it over a link of 256 KiB a second in little more than the time that it takes.
func TestBacklogPassesASlowLink(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
			last := appendSome(c, 0, 10)
			c.WaitCommitted(last.Index)
			l, f := c.Leader(), c.Followers()[0].ID
			c.Kill(f)
			for range 80 {
				batch := make([][]byte, 10)
				for k := range batch {
					batch[k] = make([]byte, 10<<10)
				}
				if _, err := l.Propose(batch, nil).Wait(c.T.Context()); err != nil {
					c.T.Fatal(err)
				}
			}
			c.Limit(l.ID, f, 256<<10)
			c.Start(f)
			begin := time.Now()
			c.WaitCommitted(last.Index+800, f)
			d := time.Since(begin)
			if d > 50*time.Second { // 31 s of entries, 42 s of JSON
				c.T.Errorf("8,000 KiB took %v", d)
			}
		})
	})
}
