package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// kind is what a node understands.
type kind uint8

const (
	kindUnknown kind = iota
	kindOurs         // the requests from 52000 on
	kindOriginal
)

// node is a member to send to.
type node struct {
	id      raft.ID
	address string
	kind    kind
}

const (
	findPauseMin = 10 * time.Millisecond
	findPauseMax = 100 * time.Millisecond
	findTimeout  = time.Second     // of one question; a node that hangs must not hold up the others' answers for longer
	strangers    = 2 * time.Second // how long nodes that cannot be reached are waited for while all others are no members
	redirectMax  = 3               // two nodes that take each other for the leader must not keep a client busy
)

// connection follows the state of a connection: what a node understood ends with its connection, since another kind may come back.
func (c *Client) connection(address string, up bool) {
	if up {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kinds, address)
	if c.leader.address == address {
		c.leader = node{}
	}
}

// lookup waits until a leader is known.
func (c *Client) lookup(ctx context.Context) (node, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return node{}, ErrClosed
		}
		if l := c.leader; l.id != "" {
			c.mu.Unlock()
			return l, nil
		}
		c.waiters++
		changed := c.changed
		c.startFind()
		c.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ended(ctx)
		}
		c.mu.Lock()
		c.waiters--
		switch {
		case err != nil:
			err = c.noLeader(err)
		case c.leader.id == "":
			err = c.unknown
		}
		c.mu.Unlock()
		if err != nil {
			return node{}, err
		}
	}
}

// noLeader says why nothing was sent before a context ended; mu is held.
func (c *Client) noLeader(ended error) error {
	if c.trouble == nil {
		return fmt.Errorf("%w: %w", ErrNoLeader, ended)
	}
	return fmt.Errorf("%w: %w: %w", ErrNoLeader, ended, c.trouble)
}

// wake lets everybody look again who waits for a leader; mu is held.
func (c *Client) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// forget drops l as the leader, unless another one took its place already; mu is held.
func (c *Client) forget(l node) {
	if c.leader == l {
		c.leader = node{}
	}
}

// follow takes the leader that the node l named when it refused; mu is held.
func (c *Client) follow(l node, named raft.ID) {
	if c.leader != l {
		return
	}
	c.leader = node{}
	address, k := c.peers[named], kindOriginal
	if !c.cfg.JSON {
		k = c.kinds[address]
	}
	if c.redirects++; named != l.id && address != "" && k != kindUnknown && c.redirects <= redirectMax {
		c.leader = node{id: named, address: address, kind: k}
	}
}

// startFind makes sure that somebody looks for the leader; mu is held.
func (c *Client) startFind() {
	if c.finding || c.closed {
		return
	}
	c.finding, c.unknown = true, nil
	c.running.Go(c.find)
}

// find is the goroutine "find": it asks all nodes until one is the leader, none can ever be, or nobody wants to know any more.
func (c *Client) find() {
	pause := findPauseMin
	var since time.Time // when all nodes that answer were no members first; zero = they are not
	for {
		leader, learnt, trouble := c.canvass()
		c.mu.Lock()
		c.trouble = trouble.error
		c.met = c.met || trouble.met
		switch {
		case c.met || !trouble.strangers: // a member that ends is one no more for a moment
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		var ended []*call
		if !since.IsZero() && (trouble.reached || time.Since(since) >= strangers) {
			c.unknown = fmt.Errorf("group %q: %w: %w", c.cfg.Group, ErrUnknownGroup, trouble.error)
			ended = slices.DeleteFunc(c.queue, func(k *call) bool { return k.over })
			c.queue = nil
			for _, k := range ended {
				c.settle(k, c.unknown)
			}
		}
		wanted := !c.closed && (c.waiters > 0 || len(c.queue) > 0)
		if leader.id != "" || c.unknown != nil || !wanted {
			c.leader, c.redirects, c.finding = leader, 0, false
			c.wake()
			c.mu.Unlock()
			for _, k := range ended {
				k.finish()
			}
			c.pump()
			return
		}
		c.mu.Unlock()
		c.sweep()
		if learnt {
			continue
		}
		select {
		case <-time.After(pause):
		case <-c.ctx.Done():
		}
		pause = min(2*pause, findPauseMax)
	}
}

// opinion is what one node said in a round of questions.
type opinion struct {
	node
	metadata wire.MetadataResponse
	err      error // of METADATA
	pending  int   // questions without an answer
}

// reply is one answer on its way from a connection's goroutine to the asker.
type reply struct {
	from  *opinion
	hello bool
	kind  kind
	meta  wire.MetadataResponse
	err   error
}

// canvass asks every node once. A node is the leader if it says so itself and a majority agrees, or if all that answered have done so and
// no other that says so has a higher term or more nodes behind it. Without one, why says what every node said.
func (c *Client) canvass() (leader node, learnt bool, why doubt) {
	nodes := c.nodes()
	replies := make(chan reply, 2*len(nodes))
	opinions := make([]opinion, len(nodes))
	waiting := 0
	for i, n := range nodes {
		o := &opinions[i]
		o.node = n
		o.pending++
		c.askMetadata(o, replies)
		if n.kind == kindUnknown {
			o.pending++
			c.askHello(o, replies)
		}
		waiting += o.pending
	}
	for ; waiting > 0 && c.ctx.Err() == nil; waiting-- {
		r := <-replies // comes: every question has a time-out
		o := r.from
		o.pending--
		if r.hello {
			o.kind = r.kind
		} else {
			o.metadata, o.err = r.meta, r.err
		}
		if l := best(opinions, len(nodes)/2+1); l != nil {
			return l.node, false, memberFound
		}
	}
	for i := range opinions {
		learnt = c.learn(opinions[i].metadata.Peers) || learnt
	}
	if l := best(opinions, 1); l != nil {
		return l.node, learnt, memberFound
	}
	return node{}, learnt, doubts(opinions)
}

// nodes lists the known members by id, with what is known of their kind.
func (c *Client) nodes() []node {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make([]node, 0, len(c.peers))
	for id, address := range c.peers {
		k := c.kinds[address]
		if c.cfg.JSON {
			k = kindOriginal
		}
		nodes = append(nodes, node{id: id, address: address, kind: k})
	}
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(string(a.id), string(b.id)) })
	return nodes
}

