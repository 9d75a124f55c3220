package dledger_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// TestEntriesWaitsAtTheEnd, on a follower: it yields what is committed, waits, and goes on.
func TestEntriesWaitsAtTheEnd(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		f := c.Followers()[0]
		ctx, cancel := context.WithCancel(c.T.Context())
		got := make(chan dledger.Entry)
		end := make(chan error, 1)
		go func() {
			defer close(got)
			for e, err := range f.Entries(ctx, 5) {
				if err != nil {
					end <- err
					continue
				}
				got <- e
			}
		}()
		for i := 5; i < 10; i++ {
			if e := <-got; string(e.Body) != string(body(i)) {
				c.T.Errorf("got %q, want %q", e.Body, body(i))
			}
		}
		select {
		case e := <-got:
			c.T.Errorf("got %q behind the end", e.Body)
		case <-time.After(10 * time.Second):
		}
		appendSome(c, 10, 11)
		if e := <-got; string(e.Body) != string(body(10)) {
			c.T.Errorf("got %q, want %q", e.Body, body(10))
		}
		cancel()
		if err := <-end; !errors.Is(err, context.Canceled) {
			c.T.Errorf("ended with %v, want the context's error", err)
		}
		if e, more := <-got; more {
			c.T.Errorf("got %q after the end", e.Body)
		}
	})
}

func TestEntriesEndsWithItsLedger(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 10)
		f := c.Followers()[0]
		end := make(chan error, 1)
		go func() {
			for _, err := range f.Entries(c.T.Context(), 0) {
				if err != nil {
					end <- err
				}
			}
		}()
		time.Sleep(time.Second)
		c.Stop(f.ID)
		if err := <-end; !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("ended with %v, want ErrClosed", err)
		}
	})
}

// TestEntriesLeavesNoOpsOut: the group writes one for itself when a leader inherits entries that may not be committed.
func TestEntriesLeavesNoOpsOut(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		for k := range 3 {
			appendSome(c, 10*k, 10*k+10)
			old := c.Leader().ID
			c.Kill(old)
			c.Leader()
			c.Start(old)
		}
		appendSome(c, 30, 31)
		i := 0
		for e, err := range c.Leader().Entries(c.T.Context(), 0) {
			if err != nil || string(e.Body) != string(body(i)) {
				c.T.Fatalf("entry %d is %q, %v", e.Index, e.Body, err)
			}
			if i++; i > 30 {
				break
			}
		}
	})
}

// TestEntriesTellsWhenRetentionOvertakesIt: a slow reader hears of the gap instead of not seeing it.
func TestEntriesTellsWhenRetentionOvertakesIt(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: expiring(dledger.CompatGo)}.Run(t, 1, func(c *dledgertest.Cluster) {
		for range 4000 / 50 {
			batch := make([][]byte, 50)
			for k := range batch {
				batch[k] = make([]byte, 1000)
			}
			if _, err := c.Leader().Propose(batch, nil).Wait(c.T.Context()); err != nil {
				c.T.Fatal(err)
			}
		}
		next := dledger.Index(0)
		for e, err := range c.Leader().Entries(c.T.Context(), 0) {
			if err != nil {
				if !errors.Is(err, dledger.ErrCompacted) {
					c.T.Errorf("got %v, want ErrCompacted", err)
				}
				return
			}
			if e.Index != next {
				c.T.Fatalf("got entry %d, want %d", e.Index, next)
			}
			if next++; next == 1 {
				expire(c, 3000, c.Leader())
			}
		}
	})
}

func TestReadsBeyondTheEndsAreNamed(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: expiring(dledger.CompatGo)}.Run(t, 1, func(c *dledgertest.Cluster) {
		e := appendSome(c, 0, 2000)
		m := c.Member("n0")
		expire(c, 100, m)
		if _, err := m.Get(e.Index + 1); !errors.Is(err, dledger.ErrOutOfRange) {
			c.T.Errorf("behind the end: %v, want ErrOutOfRange", err)
		}
		if _, err := m.Get(0); !errors.Is(err, dledger.ErrCompacted) {
			c.T.Errorf("before the first: %v, want ErrCompacted", err)
		}
		for e, err := range m.Entries(c.T.Context(), 0) {
			if !errors.Is(err, dledger.ErrCompacted) {
				c.T.Errorf("all from before the first: entry %d, %v, want ErrCompacted", e.Index, err)
				break
			}
		}
		if _, err := m.Get(-1); err == nil {
			c.T.Error("entry -1 is there")
		}
		if _, err := m.ReadAt(e.Pos, 48+len(e.Body)); err != nil {
			c.T.Errorf("the last entry's bytes: %v", err)
		}
		if _, err := m.ReadAt(e.Pos, 48+len(e.Body)+1); !errors.Is(err, dledger.ErrOutOfRange) {
			c.T.Errorf("a byte behind the last entry: %v, want ErrOutOfRange", err)
		}
		if _, err := m.ReadAt(0, 48); !errors.Is(err, dledger.ErrCompacted) {
			c.T.Errorf("bytes before the first entry: %v, want ErrCompacted", err)
		}
	})
}

// TestReadAtGivesNothingUncommitted: bytes that a majority does not hold yet are not there for readers, though they are in the file.
func TestReadAtGivesNothingUncommitted(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		e := appendSome(c, 0, 10)
		l := c.Leader()
		if b, err := l.ReadAt(e.Pos+48, len(e.Body)); err != nil || !bytes.Equal(b, e.Body) {
			c.T.Errorf("body at its position: %q, %v", b, err)
		}
		c.Partition([]string{l.ID})
		p := l.Propose([][]byte{body(10)}, nil)
		time.Sleep(100 * time.Millisecond)
		end := e.Pos + 48 + int64(len(e.Body))
		if b, err := l.ReadAt(end, 48); !errors.Is(err, dledger.ErrOutOfRange) {
			c.T.Errorf("an uncommitted entry: %q, %v; want ErrOutOfRange", b, err)
		}
		if _, err := l.Get(e.Index + 1); !errors.Is(err, dledger.ErrOutOfRange) {
			c.T.Errorf("an uncommitted entry: %v; want ErrOutOfRange", err)
		}
		c.Heal()
		if _, err := p.Wait(c.T.Context()); err != nil && !errors.Is(err, dledger.ErrUndecided) {
			c.T.Error(err)
		}
	})
}
