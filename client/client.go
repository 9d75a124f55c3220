// Package client talks to DLedger groups, ours and those of the Java original of any release: it finds the leader, follows it when it
// changes, and sends again what was surely not taken. What a group may or may not have taken it reports as ErrUndecided and never
// sends again. It holds no log and decides nothing about replication. Start at Client.
package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dledger/internal/raft"
	"dledger/internal/remoting"
)

// Config says which group a client talks to. Zero values stand for the defaults.
type Config struct {
	Group string            // default "default"
	Peers map[string]string // id → "host:port"; one of the group's nodes is enough, ParsePeers reads the usual form

	// Dial opens a connection. Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	JSON bool // keep to the original's requests, also with nodes that understand better ones

	RequestTimeout time.Duration // how long one request waits for its answer; default 4 s, above what servers wait for a majority
	PendingBytes   int           // bodies that appends may have on the way or in line; further ones wait; default 64 MiB
}

// Defaults of Config.
const (
	DefaultGroup          = "default"
	DefaultRequestTimeout = 4 * time.Second
	DefaultPendingBytes   = 64 << 20
)

// Client is a connection to a group (DLedgerClient in the Java original). Its methods may be called from any goroutine. Appends and
// single reads start none of their own: beside those of the connections there is one goroutine, "find", while a leader is looked for
// that somebody waits for, and one, "read ahead", for each iterator under way.
type Client struct {
	cfg     Config
	rc      *remoting.Client
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // "find"

	mu     sync.Mutex
	closed bool

	// The group as far as it is known.
	peers     map[raft.ID]string // those of Config, and those a node named
	kinds     map[string]kind    // by address, while its connection lasts
	leader    node               // zero = unknown
	finding   bool               // "find" runs
	waiters   int                // calls that wait for a leader, appends aside
	changed   chan struct{}      // closed when the leader becomes known, or find gives up
	trouble   error              // why the last look for a leader found none
	met       bool               // a node has answered as a member of the group
	unknown   error              // the last look for a leader ended with this ErrUnknownGroup
	redirects int                // leaders taken from a refusal since the last success

	// Appends, in append.go.
	queue   []*call       // in line, by seq
	seq     uint64        // of the last call
	frames  int           // requests on the way
	epoch   uint64        // counts refusals, but of those on the way at a refusal only the first
	older   int           // requests on the way of earlier epochs: what they refuse must get in line before anything else is sent
	pending int           // bytes of all calls that are not finished
	room    chan struct{} // closed when pending falls; nil = nobody waits
	pumping bool          // a goroutine is in pump's loop
	pausing *time.Timer   // nothing is sent until it fires; nil = no pause
	pause   time.Duration // of the last such pause
	flights sync.Pool     // of requests that were answered
	calls   sync.Pool     // of appends that nobody else can hold any more; a channel belongs to its client
}

// New makes a client without connections: it opens them as they are needed. An error names the part of the Config that cannot be.
func New(cfg Config) (*Client, error) {
	if cfg.Group == "" {
		cfg.Group = DefaultGroup
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = DefaultRequestTimeout
	}
	if cfg.PendingBytes == 0 {
		cfg.PendingBytes = DefaultPendingBytes
	}
	if cfg.RequestTimeout < 0 || cfg.PendingBytes < 0 {
		return nil, fmt.Errorf("client: negative RequestTimeout %v or PendingBytes %d", cfg.RequestTimeout, cfg.PendingBytes)
	}
	if len(cfg.Peers) == 0 {
		return nil, errors.New("client: no peers")
	}
	c := &Client{cfg: cfg, peers: make(map[raft.ID]string, len(cfg.Peers)), kinds: make(map[string]kind), changed: make(chan struct{})}
	for id, address := range cfg.Peers {
		if _, _, err := net.SplitHostPort(address); err != nil || id == "" {
			return nil, fmt.Errorf("client: peer %q with address %q: want an id and host:port", id, address)
		}
		c.peers[raft.ID(id)] = address
	}
	c.flights.New = c.newFlight
	c.calls.New = func() any { return &call{ready: make(chan struct{}, 1)} }
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.rc = remoting.NewClient(remoting.ClientConfig{
		Dial:        cfg.Dial,
		DialTimeout: min(cfg.RequestTimeout, 3*time.Second),
		QueueMax:    max(2*cfg.PendingBytes, remoting.FrameMax),
		PauseMin:    20 * time.Millisecond, // a node that restarts is wanted back at once
		PauseMax:    200 * time.Millisecond,
		State:       c.connection,
	})
	return c, nil
}

// Close ends all connections. Appends on the way fail with ErrUndecided, all others with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	if c.pausing != nil {
		c.pausing.Stop()
	}
	line := slices.DeleteFunc(c.queue, func(k *call) bool { return k.over })
	c.queue = nil
	for _, k := range line {
		c.settle(k, ErrClosed)
	}
	c.wake()
	c.mu.Unlock()
	for _, k := range line {
		k.finish()
	}
	c.cancel()
	err := c.rc.Close()
	c.running.Wait()
	return err
}

// ParsePeers reads "n0-host:port;n1-host:port", the form of the original's configuration. An error names the part that does not fit.
func ParsePeers(s string) (map[string]string, error) {
	peers := make(map[string]string)
	for part := range strings.SplitSeq(s, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		id, address, ok := strings.Cut(part, "-")
		if !ok || id == "" {
			return nil, fmt.Errorf("peer %q is not of the form id-host:port", part)
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil || port == "" {
			return nil, fmt.Errorf("peer %q: address %q is not of the form host:port", part, address)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("peer %q: port %q is not a number from 1 to 65535", part, port)
		}
		if _, twice := peers[id]; twice {
			return nil, fmt.Errorf("peer %q is named twice", id)
		}
		peers[id] = address
	}
	if len(peers) == 0 {
		return nil, fmt.Errorf("no peer in %q", s)
	}
	return peers, nil
}

// FormatPeers is the reverse of ParsePeers.
func FormatPeers(peers map[string]string) string {
	parts := make([]string, 0, len(peers))
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		parts = append(parts, id+"-"+peers[id])
	}
	return strings.Join(parts, ";")
}
