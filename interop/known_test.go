package interop

import (
	"bytes"
	"context"
	bigendian "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dledger/interop/harness"
)

// Known cases that need real processes; docs/testing.md lists them with those on virtual time.

// dial opens a connection that ends with the test.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(within(t, limit), "tcp", address)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	must(t, c.SetDeadline(time.Now().Add(limit)))
	return c
}

// answer reads one frame.
func answer(c net.Conn) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, bigendian.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}

// A candidate finds 5,000 pushes and a request for its vote when it wakes up: the vote is answered within 200 ms, and every push is answered. The time is that of
// the best of some rounds, since it is this program's only while nobody else wants the processors.
func TestVoteIsAnsweredBehindFiveThousandPushes(t *testing.T) {
	t.Parallel()
	k := ours(t)
	g := group(t, k, k, k)
	g.GoOnly["compat"] = "0.4" // the pushes are those of the original
	n := g.Nodes[0]
	must(t, n.Start())
	address := fmt.Sprintf("127.0.0.1:%d", n.Port)
	vote := func(term int) []byte {
		return frameOf(51001, 1, fmt.Sprintf(`{"group":"interop","remoteId":"n0","localId":"n1","leaderId":"n1","term":%d,"ledgerEndIndex":100,"ledgerEndTerm":4,"code":200}`, term))
	}
	term := 1000
	must(t, harness.Until(within(t, limit), "the port", func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}))
	voter := dial(t, address)
	_, err := voter.Write(vote(term)) // it enters a term above that of the pushes
	must(t, err)
	_, err = answer(voter)
	must(t, err)
	const conns, each, rounds = 8, 625, 7
	push := frameOf(51004, 2, `{"code":200,"commitIndex":-1,"count":1,"entries":[{"body":"b25l","bodyCrc":0,"chainCrc":0,"channel":0,"index":0,"magic":1,"pos":0,"size":51,"term":4}],`+
		`"firstEntryIndex":0,"group":"interop","lastEntryIndex":0,"lastEntryTerm":4,"leaderId":"n1","localId":"n1","preLogIndex":-1,"preLogTerm":-1,"remoteId":"n0","term":4,"totalSize":51,"type":"APPEND"}`)
	pushers := make([]net.Conn, conns)
	for i := range pushers {
		pushers[i] = dial(t, address)
	}
	best := time.Hour
	for range rounds {
		term++
		must(t, n.Process().Pause())
		var wait sync.WaitGroup
		errs := make([]error, 2*conns)
		var answered atomic.Int64
		for i, c := range pushers {
			wait.Go(func() { _, errs[i] = c.Write(bytes.Repeat(push, each)) })
			wait.Go(func() {
				for range each {
					if _, err := answer(c); err != nil {
						errs[conns+i] = err
						return
					}
					answered.Add(1)
				}
			})
		}
		_, err := voter.Write(vote(term))
		must(t, err)
		began := time.Now()
		must(t, n.Process().Resume())
		a, err := answer(voter)
		took := time.Since(began)
		must(t, err)
		best = min(best, took)
		if !bytes.Contains(a, []byte(`"voteResult":"ACCEPT"`)) {
			t.Fatalf("the vote is answered %s", a)
		}
		wait.Wait()
		must(t, errors.Join(errs...))
		t.Logf("term %d: the vote after %v, %d pushes answered", term, took, answered.Load())
	}
	if best > 200*time.Millisecond {
		t.Errorf("the vote was never answered in less than %v", best)
	}
	must(t, n.Stop())
}

// Both followers hang. Fifty clients go on with appends of 64 KiB, first at a leader that does not know it yet: each call is answered, or refused, while its client
// waits, and the leader's memory stays within the bound of what may wait. When the followers go on, so do appends.
func TestClientsOfALeaderWithoutFollowersAreAnswered(t *testing.T) {
	t.Parallel()
	span := 15 * time.Second
	if os.Getenv("INTEROP_LONG") != "" {
		span = time.Minute
	}
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	g.GoOnly["compat"] = "0.3" // its leaders give up late
	leader := started(t, g)
	base, _, err := leader.Process().Usage()
	must(t, err)
	var followers []*harness.Node
	for _, n := range g.Nodes {
		if n != leader {
			followers = append(followers, n)
			must(t, n.Process().Pause())
		}
	}
	resumed := false
	resume := func() {
		for _, n := range followers {
			if !resumed {
				must(t, n.Process().Resume())
			}
		}
		resumed = true
	}
	defer resume()
	const clients, patience = 50, 20 * time.Second // an append waits for a majority for 2.5 s
	body := bytes.Repeat([]byte("x"), 64<<10)
	var wait sync.WaitGroup
	var timeouts, refused, ok atomic.Int64
	end := time.Now().Add(span)
	for range clients {
		wait.Go(func() {
			c := g.Client()
			defer c.Close()
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err := c.AppendTo(ctx, leader.ID, body)
				cancel()
				var code *harness.CodeError
				switch {
				case err == nil:
					ok.Add(1)
				case !errors.As(err, &code):
					t.Errorf("a client got no answer: %v", err)
					return
				case code.Code == harness.NotLeader:
					refused.Add(1)
					select { // it is told at once, and would ask for ever
					case <-time.After(100 * time.Millisecond):
					case <-t.Context().Done():
					}
				default:
					timeouts.Add(1)
				}
			}
		})
	}
	most := int64(0)
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(50 * time.Millisecond):
		}
		rss, _, err := leader.Process().Usage()
		must(t, err)
		most = max(most, rss)
	}
	const mib = 1 << 20
	t.Logf("%d acknowledged, %d given up, %d refused; memory %d MiB, at most %d MiB", ok.Load(), timeouts.Load(), refused.Load(), base/mib, most/mib)
	if ok.Load() > 0 {
		t.Errorf("%d appends were acknowledged by a leader without followers", ok.Load())
	}
	if timeouts.Load()+refused.Load() < clients {
		t.Error("too few calls to say anything")
	}
	if most-base > 160*mib && !harness.Racing() { // 64 MiB of appends may wait, and garbage takes as much
		t.Errorf("%d MiB more than before", (most-base)/mib)
	}
	resume()
	c := g.Client()
	defer c.Close()
	must(t, harness.Until(within(t, limit), "an append when the followers go on", func() bool {
		_, err := c.Append(within(t, 5*time.Second), body)
		return err == nil
	}))
	_, err = g.Settle(within(t, limit))
	must(t, err)
	must(t, g.Stop())
}
