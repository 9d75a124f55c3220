package dledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dledger"
	"dledger/dledgertest"
)

func TestPendingLimitRefusesInsteadOfQueueing(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.MaxPending = 50 }}.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		c.Partition([]string{l.ID})
		var accepted []*dledger.Pending
		for i := range 60 {
			p := l.Propose([][]byte{body(i)}, nil)
			time.Sleep(time.Millisecond)
			select {
			case <-p.Done():
				if _, err := p.Wait(c.T.Context()); !errors.Is(err, dledger.ErrPendingFull) || i < 50 {
					c.T.Errorf("append %d: %v", i, err)
				}
			default:
				accepted = append(accepted, p)
			}
		}
		if len(accepted) != 50 {
			c.T.Errorf("%d appends were accepted, want 50", len(accepted))
		}
		c.Heal()
		for i, p := range accepted {
			if _, err := p.Wait(c.T.Context()); err != nil {
				c.T.Errorf("append %d: %v", i, err)
			}
		}
	})
}

func TestPendingBytesRefuse(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.PendingBytes = 10_000 }}.Run(t, 1, func(c *dledgertest.Cluster) {
		l := c.Leader()
		hold := make(chan struct{})
		first := l.Propose([][]byte{body(0)}, func(int, dledger.Index, int64, []byte) { <-hold }) // the loop stands still
		time.Sleep(time.Millisecond)
		var waiting []*dledger.Pending
		refused := 0
		for range 20 {
			p := l.Propose([][]byte{make([]byte, 1000)}, nil)
			select {
			case <-p.Done():
				refused++
			default:
				waiting = append(waiting, p)
			}
		}
		close(hold)
		for _, p := range append(waiting, first) {
			if _, err := p.Wait(c.T.Context()); err != nil {
				c.T.Error(err)
			}
		}
		if len(waiting) != 10 || refused != 10 {
			c.T.Errorf("%d wait and %d are refused, want 10 and 10", len(waiting), refused)
		}
	})
}

// TestUncommittedBytesRefuse: what a leader has in its log and no majority has yet is bounded in bytes, too, for as long as it is not committed and no longer, whether
// or not anybody still waits for it. A batch that begins below the bound is taken whole.
func TestUncommittedBytesRefuse(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.UncommittedBytes = 10_000 }}.Run(t, 3, func(c *dledgertest.Cluster) {
		taken := func(l *dledgertest.Member) (accepted []*dledger.Pending) {
			for range 20 {
				p := l.Propose([][]byte{make([]byte, 400), make([]byte, 504)}, nil) // with their headers 1,000 bytes
				time.Sleep(5 * time.Millisecond)
				select {
				case <-p.Done():
					if _, err := p.Wait(c.T.Context()); !errors.Is(err, dledger.ErrPendingFull) {
						c.T.Errorf("refused with %v, want ErrPendingFull", err)
					}
				default:
					accepted = append(accepted, p)
				}
			}
			return accepted
		}
		l := c.Leader()
		appendSome(c, 0, 10)
		for _, f := range c.Followers() {
			c.Disk(f.ID).Hang()
		}
		accepted := taken(l)
		if len(accepted) != 10 {
			c.T.Errorf("%d batches were accepted, want 10", len(accepted))
		}
		time.Sleep(5 * time.Second)
		for i, p := range accepted {
			if _, err := p.Wait(c.T.Context()); !errors.Is(err, dledger.ErrTimeout) {
				c.T.Errorf("append %d: %v, want ErrTimeout", i, err)
			}
		}
		if n := len(taken(l)); n != 0 {
			c.T.Errorf("%d batches were accepted though 10 are uncommitted", n)
		}
		for _, f := range c.Followers() {
			c.Disk(f.ID).Resume()
		}
		c.Wait("what waits to be committed", func() bool { return l.Commit() >= 29 })
		last := appendSome(c, 10, 40)
		if l.Commit() < last.Index || c.Leader() != l {
			c.T.Errorf("leader %s, commit %d; want %s and %d", c.Leader().ID, l.Commit(), l.ID, last.Index)
		}
		for _, f := range c.Followers() {
			c.Disk(f.ID).Hang()
		}
		if n := len(taken(l)); n != 10 {
			c.T.Errorf("later %d batches were accepted, want 10", n)
		}
		for _, f := range c.Followers() {
			c.Disk(f.ID).Resume()
		}
		c.Agree()
	})
}

