package dledger_test

import (
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// The quota holds a follower that is further behind than the throttle point, wherever the leader has the entries, in memory or on the disk, and no other one: neither one that is nearer, nor
// the group's other follower.
func TestQuotaHoldsOnlyFollowersThatAreFarBehind(t *testing.T) {
	const size, backlog = 8 << 10, 10 << 20
	for _, x := range []struct {
		name            string
		quota, throttle int64
		lo, hi          time.Duration // of the catch-up
	}{
		// 10 MiB less the last one, which is below the point, and less what may go at once at the beginning, at 1 MiB a second.
		{"far behind", 1 << 20, 1 << 20, 6 * time.Second, 10 * time.Second},
		{"not far enough", 1 << 20, 16 << 20, 0, 2 * time.Second},
		{"no quota", -1, 1 << 20, 0, 2 * time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
				if testing.Short() && compatOf(config) != dledger.CompatGo {
					t.Skip("JSON makes it slow")
				}
				dledgertest.Setup{Config: func(id string, c *dledger.Config) {
					config(id, c)
					c.PushQuota, c.PushThrottle = x.quota, x.throttle
				}}.Run(t, 3, func(c *dledgertest.Cluster) {
					appendSome(c, 0, 10)
					late := c.Followers()[0].ID
					c.Kill(late)
					l := c.Leader()
					var last dledger.Index
					for range backlog / (64 * size) {
						batch := make([][]byte, 64)
						for k := range batch {
							batch[k] = make([]byte, size)
						}
						done, err := l.Propose(batch, nil).Wait(c.T.Context())
						if err != nil {
							c.T.Fatal(err)
						}
						last = done.First + 63
					}
					c.Start(late)
					begin := time.Now()
					c.WaitCommitted(last, late)
					if took := time.Since(begin); took < x.lo || took > x.hi {
						c.T.Errorf("the catch-up took %v, want %v to %v", took, x.lo, x.hi)
					} else {
						c.T.Logf("the catch-up took %v", took)
					}
					c.Agree()
				})
			})
		})
	}
}
