package dledger_test

import (
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// led waits for a leader as long as d.
func led(c *dledgertest.Cluster, d time.Duration) (took time.Duration, ok bool) {
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(10 * time.Millisecond) { // virtual
		for _, m := range c.Running() {
			if m.IsLeader() {
				return time.Since(begin), true
			}
		}
	}
	return d, false
}

// An answer that is longer on its way than a candidate waits at first counts for nothing; so candidates wait longer and longer.
func TestGroupsElectOverLongLinks(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat03} {
		for _, delay := range []time.Duration{40, 60, 100, 150} { // one way
			delay *= time.Millisecond
			set := func(_ string, c *dledger.Config) { c.Compat = compat }
			dledgertest.Setup{Delay: delay, Config: set}.Run(t, 3, func(c *dledgertest.Cluster) {
				first, ok := led(c, time.Minute)
				if !ok {
					t.Fatalf("compat %v, %v one way: no leader in a minute", compat, delay)
				}
				l := c.Leader()
				c.Kill(l.ID)
				again, ok := led(c, time.Minute)
				if !ok {
					t.Fatalf("compat %v, %v one way: no other leader in a minute", compat, delay)
				}
				t.Logf("compat %v, %v one way: a leader after %v, and another %v after its end", compat, delay, first, again)
			})
		}
	}
}

// So it is where candidate and voter need long to save a term.
func TestGroupsElectOnSlowDisks(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{200, 400, 800} {
		took *= time.Millisecond
		dledgertest.Setup{SyncTime: took}.Run(t, 3, func(c *dledgertest.Cluster) {
			after, ok := led(c, 3*time.Minute)
			if !ok {
				t.Fatalf("%v a sync: no leader in three minutes", took)
			}
			t.Logf("%v a sync: a leader after %v", took, after)
		})
	}
}

// A quota that a request of usual size would use up for longer than a leader waits for its answer.
func TestFollowerWithALowQuotaCatchesUp(t *testing.T) {
	t.Parallel()
	set := func(_ string, c *dledger.Config) { c.PushQuota, c.PushThrottle = 512<<10, 1<<20 }
	dledgertest.Setup{Config: set}.Run(t, 3, func(c *dledgertest.Cluster) {
		f := c.Followers()[0]
		c.Kill(f.ID)
		var last dledger.Entry
		for range 40 << 20 / (64 << 10) { // more than is cached
			e, err := c.Append(c.T.Context(), make([]byte, 64<<10))
			if err != nil {
				t.Fatal(err)
			}
			last = e
		}
		begin := time.Now()
		c.Start(f.ID)
		m := c.Member(f.ID)
		for m.Commit() < last.Index {
			if time.Since(begin) > 5*time.Minute {
				t.Fatalf("after five minutes it ends at %d of %d", m.Commit(), last.Index)
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begin); took < 30*time.Second {
			t.Errorf("40 MiB at 512 KiB a second came in %v", took)
		}
	})
}

// Two members whose disks have no free byte while they elect a leader, and one that starts on such a disk: a term is saved all the same, and nobody has to be started again.
func TestElectionsGoOnWhileDisksAreFull(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: small}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		l := c.Leader()
		for _, f := range c.Followers() {
			c.Disk(f.ID).SetFree(0)
		}
		c.Kill(l.ID)
		if _, ok := led(c, time.Minute); !ok {
			t.Fatal("no leader in a minute")
		}
		again := c.Followers()[0].ID
		c.Kill(again)
		c.Start(again)
		for _, id := range c.IDs() {
			c.Disk(id).SetFree(-1)
		}
		c.Start(l.ID)
		appendSome(c, 10, 20)
		c.Agree()
		for _, m := range c.Running() {
			if s := mustStatus(c, m.ID); s.Err != nil {
				t.Errorf("%s: %v", m.ID, s.Err)
			}
		}
	})
}

// An entry that takes longer on its way than a follower waits for its leader costs no leadership.
func TestLargeEntriesPassSlowLinks(t *testing.T) {
	t.Parallel()
	set := func(_ string, c *dledger.Config) { c.DataFileSize = 64 << 20 }
	dledgertest.Setup{Config: set}.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		term, _ := l.Leading()
		for _, a := range c.IDs() {
			for _, b := range c.IDs() {
				if a != b {
					c.Limit(a, b, 4<<20)
				}
			}
		}
		for i := range 10 {
			if _, err := l.Append(c.T.Context(), make([]byte, 4<<20-100)); err != nil {
				t.Fatalf("entry %d of 4 MiB, at 4 MiB a second: %v", i, err)
			}
		}
		var pending []*dledger.Pending
		for range 64 { // four seconds' worth at once
			pending = append(pending, l.Propose([][]byte{make([]byte, 64<<10)}, nil))
		}
		for _, p := range pending {
			if _, err := p.Wait(c.T.Context()); err != nil {
				t.Errorf("one of many entries: %v", err)
			}
		}
		if now, leads := l.Leading(); !leads || now != term {
			t.Errorf("led in term %d; now it is %d, leads %t", term, now, leads)
		}
	})
}
