// Package broker owns one replica of a broker group: the port that stock clients and tools talk to, and what it keeps beside messages: topics,
// groups, consumer offsets, locks, connected clients. It speaks of leadership only in terms of "here" and "there": the log elects, the store
// keeps messages. Start at Broker; table lists every request.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
)

// Broker is one replica of a broker group (BrokerController in the Java original).
//
//  1. every replica answers every request: what needs the leader is passed on to it, and waits for a while if there is none (see gate);
//  2. what a client is told to be done, is committed: messages by the store, everything else as records of the metadata topic (see meta);
//  3. each replica applies those records in the order of the log, so that whoever leads next knows them.
type Broker struct {
	cfg    Config
	log    *slog.Logger
	host   netip.AddrPort // of messages stored here, and in their ids
	ledger *dledger.Ledger
	store  *msgstore.Store
	routes map[int32]route

	server    *remoting.Server
	tls       *remoting.TLS
	listeners []net.Listener
	replicas  *remoting.Client // connections to the other replicas of this group

	gate      gate
	meta      *meta
	offsets   offsets
	clients   clients
	polls     polls
	names     registrar
	java      java
	settler   settler
	confirmer confirmer
	stats     stats
	alarms    alarms
	levels    []time.Duration // of delayed messages

	timersWaiting atomic.Int64
	timerInfo     timerInfo
	transactions  transactions

	keys    *mq.UniqKeys
	suffix  string // properties of every message stored here
	started time.Time

	changed     atomic.Pointer[Config] // cfg with what UPDATE_BROKER_CONFIG has changed; nil = nothing, see conf
	confChange  sync.Mutex             // held while it is replaced
	confVersion atomic.Int64           // number of changes

	term     atomic.Int64  // in which this replica serves as leader; 0 = it does not
	failing  sync.Map      // services of the leader that wait to be run again: by name the error that stopped them
	failures atomic.Int64  // how often one was stopped by an error
	promoted chan struct{} // tells follow that the store is ready to lead, or who does
	waiting  atomic.Int64  // requests that have a goroutine

	ctx    context.Context // ends when Close has handed over and drained
	cancel context.CancelFunc
	tasks  sync.WaitGroup // those begun by open, which run until ctx ends, and what spawn begins
	mu     sync.Mutex
	ending bool  // no task is begun any more
	cause  error // why this replica left its group by itself; nil = it did not
	close  sync.Once
	closed error
	ended  chan struct{} // closed once Close is done
}

// Open recovers what this replica holds, takes part in its group, and serves clients. It returns as soon as the port is open; requests wait
// until there is a leader.
func Open(cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(cfg.idle) > 0 {
		cfg.Logger.Warn("settings without effect here", "keys", cfg.idle)
	}
	for _, m := range cfg.bent {
		cfg.Logger.Warn("a setting is not used as it stands", "key", m.key, "value", m.value, "used", m.used, "reason", m.why)
	}
	if keys := cfg.TLS.Unheeded(); len(keys) > 0 {
		cfg.Logger.Warn(remoting.UncheckedWarning, "keys", keys)
	}
	if len(cfg.NameServers) == 0 {
		cfg.Logger.Warn("no name server is set, so clients do not find this broker: set namesrvAddr")
	}
	if guard := cfg.unguarded(); guard != "" {
		cfg.Logger.Warn("there is no access control here: whoever reaches the ports may do everything", "key", guard)
	}
	if err := cfg.refuseOldLog(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, log: cfg.Logger.With("broker", cfg.Name, "id", cfg.Log.ID), routes: table(), started: time.Now(), ended: make(chan struct{})}
	if b.levels, err = parseDelayLevels(cfg.DelayLevels); err != nil {
		return nil, err
	}
	b.suffix = suffixOf(&b.cfg)
	b.alarms, b.transactions.b = newAlarms(), b
	b.polls.wake = make(chan struct{}, 1)
	b.promoted = make(chan struct{}, 1)
	b.host = netip.AddrPortFrom(cfg.host, uint16(cfg.Port))
	b.keys = mq.NewUniqKeys(cfg.host)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if err := b.open(); err != nil {
		b.cancel()
		return nil, errors.Join(err, b.shut())
	}
	return b, nil
}

