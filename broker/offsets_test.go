package broker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// commitExt and askExt are the fields of a commit and of a question for an offset, of group g in queue 0 of topic t.
func commitExt(offset int) map[string]string {
	return ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", offset)
}

func askExt() map[string]string { return ext("consumerGroup", "g", "topic", "t", "queueId", 0) }

// A pull may be held for half a minute, and its consumer commits newer offsets meanwhile. Whichever leader gets the pull next, and wherever it is held, the offset in it
// counts when it comes and not again.
func TestHeldPullCommitsOnce(t *testing.T) {
	for _, at := range []string{"at a follower that passes it on", "at the replica that leads next", "at a follower that does not know the group"} {
		t.Run(at, func(t *testing.T) {
			inCluster(t, 3, nil, func(c *cluster) {
				p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
				leader, follower := c.leader(), c.follower()
				next := follower
				for _, id := range c.IDs() {
					if id != leader && id != follower && at != "at the replica that leads next" {
						next = id
					}
				}
				for range 30 {
					p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("x"))
				}
				for _, id := range c.IDs() {
					if id != follower { // which passes on what it does not know the subscription for
						q.must(id, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
					}
				}
				flag := pullSuspends | pullCommits
				if at == "at a follower that passes it on" {
					flag |= pullHasSub
					c.Wait("the messages here", func() bool { return c.brokers[follower].store.MaxOffset("t", 0) == 30 })
				}
				got := make(chan *remoting.Frame, 1)
				go func() {
					got <- q.call(follower, mq.CodePull, pullExt("g", "t", 0, 30, 15000, "sysFlag", flag, "commitOffset", 10), nil)
				}()
				c.Wait("the pull's offset", func() bool { n, _ := c.brokers[leader].offsets.get("t@g", 0); return n == 10 })
				p.must(follower, mq.CodeUpdateConsumerOffset, commitExt(30), nil)
				c.Wait("the newer offset everywhere", func() bool {
					for _, b := range c.brokers {
						if n, _ := b.meta.offset("t@g", 0); n != 30 {
							return false
						}
					}
					return true
				})
				if err := c.Member(leader).TransferLeadership(c.T.Context(), next); err != nil {
					c.T.Fatal(err)
				}
				c.Wait("the next leader", c.brokers[next].Leads)
				<-got // by then every replica has had it that will
				if n := p.must(next, mq.CodeQueryConsumerOffset, askExt(), nil).Ext["offset"]; n != "30" {
					c.T.Errorf("after a hand-over while the pull was held the offset is %s, want 30", n)
				}
			})
		})
	}
}

// ask asks a replica for the offset for as long as client 4.9.8 does; "" means that it got no answer, so that it asks again later. Any error it would take for "no offset".
func (cl *client) ask(id string) string {
	cl.c.T.Helper()
	f, err := cl.r.Call(cl.c.T.Context(), cl.c.address(id), remoting.Request{Code: mq.CodeQueryConsumerOffset, Ext: askExt()}, 5*time.Second)
	switch {
	case errors.Is(err, remoting.ErrTimeout):
		return ""
	case err != nil:
		cl.c.T.Fatal(err)
	case f.Code != mq.Success:
		cl.c.T.Errorf("%s answers the question for an offset with code %d, %s", id, f.Code, f.Remark)
		return ""
	}
	return f.Ext["offset"]
}

