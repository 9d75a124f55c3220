package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dledger/internal/wire"
)

func TestAppendFindsTheLeader(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.do(func() { g.leader = "n2" })
		c := g.client(Config{})
		for i := range int64(3) {
			r, err := c.Append(t.Context(), []byte("x"))
			if want := (Result{Index: i, Term: 3, Pos: 100 * i}); err != nil || r != want {
				t.Fatalf("append %d: %+v, %v, want %+v", i, r, err, want)
			}
		}
	})
}

func TestOneSeedIsEnough(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		c := g.client(Config{Peers: map[string]string{"n1": address("n1")}})
		if _, err := c.Append(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	})
}

// The old leader is gone before it could name another; the others learn of the new one later.
func TestAppendFollowsALeaderChange(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		c := g.client(Config{})
		if _, err := c.Append(t.Context(), []byte("a")); err != nil {
			t.Fatal(err)
		}
		g.stop("n0")
		synctest.Wait() // an append on a connection that is about to end would be undecided
		time.AfterFunc(time.Second, func() { g.do(func() { g.leader = "n1" }) })
		from := time.Now()
		if _, err := c.Append(t.Context(), []byte("b")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(from); took > time.Second+2*findPauseMax {
			t.Errorf("new leader found %v after the old one was lost, want soon after 1s", took)
		}
		if got, want := g.entries(), []string{"a", "b"}; !slices.Equal(got, want) {
			t.Errorf("log %q, want %q", got, want)
		}
	})
}

func TestRefusalNamesTheLeader(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		c := g.client(Config{})
		if _, err := c.Append(t.Context(), []byte("a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // all nodes have said what they understand
		asked := g.count(wire.CodeMetadata)
		g.do(func() { g.leader = "n1" })
		from := time.Now()
		if _, err := c.Append(t.Context(), []byte("b")); err != nil {
			t.Fatal(err)
		}
		if n := g.count(wire.CodeMetadata) - asked; n != 0 || time.Since(from) > 0 {
			t.Errorf("%d more questions for the leader and %v, want none: the refusal named it", n, time.Since(from))
		}
	})
}

// Two nodes that take each other for the leader must not be asked in turn without a pause.
func TestNodesThatNameEachOtherAreNotAskedForEver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		c := g.client(Config{})
		if _, err := c.Append(t.Context(), []byte("a")); err != nil {
			t.Fatal(err)
		}
		g.do(func() {
			g.leader = ""
			g.nodes["n0"].believes, g.nodes["n1"].believes = "n1", "n0"
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Append(ctx, []byte("b")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUndecided) {
			t.Fatalf("error %v, want the deadline's, decided", err)
		}
		if n := g.count(wire.CodeAppendBatch); n > 2+redirectMax {
			t.Errorf("%d requests in a second, want a few", n)
		}
	})
}

