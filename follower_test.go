package dledger_test

import (
	"fmt"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

func TestWipedMemberCatchesUp(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			setup := dledgertest.Setup{Config: func(id string, c *dledger.Config) { small(id, c); c.Compat = compat }}
			setup.Run(t, 3, func(c *dledgertest.Cluster) {
				appendSome(c, 0, 300)
				f := c.Followers()[0].ID
				c.Wipe(f)
				last := appendSome(c, 300, 320)
				c.Start(f)
				c.WaitCommitted(last.Index, f)
				c.Agree()
			})
		})
	}
}

// expiring makes files that retention may delete under pressure whatever their age.
func expiring(compat dledger.Compat) func(string, *dledger.Config) {
	return func(id string, c *dledger.Config) {
		small(id, c)
		c.Compat = compat
		c.ForceClean = true
	}
}

// expire makes members delete old files, until their logs begin behind entry i.
func expire(c *dledgertest.Cluster, i dledger.Index, members ...*dledgertest.Member) {
	for _, m := range members {
		c.Disk(m.ID).SetUsed(0.88) // above what allows force, below what refuses appends
		c.Wait(m.ID+"'s old files to be deleted", func() bool {
			s, err := m.Status(c.T.Context())
			return err == nil && s.First > i
		})
		c.Disk(m.ID).SetUsed(-1)
	}
}

// TestFollowerBehindRetentionStartsWhereTheLeaderBegins: what it lacks is gone everywhere.
func TestFollowerBehindRetentionStartsWhereTheLeaderBegins(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		for _, state := range []string{"behind", "wiped"} {
			t.Run(fmt.Sprintf("%v, %s", compat, state), func(t *testing.T) {
				dledgertest.Setup{Config: expiring(compat)}.Run(t, 3, func(c *dledgertest.Cluster) {
					had := appendSome(c, 0, 20)
					c.WaitCommitted(had.Index)
					f := c.Followers()[0].ID
					if state == "wiped" {
						c.Wipe(f)
					} else {
						c.Kill(f)
					}
					for i := range 300 {
						if _, err := c.Append(c.T.Context(), fmt.Appendf(nil, "%d %0500d", i, i)); err != nil {
							c.T.Fatal(err)
						}
					}
					expire(c, had.Index+1, c.Running()...)
					c.Start(f)
					last := appendSome(c, 300, 310)
					c.WaitCommitted(last.Index, f)
					if s, err := c.Member(f).Status(c.T.Context()); err != nil || s.First <= had.Index {
						c.T.Errorf("the follower's log begins at %d, %v; want it behind %d", s.First, err, had.Index)
					}
					c.Agree()
					// It must be able to lead, and to be started again.
					c.Kill(f)
					c.Start(f)
					c.Leader()
					c.Wait(f+" to lead", func() bool {
						_ = c.Leader().TransferLeadership(c.T.Context(), f) // it may have to catch up first
						return c.Leader().ID == f
					})
					appendSome(c, 310, 320)
					c.Agree()
				})
			})
		}
	}
}

// TestRetentionDeletesAtItsHour: what is old enough goes at the hour that is set and not before.
func TestRetentionDeletesAtItsHour(t *testing.T) {
	t.Parallel()
	setup := dledgertest.Setup{Config: func(id string, c *dledger.Config) {
		small(id, c)
		c.ReservedHours, c.DeleteWhen = 2, fmt.Sprint(time.Now().Add(5*time.Hour).Hour())
		c.Heartbeat = time.Minute // nobody has to hear it
	}}
	setup.Run(t, 1, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 1000)
		m := c.Member("n0")
		first := func() dledger.Index {
			s, err := m.Status(c.T.Context())
			if err != nil {
				c.T.Fatal(err)
			}
			return s.First
		}
		time.Sleep(4*time.Hour + 50*time.Minute)
		if i := first(); i != 0 {
			c.T.Errorf("before its hour the log begins at %d, want 0", i)
		}
		time.Sleep(30 * time.Minute)
		i := first()
		if i == 0 {
			c.T.Fatal("at its hour nothing is deleted")
		}
		if _, err := m.Get(0); err == nil {
			c.T.Error("entry 0 can still be read")
		}
		e, err := m.Get(i)
		if err != nil || string(e.Body) != string(body(int(i))) {
			c.T.Errorf("entry %d is %q, %v", i, e.Body, err)
		}
	})
}

// TestLaggingFollowerCatchesUpFromDisk: what it lacks is no longer in the leader's memory.
func TestLaggingFollowerCatchesUpFromDisk(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			if testing.Short() && compat != dledger.CompatGo {
				t.Skip("JSON makes it slow")
			}
			dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.Compat = compat }}.Run(t, 3, func(c *dledgertest.Cluster) {
				f := c.Followers()[0].ID
				c.Kill(f)
				l := c.Leader()
				for i := range 20 {
					batch := make([][]byte, 64)
					for k := range batch {
						batch[k] = make([]byte, 16<<10)
						copy(batch[k], body(64*i+k))
					}
					if _, err := l.Propose(batch, nil).Wait(c.T.Context()); err != nil {
						c.T.Fatal(err)
					}
				}
				before := l.Stats().DiskReads
				c.Start(f)
				c.WaitCommitted(l.Commit(), f)
				if n := l.Stats().DiskReads - before; n == 0 {
					c.T.Error("nothing was read from disk")
				}
				c.Agree()
			})
		})
	}
}