func (c *Client) askMetadata(o *opinion, replies chan<- reply) {
	req := wire.MetadataRequest{Base: wire.ClientBase(c.cfg.Group, o.id)}
	asked := o.node
	done := func(f *remoting.Frame, err error) {
		r := reply{from: o, err: err}
		if err == nil {
			if r.err = r.meta.Decode(f.Code, f.Body); r.err == nil && r.meta.Code != wire.ResultOK {
				r.err = refused(r.meta.Code, asked)
			}
		}
		replies <- r
	}
	if err := c.rc.Go(o.address, remoting.Request{Code: wire.CodeMetadata}, c.findTimeout(), done, req.AppendTo(nil)); err != nil {
		done(nil, err)
	}
}

func (c *Client) askHello(o *opinion, replies chan<- reply) {
	id, address := o.id, o.address
	done := func(f *remoting.Frame, err error) {
		r := reply{from: o, hello: true, err: err}
		if err == nil {
			r.kind = c.helloKind(address, f)
		}
		replies <- r
	}
	body := wire.EncodeJSON(wire.Hello{Group: c.cfg.Group, RemoteID: id})
	if err := c.rc.Go(address, remoting.Request{Code: wire.CodeHello}, c.findTimeout(), done, body); err != nil {
		done(nil, err)
	}
}

// helloKind notes what the answer to HELLO says of the node at address.
func (c *Client) helloKind(address string, f *remoting.Frame) kind {
	var hello wire.HelloResponse
	k := kindOurs
	switch err := wire.DecodeJSONAnswer(f.Code, f.Body, &hello); {
	case errors.Is(err, wire.ErrUnsupported):
		k = kindOriginal
	case err != nil || hello.Code != wire.ResultOK:
		return kindUnknown // METADATA's answer says more
	}
	c.mu.Lock()
	c.kinds[address] = k
	c.mu.Unlock()
	return k
}

func (c *Client) findTimeout() time.Duration { return min(findTimeout, c.cfg.RequestTimeout) }

// best gives the node that calls itself the leader, can be talked to, and is named by at least quorum nodes; of several the one with
// the highest term, then with the most nodes behind it.
func best(opinions []opinion, quorum int) *opinion {
	var found *opinion
	votes := 0
	for i := range opinions {
		o := &opinions[i]
		if o.err != nil || o.kind == kindUnknown || o.metadata.LeaderID != o.id {
			continue
		}
		n := 0
		for j := range opinions {
			if opinions[j].err == nil && opinions[j].metadata.LeaderID == o.id {
				n++
			}
		}
		if n >= quorum && (found == nil || o.metadata.Term > found.metadata.Term || o.metadata.Term == found.metadata.Term && n > votes) {
			found, votes = o, n
		}
	}
	return found
}

// learn adds members that a node named and the configuration did not.
func (c *Client) learn(peers map[string]string) (learnt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, address := range peers {
		if _, known := c.peers[raft.ID(id)]; !known && id != "" && address != "" {
			c.peers[raft.ID(id)] = address
			learnt = true
		}
	}
	return learnt
}

// doubt is why no node of a round is the leader.
type doubt struct {
	error
	met       bool // a node answered as a member of the group
	strangers bool // some answered that they are no members, and the others cannot be reached
	reached   bool // everybody answered
}

// memberFound is that of a round with a leader.
var memberFound = doubt{met: true}

func doubts(opinions []opinion) doubt {
	d := doubt{error: sayings(opinions), reached: true}
	some, others := false, false
	for i := range opinions {
		switch err := opinions[i].err; {
		case stranger(err):
			some = true
		case errors.Is(err, remoting.ErrUnreachable):
			d.reached = false
		default: // a member, or one that is silent and may be about to say so
			others = true
			d.met = d.met || err == nil
		}
	}
	d.strangers = some && !others
	return d
}

func sayings(opinions []opinion) error {
	said := make([]string, 0, len(opinions))
	for i := range opinions {
		o := &opinions[i]
		switch {
		case errors.As(o.err, new(*RefusedError)):
			said = append(said, o.err.Error())
		case o.err != nil:
			said = append(said, fmt.Sprintf("%s (%s): %v", o.id, o.address, o.err))
		case o.metadata.LeaderID == "":
			said = append(said, fmt.Sprintf("%s (%s) knows no leader", o.id, o.address))
		default:
			said = append(said, fmt.Sprintf("%s (%s) names %s", o.id, o.address, o.metadata.LeaderID))
		}
	}
	return errors.New(strings.Join(said, ", "))
}

// Leader waits until a node leads the group, and gives its id.
func (c *Client) Leader(ctx context.Context) (string, error) {
	l, err := c.lookup(ctx)
	return string(l.id), err
}