func (b *Broker) open() (err error) {
	b.tls, err = remoting.NewTLS(b.cfg.TLS, func(err error) {
		b.log.Warn("certificates cannot be read again, the old ones stay in force", "error", err)
	})
	if err != nil {
		return err
	}
	if b.cfg.Dial == nil && b.tls.ForClient() {
		b.cfg.Dial = b.tls.Dial
	}
	if err := b.listen(); err != nil {
		return err
	}
	if b.ledger = b.cfg.ledger; b.ledger == nil {
		if b.ledger, err = dledger.Open(b.cfg.Log); err != nil {
			return byBrokerKeys(err)
		}
	}
	b.replicas = remoting.NewClient(remoting.ClientConfig{Dial: b.cfg.Dial, Version: mq.Version, DialTimeout: time.Second,
		PauseMin: 20 * time.Millisecond, PauseMax: 200 * time.Millisecond, IdleMax: -1, QueueMax: 64 << 20})
	b.gate.wake = make(chan struct{}, 1)
	b.gate.b, b.offsets.b, b.polls.b = b, b, b
	b.clients.open(b)
	b.names.open(b)
	b.java.open(b)
	b.stats.open(b.started)
	if b.meta, err = openMeta(b); err != nil {
		return err
	}
	if err := b.meta.adopt(); err != nil {
		return err
	}
	b.store, err = msgstore.Open(msgstore.Config{Ledger: b.ledger, Dir: b.cfg.Log.Dir, StoreHost: b.host, MetaTopic: b.meta.topic,
		MetaFrom: b.meta.state.Pos, Meta: b.meta.apply, LeaderRecord: b.meta.leaderMessage, Arrived: b.arrived, Promoted: b.becameReady, DelayLevels: b.levels, QueueFileUnits: b.cfg.QueueFileUnits, Floor: b.meta.floor,
		Logger: b.log, FS: b.cfg.Log.FS})
	if err != nil {
		return err
	}
	for _, run := range []func(context.Context){
		b.dispatch,
		b.meta.run, b.meta.saves,
		b.follow, b.java.run,
		b.gate.run, b.polls.run,
		b.clients.run, b.clients.tell,
		b.offsets.run,
		b.stats.run,
		b.names.run,
	} {
		b.tasks.Go(func() { run(b.ctx) })
	}
	b.serve()
	return nil
}

// dispatch keeps queues and state up with the log. A replica that cannot do that any more must not lead, and has nothing to tell: it leaves the group.
func (b *Broker) dispatch(ctx context.Context) {
	if err := b.store.Run(ctx); err != nil {
		b.fail(fmt.Errorf("committed messages cannot be worked on: %w", err))
	}
}

// fail ends this replica by itself: it leaves its group, and whoever has opened it learns of that from Done and Err. While it is stopped anyway
// that changes nothing.
func (b *Broker) fail(err error) {
	if b.ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	if b.cause == nil {
		b.cause = err
	}
	b.mu.Unlock()
	b.log.Error("this replica leaves its group, restart it once that is mended", "error", err)
	go func() { _ = b.Close() }() // a task cannot wait for the end of all tasks; the outcome is for the owner's Close
}

// spawn runs what a request needs a goroutine for. Once Close has closed the connections, nobody waits for it any more and it is not begun.
func (b *Broker) spawn(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ending {
		b.tasks.Go(f)
	}
}

// listen opens the main port, and the one 2 below it where old clients send.
func (b *Broker) listen() error {
	listen := b.cfg.Listen
	if listen == nil {
		listen = func(address string) (net.Listener, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return net.Listen("tcp", net.JoinHostPort(b.cfg.Bind, port))
		}
	}
	main, err := listen(b.cfg.address())
	switch {
	case err != nil && b.cfg.Bind != "":
		return fmt.Errorf("bindAddress, listenPort: %w", err)
	case err != nil:
		return fmt.Errorf("listenPort: %w", err)
	}
	b.listeners = append(b.listeners, main)
	if fast := b.cfg.Port - 2; fast > 0 {
		l, err := listen(net.JoinHostPort(b.cfg.IP, strconv.Itoa(fast)))
		if err != nil {
			b.log.Warn("the second port is not served: clients that use the VIP channel do not reach this broker", "error", err)
		} else {
			b.listeners = append(b.listeners, l)
		}
	}
	return nil
}

