package dledger

import (
	"sync"
	"time"

	"dledger/internal/raft"
)

// waits holds reads that wait at the end of the log, for one ledger. A single goroutine, which runs only while somebody waits,
// watches the commit index for all of them.
type waits struct {
	l *Ledger

	mu      sync.Mutex
	list    []waiting
	running bool
	closed  bool
}

type waiting struct {
	from raft.Index
	due  time.Time
	done func()
}

// waitsMax bounds how many reads may wait; further ones are answered at once, without entries.
const waitsMax = 10_000

// add runs done once entry from is committed, or d has passed, or the ledger closes.
func (w *waits) add(d time.Duration, from raft.Index, done func()) {
	w.mu.Lock()
	full := w.closed || len(w.list) >= waitsMax
	if !full {
		w.list = append(w.list, waiting{from, time.Now().Add(d), done})
		if !w.running {
			w.running = true
			w.l.tasks.Go(w.run)
		}
	}
	w.mu.Unlock()
	if full {
		done()
	}
}

// close ends all waiting: what waits is answered by run, which sees the ledger's stop, and what comes later at once.
func (w *waits) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
}

func (w *waits) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := w.l.loop.Changed()
		next, more := w.settle()
		if !more {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-changed:
		case <-timer.C:
		case <-w.l.stop:
		}
	}
}

// settle runs what is due and gives the instant at which the next is; false, and the goroutine ends, when nobody waits any more.
func (w *waits) settle() (next time.Time, more bool) {
	stopping := false
	select {
	case <-w.l.stop:
		stopping = true
	default:
	}
	now, commit := time.Now(), w.l.Commit()
	var due []func()
	w.mu.Lock()
	rest := w.list[:0]
	for _, x := range w.list {
		if stopping || x.from <= commit || !now.Before(x.due) {
			due = append(due, x.done)
			continue
		}
		if rest = append(rest, x); next.IsZero() || x.due.Before(next) {
			next = x.due
		}
	}
	clear(w.list[len(rest):])
	w.list = rest
	w.running = len(rest) > 0
	more = w.running
	w.mu.Unlock()
	for _, f := range due {
		f()
	}
	return next, more
}
