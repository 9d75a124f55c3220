package dledger_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/vfs"
)

// small makes data files of 16 KiB and index files to match.
func small(_ string, c *dledger.Config) { c.DataFileSize, c.IndexFileSize = 16<<10, 32*64 }

// TestFullDiskIsNamedAndRecoversWithoutRestart: once on the leader's disk, which refuses, once on a follower's, which does not matter.
func TestFullDiskIsNamedAndRecoversWithoutRestart(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("leader of %d", n), func(t *testing.T) {
			dledgertest.Setup{Config: small}.Run(t, n, func(c *dledgertest.Cluster) {
				appendSome(c, 0, 10)
				l := c.Leader()
				c.Disk(l.ID).SetFree(20 << 10)
				var full int
				for i := 10; ; i++ {
					_, err := l.Append(c.T.Context(), make([]byte, 1000))
					if errors.Is(err, dledger.ErrDiskFull) {
						full = i
						break
					}
					if err != nil || i > 200 {
						c.T.Fatalf("append %d: %v, want ErrDiskFull soon", i, err)
					}
				}
				if _, err := l.Append(c.T.Context(), body(full)); !errors.Is(err, dledger.ErrDiskFull) {
					c.T.Errorf("append to the full disk: %v, want ErrDiskFull", err)
				}
				if s, err := l.Status(c.T.Context()); err != nil || !s.DiskFull {
					c.T.Errorf("status %+v, %v, want a full disk", s, err)
				}
				if c.Leader() != l {
					c.T.Error("a full disk costs the leadership")
				}
				c.Disk(l.ID).SetFree(-1)
				// Where another member has room, leadership may have gone there just before; Agree shows that l stores again.
				c.Wait("appends to be taken again", func() bool {
					_, err := c.Leader().Append(c.T.Context(), body(full))
					return err == nil
				})
				appendSome(c, full, full+50)
				c.Agree()
			})
		})
	}
	t.Run("a follower", func(t *testing.T) {
		dledgertest.Setup{Config: small}.Run(t, 3, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 10)
			f := c.Followers()[0]
			c.Disk(f.ID).SetFree(20 << 10)
			var last dledger.Entry
			for i := range 100 {
				e, err := c.Append(c.T.Context(), make([]byte, 1000))
				if err != nil {
					c.T.Fatalf("append %d: %v", i, err)
				}
				last = e
			}
			if got := f.Commit(); got >= last.Index {
				c.T.Errorf("the full disk took entry %d", got)
			}
			c.Disk(f.ID).SetFree(-1)
			c.WaitCommitted(last.Index, f.ID)
			c.Agree()
		})
	})
}

// TestNearlyFullDiskRefusesAppends: by the ratios of the original, before anything fails; then a member that has room leads.
func TestNearlyFullDiskRefusesAppends(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		l := c.Leader()
		c.Disk(l.ID).SetUsed(0.91)
		var err error
		for end := time.Now().Add(3 * time.Second); err == nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			_, err = l.Append(c.T.Context(), body(10))
		}
		if !errors.Is(err, dledger.ErrDiskFull) {
			c.T.Errorf("append to a disk used to 91 %%: %v, want ErrDiskFull", err)
		}
		time.Sleep(2 * time.Second)
		if next := c.Leader(); next.ID == l.ID {
			c.T.Errorf("%s still leads without room", l.ID)
		}
		if _, err := l.Append(c.T.Context(), body(10)); !errors.Is(err, dledger.ErrNotLeader) {
			c.T.Errorf("append to the member without room: %v, want ErrNotLeader", err)
		}
		c.Disk(l.ID).SetUsed(-1)
		time.Sleep(2 * time.Second)
		if _, err := c.Append(c.T.Context(), body(10)); err != nil {
			c.T.Errorf("append after space came: %v", err)
		}
		c.Agree()
	})
}

