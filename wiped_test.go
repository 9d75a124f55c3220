package dledger_test

import (
	"slices"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// TestWipedVoterElectsNobodyWhoMissesEntries: an acknowledged entry is on the leader and on one follower; that one loses its disk while the leader
// is down. The third does not have the entry, and must not be elected with the vote of the second, which knows nothing any more.
func TestWipedVoterElectsNobodyWhoMissesEntries(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		lead := c.Leader().ID
		wiped, stale := c.Followers()[0].ID, c.Followers()[1].ID
		c.Kill(stale)
		last := appendSome(c, 10, 20)
		c.Kill(lead, wiped)
		c.Wipe(wiped)
		c.Start(wiped, stale)
		for range 20 {
			time.Sleep(500 * time.Millisecond)
			for _, id := range []string{wiped, stale} {
				if c.Member(id).IsLeader() {
					t.Fatalf("%s leads without entry %d", id, last.Index)
				}
			}
		}
		if s := mustStatus(c, wiped); !s.Abstaining {
			t.Errorf("%s lost its disk and votes: %+v", wiped, s)
		}
		c.Start(lead)
		c.WaitCommitted(last.Index, lead, wiped, stale)
		c.Wait("the vote of the member that lost its disk", func() bool { return !mustStatus(c, wiped).Abstaining })
		c.Kill(c.Leader().ID)
		appendSome(c, 20, 30)
	})
}

// TestFirstStartNeedsOnlyAMajority: nobody has a past, and two of three that say so may begin.
func TestFirstStartNeedsOnlyAMajority(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		c.Kill("n0", "n1", "n2")
		for _, id := range []string{"n0", "n1", "n2"} {
			c.Wipe(id)
		}
		c.Start("n0", "n1")
		last := appendSome(c, 0, 10)
		c.Start("n2")
		c.WaitCommitted(last.Index, "n2")
	})
}

// TestMembersOfANewGroupMeetAtOnce: one that was up before the others could not reach them, and does not wait until it tries again by itself. Until it has met them
// it helps nobody to survive the loss of another.
func TestMembersOfANewGroupMeetAtOnce(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		ids := []string{"n0", "n1", "n2"}
		c.Kill(ids...)
		for _, id := range ids {
			c.Wipe(id)
		}
		c.Start("n1")
		time.Sleep(10 * time.Millisecond)
		c.Start("n0", "n2")
		began := time.Now()
		c.Wait("all to have met", func() bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return mustStatus(c, id).Abstaining })
		})
		if d := time.Since(began); d > 200*time.Millisecond {
			t.Errorf("they have met after %v", d)
		}
	})
}

// TestAsyncMemberWaitsAfterACrashOfItsMachine: it lost entries that it had acknowledged, and nothing on its disk says so.
func TestAsyncMemberWaitsAfterACrashOfItsMachine(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Loss: dledgertest.LoseAll, Config: async}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		time.Sleep(time.Second) // all is synced
		lead := c.Leader().ID
		crashed, stale := c.Followers()[0].ID, c.Followers()[1].ID
		c.Partition([]string{lead, crashed}, []string{stale})
		last := appendSome(c, 10, 20)
		c.Kill(crashed)
		c.Partition([]string{crashed, stale}, []string{lead})
		c.Start(crashed)
		if s := mustStatus(c, crashed); s.Last >= last.Index {
			c.T.Fatalf("%s has still all %d entries", crashed, s.Last+1)
		}
		for range 10 {
			time.Sleep(500 * time.Millisecond)
			if s := mustStatus(c, crashed); !s.Abstaining {
				c.T.Fatalf("%s votes: %+v", crashed, s)
			}
			for _, id := range []string{crashed, stale} {
				if m := c.Member(id); m.IsLeader() && m.Commit() < last.Index {
					c.T.Fatalf("%s leads without entry %d", id, last.Index)
				}
			}
		}
		c.Heal()
		c.WaitCommitted(last.Index)
		c.Agree()
	})
}

func mustStatus(c *dledgertest.Cluster, id string) dledger.Status {
	c.T.Helper()
	s, err := c.Member(id).Status(c.T.Context())
	if err != nil {
		c.T.Fatal(err)
	}
	return s
}