// TestAckTimeoutLeavesTheAppendUndecided: the error says so, and here the entry is committed in the end.
func TestAckTimeoutLeavesTheAppendUndecided(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.AckTimeout = 200 * time.Millisecond }}.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		c.Partition([]string{l.ID})
		begin := time.Now()
		_, err := l.Append(c.T.Context(), body(0))
		if !errors.Is(err, dledger.ErrTimeout) || !strings.Contains(err.Error(), "may yet be committed") {
			c.T.Errorf("got %v, want ErrTimeout that tells that the outcome is open", err)
		}
		if d := time.Since(begin); d < 200*time.Millisecond || d > 250*time.Millisecond {
			c.T.Errorf("timed out after %v, want 200 ms", d)
		}
		c.Heal()
		c.Wait("the entry to be committed", func() bool {
			e, err := c.Leader().Get(0)
			return err == nil && string(e.Body) == string(body(0))
		})
	})
}

// TestBatchLiesTogether: indexes without gap, positions that are those of the entries, whatever else is proposed meanwhile and where files end.
func TestBatchLiesTogether(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d members", n), func(t *testing.T) {
			dledgertest.Setup{Config: small}.Run(t, n, func(c *dledgertest.Cluster) {
				l := c.Leader()
				var all sync.WaitGroup
				for k := range 4 {
					all.Go(func() {
						for i := range 20 {
							batch := make([][]byte, 1+(i+k)%7)
							for j := range batch {
								batch[j] = fmt.Appendf(nil, "%d.%d.%d %0*d", k, i, j, 37*(i%11), 0)
							}
							a, err := l.Propose(batch, nil).Wait(c.T.Context())
							if err != nil {
								c.T.Errorf("batch %d of %d: %v", i, k, err)
								continue
							}
							for j, b := range batch {
								e, err := l.Get(a.First + dledger.Index(j))
								if err != nil || string(e.Body) != string(b) || e.Pos != a.Pos[j] || e.Term != a.Term {
									c.T.Errorf("entry %d of the batch at %d is %q at %d, %v; want %q at %d", j, a.First, e.Body, e.Pos, err, b, a.Pos[j])
								}
							}
						}
					})
				}
				all.Wait()
				c.Agree()
			})
		})
	}
}

// TestStampRunsInLogOrder: it sees every entry once, with ascending index and position, and what it writes is what all members store.
func TestStampRunsInLogOrder(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		next, lastPos := dledger.Index(0), int64(-1) // the stamp's alone
		stamp := func(_ int, i dledger.Index, pos int64, b []byte) {
			if i != next || pos <= lastPos {
				c.T.Errorf("stamped entry %d at %d after entry %d at %d", i, pos, next-1, lastPos)
			}
			next, lastPos = i+1, pos
			copy(b, fmt.Sprintf("%08d", i))
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					mine := []byte("--------, stamped")
					if _, err := l.Propose([][]byte{mine, mine, mine}, stamp).Wait(c.T.Context()); err != nil {
						c.T.Error(err)
					}
					if string(mine) != "--------, stamped" {
						c.T.Errorf("the stamp wrote to the caller's body: %q", mine)
					}
				}
			})
		}
		all.Wait()
		last := c.Agree()
		for _, m := range c.Running() {
			for i := range last + 1 {
				if e, err := m.Get(i); err != nil || string(e.Body) != fmt.Sprintf("%08d, stamped", i) {
					c.T.Errorf("%s: entry %d is %q, %v", m.ID, i, e.Body, err)
				}
			}
		}
	})
}

func TestBatchesThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 1, func(c *dledgertest.Cluster) {
		l := c.Leader()
		for _, k := range []struct {
			name  string
			batch [][]byte
			want  error
		}{
			{"no entry", nil, dledger.ErrEmpty},
			{"a body that no file holds", [][]byte{body(0), make([]byte, dledger.MaxBody+1)}, dledger.ErrTooLarge},
			{"a body that this data file does not hold", [][]byte{body(0), make([]byte, dledger.MaxBody)}, dledger.ErrTooLarge},
		} {
			if _, err := l.Propose(k.batch, nil).Wait(c.T.Context()); !errors.Is(err, k.want) {
				c.T.Errorf("%s: got %v, want %v", k.name, err, k.want)
			}
		}
		if a, err := l.Propose([][]byte{{}}, nil).Wait(c.T.Context()); err != nil || a.First != 0 {
			c.T.Errorf("an empty body is entry %d, %v; want entry 0", a.First, err)
		}
	})
}