// A consumer that asks where its group is, and hears of an error, begins at one end of the queue. So it hears nothing until somebody knows.
func TestOffsetIsNeverAnsweredWithAnError(t *testing.T) {
	begin := func(c *cluster, p *client, leader string) {
		for range 30 {
			p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("x"))
		}
		p.must(leader, mq.CodeUpdateConsumerOffset, commitExt(30), nil)
		c.Wait("the offset everywhere", func() bool {
			for _, b := range c.brokers {
				if n, _ := b.meta.offset("t@g", 0); n != 30 {
					return false
				}
			}
			return true
		})
	}
	t.Run("no leader", func(t *testing.T) {
		inCluster(t, 3, nil, func(c *cluster) {
			p := c.client("10.1.0.1")
			begin(c, p, c.leader())
			alive := c.follower()
			for _, id := range c.IDs() {
				if id != alive {
					c.kill(id)
				}
			}
			if got := p.ask(alive); got != "" {
				c.T.Errorf("without a leader: offset %s", got)
			}
			answer := make(chan string)
			go func() { answer <- p.ask(alive) }()
			for _, id := range c.IDs() {
				if id != alive {
					c.start(id)
				}
			}
			if got := <-answer; got != "30" {
				c.T.Errorf("while a leader was found: offset %q, want 30", got)
			}
		})
	})
	t.Run("no room to hold it", func(t *testing.T) {
		inCluster(t, 1, nil, func(c *cluster) {
			n := c.leader()
			p := c.client("10.1.0.1")
			begin(c, p, n)
			g := &c.brokers[n].gate
			g.mu.Lock()
			g.leads, g.bytes = false, heldBytesMax
			g.mu.Unlock()
			if got := p.ask(n); got != "" {
				c.T.Errorf("offset %s", got)
			}
			g.mu.Lock()
			g.leads, g.bytes = true, 0
			g.mu.Unlock()
			if got := p.ask(n); got != "30" {
				c.T.Errorf("offset %q, want 30", got)
			}
		})
	})
	t.Run("leader cut off", func(t *testing.T) {
		inCluster(t, 3, nil, func(c *cluster) {
			p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
			old := c.leader()
			begin(c, p, old)
			c.Partition([]string{old})
			if got := q.ask(old); got != "" {
				c.T.Errorf("by a leader that is cut off: offset %s", got)
			}
			answer := make(chan string)
			go func() { answer <- q.ask(old) }()
			time.Sleep(time.Second)
			c.Heal()
			if got := <-answer; got != "30" {
				c.T.Errorf("healed while the question was held: offset %q, want 30", got)
			}
		})
	})
}

// Whether a new group begins at 0 depends on the first message of its queue; a bit of that flips on the leader's disk.
func TestOffsetWaitsUntilDamageIsMended(t *testing.T) {
	for where, off := range stained {
		t.Run(where, func(t *testing.T) {
			inCluster(t, 3, nil, func(c *cluster) {
				p := c.client("10.1.0.1")
				for i := range 20 {
					p.must(c.leader(), mq.CodeSend, sendExt("t", 0), fmt.Appendf(nil, "message %d", i))
				}
				c.Agree()
				l := c.reopen()
				s := c.stain(l, "message 0", off)
				if got := c.client("10.1.0.2").ask(l); got != "0" {
					c.T.Errorf("offset %q, want 0", got)
				}
				s.gone()
			})
		})
	}
}

