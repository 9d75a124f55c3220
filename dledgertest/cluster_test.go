package dledgertest

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"dledger"
)

func some(c *Cluster, n int) (last dledger.Entry) {
	c.T.Helper()
	for i := range n {
		e, err := c.Append(c.T.Context(), fmt.Appendf(nil, "entry %d", i))
		if err != nil {
			c.T.Fatal(err)
		}
		last = e
	}
	return last
}

// TestMinuteOfClusterLifeTakesMilliseconds, and the virtual one a minute.
func TestMinuteOfClusterLifeTakesMilliseconds(t *testing.T) {
	begin := time.Now()
	Run(t, 3, func(c *Cluster) {
		virtual := time.Now()
		c.Leader()
		time.Sleep(time.Minute)
		if d := time.Since(virtual); d < time.Minute || d > time.Minute+time.Second {
			c.T.Errorf("%v have passed", d)
		}
	})
	t.Logf("%v", time.Since(begin))
	if d := time.Since(begin); d > 10*time.Second { // generous: the machine may be busy
		t.Errorf("it took %v", d)
	}
}

// TestKillLosesWhatWasNotSynced: on a single member with a sync under way.
func TestKillLosesWhatWasNotSynced(t *testing.T) {
	for _, k := range []struct {
		loss Loss
		want dledger.Index
	}{{LoseAll, 9}, {LoseNothing, 10}} {
		Setup{Loss: k.loss}.Run(t, 1, func(c *Cluster) {
			some(c, 10)
			c.Disk("n0").Hang()
			p := c.Member("n0").Propose([][]byte{[]byte("unsynced")}, nil)
			time.Sleep(100 * time.Millisecond)
			c.Kill("n0")
			c.Disk("n0").Resume()
			if _, err := p.Wait(c.T.Context()); err == nil {
				c.T.Error("an append was acknowledged by a dead member")
			}
			c.Start("n0")
			c.Leader()
			if got := c.Agree(); got < k.want || got > k.want+1 { // a no-op may follow
				c.T.Errorf("loss %d: the log ends at %d, want %d", k.loss, got, k.want)
			}
			s, err := c.Member("n0").Get(10)
			if have := err == nil && string(s.Body) == "unsynced"; have != (k.want == 10) {
				c.T.Errorf("loss %d: entry 10 is %q, %v", k.loss, s.Body, err)
			}
		})
	}
}

// TestFailingDiskTakesNoWrites, but what is on it can be read; a member whose disk fails does not start.
func TestFailingDiskTakesNoWrites(t *testing.T) {
	Run(t, 1, func(c *Cluster) {
		last := some(c, 10)
		m := c.Member("n0")
		c.Disk("n0").Fail(syscall.EROFS)
		if e, err := m.Append(c.T.Context(), []byte("x")); err == nil {
			c.T.Errorf("entry %d is acknowledged by a disk that takes no writes", e.Index)
		}
		if e, err := m.Get(last.Index); err != nil || string(e.Body) != "entry 9" {
			c.T.Errorf("the last entry is %q, %v", e.Body, err)
		}
		c.Kill("n0")
		if err := c.TryStart("n0"); !errors.Is(err, syscall.EROFS) {
			c.T.Errorf("a start on this disk says %v, want EROFS", err)
		}
		c.Disk("n0").Fail(nil)
		c.Start("n0")
		some(c, 10)
		c.Agree()
	})
}

func TestWipedMemberBeginsEmpty(t *testing.T) {
	Run(t, 3, func(c *Cluster) {
		last := some(c, 10)
		f := c.Followers()[0].ID
		c.Wipe(f)
		c.Partition([]string{f})
		c.Start(f)
		if i := c.Member(f).Commit(); i >= 0 {
			c.T.Errorf("it has committed %d", i)
		}
		c.Heal()
		c.WaitCommitted(last.Index, f)
	})
}

func TestPartitionSeparatesGroups(t *testing.T) {
	Run(t, 5, func(c *Cluster) {
		some(c, 5)
		c.Partition([]string{"n0", "n1"})
		c.Wait("a leader among the three", func() bool {
			l := c.leader()
			return l != nil && l.ID != "n0" && l.ID != "n1"
		})
		last := some(c, 5)
		time.Sleep(10 * time.Second)
		for _, id := range []string{"n0", "n1"} {
			if i := c.Member(id).Commit(); i >= last.Index {
				c.T.Errorf("%s has heard of entry %d", id, i)
			}
		}
		c.Partition([]string{"n0", "n1"}, []string{"n2"})
		ctx, cancel := context.WithTimeout(c.T.Context(), 10*time.Second)
		defer cancel()
		if e, err := c.Append(ctx, []byte("x")); err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, dledger.ErrTimeout) && !errors.Is(err, dledger.ErrLeadershipLost) {
			c.T.Errorf("two of five acknowledge: entry %d, %v", e.Index, err)
		}
		c.Agree()
	})
}

func TestStartingTwiceIsRefused(t *testing.T) {
	Run(t, 1, func(c *Cluster) {
		if err := c.TryStart("n0"); err == nil {
			c.T.Error("n0 runs twice")
		}
		if err := c.TryStart("n7"); err == nil {
			c.T.Error("n7 runs")
		}
	})
}

func TestConfigIsAppliedAtEachStart(t *testing.T) {
	starts := map[string]int{}
	setup := Setup{Config: func(id string, c *dledger.Config) {
		starts[id]++
		c.Heartbeat = time.Duration(starts[id]) * 10 * time.Millisecond
	}}
	setup.Run(t, 3, func(c *Cluster) {
		some(c, 1)
		c.Stop("n1")
		c.Start("n1")
		c.Kill("n1")
		c.Start("n1")
		c.Agree()
	})
	if starts["n0"] != 1 || starts["n1"] != 3 {
		t.Errorf("configured %v, want n0 once and n1 three times", starts)
	}
}