func TestWhatWasSurelyNotTakenIsSentAgain(t *testing.T) {
	for _, r := range []wire.Result{wire.ResultNotLeader, wire.ResultUnknownGroup, wire.ResultUnknownMember, wire.ResultLeaderPendingFull, wire.ResultLeaderNotReady, wire.ResultLeaderTransferring} {
		t.Run(r.String(), func(t *testing.T) {
			bothKinds(t, func(t *testing.T, java bool) {
				g := newFakeGroup(t, java, "n0", "n1", "n2")
				refusals := 0
				g.fate = func(*fakeNode, [][]byte) fate {
					if refusals++; refusals > 5 {
						return fate{}
					}
					return fate{result: r}
				}
				c := g.client(Config{})
				from := time.Now()
				if got, err := c.Append(t.Context(), []byte("x")); err != nil || got.Index != 0 {
					t.Fatalf("%+v, %v, want index 0", got, err)
				}
				if took := time.Since(from); took < 5*patienceMin {
					t.Errorf("five refusals within %v, want pauses between the attempts", took)
				}
			})
		})
	}
	t.Run("busy", func(t *testing.T) {
		bothKinds(t, func(t *testing.T, java bool) {
			g := newFakeGroup(t, java, "n0")
			refusals := 0
			g.fate = func(*fakeNode, [][]byte) fate {
				if refusals++; refusals > 2 {
					return fate{}
				}
				return fate{result: -1, header: 2}
			}
			if _, err := g.client(Config{}).Append(t.Context(), []byte("x")); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// Whatever may have been taken is sent once and never again.
func TestUndecidedOutcomesAreReportedAndNotRetried(t *testing.T) {
	for name, f := range map[string]fate{
		"TERM_CHANGED":            {result: wire.ResultTermChanged, take: true},
		"WAIT_QUORUM_ACK_TIMEOUT": {result: wire.ResultWaitQuorumAckTimeout, take: true},
		"EXPIRED_TERM":            {result: wire.ResultExpiredTerm},
		"DISK_ERROR":              {result: wire.ResultDiskError},
		"INTERNAL_ERROR":          {result: wire.ResultInternalError},
		"UNKNOWN":                 {result: wire.ResultUnknown},
		"code of the future":      {result: 999, take: true},
		"silence":                 {result: wire.ResultOK, take: true, silent: true},
		"connection lost":         {result: wire.ResultOK, take: true, lose: true},
		"handler failed":          {result: wire.ResultOK, take: true, header: 1},
	} {
		t.Run(name, func(t *testing.T) {
			bothKinds(t, func(t *testing.T, java bool) {
				g := newFakeGroup(t, java, "n0", "n1", "n2")
				sent := 0
				g.fate = func(*fakeNode, [][]byte) fate { sent++; return f }
				r, err := g.client(Config{}).Append(t.Context(), []byte("x"))
				if !errors.Is(err, ErrUndecided) || r != none {
					t.Errorf("%+v, %v, want no result and ErrUndecided", r, err)
				}
				g.do(func() {
					if sent != 1 {
						t.Errorf("sent %d times, want once", sent)
					}
				})
			})
		})
	}
}

func TestRefusalsForGoodAreReportedAtOnce(t *testing.T) {
	for _, r := range []wire.Result{wire.ResultUnexpectedArgument, wire.ResultDiskFull} {
		t.Run(r.String(), func(t *testing.T) {
			bothKinds(t, func(t *testing.T, java bool) {
				g := newFakeGroup(t, java, "n0", "n1", "n2")
				g.fate = func(*fakeNode, [][]byte) fate { return fate{result: r} }
				_, err := g.client(Config{}).Append(t.Context(), []byte("x"))
				var refused *RefusedError
				if !errors.As(err, &refused) || refused.Code != int(r) || refused.Node != "n0" || errors.Is(err, ErrUndecided) {
					t.Errorf("error %v, want the refusal %d of n0", err, r)
				}
			})
		})
	}
}

func TestWithoutALeaderTheErrorSaysWhatEveryNodeSaid(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		g.do(func() { g.leader = "" })
		g.nodes["n1"].believes = "n2"
		g.stop("n2")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := g.client(Config{}).Append(ctx, []byte("x"))
		if !errors.Is(err, ErrNoLeader) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUndecided) {
			t.Fatalf("error %v, want ErrNoLeader and the deadline", err)
		}
		for _, want := range []string{"n0 (n0:1) knows no leader", "n1 (n1:1) names n2", "n2 (n2:1): ", "connection refused"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
		}
	})
}

func TestANodeThatHangsDoesNotHoldUpTheOthers(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.nodes["n2"].silent = true
		from := time.Now()
		if _, err := g.client(Config{}).Append(t.Context(), []byte("x")); err != nil || time.Since(from) > 0 {
			t.Errorf("%v after %v, want success at once", err, time.Since(from))
		}
	})
}

// A leader that was cut off still calls itself one: the majority's is asked.
func TestTheMajoritysLeaderIsTaken(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.nodes["n0"].believes = "n0"
		g.do(func() { g.leader = "n1" })
		c := g.client(Config{})
		if leader, err := c.Leader(t.Context()); err != nil || leader != "n1" {
			t.Errorf("leader %q, %v, want n1", leader, err)
		}
	})
}

// While requests are on the way everything else gathers for the next ones.
func TestConcurrentAppendsGather(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		gate := make(chan struct{})
		g.fate = func(n *fakeNode, _ [][]byte) fate { return fate{result: wire.ResultOK, take: true, hold: gate} }
		c := g.client(Config{})
		if _, err := c.Leader(t.Context()); err != nil {
			t.Fatal(err)
		}
		const appends = 200
		var all sync.WaitGroup
		indexes := make([]int64, appends)
		for i := range appends {
			all.Go(func() {
				r, err := c.Append(t.Context(), []byte(strconv.Itoa(i)))
				if err != nil {
					t.Error(err)
				}
				indexes[i] = r.Index
			})
		}
		synctest.Wait()
		if n := g.count(wire.CodeAppendBatch); n < 1 || n > framesMax {
			t.Errorf("%d requests on the way, want at most %d", n, framesMax)
		}
		close(gate)
		all.Wait()
		if n := g.count(wire.CodeAppendBatch); n > 2*framesMax {
			t.Errorf("%d requests for %d appends, want at most %d", n, appends, 2*framesMax)
		}
		log := g.entries()
		for i, index := range indexes {
			if log[index] != strconv.Itoa(i) {
				t.Errorf("append %d got index %d, where %s lies", i, index, log[index])
			}
		}
	})
}