func (b *Broker) serve() {
	b.server = remoting.NewServer(remoting.ServerConfig{Handler: remoting.HandlerFunc(b.handle), TLS: b.tls, Version: mq.Version, ConnsMax: b.cfg.ConnsMax,
		Opened: b.clients.opened, Closed: b.clients.closed, AcceptError: func(err error) {
			b.log.Warn("connections cannot be accepted for now", "error", err)
		}})
	for _, l := range b.listeners {
		b.tasks.Go(func() { _ = b.server.Serve(l) }) // ends with net.ErrClosed, at Close
	}
	b.log.Info("broker serves", "address", b.cfg.address(), "cluster", b.cfg.Cluster)
}

// conf gives the configuration for what may be changed while the broker runs (settable); everything else is in cfg too.
func (b *Broker) conf() *Config {
	if c := b.changed.Load(); c != nil {
		return c
	}
	return &b.cfg
}

// becameReady is called by the store, and when it is known where a Java broker leads.
func (b *Broker) becameReady(dledger.Term) {
	select {
	case b.promoted <- struct{}{}:
	default:
	}
}

// Ledger gives the log beneath, for status and metrics.
func (b *Broker) Ledger() *dledger.Ledger { return b.ledger }

// Address is what clients connect to.
func (b *Broker) Address() string { return b.cfg.address() }

// Done is closed once this replica has stopped, be it by Close or Shutdown, or by itself since it could not go on: Err tells. It has to be closed
// in either case.
func (b *Broker) Done() <-chan struct{} { return b.ended }

// Err tells why this replica left its group by itself, as one does whose queues cannot be written any more. It is nil while it can go on, and if it was only
// closed.
func (b *Broker) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause
}

// Leads tells whether this replica leads its group and serves as such.
func (b *Broker) Leads() bool { return b.gate.here() }

// Shutdown is Close, but for a replica whose group lives on: it hands leadership over, and then goes on passing requests to the leader until
// the clients that used this one have had time to learn of it (Config.DrainMax at most), or ctx ends.
func (b *Broker) Shutdown(ctx context.Context) error {
	led := b.ledger != nil && b.ledger.IsLeader()
	b.names.leave()
	b.handOver(ctx)
	b.drain(ctx, led)
	return b.Close()
}

// Close leaves the group: a leader hands leadership over first. What Err tells is not in its result.
func (b *Broker) Close() error {
	b.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeMax)
		b.handOver(ctx)
		b.names.unregister(ctx)
		cancel()
		b.cancel()
		b.closed = b.shut()
		close(b.ended)
	})
	return b.closed
}

// closeMax bounds what Close does before it stops.
const closeMax = 3 * time.Second

// shut stops everything; parts may be missing when Open failed.
func (b *Broker) shut() error {
	var errs []error
	if b.server != nil {
		errs = append(errs, b.server.Close())
	} else {
		for _, l := range b.listeners {
			errs = append(errs, l.Close())
		}
	}
	if b.replicas != nil {
		errs = append(errs, b.replicas.Close())
	}
	if b.names.client != nil {
		errs = append(errs, b.names.client.Close())
	}
	b.mu.Lock()
	b.ending = true
	b.mu.Unlock()
	b.tasks.Wait()
	if b.meta != nil {
		errs = append(errs, b.meta.save())
	}
	if b.store != nil {
		errs = append(errs, b.store.Close())
	}
	if b.ledger != nil && b.cfg.ledger == nil {
		errs = append(errs, b.ledger.Close())
	}
	return errors.Join(errs...)
}

// configDir is where the files are that tools of the original know.
func (b *Broker) configDir() string { return filepath.Join(b.cfg.Log.Dir, "config") }

func milliseconds(t time.Time) int64 { return t.UnixMilli() }
