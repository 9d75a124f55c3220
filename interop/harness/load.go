package harness

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"
)

// Load appends bodies, each used once and unlike every other, from a number of goroutines, and keeps the books: what was acknowledged
// at which index must be there for ever. Every other outcome is undecided: the entry may be in the log or not.
type Load struct {
	client *Client
	size   int
	name   string
	stop   context.CancelFunc
	wait   sync.WaitGroup

	mu        sync.Mutex
	next      int
	acked     map[int64][]byte // index → body
	term      int64            // the highest of an acknowledgement
	termSince time.Time        // when its first acknowledgement came
	undecided int
	clash     error // two acknowledgements for one index
	news      chan struct{}
}

// StartLoad runs inFlight appends at a time of size bytes (at least 24) through a client of its own until Stop. A failed append is followed by a short
// pause, and by the next body.
func StartLoad(g *Group, name string, inFlight, size int) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{client: g.Client(), size: size, name: name, stop: cancel, acked: map[int64][]byte{}, term: -1, news: make(chan struct{})}
	for range inFlight {
		l.wait.Add(1)
		go func() {
			defer l.wait.Done()
			for ctx.Err() == nil {
				l.one(ctx)
			}
		}()
	}
	return l
}

func (l *Load) one(ctx context.Context) {
	l.mu.Lock()
	body := l.body(l.next)
	l.next++
	l.mu.Unlock()
	// An append that is under way when the load stops is carried through.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
	defer cancel()
	a, err := l.client.Append(call, body)
	if err != nil {
		l.mu.Lock()
		l.undecided++
		l.mu.Unlock()
		pause := time.NewTimer(10 * time.Millisecond)
		defer pause.Stop()
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, twice := l.acked[a.Index]; twice {
		l.clash = fmt.Errorf("index %d was acknowledged for %.24q and for %.24q", a.Index, old, body)
	}
	l.acked[a.Index] = body
	if a.Term > l.term {
		l.term, l.termSince = a.Term, time.Now()
	}
	close(l.news)
	l.news = make(chan struct{})
}

func (l *Load) body(i int) []byte {
	b := bytes.Repeat([]byte{byte('a' + i%26)}, l.size)
	copy(b, fmt.Sprintf("%s-%012d ", l.name, i))
	return b
}

// Acked is the number of acknowledged appends so far.
func (l *Load) Acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// More waits for n more acknowledged appends.
func (l *Load) More(ctx context.Context, n int) error {
	l.mu.Lock()
	goal := len(l.acked) + n
	l.mu.Unlock()
	for {
		l.mu.Lock()
		have, news := len(l.acked), l.news
		l.mu.Unlock()
		if have >= goal {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d more acknowledged appends: %w", n-(goal-have), n, ctx.Err())
		}
	}
}

// Term is the highest term of an acknowledged append, -1 before the first.
func (l *Load) Term() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// AckAbove waits until an append of a term above term is acknowledged, and gives the moment of the first. Unlike the next
// acknowledgement, it cannot be an answer that was on its way when the leader of that term died.
func (l *Load) AckAbove(ctx context.Context, term int64) (time.Time, error) {
	for {
		l.mu.Lock()
		have, since, news := l.term, l.termSince, l.news
		l.mu.Unlock()
		if have > term {
			return since, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("no append acknowledged above term %d: %w", term, ctx.Err())
		}
	}
}

// Stop ends the load, waits for what is under way and gives the acknowledged appends and the number of undecided ones.
func (l *Load) Stop() (acked map[int64][]byte, undecided int, err error) {
	l.stop()
	l.wait.Wait()
	l.client.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked, l.undecided, l.clash
}

// mark appends one entry and gives its index.
func (g *Group) mark(ctx context.Context, body []byte) (int64, error) {
	c := g.Client()
	defer c.Close()
	index := int64(-1)
	err := Until(ctx, "an append of a mark", func() bool {
		one, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		a, err := c.Append(one, body)
		index = a.Index
		return err == nil
	})
	if err != nil {
		return -1, fmt.Errorf("%w\n%s", err, g.Logs())
	}
	return index, nil
}

// holds waits until the files of node n hold body at index.
func (g *Group) holds(ctx context.Context, n *Node, index int64, body []byte) error {
	var why error
	err := Until(ctx, fmt.Sprintf("entry %d on %s", index, n.ID), func() bool {
		if end, err := EndOf(n.Root()); err == nil && end < index { // cheaper to see
			why = fmt.Errorf("its index ends at %d", end)
			return false
		}
		l, err := ReadLog(n.Root())
		if err != nil {
			why = err
			return false
		}
		e, ok := l.At(index)
		why = fmt.Errorf("its log ends at %d", l.End())
		return ok && bytes.Equal(e.Body, body)
	})
	if err != nil {
		return fmt.Errorf("%w; %v\n%s", err, why, g.Logs())
	}
	return nil
}

// Hold waits until node n holds an entry that is appended now, and with it all that was acknowledged before.
func (g *Group) Hold(ctx context.Context, n *Node) error {
	body := []byte("a mark")
	index, err := g.mark(ctx, body)
	if err != nil {
		return err
	}
	return g.holds(ctx, n, index, body)
}

// Settle makes the group quiet: it appends one last entry and waits until the files of every node hold it. It gives that entry's index.
func (g *Group) Settle(ctx context.Context) (int64, error) {
	body := []byte("the last entry")
	last, err := g.mark(ctx, body)
	if err != nil {
		return -1, err
	}
	for _, n := range g.Nodes {
		if err := g.holds(ctx, n, last, body); err != nil {
			return -1, err
		}
	}
	return last, nil
}

// Judge checks the files of all nodes, which have been stopped: every acknowledged append is on every node at its index, no append
// is there twice, and the data files hold the same bytes up to index last, which must be committed.
func (g *Group) Judge(acked map[int64][]byte, last int64) error {
	var first *Log
	for i, n := range g.Nodes {
		l, err := ReadLog(n.Root())
		if err != nil {
			return fmt.Errorf("%s: %w", n.ID, err)
		}
		for index, body := range acked {
			if e, ok := l.At(index); !ok || !bytes.Equal(e.Body, body) {
				return fmt.Errorf("%s: entry %d was acknowledged as %.24q; it holds %.24q, its log ends at %d", n.ID, index, body, e.Body, l.End())
			}
		}
		if i == 0 {
			first = l
			at := make(map[string]int64, len(l.Entries))
			for _, e := range l.Entries {
				if len(e.Body) < 24 && !bytes.HasPrefix(e.Body, []byte("register ")) {
					continue // marks of this package, which repeat
				}
				if old, twice := at[string(e.Body)]; twice {
					return fmt.Errorf("%.24q is in the log twice, at %d and %d", e.Body, old, e.Index)
				}
				at[string(e.Body)] = e.Index
			}
		} else if err := first.Same(l, last); err != nil {
			return fmt.Errorf("%s and %s differ: %w", g.Nodes[0].ID, n.ID, err)
		}
	}
	return nil
}
