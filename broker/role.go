package broker

import (
	"context"
	"sync"
	"time"

	"dledger"
)

// follow keeps the gate, the registration and the leader's services in step with the log's elections (DLedgerRoleChangeHandler in the Java
// original). It runs until ctx ends.
func (b *Broker) follow(ctx context.Context) {
	var serving dledger.Term = -1 // the term in which this replica serves as leader; -1 = it does not
	resign := func() {}
	defer func() { resign() }()
	known := "" // address of the leader, as the gate has it
	for {
		changed, told := b.ledger.Changed(), b.meta.leaderChanged()
		term, ready := b.store.Ready()
		ready = ready && b.ledger.IsLeader()
		if serving >= 0 && (!ready || term != serving) {
			resign()
			serving, resign, known = -1, func() {}, ""
			b.log.Info("does not lead any more")
			b.names.changed()
		}
		switch leader := b.ledger.Leader(); {
		case ready && serving < 0:
			serving, known = term, ""
			resign = b.lead(ctx, term)
		case serving < 0:
			if to, java := b.leaderAddress(leader); to != known {
				known = to
				b.gate.set(false, to, java)
			}
		}
		select {
		case <-changed:
		case <-told:
		case <-b.promoted:
		case <-ctx.Done():
			return
		}
	}
}

// lead begins to serve as leader; the function it returns ends that, and waits until all services have stopped.
func (b *Broker) lead(ctx context.Context, term dledger.Term) (resign func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	b.meta.settle()
	b.meta.lead(term)
	b.term.Store(int64(term))
	b.offsets.lead(int64(term))
	b.gate.set(true, "", false)
	b.log.Info("serves as leader", "term", term)
	b.names.changed()
	for _, s := range services {
		running.Go(func() { b.keepRunning(ctx, term, s) })
	}
	return func() {
		cancel()
		b.term.Store(0)
		b.gate.set(false, "", false)
		b.meta.resign()
		running.Wait()
	}
}

// service is something that only the leader does beside answering. It runs until its ctx ends, which is when another replica may begin to lead. When it ends with an error
// before that, it can be run again once all that it has given to the log is dispatched: it begins as with a new leader then.
type service struct {
	name string
	run  func(b *Broker, ctx context.Context, term dledger.Term) error
}

var services = []service{
	{"delayed messages", (*Broker).delayed},
	{"timer messages", (*Broker).timed},
	{"transactions", (*Broker).transacted},
}

// Pauses before a service is run again that has met an error; each is twice as long as the one before, and the first again after the longest without an error.
const (
	serviceAgainMin = 500 * time.Millisecond
	serviceAgainMax = 30 * time.Second
)

// keepRunning runs a service for as long as this replica leads in term, again and again if it meets errors of its own.
func (b *Broker) keepRunning(ctx context.Context, term dledger.Term, s service) {
	defer b.failing.Delete(s.name)
	again := serviceAgainMin
	for {
		b.failing.Delete(s.name)
		began := time.Now()
		err := s.run(b, ctx, term)
		if err == nil || ctx.Err() != nil {
			return
		}
		if time.Since(began) > serviceAgainMax {
			again = serviceAgainMin
		}
		b.failing.Store(s.name, err.Error())
		b.failures.Add(1)
		b.log.Error("a service of the leader is stopped until it is tried again", "service", s.name, "in", again, "error", err)
		if pause(ctx, again) != nil || b.barrier(ctx, term) != nil {
			return
		}
		again = min(2*again, serviceAgainMax)
	}
}

// handOver gives leadership to another replica, if one is fit for it. What consumers have committed goes into the log first.
func (b *Broker) handOver(ctx context.Context) {
	if b.ledger == nil || b.meta == nil {
		return
	}
	b.offsets.flush(ctx)
	b.ledger.HandOver(ctx)
}

// drain goes on serving while clients may still take this replica for the leader: their routes are refreshed every 30 s. It ends when no producer
// has used this replica for drainQuiet, or none is connected, and when there has been no leader for drainLeaderless: at first, and whenever leadership changes, this
// replica does not know of one for a moment. A replica that has led goes on for drainLeast whoever is there: a client that has just heard of it comes only then.
func (b *Broker) drain(ctx context.Context, hasLed bool) {
	led := time.Now() // when there was a leader
	least, end := led, led.Add(b.cfg.DrainMax)
	if hasLed {
		least = led.Add(drainLeast)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for (b.clients.sending(drainQuiet) || time.Now().Before(least)) && time.Now().Before(end) && !b.ledger.IsLeader() {
		if b.ledger.Leader() != "" {
			led = time.Now()
		} else if time.Since(led) > drainLeaderless {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// drainQuiet is a little more than the time in which every stock client asks for routes anew.
const drainQuiet = 32 * time.Second

// drainLeast is more than a client takes from the answer that names the leader to its first request.
const drainLeast = time.Second

// drainLeaderless is a few elections among replicas of ours.
const drainLeaderless = 3 * time.Second