func TestClosedLedgerSaysSo(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 1, func(c *dledgertest.Cluster) {
		e := appendSome(c, 0, 1)
		m := c.Member("n0")
		c.Stop("n0")
		if _, err := m.Append(c.T.Context(), body(1)); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("Append: %v, want ErrClosed", err)
		}
		if _, err := m.Get(e.Index); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("Get: %v, want ErrClosed", err)
		}
		if _, err := m.ReadAt(e.Pos, 48); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("ReadAt: %v, want ErrClosed", err)
		}
		if _, err := m.Confirm(c.T.Context()); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("Confirm: %v, want ErrClosed", err)
		}
		if _, err := m.Status(c.T.Context()); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("Status: %v, want ErrClosed", err)
		}
		for _, err := range m.Entries(c.T.Context(), 0) {
			if !errors.Is(err, dledger.ErrClosed) {
				c.T.Errorf("Entries: %v, want ErrClosed", err)
			}
		}
		if err := m.TransferLeadership(c.T.Context(), "n0"); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("TransferLeadership: %v, want ErrClosed", err)
		}
		if _, err := m.WaitLeader(c.T.Context()); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("WaitLeader: %v, want ErrClosed", err)
		}
		if m.IsLeader() {
			c.T.Error("it says that it leads")
		}
		select {
		case <-m.Changed():
		default:
			c.T.Error("who waits for a change waits for ever")
		}
		if err := m.Close(); err != nil {
			c.T.Errorf("Close once more: %v", err)
		}
	})
}

// TestCloseEndsEveryWait: who waits for a leader, a change or a state machine learns that there is nothing to wait for any more.
func TestCloseEndsEveryWait(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		appendSome(c, 0, 1)
		for _, f := range c.Followers() {
			c.Kill(f.ID)
		}
		c.Wait(l.ID+" to lead no more", func() bool { return l.Leader() == "" })
		m, err := dledger.NewMachine(l.Ledger, &counter{}, dledger.SnapshotConfig{})
		if err != nil {
			c.T.Fatal(err)
		}
		var all sync.WaitGroup
		ran := make(chan error, 1)
		all.Go(func() { ran <- m.Run(c.T.Context()) })
		all.Go(func() {
			if _, err := l.WaitLeader(c.T.Context()); !errors.Is(err, dledger.ErrClosed) {
				c.T.Errorf("WaitLeader: %v, want ErrClosed", err)
			}
		})
		all.Go(func() {
			for changed := l.Changed(); l.Leader() == "" && !errors.Is(m.Wait(c.T.Context(), 1000), dledger.ErrClosed); changed = l.Changed() {
				<-changed
			}
		})
		synctest.Wait()
		c.Stop(l.ID)
		all.Wait()
		if err := <-ran; !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("Run: %v, want ErrClosed", err)
		}
		if err := m.Wait(c.T.Context(), 1000); !errors.Is(err, dledger.ErrClosed) {
			c.T.Errorf("Wait: %v, want ErrClosed", err)
		}
	})
}

// TestWaitLeaderEndsWithItsContext: a member that is alone of three knows no leader.
func TestWaitLeaderEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		if id, err := c.Followers()[0].WaitLeader(c.T.Context()); id != l.ID || err != nil {
			c.T.Errorf("got %q, %v, want %s", id, err, l.ID)
		}
		for _, f := range c.Followers() {
			c.Kill(f.ID)
		}
		c.Wait(l.ID+" to lead no more", func() bool { return l.Leader() == "" })
		ctx, cancel := context.WithTimeout(c.T.Context(), time.Second)
		defer cancel()
		if id, err := l.WaitLeader(ctx); !errors.Is(err, context.DeadlineExceeded) {
			c.T.Errorf("got %q, %v, want DeadlineExceeded", id, err)
		}
	})
}