// TestFailedSyncGivesLeadershipAway: what the failed sync should have made durable is acknowledged only if others hold it, and the member stores
// nothing more until it is restarted. Its disk works again at once, but nobody knows what it holds: however long it runs, and though the group would rather have it as its leader, it does
// not lead before its restart, and the one that leads is not disturbed; nor where the others hear nobody but it, and nobody else can lead. In each compat and durability.
func TestFailedSyncGivesLeadershipAway(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		compat     dledger.Compat
		durability dledger.Durability
		timeout    time.Duration // of an election, at most
	}{
		{dledger.CompatGo, dledger.Group, 800 * time.Millisecond},
		{dledger.CompatGo, dledger.Async, 800 * time.Millisecond},
		{dledger.Compat04, dledger.Group, 7 * time.Second},
		{dledger.Compat03, dledger.Group, 7 * time.Second},
	} {
		for variant := range 4 {
			preferred, between := variant&1 != 0, variant&2 != 0
			t.Run(fmt.Sprintf("%v, %v, preferred %t, between the others %t", k.compat, k.durability, preferred, between), func(t *testing.T) {
				t.Parallel()
				setup := dledgertest.Setup{Config: func(_ string, c *dledger.Config) {
					c.Compat, c.Durability = k.compat, k.durability
					if preferred {
						c.PreferredIDs = []string{"n1"}
					}
				}}
				setup.Run(t, 3, func(c *dledgertest.Cluster) {
					appendSome(c, 0, 10)
					if preferred {
						c.Wait("the preferred member to lead", func() bool { return c.Leader().ID == "n1" })
					}
					old := c.Leader()
					others := c.Followers()
					for _, f := range others {
						c.Cut(old.ID, f.ID)
					}
					c.Disk(old.ID).FailSync()
					if _, err := old.Append(c.T.Context(), body(10)); err == nil {
						c.T.Error("the append was acknowledged: no disk holds it")
					}
					watch := func() {
						for end := time.Now().Add(20 * k.timeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
							for _, m := range c.Running() {
								if m.Leader() == old.ID {
									c.T.Fatalf("%s has the member whose disk failed as its leader", m.ID)
								}
							}
						}
					}
					c.Heal()
					begin := time.Now()
					if between {
						c.Cut(others[0].ID, others[1].ID)
						c.Cut(others[1].ID, others[0].ID)
						c.Wait("the leader to give up", func() bool {
							return !slices.ContainsFunc(c.Running(), func(m *dledgertest.Member) bool { return m.Leader() == old.ID })
						})
						watch()
						for _, m := range c.Running() {
							if m.IsLeader() {
								c.T.Errorf("%s leads: who votes for it?", m.ID)
							}
						}
						c.Heal()
					}
					appendSome(c, 10, 20)
					if d := time.Since(begin); d > time.Second && !between {
						c.T.Errorf("the next leader's first append took %v", d)
					}
					next := c.Leader()
					before := mustStatus(c, next.ID)
					watch()
					if after := mustStatus(c, next.ID); after.Role != "leader" || after.Term != before.Term {
						c.T.Errorf("%s was leader of term %d, and is %s of term %d", next.ID, before.Term, after.Role, after.Term)
					}
					if _, err := old.Append(c.T.Context(), body(20)); err == nil || errors.Is(err, dledger.ErrTimeout) {
						c.T.Errorf("append at the member whose disk failed: %v, want a refusal", err)
					}
					if s := mustStatus(c, old.ID); s.Err == nil {
						c.T.Errorf("status tells of no failure: %+v", s)
					}
					c.Kill(old.ID)
					c.Start(old.ID)
					appendSome(c, 20, 30)
					if preferred {
						c.Wait("the preferred member to lead again", func() bool { return c.Leader().ID == "n1" })
					}
					c.Agree()
				})
			})
		}
	}
}

// said counts what members log at level Warn and above, by message.
type said struct {
	mu    sync.Mutex
	times map[string]int
}

