package dledgertest

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestAcknowledgedEntriesOutliveTheirLeader(t *testing.T) {
	Run(t, 3, func(c *Cluster) {
		for i := range 100 {
			if _, err := c.Append(context.Background(), fmt.Appendf(nil, "entry %d", i)); err != nil {
				t.Fatal(err)
			}
		}
		c.Kill(c.Leader().ID)
		begin := time.Now()
		c.Leader()
		c.T.Logf("a new leader after %v", time.Since(begin))
		c.Agree()
	})
}
