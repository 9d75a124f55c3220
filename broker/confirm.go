package broker

import (
	"context"
	"sync/atomic"
	"time"
)

// confirmer asks the group whether this replica still leads. A leader that is cut off does not know for a while, and another may have taken messages and offsets: what
// would move a consumer (where a queue ends, where a group is) is said only after a majority has answered. Answers that only make a client wait, or give it
// messages, need none of that.
//
//  1. all that wait share one question, and those that come while it is under way the next;
//  2. who waits is called once, when all that any replica had acknowledged before is dispatched here, or with the reason why that is not known.
type confirmer struct {
	line   line[confirming]
	rounds atomic.Int64 // questions so far
}

type confirming struct {
	due  time.Time
	done func(error)
}

// confirmLeast is how long a majority has for its answer where nothing is to be held: what only it can say would never be said.
const confirmLeast = time.Second

// surely calls answer once this replica is known to have led when surely was called, and has dispatched all that was committed then. Else the request goes on as
// one that finds no leader. answer must not wait for anything but the disk.
func (b *Broker) surely(r *request, answer func()) {
	if !r.again { // it may have been held here before
		r.due = time.Now().Add(max(r.holdMax(), confirmLeast))
	}
	b.confirmer.ask(b, confirming{r.due, func(err error) {
		if err != nil {
			b.gate.retry(r, "this replica may not lead any more: "+err.Error())
			return
		}
		answer()
	}})
}

func (c *confirmer) ask(b *Broker, w confirming) {
	c.line.join(b, w, func(line []confirming) {
		due := line[0].due
		for _, w := range line {
			if w.due.Before(due) {
				due = w.due
			}
		}
		c.rounds.Add(1)
		ctx, cancel := context.WithDeadline(b.ctx, due)
		i, err := b.ledger.Confirm(ctx)
		if err == nil {
			err = b.store.WaitIndex(ctx, i)
		}
		cancel()
		for _, w := range line {
			w.done(err)
		}
	})
}
