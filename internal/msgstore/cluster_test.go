package msgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// group is a cluster whose members have message stores.
type group struct {
	*dledgertest.Cluster
	mu     sync.Mutex
	stores map[string]*member
}

type member struct {
	*msgstore.Store
	cancel context.CancelFunc
	ran    chan error
}

// open gives a running member its store.
func (g *group) open(id string) {
	g.T.Helper()
	s, err := msgstore.Open(msgstore.Config{Ledger: g.Member(id).Ledger, Dir: "/" + id + "/store", FS: g.Disk(id).Mem(), CheckpointEvery: time.Second,
		StoreHost: netip.MustParseAddrPort("10.0.0.1:10911"), QueueFileUnits: 64, IndexSlots: 100, IndexItems: 1000})
	if err != nil {
		g.T.Fatalf("store of %s: %v", id, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{Store: s, cancel: cancel, ran: make(chan error, 1)}
	go func() { m.ran <- s.Run(ctx) }()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stores[id] = m
}

func (g *group) take(id string) *member {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.stores[id]
	delete(g.stores, id)
	return m
}

// stop closes a member cleanly.
func (g *group) stop(id string) {
	m := g.take(id)
	m.cancel()
	if err := <-m.ran; err != nil {
		g.T.Errorf("store of %s: %v", id, err)
	}
	if err := m.Close(); err != nil {
		g.T.Errorf("store of %s: %v", id, err)
	}
	g.Stop(id)
}

// kill takes the power from a member.
func (g *group) kill(id string) {
	m := g.take(id)
	g.Kill(id)
	m.cancel()
	<-m.ran // whatever it found
}

// ready gives the store that leads, if there is one.
func (g *group) ready() *member {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.stores {
		if _, ok := m.Ready(); ok {
			return m
		}
	}
	return nil
}

func run(t *testing.T, n int, f func(g *group)) {
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.DataFileSize = 64 << 10 }}.Run(t, n, func(c *dledgertest.Cluster) {
		g := &group{Cluster: c, stores: map[string]*member{}}
		for _, id := range c.IDs() {
			g.open(id)
		}
		f(g)
		for _, m := range c.Running() {
			g.stop(m.ID)
		}
	})
}

// queue reads all of a queue: body by offset.
func (g *group) queue(s *msgstore.Store, topic string, id int32) []string {
	var out []string
	for at := int64(0); ; {
		r := s.Get(topic, id, at, 32, 1<<20, nil)
		if r.Status != msgstore.Found {
			if r.Status != msgstore.OffsetOverflowOne {
				g.T.Errorf("%s %d at %d: %v", topic, id, at, r.Status)
			}
			return out
		}
		for i, b := range r.Messages {
			m, _, err := mq.ParseStored(b)
			if err != nil || m.QueueOffset != at+int64(i) {
				g.T.Fatalf("%s %d at %d: offset %d, %v", topic, id, at+int64(i), m.QueueOffset, err)
			}
			out = append(out, string(m.Body))
		}
		at = r.Next
	}
}

