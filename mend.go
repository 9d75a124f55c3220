package dledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// What is done in the background about damage.
const (
	mendBytes  = 1 << 20     // of entries that are asked for at once
	mendPause  = time.Second // before members are asked again that could not give what is damaged
	scrubBytes = 1 << 20     // that the search for damage reads at once
	scrubLull  = time.Minute // before the first search after a start
)

// mender fetches damaged entries from other members. Its goroutine sleeps while nothing is damaged.
type mender struct {
	mu   sync.Mutex
	done chan struct{} // closed at the next repair; nil while nobody waits for one
}

// repaired gives a channel that is closed at the next repair. Ask for it before reading what may be damaged.
func (m *mender) repaired() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done == nil {
		m.done = make(chan struct{})
	}
	return m.done
}

func (m *mender) tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done != nil {
		close(m.done)
		m.done = nil
	}
}

// repairs tells whether damage is waited for: another member may have what is damaged here.
func (c *Config) repairs(members int) bool { return !c.NoRepair && members > 1 }

// mend repairs whatever the store finds damaged.
func (l *Ledger) mend() {
	ctx := l.net.ctx // it ends with the connections
	for {
		select {
		case <-l.stop:
			return
		case <-l.store.Hurting():
		}
		l.loop.Call(func() {}) // the turn takes note of it
		for l.store.Hurt() && l.mendRound(ctx) {
		}
		l.loop.Call(func() {})
	}
}

// mendRound tries to repair every damaged stretch once, and pauses if none of them has got smaller. False: the ledger is closing.
func (l *Ledger) mendRound(ctx context.Context) bool {
	progress := false
	for _, d := range l.store.Damaged() {
		if err := l.mendOne(ctx, d); err == nil {
			progress = true
		} else if ctx.Err() != nil {
			return false
		} else {
			l.cfg.Logger.Debug("damaged entries could not be fetched", "first", d.First, "last", d.Last, "error", err)
		}
	}
	if progress {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(mendPause):
		return true
	}
}

// mendOne asks one member after the other, the leader first, for the beginning of what is damaged.
func (l *Ledger) mendOne(ctx context.Context, d logstore.Damage) error {
	leader := raft.ID(l.Leader())
	errs := []error{errors.New("no member can be asked")}
	for _, first := range []bool{true, false} {
		for _, p := range l.net.peers {
			if (p.id == leader) != first {
				continue
			}
			entries, err := p.fetch(ctx, d.First, d.Last, p.id == leader)
			if err == nil {
				_, err = l.store.Repair(entries)
			}
			if errors.Is(err, logstore.ErrFailed) {
				l.loop.Fail(err)
			}
			if err == nil {
				l.mender.tell()
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", p.id, err))
		}
	}
	return errors.Join(errs...)
}

// fetch asks a member for committed entries from first on, at most up to last. A node of the original gives one at a time, and only as the leader.
func (p *peer) fetch(ctx context.Context, first, last raft.Index, leads bool) (raft.Payload, error) {
	p.mu.Lock()
	kind := p.kind
	p.mu.Unlock()
	switch {
	case kind == kindOurs:
		req := wire.GetBatchRequest{Group: p.t.group, RemoteID: p.id, From: first, BytesMax: mendBytes, EntriesMax: int(min(last-first+1, 1<<20))}
		var a wire.GetBatchResponse
		err := p.ask(ctx, wire.CodeGetBatch, req.AppendTo(nil), a.Decode, &a.Code)
		return a.Entries, err
	case (kind == kindJava || kind == kindSilent) && leads:
		req := wire.GetRequest{Base: wire.ClientBase(p.t.group, p.id), BeginIndex: first}
		var a wire.GetResponse
		err := p.ask(ctx, wire.CodeGet, req.AppendTo(nil), a.Decode, &a.Code)
		return a.Entries, err
	}
	return nil, fmt.Errorf("cannot be asked (%s)", kind.public())
}

// ask sends a request and waits until decode has read its answer, which may keep the bytes it is given. A result other than OK is an error.
func (p *peer) ask(ctx context.Context, code int32, body []byte, decode func(header int32, body []byte) error, result *wire.Result) error {
	got := make(chan error, 1)
	err := p.t.client.Go(p.address, remoting.Request{Code: code}, rpcTimeout, func(f *remoting.Frame, err error) {
		if err == nil {
			err = decode(f.Code, bytes.Clone(f.Body))
		}
		if err == nil && *result != wire.ResultOK {
			err = fmt.Errorf("answers %v", *result)
		}
		got <- err
	}, body)
	if err != nil {
		return err
	}
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scrub looks through the whole log for damage, once in every ScrubInterval, at ScrubRate bytes a second.
func (l *Ledger) scrub() {
	next := time.Until(l.store.Scrubbing().Last.Add(l.cfg.ScrubInterval))
	timer := time.NewTimer(max(next, min(scrubLull, l.cfg.ScrubInterval)))
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-timer.C:
		}
		n, done, err := l.store.Scrub(scrubBytes)
		pause := time.Duration(float64(n) / float64(l.cfg.ScrubRate) * float64(time.Second))
		switch {
		case errors.Is(err, logstore.ErrFailed):
			l.loop.Fail(err)
			return
		case err != nil:
			l.cfg.Logger.Warn("search for damage interrupted", "error", err)
			pause = min(l.cfg.ScrubInterval, time.Hour)
		case done:
			pause = max(pause, l.cfg.ScrubInterval)
		}
		timer.Reset(pause)
	}
}