// What was committed before a group's offsets are deleted, set or cloned over is older than that, also while it is on its way into the log, and what is committed while the log
// takes its time over the change is not written behind it.
func TestCommitsDoNotUndoWhatTakesTheirPlace(t *testing.T) {
	for _, k := range []struct {
		name string
		code int32
		ext  map[string]string
		want string // "" = none
	}{
		{"group deleted", mq.CodeDeleteGroup, ext("groupName", "g", "cleanOffset", true), ""},
		{"topic deleted", mq.CodeDeleteTopic, ext("topic", "t"), ""},
		{"cloned", mq.CodeCloneGroupOffset, ext("srcGroup", "other", "destGroup", "g", "topic", "t", "offline", true), "3"},
		{"reset", mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", true, "queueId", 0, "offset", 3), "3"},
	} {
		t.Run(k.name, func(t *testing.T) {
			inCluster(t, 1, func(cfg *Config) { cfg.ServerReset = true }, func(c *cluster) {
				p := c.client("10.1.0.1")
				n := c.leader()
				for range 10 {
					p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
				}
				other := commitExt(3)
				other["consumerGroup"] = "other"
				p.must(n, mq.CodeUpdateConsumerOffset, other, nil)
				p.must(n, mq.CodeUpdateConsumerOffset, commitExt(1), nil)
				time.Sleep(time.Second)
				c.Disk(n).SetSyncTime(300 * time.Millisecond) // offsets go into the log every 200 ms
				p.must(n, mq.CodeUpdateConsumerOffset, commitExt(7), nil)
				p.must(n, k.code, k.ext, nil)
				time.Sleep(2 * time.Second)
				got := ""
				if at, ok := c.brokers[n].meta.offset("t@g", 0); ok {
					got = fmt.Sprint(at)
				}
				if got != k.want {
					c.T.Errorf("afterwards the offset is %q, want %q", got, k.want)
				}
			})
		})
	}
}

// What a former leader could not write reaches the next one late. It may be ahead, and yet older than what has moved the group there.
func TestLateOffsetDoesNotUndoAMove(t *testing.T) {
	ask := func(c *cluster, p *client, id string) string {
		return p.call(id, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "setZeroIfNotFound", "false"), nil).Ext["offset"]
	}
	for _, k := range []struct {
		name string
		move func(c *cluster, p *client, id string)
		want string // "" = none
	}{
		{"reset", func(c *cluster, p *client, id string) {
			p.must(id, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", true, "queueId", 0, "offset", 5), nil)
			if f := p.call(id, mq.CodePull, pullExt("g", "t", 0, 10, 0), nil); f.Code != mq.PullOffsetMoved {
				c.T.Errorf("pull: code %d", f.Code)
			}
		}, "5"},
		{"consumer goes back", func(c *cluster, p *client, id string) { p.must(id, mq.CodeUpdateConsumerOffset, commitExt(5), nil) }, "5"},
		{"clone", func(c *cluster, p *client, id string) {
			other := commitExt(12)
			other["consumerGroup"] = "other"
			p.must(id, mq.CodeUpdateConsumerOffset, other, nil)
			p.must(id, mq.CodeCloneGroupOffset, ext("srcGroup", "other", "destGroup", "g", "topic", "t", "offline", true), nil)
		}, "12"},
		{"group deleted", func(c *cluster, p *client, id string) {
			p.must(id, mq.CodeDeleteGroup, ext("groupName", "g", "cleanOffset", true), nil)
		}, ""},
		{"topic made anew", func(c *cluster, p *client, id string) {
			p.must(id, mq.CodeDeleteTopic, ext("topic", "t"), nil)
			p.must(id, mq.CodeSend, sendExt("t", 0), []byte("x"))
		}, ""},
		{"consumer goes on", func(c *cluster, p *client, id string) { p.must(id, mq.CodeUpdateConsumerOffset, commitExt(20), nil) }, "25"},
	} {
		for _, written := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/written %v", k.name, written), func(t *testing.T) {
				inCluster(t, 3, func(cfg *Config) { cfg.ServerReset = true }, func(c *cluster) {
					p := c.client("10.1.0.1")
					old := c.leader()
					for range 30 {
						p.must(old, mq.CodeSend, sendExt("t", 0), []byte("x"))
					}
					p.must(old, mq.CodeUpdateConsumerOffset, commitExt(10), nil)
					time.Sleep(time.Second)
					c.Partition([]string{old})
					p.must(old, mq.CodeUpdateConsumerOffset, commitExt(25), nil)
					c.Wait("another leader", func() bool { return !c.brokers[old].Leads() })
					now := c.leader()
					b := c.brokers[now]
					if written {
						k.move(c, p, now)
						time.Sleep(time.Second)
						c.Heal()
					} else { // it comes right behind
						time.Sleep(time.Second)
						c.Heal()
						k.move(c, p, now)
					}
					c.Wait("the old leader to follow", func() bool { return c.brokers[old].ledger.Leader() == now })
					c.Wait("its offset to be passed on", func() bool { _, ok := c.brokers[old].offsets.committed("t@g", 0); return !ok })
					time.Sleep(time.Second)
					if got := ask(c, p, now); got != k.want {
						c.T.Errorf("the offset is %q, want %q", got, k.want)
					}
					if n, ok := b.meta.offset("t@g", 0); ok != (k.want != "") || ok && fmt.Sprint(n) != k.want {
						c.T.Errorf("in the log it is %d, %v; want %q", n, ok, k.want)
					}
				})
			})
		}
	}
}