// TestOffsetsOverManyLeaders (M1): leaders are handed over, killed, stopped and cut off while messages are put. In the end every member has the same queues, each
// acknowledged message is where its answer said, none is there twice.
func TestOffsetsOverManyLeaders(t *testing.T) {
	const queues = 4
	run(t, 3, func(g *group) {
		type ack struct {
			body   string
			queue  int32
			offset int64
		}
		var mu sync.Mutex
		var acked []ack
		put, undecided := 0, 0
		ctx, cancel := context.WithCancel(g.T.Context())
		var producers sync.WaitGroup
		for p := range 3 {
			producers.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					time.Sleep(2 * time.Millisecond)
					s := g.ready()
					if s == nil {
						continue
					}
					m := &mq.Message{Topic: "T", QueueID: int32(i % queues), Body: fmt.Appendf(nil, "%d-%d", p, i), BornHost: netip.MustParseAddrPort("127.0.0.1:1")}
					got := make(chan msgstore.PutResult, 1)
					s.Put([]*mq.Message{m}, func(r msgstore.PutResult) { got <- r })
					r := <-got
					mu.Lock()
					put++
					switch r.Status {
					case msgstore.PutOK:
						acked = append(acked, ack{string(m.Body), m.QueueID, r.QueueOffset})
					case msgstore.InSyncReplicasNotEnough:
						undecided++
					}
					mu.Unlock()
				}
			})
		}
		rnd := rand.New(rand.NewPCG(g.Rand().Uint64(), 1))
		changes := 0
		for range 40 {
			time.Sleep(time.Duration(20+rnd.IntN(200)) * time.Millisecond)
			l := g.Leader()
			others := g.Followers()
			switch rnd.IntN(4) {
			case 0:
				tctx, stop := context.WithTimeout(g.T.Context(), 5*time.Second)
				if err := l.TransferLeadership(tctx, others[rnd.IntN(len(others))].ID); err == nil {
					changes++
				}
				stop()
			case 1:
				g.kill(l.ID)
				g.Leader()
				changes++
				g.Start(l.ID)
				g.open(l.ID)
			case 2:
				g.Partition([]string{l.ID})
				time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				g.Heal()
				changes++
			case 3:
				g.stop(l.ID)
				g.Leader()
				changes++
				g.Start(l.ID)
				g.open(l.ID)
			}
		}
		cancel()
		producers.Wait()
		g.Heal()
		last := g.Agree()
		g.T.Logf("%d puts, %d acknowledged, %d undecided, %d changes of leadership, log to %d", put, len(acked), undecided, changes, last)
		if len(acked) < 500 || changes < 10 {
			g.T.Error("too little happened")
		}
		var first [queues][]string
		for k, id := range g.IDs() {
			s := g.stores[id]
			g.Wait("the queues of "+id, func() bool { return s.Stats().Behind == 0 })
			seen := map[string]bool{}
			for q := range int32(queues) {
				got := g.queue(s.Store, "T", q)
				if k == 0 {
					first[q] = got
				} else if !slices.Equal(got, first[q]) {
					g.T.Errorf("queue %d of %s has %d messages, of n0 %d, or others", q, id, len(got), len(first[q]))
				}
				for _, b := range got {
					if seen[b] {
						g.T.Errorf("%s: message %s is there twice", id, b)
					}
					seen[b] = true
				}
			}
		}
		places := map[string]string{}
		for _, a := range acked {
			if a.offset >= int64(len(first[a.queue])) || first[a.queue][a.offset] != a.body {
				g.T.Errorf("message %s is not at offset %d of queue %d", a.body, a.offset, a.queue)
			}
			at := fmt.Sprint(a.queue, " ", a.offset)
			if other := places[at]; other != "" {
				g.T.Errorf("messages %s and %s were both given %s", a.body, other, at)
			}
			places[at] = a.body
		}
	})
}

// TestReadySoonAfterElection: a new leader takes messages at once, also in a group of the original's dialect, where nobody writes a no-op.
func TestReadySoonAfterElection(t *testing.T) {
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat03} {
		t.Run(compat.String(), func(t *testing.T) {
			dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.Compat = compat }}.Run(t, 3, func(c *dledgertest.Cluster) {
				g := &group{Cluster: c, stores: map[string]*member{}}
				for _, id := range c.IDs() {
					g.open(id)
				}
				for range 5 {
					l := g.Leader()
					begin := time.Now()
					if err := g.stores[l.ID].WaitReady(c.T.Context()); err != nil {
						c.T.Fatal(err)
					}
					if d := time.Since(begin); d > 100*time.Millisecond {
						c.T.Errorf("%s is ready %v after its election was seen", l.ID, d)
					}
					if err := l.TransferLeadership(c.T.Context(), g.Followers()[0].ID); err != nil {
						c.T.Fatal(err)
					}
				}
				for _, m := range c.Running() {
					g.stop(m.ID)
				}
			})
		})
	}
}