// TestTransfersThatCannotBeAreNamed: an error of TransferLeadership says what to do about it.
func TestTransfersThatCannotBeAreNamed(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		if err := l.TransferLeadership(c.T.Context(), "n9"); !errors.Is(err, dledger.ErrUnknownMember) {
			c.T.Errorf("to n9: %v, want ErrUnknownMember", err)
		}
		if err := l.TransferLeadership(c.T.Context(), l.ID); err != nil {
			c.T.Errorf("to the leader itself: %v, want nothing to be done", err)
		}
		f := c.Followers()[0]
		if err := f.TransferLeadership(c.T.Context(), l.ID); !errors.Is(err, dledger.ErrNotLeader) {
			c.T.Errorf("by a follower: %v, want ErrNotLeader", err)
		}
		c.Kill(f.ID)
		appendSome(c, 0, 1200)
		if err := l.TransferLeadership(c.T.Context(), f.ID); !errors.Is(err, dledger.ErrBehind) && !errors.Is(err, dledger.ErrTransferFailed) {
			c.T.Errorf("to one that is down: %v, want ErrBehind or ErrTransferFailed", err)
		}
	})
}

// TestBatchOfAnotherTermIsRefused: leadership goes away and comes back; what was made for the first leadership is not taken in the second, and its stamp
// does not run.
func TestBatchOfAnotherTermIsRefused(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		l := c.Leader()
		in := func(term dledger.Term, stamp dledger.Stamp) (dledger.Appended, error) {
			type outcome struct {
				a   dledger.Appended
				err error
			}
			got := make(chan outcome, 1)
			l.ProposeIn(term, [][]byte{body(0), body(1)}, stamp, func(a dledger.Appended, err error) { got <- outcome{a, err} })
			o := <-got
			return o.a, o.err
		}
		term, leads := l.Leading()
		if !leads {
			c.T.Fatal("the leader does not know that it leads")
		}
		stamped := 0
		if a, err := in(term, func(int, dledger.Index, int64, []byte) { stamped++ }); err != nil || a.Term != term || len(a.Pos) != 2 || stamped != 2 {
			c.T.Fatalf("in its term: %+v, %v, %d stamps", a, err, stamped)
		}
		for _, other := range []string{c.Followers()[0].ID, l.ID} {
			if err := c.Leader().TransferLeadership(c.T.Context(), other); err != nil {
				c.T.Fatal(err)
			}
			c.Wait(other+" to lead", c.Member(other).IsLeader)
		}
		for _, k := range []dledger.Term{term, term + 100} {
			a, err := in(k, func(int, dledger.Index, int64, []byte) { stamped++ })
			var not *dledger.NotLeaderError
			if !errors.As(err, &not) || a.First != -1 || stamped != 2 {
				c.T.Errorf("made for term %d, in a later one: %+v, %v, %d stamps; want NotLeaderError", k, a, err, stamped)
			}
		}
		if now, _ := l.Leading(); now <= term {
			c.T.Errorf("term %d after %d", now, term)
		}
		if _, err := in(-1, nil); err != nil {
			c.T.Errorf("made for any term: %v", err)
		}
	})
}

// TestCommittedGivesWhatGetGives, in pieces, without no-ops, and says where to go on.
func TestCommittedGivesWhatGetGives(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: small}.Run(t, 3, func(c *dledgertest.Cluster) {
		last := appendSome(c, 0, 50)
		for _, m := range c.Running() {
			c.WaitCommitted(last.Index, m.ID)
			n := 0
			for next := dledger.Index(0); next <= last.Index; {
				k := 0
				to, err := m.Committed(next, func(e dledger.Entry) bool {
					g, err := m.Get(e.Index)
					if err != nil || string(g.Body) != string(e.Body) || g.Pos != e.Pos || g.Term != e.Term {
						c.T.Errorf("%s: %+v, Get gives %+v, %v", m.ID, e, g, err)
					}
					n++
					k++
					return k < 7
				})
				if err != nil || to <= next {
					c.T.Fatalf("%s: from %d to %d, %v", m.ID, next, to, err)
				}
				next = to
			}
			if n != 50 {
				c.T.Errorf("%s: %d entries, want 50", m.ID, n)
			}
			if to, err := m.Committed(last.Index+100, nil); err != nil || to != last.Index+100 {
				c.T.Errorf("behind the end: %d, %v", to, err)
			}
			end, err := m.CommittedEnd()
			if e, err2 := m.Get(m.Commit()); err != nil || err2 != nil || end != e.Pos+48+int64(len(e.Body)) {
				c.T.Errorf("%s: committed up to %d, %v; %v", m.ID, end, err, err2)
			}
		}
	})
}
