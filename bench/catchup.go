package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dledger/interop/harness"
)

// Load of the clients while a follower catches up: 1 KiB each.
const catchUpInFlight = 16

// measureCatchUp measures how fast a follower catches up, once while nobody else wants anything and once while clients append: then also what that costs them and the other
// follower, as compared with the time before, when the follower was away.
func measureCatchUp(ctx context.Context, p plan, systems []system, work string) []*measured {
	m := newMeasured(fmt.Sprintf("catch-up of a follower that missed %d MiB", p.Behind>>20), "more", "MiB/s, from its start")
	rate := newMeasured("appends of clients while it catches up", "more", "share of those before")
	cost := newMeasured("what it costs others while it catches up", "less", "multiple of before")
	p.says.steps(2 * count(systems, system.whole))
	for _, s := range systems {
		if !s.whole() || ctx.Err() != nil {
			continue
		}
		c, done, _, ok := up(ctx, m, s, work)
		if !ok {
			p.says.skip(2)
			continue
		}
		p.says.step("%s, at rest", s.Name)
		took, err := catchUp(ctx, p, c)
		if err == nil {
			mib := float64(p.Behind>>20) / took.Seconds()
			p.says.got("%.0f MiB/s", mib)
			m.add("at rest, 4 KiB entries", s.Name, mib)
			p.says.step("%s, under load", s.Name)
			var l loaded
			if l, err = catchUpLoaded(ctx, p, c); err == nil {
				l.report(p, s, m, rate, cost)
			}
		} else {
			p.says.skip(1)
		}
		if err != nil {
			m.note("%s: %v", s.Name, err)
		}
		done()
	}
	return []*measured{m, rate, cost}
}

// fallBehind kills a follower and writes what it misses.
func fallBehind(ctx context.Context, p plan, c cluster) (node int, err error) {
	if node, err = follower(ctx, c); err != nil {
		return node, err
	}
	c.Kill(node)
	b := body(4096)
	return node, fill(ctx, p, int(p.Behind/4096), 256, func(ctx context.Context, _ int) error {
		_, err := c.Append(ctx, b)
		return err
	})
}

func catchUp(ctx context.Context, p plan, c cluster) (time.Duration, error) {
	node, err := fallBehind(ctx, p, c)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	began := time.Now()
	if err := c.Start(node); err != nil {
		return 0, err
	}
	err = whole(ctx, c, node)
	return time.Since(began), err
}

// loaded is a catch-up beside which clients append.
type loaded struct {
	took           time.Duration
	before, during run
	// lag is how many entries the other follower is behind the leader: the mean, and how often it was asked. Nobody knows where asked is 0.
	lagBefore, lagDuring     float64
	askedBefore, askedDuring int
}

func (l loaded) report(p plan, s system, m, rate, cost *measured) {
	mib := float64(p.Behind>>20) / l.took.Seconds()
	p.says.got("%.0f MiB/s; appends %.0f/s, before %.0f/s; 99%% %.2f ms, before %.2f ms; the other follower %.0f entries behind, before %.0f", mib, l.during.PerSec, l.before.PerSec,
		l.during.P99.Seconds()*1000, l.before.P99.Seconds()*1000, l.lagDuring, l.lagBefore)
	m.add("under load, 4 KiB entries", s.Name, mib)
	row := fmt.Sprintf("%d in flight, 1 KiB", catchUpInFlight)
	if l.before.Ops > 0 {
		rate.add(row, s.Name, l.during.PerSec/l.before.PerSec)
	}
	if l.before.P99 > 0 && l.during.P99 > 0 {
		cost.add("99% latency", s.Name, float64(l.during.P99)/float64(l.before.P99))
	}
	if l.askedBefore > 0 && l.askedDuring > 0 {
		cost.add("lag of the other follower", s.Name, (1+l.lagDuring)/(1+l.lagBefore)) // one may lag by nothing
	}
	if l.during.Failed > 0 {
		rate.note("%s: %d appends failed: %s", s.Name, l.during.Failed, l.during.FirstErr)
	}
}