func TestAppendsToTheOriginalAreOneEachAndPipelined(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, true, "n0", "n1", "n2")
		gate := make(chan struct{})
		g.fate = func(n *fakeNode, _ [][]byte) fate { return fate{result: wire.ResultOK, take: true, hold: gate} }
		c := g.client(Config{})
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() { c.Append(t.Context(), []byte("x")) })
		}
		synctest.Wait()
		if n := g.count(wire.CodeAppend); n != originalMax || g.largest != 1 {
			t.Errorf("%d requests on the way with up to %d entries, want %d with one each", n, g.largest, originalMax)
		}
		close(gate)
		all.Wait()
	})
}

func TestJSONKeepsToTheOriginalsRequests(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		c := g.client(Config{JSON: true})
		if _, err := c.Append(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if e, err := c.Get(t.Context(), 0); err != nil || string(e.Body) != "x" {
			t.Fatalf("%+v, %v, want x", e, err)
		}
		g.do(func() {
			for code, n := range g.asked {
				if code >= wire.CodeHello && code <= wire.CodeReset {
					t.Errorf("request %d was sent %d times", code, n)
				}
			}
		})
	})
}

// A leader of the other kind takes over an address, as when a Java node is replaced by one of ours.
func TestAnotherKindOfNodeMayTakeOverAnAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0")
		c := g.client(Config{})
		for _, java := range []bool{true, false, true} {
			if _, err := c.Append(t.Context(), []byte("x")); err != nil {
				t.Fatal(err)
			}
			g.stop("n0")
			g.start("n0", java)
			synctest.Wait()
		}
		if _, err := c.Append(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if n := len(g.entries()); n != 4 {
			t.Errorf("%d entries, want 4", n)
		}
	})
}

func TestGoKeepsTheOrder(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		c := g.client(Config{})
		const appends = 3000
		var all sync.WaitGroup
		all.Add(appends)
		var want []string
		for i := range appends {
			body := strconv.Itoa(i)
			want = append(want, body)
			if err := c.Go(t.Context(), []byte(body), func(r Result, err error) {
				if err != nil || r.Index != int64(i) {
					t.Errorf("append %d: %+v, %v", i, r, err)
				}
				all.Done()
			}); err != nil {
				t.Fatal(err)
			}
		}
		all.Wait()
		if !slices.Equal(g.entries(), want) {
			t.Error("the log's order is another one")
		}
	})
}

// Everything on the way is refused by the old leader, and goes to the new one in the same order.
func TestOrderSurvivesALeaderChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		gate := make(chan struct{})
		g.fate = func(n *fakeNode, _ [][]byte) fate {
			if n.id == "n0" {
				return fate{result: wire.ResultNotLeader, leader: "n1", hold: gate}
			}
			return fate{}
		}
		c := g.client(Config{})
		const appends = 500
		var all sync.WaitGroup
		all.Add(appends)
		var want []string
		for i := range appends {
			want = append(want, strconv.Itoa(i))
			c.Go(t.Context(), []byte(want[i]), func(_ Result, err error) {
				if err != nil {
					t.Error(err)
				}
				all.Done()
			})
		}
		synctest.Wait()
		g.do(func() { g.leader = "n1" })
		close(gate)
		all.Wait()
		if got := g.entries(); !slices.Equal(got, want) {
			t.Errorf("log %q…, want 0, 1, 2, …", got[:20])
		}
	})
}