func (s *said) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (s *said) WithAttrs([]slog.Attr) slog.Handler           { return s }
func (s *said) WithGroup(string) slog.Handler                { return s }
func (s *said) Handle(_ context.Context, r slog.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times[r.Message]++
	return nil
}

// spaceless is a file system that may not tell how much space there is.
type spaceless struct {
	vfs.FS
	fail atomic.Bool
}

func (s *spaceless) Space(path string) (vfs.Space, error) {
	if s.fail.Load() {
		return vfs.Space{}, syscall.EIO
	}
	return s.FS.Space(path)
}

// TestFailureIsLoggedOnce: a disk that failed is in the log once; what cannot be done on it any more, or fails again and again, is not told every second.
func TestFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{true, false} {
		t.Run(fmt.Sprintf("failed %t", failed), func(t *testing.T) {
			log := &said{times: map[string]int{}}
			spaceless := &spaceless{}
			setup := dledgertest.Setup{Config: func(_ string, c *dledger.Config) {
				spaceless.FS = c.FS
				c.FS, c.Logger = spaceless, slog.New(log)
			}}
			setup.Run(t, 1, func(c *dledgertest.Cluster) {
				appendSome(c, 0, 10)
				if failed {
					c.Disk("n0").FailSync()
					if _, err := c.Member("n0").Append(c.T.Context(), body(10)); err == nil {
						c.T.Error("the append was acknowledged: no disk holds it")
					}
				} else {
					spaceless.fail.Store(true)
				}
				time.Sleep(time.Minute)
				log.mu.Lock()
				defer log.mu.Unlock()
				if len(log.times) == 0 {
					c.T.Error("nothing is in the log")
				}
				for message, n := range log.times {
					if n > 1 {
						c.T.Errorf("%q is in the log %d times", message, n)
					}
				}
			})
		})
	}
}

// TestSingleMemberAcknowledgesNothingAfterAFailedSync: there is nobody to hand over to.
func TestSingleMemberAcknowledgesNothingAfterAFailedSync(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Loss: dledgertest.LoseAll}.Run(t, 1, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		m := c.Member("n0")
		c.Disk("n0").FailSync()
		for i := range 5 {
			if e, err := m.Append(c.T.Context(), body(10)); err == nil {
				c.T.Errorf("append %d was acknowledged as entry %d", i, e.Index)
			}
		}
		c.Kill("n0")
		c.Start("n0")
		appendSome(c, 10, 20)
		c.Agree()
	})
}

// TestLeaderWhoseDiskHangsIsReplaced: with syncs alone its heartbeats go on, so nobody but itself can notice; with writes, or new files, it stands still. In each compat.
func TestLeaderWhoseDiskHangsIsReplaced(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		for name, calls := range map[string]dledgertest.Calls{"syncs": dledgertest.Syncs, "syncs of directories": dledgertest.DirSyncs, "writes": dledgertest.Writes,
			"everything": dledgertest.Syncs | dledgertest.DirSyncs | dledgertest.Writes} {
			t.Run(fmt.Sprintf("%v, %s", compat, name), func(t *testing.T) {
				t.Parallel()
				limit := 4 * time.Second
				if compat != dledger.CompatGo { // the original's timers
					limit = 20 * time.Second
				}
				setup := dledgertest.Setup{Config: func(_ string, c *dledger.Config) {
					small("", c)
					c.Compat = compat
				}}
				setup.Run(t, 3, func(c *dledgertest.Cluster) {
					appendSome(c, 0, 10)
					old := c.Leader()
					begin := time.Now()
					c.Disk(old.ID).HangIn(calls)
					// The followers' disks are a majority: what is appended meanwhile is acknowledged.
					stop := load(c, 2, 20*time.Millisecond)
					c.Wait("another leader", func() bool { return c.Leader() != old })
					took := time.Since(begin)
					stop()
					if took > limit {
						c.T.Errorf("replaced after %v", took)
					}
					c.T.Logf("replaced after %v", took)
					appendSome(c, 10, 20)
					// Whoever still asks the old one is not held longer than it wishes, and is not told a lie.
					ctx, cancel := context.WithTimeout(c.T.Context(), time.Second)
					if e, err := old.Append(ctx, body(20)); err == nil {
						c.T.Errorf("the replaced leader acknowledged entry %d", e.Index)
					}
					cancel()
					if e, err := old.Get(0); err != nil || string(e.Body) != string(body(0)) {
						c.T.Errorf("the replaced leader gives entry 0 as %q, %v", e.Body, err)
					}
					c.Disk(old.ID).Resume()
					appendSome(c, 20, 30)
					c.Agree()
				})
			})
		}
	}
}