// TestRepeatedCommitDoesNotUndoANewerOne: one that a replica had to hold, or to repeat at the next leader, comes behind what its client, or an operator, has set since at another
// replica. It counts only where it is surely ahead; one that would lead back may be meant, too, so nobody is told that it was done.
func TestRepeatedCommitDoesNotUndoANewerOne(t *testing.T) {
	for _, k := range []struct {
		name   string
		commit int // the one that is late
		since  func(c *cluster, p *client, leader string)
		want   string
		code   int32
	}{
		{"nothing", 25, func(*cluster, *client, string) {}, "25", mq.Success},
		{"its consumer went on", 15, func(c *cluster, p *client, id string) { p.must(id, mq.CodeUpdateConsumerOffset, commitExt(20), nil) }, "20", mq.SystemError},
		{"it came there another way", 20, func(c *cluster, p *client, id string) { p.must(id, mq.CodeUpdateConsumerOffset, commitExt(20), nil) }, "20", mq.Success},
		{"its consumer went back", 25, func(c *cluster, p *client, id string) { p.must(id, mq.CodeUpdateConsumerOffset, commitExt(5), nil) }, "5", mq.SystemError},
		{"a reset", 25, func(c *cluster, p *client, id string) {
			p.must(id, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", true, "queueId", 0, "offset", 5), nil)
			if f := p.call(id, mq.CodePull, pullExt("g", "t", 0, 10, 0), nil); f.Code != mq.PullOffsetMoved { // from now on commits count again
				c.T.Errorf("pull: code %d", f.Code)
			}
		}, "5", mq.SystemError},
		{"it is to lead back itself", 5, func(*cluster, *client, string) {}, "10", mq.SystemError},
	} {
		for _, how := range []string{"held", "queued, then held", "lost with a leader"} {
			t.Run(k.name+"/"+how, func(t *testing.T) {
				inCluster(t, 3, func(cfg *Config) { cfg.ServerReset = true }, func(c *cluster) {
					p := c.client("10.1.0.1")
					leader, follower := c.leader(), c.follower()
					for range 30 {
						p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("x"))
					}
					p.must(follower, mq.CodeUpdateConsumerOffset, commitExt(10), nil)
					everywhere := func(want string) {
						c.Wait("the offset everywhere", func() bool {
							for _, b := range c.brokers {
								if n, _ := b.meta.offset("t@g", 0); fmt.Sprint(n) != want {
									return false
								}
							}
							return true
						})
					}
					everywhere("10")
					g := &c.brokers[follower].gate
					count := func(of func() int) func() bool {
						return func() bool {
							g.mu.Lock()
							defer g.mu.Unlock()
							return of() == 1
						}
					}
					got := make(chan *remoting.Frame, 1)
					late := func() {
						got <- c.client("10.1.0.2").call(follower, mq.CodeUpdateConsumerOffset, commitExt(k.commit), nil)
					}
					switch how {
					case "held":
						g.set(false, "", false)
						go late()
						c.Wait("it to be held", count(func() int { return len(g.held) }))
						k.since(c, p, leader)
						g.set(false, c.address(leader), false)
					case "queued, then held":
						passing := func(on bool) {
							g.mu.Lock()
							defer g.mu.Unlock()
							g.draining = on
						}
						passing(true)
						go late()
						c.Wait("it to be behind others", count(func() int { return len(g.held) }))
						g.set(false, "", false)
						k.since(c, p, leader)
						passing(false)
						g.set(false, c.address(leader), false)
					default:
						c.net.loseBetween("10.0.0.1"+follower[1:], c.address(leader))
						go late()
						c.Wait("it to be on its way", count(func() int { return len(g.away) }))
						k.since(c, p, leader)
						if k.want != "25" {
							everywhere(k.want)
						}
						next := ""
						for _, id := range c.IDs() {
							if id != leader && id != follower {
								next = id
							}
						}
						if err := c.Member(leader).TransferLeadership(c.T.Context(), next); err != nil {
							c.T.Fatal(err)
						}
						c.Wait("the next leader", c.brokers[next].Leads)
						leader = next
					}
					if f := <-got; f.Code != k.code {
						c.T.Errorf("answered %d %q, want %d", f.Code, f.Remark, k.code)
					}
					time.Sleep(time.Second)
					if n := p.must(leader, mq.CodeQueryConsumerOffset, askExt(), nil).Ext["offset"]; n != k.want {
						c.T.Errorf("afterwards the offset is %s, want %s", n, k.want)
					}
				})
			})
		}
	}
}

