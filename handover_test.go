package dledger_test

import (
	"testing"
	"time"

	"dledger/dledgertest"
)

// TestLeaderThatClosesHandsOverToAMemberThatAnswers, also if one that does not holds as much of the log.
func TestLeaderThatClosesHandsOverToAMemberThatAnswers(t *testing.T) {
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		e, err := c.Append(c.T.Context(), []byte("x"))
		if err != nil {
			c.T.Fatal(err)
		}
		c.WaitCommitted(e.Index)
		leader, f := c.Leader(), c.Followers()
		c.Partition([]string{f[0].ID})
		c.Wait("the leader to miss "+f[0].ID, func() bool {
			s, err := leader.Status(c.T.Context())
			if err != nil {
				c.T.Fatal(err)
			}
			for _, p := range s.Peers {
				if p.ID == f[0].ID {
					return p.Idle > 500*time.Millisecond
				}
			}
			return false
		})
		c.Stop(leader.ID)
		if !f[1].IsLeader() {
			c.T.Errorf("%s has stopped, and %s, which answered it, does not lead", leader.ID, f[1].ID)
		}
	})
}