// TestSlowDisksShareSyncs: with 10 ms a sync, a hundred clients get through in the time of few syncs.
func TestSlowDisksShareSyncs(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{SyncTime: 10 * time.Millisecond}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 1) // makes the first files
		l := c.Leader()
		before, begin := l.Stats().Syncs, time.Now()
		var batches []*dledger.Pending
		for i := range 100 {
			batches = append(batches, l.Propose([][]byte{body(1 + i)}, nil))
			time.Sleep(100 * time.Microsecond)
		}
		for i, p := range batches {
			if _, err := p.Wait(c.T.Context()); err != nil {
				c.T.Errorf("append %d: %v", i, err)
			}
		}
		if n, d := l.Stats().Syncs-before, time.Since(begin); n > 5 || d > 60*time.Millisecond {
			c.T.Errorf("100 appends within 10 ms took %d syncs and %v", n, d)
		}
	})
}

// TestSlowDisksCostNoLeadership: an hour under load where each sync takes almost a second, of a directory as well. What is done beside the log meanwhile wants syncs, too:
// checkpoints, new files, the end of old ones. None of them adds up with those of the entries to a disk that hangs.
func TestSlowDisksCostNoLeadership(t *testing.T) {
	t.Parallel()
	span := 75 * time.Minute
	if testing.Short() {
		span = 10 * time.Minute
	}
	config := func(_ string, c *dledger.Config) {
		small("", c)
		c.ReservedHours, c.DiskCheckRatio = 1, 0.01
	}
	dledgertest.Setup{Config: config}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		l := c.Leader()
		for _, id := range c.IDs() {
			c.Disk(id).SetSyncTime(900 * time.Millisecond)
			c.Disk(id).SetUsed(0.5) // what is an hour old goes at once
		}
		before, _ := l.Status(c.T.Context())
		stop := load(c, 8, 50*time.Millisecond)
		time.Sleep(span)
		acked := stop()
		after, _ := l.Status(c.T.Context())
		if after.Term != before.Term || c.Leader() != l {
			t.Errorf("%s is %s of term %d, want leader of term %d", l.ID, after.Role, after.Term, before.Term)
		}
		if want := int(span / time.Second); acked < want {
			t.Errorf("%d appends acknowledged, want %d at least", acked, want)
		}
		s := l.Stats()
		if s.DataFiles < 2 || span > time.Hour && s.ExpiredFiles == 0 {
			t.Errorf("the log has %d files and %d were deleted; the test does not do what it is for", s.DataFiles, s.ExpiredFiles)
		}
		for _, id := range c.IDs() {
			c.Disk(id).SetSyncTime(0)
			c.Disk(id).SetUsed(0)
		}
		time.Sleep(time.Minute) // until the last round of retention is over: what it deletes cannot be compared
		c.Agree()
	})
}

func TestCancelledWaitLeavesTheAppendUndecided(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		ctx, cancel := context.WithTimeout(c.T.Context(), 50*time.Microsecond)
		defer cancel()
		if _, err := l.Append(ctx, body(0)); !errors.Is(err, context.DeadlineExceeded) {
			c.T.Errorf("got %v, want the context's error", err)
		}
		c.Wait("the entry to be committed all the same", func() bool {
			e, err := l.Get(0)
			return err == nil && string(e.Body) == string(body(0))
		})
	})
}