// TestCommitBehindOtherRequestsCounts: while another request waits for its next try, those that come queue behind it for a moment. That makes no commit late, though its group was moved
// in this term.
func TestCommitBehindOtherRequestsCounts(t *testing.T) {
	for _, at := range []string{"leader", "follower"} {
		t.Run(at, func(t *testing.T) {
			inCluster(t, 3, nil, func(c *cluster) {
				p := c.client("10.1.0.1")
				leader := c.leader()
				rewound(c, p, leader)
				to := leader
				if at == "follower" {
					to = c.follower()
				}
				half := p.must(leader, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"), []byte("x"))
				_, pos, err := mq.ParseMsgID(half.Ext["msgId"])
				if err != nil {
					c.T.Fatal(err)
				}
				s := &c.brokers[leader].transactions
				s.mu.Lock()
				ready := s.ready
				s.ready = nil // as while the service waits to be run again
				s.mu.Unlock()
				ended := make(chan *remoting.Frame, 1)
				go func() {
					ended <- c.client("10.1.0.2").call(to, mq.CodeEndTransaction, ext("producerGroup", "p", "tranStateTableOffset", 0, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", ""), nil)
				}()
				g := &c.brokers[to].gate
				c.Wait("the end of a transaction to be held", func() bool {
					g.mu.Lock()
					defer g.mu.Unlock()
					return len(g.held) == 1 && g.open()
				})
				p.must(to, mq.CodeUpdateConsumerOffset, commitExt(25), nil)
				if len(ended) > 0 {
					c.T.Error("nothing was held any more")
				}
				if n := p.must(leader, mq.CodeQueryConsumerOffset, askExt(), nil).Ext["offset"]; n != "25" {
					c.T.Errorf("the offset is %s, want 25", n)
				}
				s.mu.Lock()
				s.ready = ready
				s.mu.Unlock()
				if f := <-ended; f.Code != mq.Success {
					c.T.Errorf("the transaction: code %d, %s", f.Code, f.Remark)
				}
			})
		})
	}
}

// TestForwardedCommitThatTheNextLeaderHoldsCounts: its group was moved, but in a term long before the one that this leader knew when it came.
func TestForwardedCommitThatTheNextLeaderHoldsCounts(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		old := c.leader()
		rewound(c, p, old)
		next := c.follower()
		if err := c.Member(old).TransferLeadership(c.T.Context(), next); err != nil {
			c.T.Fatal(err)
		}
		c.Wait("the next leader, known to the old one", func() bool {
			g := &c.brokers[old].gate
			g.mu.Lock()
			defer g.mu.Unlock()
			return c.brokers[next].Leads() && g.leader == c.address(next)
		})
		if b := c.brokers[next]; !b.meta.outdated("t@g", 0, 25, 0) || b.meta.outdated("t@g", 0, 25, b.meta.term()-1) {
			c.T.Fatal("the group was not moved, or in this term")
		}
		g := &c.brokers[next].gate
		g.set(false, "", false)
		got := make(chan *remoting.Frame, 1)
		go func() { got <- p.call(old, mq.CodeUpdateConsumerOffset, commitExt(25), nil) }()
		c.Wait("it to be held", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.held) == 1 && g.held[0].passed
		})
		g.set(true, "", false)
		if f := <-got; f.Code != mq.Success {
			c.T.Errorf("answered %d, %s", f.Code, f.Remark)
		}
		if n := p.must(next, mq.CodeQueryConsumerOffset, askExt(), nil).Ext["offset"]; n != "25" {
			c.T.Errorf("the offset is %s, want 25", n)
		}
	})
}

// rewound commits offset 10 and then 5, and waits until all know that.
func rewound(c *cluster, p *client, leader string) {
	c.T.Helper()
	for range 30 {
		p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("x"))
	}
	for _, n := range []int{10, 5} {
		p.must(leader, mq.CodeUpdateConsumerOffset, commitExt(n), nil)
		c.Wait("the offset everywhere", func() bool {
			for _, b := range c.brokers {
				if at, _ := b.meta.offset("t@g", 0); at != int64(n) {
					return false
				}
			}
			return true
		})
	}
}

// Moves of more groups than are remembered count for all.
func TestMovesAreBounded(t *testing.T) {
	cfg := NewConfig()
	s := newState(&cfg)
	for i := range 5000 {
		key := offsetKey("t", fmt.Sprint("g", i))
		s.apply(&record{Term: int64(i/100) + 1, Resets: map[string]map[int32]int64{key: {0: 1}}}, int64(i), func() state { return newState(&cfg) })
		if len(s.Moved) > movedMax {
			t.Fatalf("%d are remembered", len(s.Moved))
		}
	}
	for i := range 5000 {
		if key, term := offsetKey("t", fmt.Sprint("g", i)), int64(i/100)+1; !s.movedSince(key, term-1) {
			t.Fatalf("group %d was moved in term %d, which is forgotten", i, term)
		}
	}
	if s.movedSince("t@other", 50) {
		t.Error("moved in a term that is yet to come")
	}
}