func catchUpLoaded(ctx context.Context, p plan, c cluster) (l loaded, err error) {
	node, err := fallBehind(ctx, p, c)
	if err != nil {
		return l, err
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		return l, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	f := startFlow(ctx, catchUpInFlight, appender(c, body(1024)))
	defer f.stop()
	watch := watchLag(ctx, c, leader, 3-leader-node)
	defer watch.stop()
	if err := pause(ctx, p.Warm); err != nil {
		return l, err
	}
	before := time.Now()
	if err := pause(ctx, p.Run); err != nil {
		return l, err
	}
	began := time.Now()
	if err := c.Start(node); err != nil {
		return l, err
	}
	if err := whole(ctx, c, node); err != nil {
		return l, err
	}
	ended := time.Now()
	f.stop()
	watch.stop()
	l.took = ended.Sub(began)
	l.before, l.during = f.between(before, began), f.between(began, ended)
	l.lagBefore, l.askedBefore = watch.between(before, began)
	l.lagDuring, l.askedDuring = watch.between(began, ended)
	return l, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// flow is load that goes on until it is stopped; what it saw between two moments is asked afterwards.
type flow struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
	calls  [][]call
}

// call is one that has ended.
type call struct {
	ended time.Time
	took  time.Duration
	err   error
}

func startFlow(ctx context.Context, inFlight int, op func(ctx context.Context, i uint64) error) *flow {
	ctx, cancel := context.WithCancel(ctx)
	f := &flow{cancel: cancel, calls: make([][]call, inFlight)}
	var next atomic.Uint64
	for g := range inFlight {
		f.wait.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				one, cancel := context.WithTimeout(ctx, 10*time.Second)
				err := op(one, next.Add(1)-1)
				cancel()
				if ctx.Err() != nil {
					return // it was interrupted
				}
				ended := time.Now()
				f.calls[g] = append(f.calls[g], call{ended, ended.Sub(began), err})
				if err != nil {
					afterFailure(ctx)
				}
			}
		})
	}
	return f
}

// stop ends the load. Doing it twice does no harm.
func (f *flow) stop() {
	f.cancel()
	f.wait.Wait()
}

// between gives the calls that ended in [from, to). The flow has been stopped.
func (f *flow) between(from, to time.Time) run {
	r := run{Seconds: to.Sub(from).Seconds()}
	var took []time.Duration
	for _, c := range slices.Concat(f.calls...) {
		switch {
		case c.ended.Before(from) || !c.ended.Before(to):
		case c.err != nil:
			if r.Failed++; r.Failed == 1 {
				r.FirstErr = c.err.Error()
			}
		default:
			took = append(took, c.took)
		}
	}
	slices.Sort(took)
	r.summarize(took)
	return r
}

// lagging is a cluster that tells how far a follower is behind its leader, in entries.
type lagging interface {
	Lag(ctx context.Context, leader, node int) (int64, error)
}

// lagWatch asks that again and again.
type lagWatch struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
	seen   []lagSeen
}

type lagSeen struct {
	at      time.Time
	entries int64
}

const lagEvery = 10 * time.Millisecond

func watchLag(ctx context.Context, c cluster, leader, node int) *lagWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &lagWatch{cancel: cancel}
	l, ok := c.(lagging)
	if !ok {
		return w
	}
	w.wait.Go(func() {
		for pause(ctx, lagEvery) == nil {
			if n, err := l.Lag(ctx, leader, node); err == nil { // a node that is busy is asked again
				w.seen = append(w.seen, lagSeen{time.Now(), n})
			}
		}
	})
	return w
}

func (w *lagWatch) stop() {
	w.cancel()
	w.wait.Wait()
}

// between gives the mean in [from, to), and of how many answers. The watch has been stopped.
func (w *lagWatch) between(from, to time.Time) (mean float64, asked int) {
	for _, s := range w.seen {
		if !s.at.Before(from) && s.at.Before(to) {
			mean += float64(s.entries)
			asked++
		}
	}
	return mean / float64(max(asked, 1)), asked
}

func (c *groupCluster) Lag(_ context.Context, leader, node int) (int64, error) {
	end, err := harness.EndOf(c.Nodes[node].Root())
	if err != nil {
		return 0, err
	}
	lead, err := harness.EndOf(c.Nodes[leader].Root())
	return max(lead-end, 0), err
}

func (c *pipeCluster) Lag(ctx context.Context, leader, node int) (int64, error) {
	end, err := c.status(ctx, node)
	if err != nil {
		return 0, err
	}
	lead, err := c.status(ctx, leader)
	return max(int64(lead.value)-int64(end.value), 0), err
}

func (c *natsCluster) Lag(ctx context.Context, _, node int) (int64, error) {
	i, err := c.info(ctx)
	if err != nil {
		return 0, err
	}
	if i.Cluster != nil {
		for _, r := range i.Cluster.Replicas {
			if r.Name == fmt.Sprintf("s%d", node) {
				return int64(r.Lag), nil
			}
		}
	}
	return 0, fmt.Errorf("nothing is known of node %d", node)
}
