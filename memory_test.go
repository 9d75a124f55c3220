package dledger_test

import (
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// A group whose logs are in memory alone works like any other. A member that was killed comes back as one that lost its disk: it gets everything from the leader, and until then it neither
// votes nor counts, where the others can be asked for a past (compat go).
func TestLogsInMemoryOutliveTheKillOfOneMember(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		dledgertest.Setup{Config: func(id string, c *dledger.Config) {
			config(id, c)
			c.FS, c.Memory = nil, true
		}}.Run(t, 3, func(c *dledgertest.Cluster) {
			last := appendSome(c, 0, 50)
			c.WaitCommitted(last.Index)
			for k, id := range c.IDs() { // each in turn, a leader among them
				c.Kill(id)
				last = appendSome(c, 50+20*k, 60+20*k)
				c.Start(id)
				last = appendSome(c, 60+20*k, 70+20*k)
				c.WaitCommitted(last.Index)
				c.Wait(id+" to count again", func() bool { return !mustStatus(c, id).Abstaining })
				for i := range 50 {
					if e, err := c.Member(id).Get(dledger.Index(i)); err != nil || string(e.Body) != string(body(i)) {
						c.T.Fatalf("%s, entry %d: %q, %v", id, i, e.Body, err)
					}
				}
			}
			c.Agree()
		})
	})
}

// In memory too, the acknowledged entries of a leader that is down are not replaced with the help of a member that came back without anything.
func TestMemberThatLostItsMemoryElectsNobody(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.FS, c.Memory = nil, true }}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		lead, empty, stale := c.Leader().ID, c.Followers()[0].ID, c.Followers()[1].ID
		c.Partition([]string{stale})
		last := appendSome(c, 10, 20)
		c.Kill(empty)
		c.Partition([]string{lead}, []string{empty, stale})
		c.Start(empty)
		for range 20 {
			time.Sleep(500 * time.Millisecond)
			for _, id := range []string{empty, stale} {
				if c.Member(id).IsLeader() {
					c.T.Fatalf("%s leads without entry %d", id, last.Index)
				}
			}
		}
		c.Heal()
		c.WaitCommitted(last.Index)
		c.Agree()
	})
}
