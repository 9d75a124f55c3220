package dledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// ServerConfig of a Server. Zero values mean the defaults.
type ServerConfig struct {
	Address string // host:port to listen on; the port counts, see Listen
	Bind    string // IP address to listen on; default all
	Groups  int    // how many groups must be open before the port answers; default 1
	Logger  *slog.Logger

	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Listen func(address string) (net.Listener, error) // default: TCP on the port of address, on Bind
}

// Server listens on one port for any number of groups (DLedgerRpcNettyService and DLedgerProxy in the Java original), and holds the
// connections to other members that they share.
type Server struct {
	log      *slog.Logger
	listener net.Listener
	remote   *remoting.Server
	client   *remoting.Client // for entries and all that a member of the group is asked about them
	control  *remoting.Client // for votes and heartbeats, on connections of their own: they wait behind no entries
	begin    sync.Once
	served   sync.WaitGroup

	mu      sync.RWMutex
	ledgers map[member]*Ledger
	routes  map[string][]*peer // by address
	missing int                // groups that are to be opened before the port answers
}

type member struct {
	group string
	id    raft.ID
}

// Listen opens the port of cfg.Address, like the original on all interfaces unless cfg.Bind names one, and serves the groups that are opened with it. Until
// cfg.Groups of them are open, connections wait: a member must not be told that it asked the wrong port.
func Listen(cfg ServerConfig) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	listen := cfg.Listen
	if listen == nil {
		listen = func(address string) (net.Listener, error) { return listenTCP(cfg.Bind, address) }
	}
	ln, err := listen(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on the port of %s: %w", cfg.Address, err)
	}
	s := &Server{log: cfg.Logger, listener: ln, ledgers: map[member]*Ledger{}, routes: map[string][]*peer{}, missing: max(1, cfg.Groups)}
	s.client = remoting.NewClient(remoting.ClientConfig{Dial: cfg.Dial, State: s.state, PauseMin: 20 * time.Millisecond, PauseMax: 200 * time.Millisecond, QueueMax: 2 * windowBytes})
	s.control = remoting.NewClient(remoting.ClientConfig{Dial: cfg.Dial, PauseMin: 20 * time.Millisecond, PauseMax: 200 * time.Millisecond})
	s.remote = remoting.NewServer(remoting.ServerConfig{Handler: handler{s}, AcceptError: func(err error) {
		s.log.Warn("connections cannot be accepted for now", "address", ln.Addr().String(), "error", err)
	}})
	return s, nil
}

func listenTCP(bind, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return net.Listen("tcp", net.JoinHostPort(bind, port))
}

// Addr is the address it listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close closes port and connections. The ledgers that use it must be closed first.
func (s *Server) Close() error {
	err := errors.Join(s.remote.Close(), s.client.Close(), s.control.Close())
	s.begin.Do(func() { err = errors.Join(err, s.listener.Close()) }) // no group was ever opened
	s.served.Wait()
	return err
}

func (s *Server) add(l *Ledger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := member{l.cfg.Group, raft.ID(l.cfg.ID)}
	if s.ledgers[key] != nil {
		return fmt.Errorf("member %s of group %q is open already", l.cfg.ID, l.cfg.Group)
	}
	s.ledgers[key] = l
	for _, p := range l.net.peers {
		s.routes[p.address] = append(s.routes[p.address], p)
	}
	if s.missing--; s.missing > 0 {
		return nil
	}
	s.begin.Do(func() {
		s.served.Go(func() { _ = s.remote.Serve(s.listener) }) // ends with net.ErrClosed, at Close
	})
	return nil
}

func (s *Server) remove(l *Ledger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ledgers, member{l.cfg.Group, raft.ID(l.cfg.ID)})
	for _, p := range l.net.peers {
		var rest []*peer
		for _, q := range s.routes[p.address] {
			if q != p {
				rest = append(rest, q)
			}
		}
		s.routes[p.address] = rest
	}
}

func (s *Server) state(address string, up bool) {
	s.mu.RLock()
	peers := s.routes[address]
	s.mu.RUnlock()
	for _, p := range peers {
		p.state(up)
	}
}

// find gives the ledger that a request is for. With one group on the port the checks are the original's, in its order: member,
// then group; with several, a pair that is not there is an unknown member (docs/protocol.md, "Requests").
func (s *Server) find(b *wire.Base) (*Ledger, wire.Result) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if l := s.ledgers[member{b.Group, b.RemoteID}]; l != nil {
		return l, wire.ResultOK
	}
	if len(s.ledgers) == 1 {
		for key := range s.ledgers {
			if key.id == b.RemoteID {
				return nil, wire.ResultUnknownGroup
			}
		}
	}
	return nil, wire.ResultUnknownMember
}

// anyOf gives a ledger of a group, or with group "" the only one, for requests that need not name the member.
func (s *Server) anyOf(group string, id raft.ID) (*Ledger, wire.Result) {
	if id != "" {
		return s.find(&wire.Base{Group: group, RemoteID: id})
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, l := range s.ledgers {
		if key.group == group {
			return l, wire.ResultOK
		}
	}
	return nil, wire.ResultUnknownGroup
}