func TestAppendBatchKeepsTogetherWhatFitsARequest(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		c := g.client(Config{})
		var all sync.WaitGroup
		for b := range 20 {
			all.Go(func() {
				var bodies [][]byte
				for i := range 100 {
					bodies = append(bodies, fmt.Appendf(nil, "%d/%d", b, i))
				}
				results, err := c.AppendBatch(t.Context(), bodies)
				if err != nil || len(results) != len(bodies) {
					t.Errorf("%d results, %v", len(results), err)
				}
				for i, r := range results {
					if r.Index != results[0].Index+int64(i) {
						t.Errorf("batch %d: entry %d at %d, the first at %d", b, i, r.Index, results[0].Index)
					}
				}
			})
		}
		all.Wait()
		big := make([]byte, 700<<10)
		results, err := c.AppendBatch(t.Context(), [][]byte{big, big, big, nil})
		if err != nil || results[3].Index != 2003 {
			t.Errorf("%v, %v, want the last at 2003", results, err)
		}
	})
}

func TestAppendBatchToTheOriginal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, true, "n0", "n1", "n2")
		results, err := g.client(Config{}).AppendBatch(t.Context(), [][]byte{[]byte("a"), []byte("b"), {}})
		if err != nil || len(results) != 3 || results[2].Index != 2 {
			t.Fatalf("%v, %v, want three results", results, err)
		}
		if got, want := g.entries(), []string{"a", "b", ""}; !slices.Equal(got, want) {
			t.Errorf("log %q, want %q", got, want)
		}
	})
}

func TestAppendBatchTellsWhichEntriesAreSure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, true, "n0")
		g.fate = func(_ *fakeNode, bodies [][]byte) fate {
			switch string(bodies[0]) {
			case "refused":
				return fate{result: wire.ResultDiskFull}
			case "undecided":
				return fate{result: wire.ResultWaitQuorumAckTimeout}
			}
			return fate{}
		}
		results, err := g.client(Config{}).AppendBatch(t.Context(), [][]byte{[]byte("a"), []byte("refused"), []byte("undecided"), []byte("b")})
		if !errors.Is(err, ErrUndecided) {
			t.Errorf("error %v, want ErrUndecided, which says more than the refusal", err)
		}
		if got := []bool{results[0].Index >= 0, results[1].Index >= 0, results[2].Index >= 0, results[3].Index >= 0}; !slices.Equal(got, []bool{true, false, false, true}) {
			t.Errorf("results %+v, want the first and the last", results)
		}
	})
}

func TestBodiesThatFitNoEntryAreNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newFakeGroup(t, false, "n0").client(Config{})
		big := make([]byte, MaxBody+1)
		if _, err := c.Append(t.Context(), big); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Append: %v", err)
		}
		if _, err := c.AppendBatch(t.Context(), [][]byte{nil, big}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("AppendBatch: %v", err)
		}
		if err := c.Go(t.Context(), big, nil); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Go: %v", err)
		}
		if r, err := c.Append(t.Context(), big[:MaxBody]); err != nil {
			t.Errorf("the largest body: %+v, %v", r, err)
		}
	})
}

func TestAContextThatEndsInLineLeavesNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0")
		gate := make(chan struct{})
		g.fate = func(*fakeNode, [][]byte) fate { return fate{result: wire.ResultOK, take: true, hold: gate} }
		c := g.client(Config{})
		var first sync.WaitGroup
		for range framesMax { // requests one by one until no further one may be on the way
			first.Go(func() { c.Append(t.Context(), []byte("sent")) })
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Append(ctx, []byte("in line")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUndecided) {
			t.Errorf("error %v, want the deadline's, decided", err)
		}
		done := make(chan error, 1)
		ctx2, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		if err := c.Go(ctx2, []byte("in line, too"), func(_ Result, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		<-ctx2.Done()
		close(gate)
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUndecided) {
			t.Errorf("Go: error %v, want the deadline's, decided", err)
		}
		first.Wait()
		if got := g.entries(); slices.Contains(got, "in line") || slices.Contains(got, "in line, too") {
			t.Errorf("log %q", got)
		}
	})
}

func TestAContextThatEndsOnTheWayIsUndecided(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0")
		gate := make(chan struct{})
		g.fate = func(*fakeNode, [][]byte) fate { return fate{result: wire.ResultOK, take: true, hold: gate} }
		c := g.client(Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Append(ctx, []byte("x")); !errors.Is(err, ErrUndecided) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want ErrUndecided and the deadline's", err)
		}
		close(gate) // the late answer must not reach another append's result
		if r, err := c.Append(t.Context(), []byte("y")); err != nil || r.Index != 1 {
			t.Errorf("next append: %+v, %v, want index 1", r, err)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0")
		g.fate = func(*fakeNode, [][]byte) fate { return fate{result: wire.ResultOK, silent: true} }
		c := g.client(Config{})
		outcomes := make(chan error, 2*framesMax)
		for range 2 * framesMax {
			go func() {
				_, err := c.Append(context.Background(), []byte("x"))
				outcomes <- err
			}()
			synctest.Wait()
		}
		c.Close()
		undecided, closed := 0, 0
		for range 2 * framesMax {
			switch err := <-outcomes; {
			case errors.Is(err, ErrUndecided):
				undecided++
			case errors.Is(err, ErrClosed):
				closed++
			default:
				t.Errorf("error %v", err)
			}
		}
		if undecided != framesMax || closed != framesMax {
			t.Errorf("%d undecided, %d closed, want %d of both", undecided, closed, framesMax)
		}
		if _, err := c.Append(context.Background(), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("append after Close: %v", err)
		}
		if _, err := c.Get(context.Background(), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("get after Close: %v", err)
		}
	})
}

func TestPendingBytesHoldGoUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0")
		gate := make(chan struct{})
		g.fate = func(*fakeNode, [][]byte) fate { return fate{result: wire.ResultOK, take: true, hold: gate} }
		c := g.client(Config{PendingBytes: 10_000})
		body := make([]byte, 1000)
		var acknowledged sync.WaitGroup
		started := 0
		for ; ; started++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			acknowledged.Add(1)
			err := c.Go(ctx, body, func(Result, error) { acknowledged.Done(); cancel() })
			if err != nil {
				acknowledged.Done()
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want the deadline's", err)
				}
				break
			}
		}
		if started < 8 || started > 10 {
			t.Errorf("%d appends of 1000 bytes were let in, want what 10000 bytes hold", started)
		}
		close(gate)
		acknowledged.Wait()
		if _, err := c.Append(t.Context(), make([]byte, 20_000)); err != nil {
			t.Errorf("a body larger than PendingBytes, alone: %v", err)
		}
	})
}

// With whatever faults, the books are right: acknowledged entries are in the log once and where the result says, refused ones are not.
func TestOutcomesAreTrueUnderFaults(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("CLIENT_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d; again: CLIENT_SEED=%d go test ./client -run %s", seed, seed, t.Name())
	bothKinds(t, func(t *testing.T, java bool) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		fates := []fate{
			{result: wire.ResultNotLeader}, {result: wire.ResultLeaderPendingFull}, {result: wire.ResultLeaderTransferring}, {result: wire.ResultDiskFull},
			{result: wire.ResultTermChanged, take: true}, {result: wire.ResultWaitQuorumAckTimeout}, {result: wire.ResultOK, take: true, silent: true},
			{result: wire.ResultOK, take: true, lose: true}, {result: wire.ResultOK, lose: true}, {result: -1, header: 2},
		}
		g.fate = func(n *fakeNode, _ [][]byte) fate {
			if rnd.IntN(4) > 0 {
				return fate{}
			}
			f := fates[rnd.IntN(len(fates))]
			if f.result == wire.ResultNotLeader {
				g.leader = "n" + strconv.Itoa(rnd.IntN(3))
				f.leader = g.leader
			}
			return f
		}
		c := g.client(Config{RequestTimeout: time.Second})
		type outcome struct {
			body string
			r    Result
			err  error
		}
		var mu sync.Mutex
		var outcomes []outcome
		var all sync.WaitGroup
		for w := range 20 {
			all.Go(func() {
				for i := range 30 {
					body := fmt.Sprintf("%d/%d", w, i)
					ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
					r, err := c.Append(ctx, []byte(body))
					cancel()
					mu.Lock()
					outcomes = append(outcomes, outcome{body, r, err})
					mu.Unlock()
				}
			})
		}
		all.Wait()
		log := g.entries()
		times := make(map[string]int)
		for _, body := range log {
			times[body]++
		}
		acknowledged := 0
		for _, o := range outcomes {
			switch n := times[o.body]; {
			case n > 1:
				t.Errorf("%s is in the log %d times", o.body, n)
			case o.err == nil && (n != 1 || log[o.r.Index] != o.body):
				t.Errorf("%s was acknowledged at %d, and is in the log %d times", o.body, o.r.Index, n)
			case o.err != nil && !errors.Is(o.err, ErrUndecided) && n != 0:
				t.Errorf("%s is in the log after %v", o.body, o.err)
			}
			if o.err == nil {
				acknowledged++
			}
		}
		if acknowledged < len(outcomes)/10 {
			t.Errorf("%d of %d appends were acknowledged, want more", acknowledged, len(outcomes))
		}
	})
}
