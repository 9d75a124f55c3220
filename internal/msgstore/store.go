// Package msgstore owns the messages of a broker over one replicated log: how they get their place in a queue, and how they are found again by queue and
// offset, by time, by position and by key. It decides nothing about topics, permissions or clients, and knows no request. Start at Store.
//
// The log's committed entries are all there is to know; consume queues and key index are local, follow from them, and are built again
// when they are missing. Files are those of the Java original.
package msgstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"dledger"
	"dledger/internal/entry"
	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// Log is what the store needs of the replicated log; *dledger.Ledger is one.
type Log interface {
	Commit() dledger.Index
	// Committed calls f for committed entries from an index on, and gives the index behind them.
	Committed(from dledger.Index, f func(dledger.Entry) bool) (dledger.Index, error)
	Get(i dledger.Index) (dledger.Entry, error)
	First() (dledger.Index, int64)
	CommittedEnd() (int64, error)
	EntryAt(pos int64) (dledger.Entry, error)
	ReadAt(pos int64, n int) ([]byte, error)
	Whole(pos int64, b []byte) bool
	Fresh(pos int64, n int) ([]byte, bool)
	Leading() (dledger.Term, bool)
	Changed() <-chan struct{}
	Derived(i dledger.Index)
	ProposeIn(term dledger.Term, batch [][]byte, stamp dledger.Stamp, done func(dledger.Appended, error))
}

// headerSize is how far a message begins behind its entry.
const headerSize = entry.HeaderSize

// Config says what a store is built on. Ledger, Dir and StoreHost must be given.
type Config struct {
	// Ledger is the log, a *dledger.Ledger. Nobody else puts messages into it.
	Ledger Log
	// Dir holds the directories consumequeue and index and the file checkpoint (storePathRootDir).
	Dir string
	// StoreHost is the address of this broker for its clients. It goes into each message that has none, and so into its id.
	StoreHost netip.AddrPort

	// MetaTopic is the topic of the broker's own records. Meta is called for each committed message of it, in log order, on every member, by the
	// goroutine of Run; pos is the message's physical offset. It begins behind MetaFrom, the offset up to which the caller has them
	// already (0: nothing), or earlier: what is at or below it must be passed over. An error ends Run.
	MetaTopic string
	MetaFrom  int64
	Meta      func(pos int64, m *mq.Message) error

	// LeaderRecord gives the message with which a new leadership begins, of MetaTopic. It takes no place in a queue. nil: a message without body.
	LeaderRecord func(term dledger.Term) *mq.Message

	// Arrived is called for each message that has become readable in a queue, by the goroutine of Run; it must not block. m is valid until it returns.
	Arrived func(topic string, queueID int32, offset, tagsCode int64, m *mq.Message)

	// Promoted is called when this member has become ready to lead (see Ready), by the goroutine of Run.
	Promoted func(term dledger.Term)

	// Floor tells how far a queue has come at least, for queues whose messages have all gone from the log: a member that has never seen them would
	// give their offsets a second time. It is asked while this member is ready to lead, also on the log's own goroutine, so it must not block. nil: 0.
	Floor func(topic string, queueID int32) int64

	// DelayLevels are the delays behind the levels 1, 2, …; default DelayLevels.
	DelayLevels []time.Duration

	FS              vfs.FS        // default vfs.OS()
	Logger          *slog.Logger  // default: discarded
	CheckpointEvery time.Duration // default 10 s: what a start after a crash dispatches again
	QueueFileUnits  int           // entries in a consume queue file; default 300,000
	IndexSlots      int           // default 5,000,000
	IndexItems      int           // default 20,000,000
}

// DelayLevels are the original's: level 1 is one second.
var DelayLevels = []time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute,
	10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
}

func (c Config) withDefaults() (Config, error) {
	if c.Ledger == nil || c.Dir == "" || !c.StoreHost.IsValid() {
		return c, fmt.Errorf("message store: ledger, directory %q and store host %v must be given", c.Dir, c.StoreHost)
	}
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Meta == nil {
		c.MetaTopic = ""
	}
	if c.LeaderRecord == nil {
		topic := c.MetaTopic
		if topic == "" {
			topic = mq.SystemPrefix + "leader"
		}
		c.LeaderRecord = func(dledger.Term) *mq.Message { return &mq.Message{Topic: topic} }
	}
	if c.DelayLevels == nil {
		c.DelayLevels = DelayLevels
	}
	for _, d := range []struct {
		v   *int
		def int
	}{{&c.QueueFileUnits, unitsPerFile}, {&c.IndexSlots, 5_000_000}, {&c.IndexItems, 20_000_000}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.CheckpointEvery == 0 {
		c.CheckpointEvery = 10 * time.Second
	}
	return c, nil
}

// Errors of the reads.
var (
	ErrNotFound = errors.New("no such message")
	ErrClosed   = errors.New("message store closed")
)

// Store is the messages of one member (DefaultMessageStore and DLedgerCommitLog in the Java original). Its methods may be called from any goroutine,
// Run once.
//
//  1. only committed entries are dispatched, in log order, each once: what a crash makes dispatch again comes to the same places;
//  2. queue offsets are given by a leadership that has dispatched everything before its first entry, and its log refuses them in any other term;
//  3. the goroutine of Run alone changes queues; files are written by it, or by a checkpoint on its way, of which there is one at most.
type Store struct {
	cfg       Config
	log       Log
	fs        vfs.FS
	logger    *slog.Logger
	lock      io.Closer
	files     *descriptors
	queueRoot string
	index     index

	// The goroutine of Run, and before and after it Open and Close.
	at         checkpoint // where dispatching is; index and clean are not kept up to date
	from       int64      // queues and index are dispatched from this position on; before it, only Meta. The files hold what is before it
	unchecked  bool       // at.last was not compared with the log yet
	rebuilt    bool       // the files did not fit the checkpoint
	trusted    bool       // nothing was written behind the checkpoint: the store was closed
	unflushed  map[*queue]bool
	tailBytes  int
	dirty      map[string]bool // files and directories changed since the last checkpoint
	dirtyDirs  map[string]bool
	urgent     bool          // files were removed of which the last checkpoint speaks
	due        bool          // a checkpoint is to be made, though nothing may have been dispatched since the last
	saving     *saving       // on its way
	saved      dledger.Index // next of the last checkpoint
	savedAt    time.Time
	savedFor   time.Duration // that it took
	pause      time.Time     // none is begun before
	expiredTo  int64         // the log's first position for which queues were cleaned
	lastTerm   dledger.Term  // of the last dispatched entry
	recordTerm dledger.Term  // a leader record was proposed in this term
	warned     time.Time
	failed     error // of Meta or a queue, while a batch is dispatched

	queues struct {
		sync.RWMutex
		of map[string]map[int32]*queue
	}

	led atomic.Pointer[leadership]

	recordFailed atomic.Int64 // the last term in which a leader record was not committed at once

	suspectsMu sync.Mutex
	suspects   suspects
	mending    *mending      // the goroutine of Run
	remaking   *remaking     // the same
	checking   *checking     // the same; nil = no count is under way
	waiting    atomic.Bool   // Run is to be woken, see later
	kick       chan struct{} // wakes Run
	results    chan error    // of finish
	calls      chan func()   // run on the goroutine of Run
	stopped    chan struct{} // closed when Run has returned

	watchMu sync.Mutex
	watch   chan struct{} // closed at the next promotion; nil while nobody waits
	reach   chan struct{} // closed when more is dispatched; nil while nobody waits

	stats counters
}

type counters struct {
	dispatched, unreadable, checkpoints, mended, remade, to, next, time atomic.Int64
}

// Open finds out what the queues hold and from where on the log has to be dispatched. Run does it.
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, log: cfg.Ledger, fs: cfg.FS, logger: cfg.Logger, files: newDescriptors(cfg.FS), queueRoot: filepath.Join(cfg.Dir, "consumequeue"),
		unflushed: map[*queue]bool{}, dirty: map[string]bool{}, dirtyDirs: map[string]bool{}, expiredTo: -1, lastTerm: -1, recordTerm: -1,
		kick: make(chan struct{}, 1), results: make(chan error, 1), calls: make(chan func()), stopped: make(chan struct{})}
	s.queues.of, s.suspects = map[string]map[int32]*queue{}, suspects{}
	s.index = index{dir: filepath.Join(cfg.Dir, "index"), slots: int32(cfg.IndexSlots), items: int32(cfg.IndexItems), files: s.files, now: time.Now,
		hurt: s.indexHurt, storeTime: s.storeTimeAt, nextKeyed: s.nextKeyed}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open message store in %s: %w", cfg.Dir, err), s.release())
	}
	return s, nil
}

func (s *Store) open() error {
	if err := s.fs.MkdirAll(s.queueRoot); err != nil {
		return err
	}
	var err error
	if s.lock, err = s.fs.Lock(s.cfg.Dir); err != nil {
		return err
	}
	f, err := s.fs.OpenFile(s.abortName(), os.O_RDWR|os.O_CREATE)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return err
	}
	if err := s.recover(); err != nil {
		return err
	}
	s.log.Derived(s.saved - 1)
	return nil
}

// abortName is the file that tells the Java original that the last stop was not a clean one.
func (s *Store) abortName() string { return filepath.Join(s.cfg.Dir, "abort") }

// recover brings queues and index to where the last checkpoint says. If they do not fit it, or there is none, everything that the log still holds is dispatched
// again: the units of what it no longer holds are kept, as they say how far a queue had come.
func (s *Store) recover() error {
	c, ok, err := s.readCheckpoint()
	if err != nil {
		return err
	}
	number := c.number
	if ok && !s.belongs(c.last) {
		s.logger.Warn("queues are of another log; they are built anew", "dir", s.cfg.Dir)
		if err := s.removeQueues(); err != nil {
			return err
		}
		ok = false
	}
	if ok {
		s.trusted = c.clean
		if err := s.loadQueues(c.end); err != nil {
			return err
		}
		whole, err := s.index.load(c.index)
		if err != nil {
			return err
		}
		if ok = whole && s.at.queues == c.queues && s.at.sum == c.sum; !ok {
			s.rebuilt = true
			s.logger.Warn("queues or index are not what the checkpoint says; they are built again", "dir", s.cfg.Dir,
				"queues", s.at.queues, "expected", c.queues, "messages", s.at.sum, "expected messages", c.sum, "index", whole)
		}
	}
	first, pos := s.log.First()
	s.trusted = s.trusted && ok
	if !ok {
		if err := s.loadQueues(pos); err != nil {
			return err
		}
		if _, err := s.index.load(indexFile{}); err != nil {
			return err
		}
		if err := s.index.clear(); err != nil {
			return err
		}
		c = checkpoint{next: first, end: pos, last: place{-1, -1, -1}}
	}
	s.at = checkpoint{number: number, next: c.next, end: c.end, last: c.last, queues: s.at.queues, sum: s.at.sum}
	s.from, s.saved, s.unchecked = c.end, c.next, ok && c.last.index > s.log.Commit()
	s.stats.to.Store(c.end)
	s.stats.next.Store(int64(c.next))
	s.stats.time.Store(c.index.head.lastTime)
	if s.cfg.MetaTopic == "" || s.cfg.MetaFrom+headerSize >= c.end && s.cfg.MetaFrom > 0 {
		return nil
	}
	i := first // the records begin before the messages
	if at := s.cfg.MetaFrom - headerSize; at >= pos {
		switch e, err := s.log.EntryAt(at); {
		case err == nil:
			i = e.Index + 1
		case errors.Is(err, dledger.ErrOutOfRange) && s.isBehind(at): // the log has lost its end, which comes again; the records before that are known
			i = max(i, s.log.Commit()+1)
		case errors.Is(err, dledger.ErrDamaged): // what comes before it may be told again
		default:
			return fmt.Errorf("the broker's records were saved up to position %d: %w", s.cfg.MetaFrom, err)
		}
	}
	s.at.next = min(s.at.next, i)
	return nil
}

// isBehind tells whether a position is not known to be committed.
func (s *Store) isBehind(pos int64) bool {
	if first, _ := s.log.First(); s.log.Commit() < first { // nothing is
		return true
	}
	end, err := s.log.CommittedEnd()
	return err == nil && pos >= end
}

// belongs tells whether a place that was dispatched is one of this log, as far as that is known yet.
func (s *Store) belongs(p place) bool {
	if first, _ := s.log.First(); p.index < first || p.index > s.log.Commit() {
		return true
	}
	e, err := s.log.Get(p.index)
	return err != nil || e.Term == p.term && e.Pos == p.pos
}

// loadQueues loads every queue as far as it holds what lies below limit in the log.
func (s *Store) loadQueues(limit int64) error {
	s.queues.of = map[string]map[int32]*queue{}
	s.at.queues, s.at.sum = 0, 0
	topics, err := s.fs.ReadDir(s.queueRoot)
	if err != nil {
		return err
	}
	for _, topic := range topics {
		ids, err := s.fs.ReadDir(filepath.Join(s.queueRoot, topic))
		if err != nil {
			return err
		}
		for _, n := range ids {
			id, err := strconv.ParseInt(n, 10, 32)
			if err != nil {
				continue // not ours
			}
			q, err := s.loadQueue(topic, int32(id), limit)
			if err != nil {
				return fmt.Errorf("queue %d of topic %s: %w", id, topic, err)
			}
			if q.end > 0 {
				s.enter(q)
			}
		}
	}
	return nil
}

// enter makes a queue one of the store's.
func (s *Store) enter(q *queue) {
	s.queues.Lock()
	if s.queues.of[q.topic] == nil {
		s.queues.of[q.topic] = map[int32]*queue{}
	}
	s.queues.of[q.topic][q.id] = q
	s.queues.Unlock()
	s.at.queues++
	s.at.sum += q.end
}

// removeQueues removes the files of all queues.
func (s *Store) removeQueues() error {
	if err := s.loadQueues(0); err != nil {
		return err
	}
	s.at.queues, s.at.sum = 0, 0
	return nil
}

// queue gives one queue; nil if it holds nothing.
func (s *Store) queue(topic string, id int32) *queue {
	s.queues.RLock()
	defer s.queues.RUnlock()
	return s.queues.of[topic][id]
}

// floor is how far a queue has come at least; see Config.Floor.
func (s *Store) floor(topic string, id int32) int64 {
	if _, ok := s.Ready(); !ok || s.cfg.Floor == nil {
		return 0
	}
	return s.cfg.Floor(topic, id)
}

// Ends gives the offsets behind the last messages of all queues.
func (s *Store) Ends() map[string]map[int32]int64 {
	s.queues.RLock()
	defer s.queues.RUnlock()
	all := make(map[string]map[int32]int64, len(s.queues.of))
	for topic, queues := range s.queues.of {
		ends := make(map[int32]int64, len(queues))
		for id, q := range queues {
			ends[id] = q.view().end
		}
		all[topic] = ends
	}
	return all
}

// Intervals and amounts of Run.
const (
	expireEvery  = 10 * time.Second
	checkEvery   = 24 * time.Hour // a count of the slots of the index, beside that at the start
	tailsMax     = 16 << 20       // bytes of queues that wait for a checkpoint
	pendingMax   = 1 << 19        // items of the index that wait for one
	recordWait   = 50 * time.Millisecond
	warnInterval = time.Minute
	laterAfter   = 50 * time.Millisecond // when Run looks again at what is being repaired
)

// Run dispatches committed entries until ctx ends, with nil, or something fails. While this member leads it also prepares it to take messages.
func (s *Store) Run(ctx context.Context) (err error) {
	s.savedAt = time.Now()
	defer func() {
		if s.saving != nil {
			err = errors.Join(err, s.saveDone(<-s.results))
		}
		close(s.stopped)
		s.led.Store(nil)
		s.announce()
	}()
	save, expire := time.NewTicker(s.cfg.CheckpointEvery), time.NewTicker(expireEvery)
	check := time.NewTicker(checkEvery)
	defer save.Stop()
	defer expire.Stop()
	defer check.Stop()
	s.beginChecking()
	for {
		changed := s.log.Changed()
		more, err := s.dispatchSome()
		if err != nil {
			return err
		}
		mending, err := s.mendSome()
		if err != nil {
			return err
		}
		remaking, err := s.remakeSome()
		if err != nil {
			return err
		}
		counting, err := s.checkSome()
		if err != nil {
			return err
		}
		if mending || remaking || counting {
			s.wake() // after whatever else there is to do
		}
		s.promote()
		if err := s.save(false); err != nil {
			return err
		}
		if more && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-s.kick:
		case err := <-s.results:
			if err := s.saveDone(err); err != nil {
				return err
			}
		case f := <-s.calls:
			f()
		case <-save.C:
			if err := s.save(true); err != nil {
				return err
			}
		case <-check.C:
			s.beginChecking()
		case <-expire.C:
			if err := s.expireQueues(); err != nil {
				return err
			}
		}
	}
}

// dispatchSome dispatches a part of what is committed; false: there was nothing.
func (s *Store) dispatchSome() (more bool, err error) {
	if s.unchecked && s.log.Commit() >= s.at.last.index {
		if !s.belongs(s.at.last) {
			return false, fmt.Errorf("message store: the queues in %s are of another log; they are built anew at the next start", s.cfg.Dir)
		}
		s.unchecked = false
	}
	before := s.at.next
	s.failed = nil
	next, err := s.log.Committed(before, func(e dledger.Entry) bool {
		s.failed = s.dispatch(e)
		return s.failed == nil
	})
	switch {
	case errors.Is(err, dledger.ErrCompacted):
		first, _ := s.log.First()
		s.logger.Warn("entries were deleted before they were dispatched", "next", s.at.next, "first", first)
		s.at.next = first
		s.stats.next.Store(int64(first))
		return true, nil
	case errors.Is(err, dledger.ErrClosed):
		return false, nil
	case errors.Is(err, dledger.ErrDamaged):
		s.waitForCopy(err)
		return false, nil
	case err != nil:
		return false, err
	case errors.Is(s.failed, dledger.ErrDamaged): // of an entry that a record is compared with
		s.waitForCopy(s.failed)
		next = s.at.next
	case s.failed != nil:
		return false, s.failed
	}
	more = next > before
	s.at.next = next
	if more {
		s.stats.next.Store(int64(next))
		s.watchMu.Lock()
		if s.reach != nil {
			close(s.reach)
			s.reach = nil
		}
		s.watchMu.Unlock()
	}
	return more, nil
}

// waitForCopy has a damaged entry looked at again after a while: another member is asked for it. Nothing behind it can be dispatched before.
func (s *Store) waitForCopy(err error) {
	if now := time.Now(); now.Sub(s.warned) > warnInterval {
		s.warned = now
		s.logger.Warn("messages are not dispatched before a damaged entry is whole again", "next", s.at.next, "reason", err)
	}
	s.later()
}

// later has Run look around again after a while.
func (s *Store) later() {
	if s.waiting.CompareAndSwap(false, true) {
		time.AfterFunc(laterAfter, func() {
			s.waiting.Store(false)
			s.wake()
		})
	}
}

// WaitDispatched waits until the message at physical offset pos, if it is committed, is in its queue. Errors: ctx's, and ErrClosed.
func (s *Store) WaitDispatched(ctx context.Context, pos int64) error {
	return s.wait(ctx, func() bool { return s.stats.to.Load() > pos })
}

// WaitIndex waits until the committed entry i and all before it are dispatched. Errors: ctx's, and ErrClosed.
func (s *Store) WaitIndex(ctx context.Context, i dledger.Index) error {
	return s.wait(ctx, func() bool { return s.stats.next.Load() > int64(i) })
}

// DispatchedTo is the position behind the last dispatched message.
func (s *Store) DispatchedTo() int64 { return s.stats.to.Load() }

// wait waits until enough is dispatched.
func (s *Store) wait(ctx context.Context, enough func() bool) error {
	for {
		s.watchMu.Lock()
		if s.reach == nil {
			s.reach = make(chan struct{})
		}
		more := s.reach
		s.watchMu.Unlock()
		if enough() {
			return nil
		}
		select {
		case <-more:
		case <-s.stopped:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// dispatch enters one committed entry into queue and index.
func (s *Store) dispatch(e dledger.Entry) error {
	pos := e.Pos + headerSize
	m, n, err := mq.ParseStored(e.Body)
	if err == nil && (n != len(e.Body) || m.PhysicalOffset != pos || !isName(m.Topic)) {
		err = fmt.Errorf("%w: %d bytes of topic %q that says it is at %d", mq.ErrMessage, n, m.Topic, m.PhysicalOffset)
	}
	if err != nil {
		s.stats.unreadable.Add(1)
		if now := time.Now(); now.Sub(s.warned) > warnInterval {
			s.warned = now
			s.logger.Warn("an entry holds no message; it is passed over", "entry", e.Index, "reason", err)
		}
		s.reached(e, 0)
		return nil
	}
	if s.cfg.MetaTopic != "" && m.Topic == s.cfg.MetaTopic {
		if err := s.cfg.Meta(pos, &m); err != nil {
			return fmt.Errorf("apply the record at %d: %w", pos, err)
		}
	}
	if pos >= s.from {
		s.index.add(&m, pos)
		if m.InQueue() {
			if err := s.enqueue(&m, pos, int32(n)); err != nil {
				return err
			}
		}
		s.stats.dispatched.Add(1)
	}
	s.reached(e, m.StoreTime)
	return nil
}

// CheckTopic says why no message of a topic can be stored, whatever else there is to say about its name.
func CheckTopic(topic string) error {
	switch {
	case !isName(topic):
		return fmt.Errorf("topic %q", topic)
	case len(topic) > mq.TopicMax:
		return fmt.Errorf("topic of %d bytes, at most %d", len(topic), mq.TopicMax)
	}
	return nil
}

// isName tells whether a topic can be a directory's name.
func isName(topic string) bool {
	return topic != "" && topic != "." && topic != ".." && !strings.ContainsAny(topic, "/\\\x00")
}

// reached notes that an entry is dispatched.
func (s *Store) reached(e dledger.Entry, storeTime int64) {
	s.at.next = e.Index + 1
	s.lastTerm = e.Term
	end := e.Pos + headerSize + int64(len(e.Body))
	if end <= s.from {
		return
	}
	s.at.end, s.at.last = end, place{e.Index, e.Term, e.Pos}
	if storeTime > 0 {
		s.at.time = storeTime
		s.stats.time.Store(storeTime)
	}
	s.stats.to.Store(end)
}

// enqueue gives a message its unit.
func (s *Store) enqueue(m *mq.Message, pos int64, size int32) error {
	q := s.queue(m.Topic, m.QueueID)
	if q == nil {
		q = s.newQueue(strings.Clone(m.Topic), m.QueueID)
		s.enter(q)
	}
	switch gap := m.QueueOffset - q.end; {
	case gap < 0:
		s.logger.Error("a queue offset was given twice; the later message cannot be consumed", "topic", m.Topic, "queue", m.QueueID, "offset", m.QueueOffset, "position", pos)
		return nil
	case gap > 0:
		if err := s.fill(q, m.QueueOffset); err != nil {
			return err
		}
	}
	code := s.tagsCode(m)
	q.push(unit{pos, size, code})
	s.at.sum++
	s.unflushed[q] = true
	s.tailBytes += unitSize
	if len(q.tail) >= flushBytes {
		if err := s.flush(q); err != nil && !noSpace(err) {
			return err
		}
	}
	if s.cfg.Arrived != nil {
		s.cfg.Arrived(q.topic, q.id, m.QueueOffset, code, m)
	}
	return nil
}

// fill makes a queue go on at offset, behind its end: where all before it has gone from the log, or nothing was there, the queue begins anew;
// otherwise blanks stand for what is missing.
func (s *Store) fill(q *queue, offset int64) error {
	lo, hi, err := s.bounds(q)
	if err != nil {
		return err
	}
	s.at.sum += offset - q.end
	if lo == hi || offset-hi > q.per {
		if lo != hi {
			s.logger.Error("a queue has a gap; what is before it cannot be consumed any more", "topic", q.topic, "queue", q.id, "from", hi, "to", offset)
		}
		return s.restart(q, offset)
	}
	s.logger.Error("a queue has a gap", "topic", q.topic, "queue", q.id, "from", hi, "to", offset)
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; q.end < offset; q.end++ {
		q.tail = blankUnit.append(q.tail)
	}
	return nil
}

// tagsCode is what the unit of a message keeps: the hash of its tag, or when it is due.
func (s *Store) tagsCode(m *mq.Message) int64 {
	if m.Topic == mq.TopicSchedule {
		if level, err := strconv.Atoi(m.Prop(mq.PropDelay)); err == nil && level > 0 {
			return m.StoreTime + s.cfg.DelayLevels[min(level, len(s.cfg.DelayLevels))-1].Milliseconds()
		}
	}
	return mq.TagsCode(m.Prop(mq.PropTags))
}

// save starts a checkpoint if one is due: by the clock, or because too much is in memory.
func (s *Store) save(due bool) error {
	s.index.mu.RLock()
	items := len(s.index.pending)
	s.index.mu.RUnlock()
	switch {
	case s.saving != nil, s.at.next <= s.saved && !s.due, time.Now().Before(s.pause): // nothing new, or only records that the files do not hold
		return nil
	case s.urgent, s.due:
	case s.tailBytes > tailsMax, items > pendingMax:
	case !due, time.Since(s.savedAt) < 4*s.savedFor:
		return nil
	}
	sv, err := s.beginCheckpoint(false)
	if err != nil {
		return s.saveDone(err)
	}
	s.saving = sv
	go func() { s.results <- s.finish(sv) }()
	return nil
}

// saveDone takes the outcome of a checkpoint. A full disk only puts it off: what it was to save is still in memory, or will be dispatched again.
func (s *Store) saveDone(err error) error {
	sv := s.saving
	s.saving, s.savedAt = nil, time.Now()
	if err == nil {
		s.saved, s.savedFor = sv.c.next, time.Since(sv.began)
		s.log.Derived(s.saved - 1)
		return nil
	}
	if sv != nil {
		s.again(sv)
	}
	if noSpace(err) {
		s.pause = time.Now().Add(10 * time.Second)
		s.logger.Warn("no space for queues and index; what they lack is dispatched again after a restart", "dir", s.cfg.Dir, "error", err)
		return nil
	}
	return fmt.Errorf("message store checkpoint: %w", err)
}

func noSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// expireQueues removes what lies before the log's first entry.
func (s *Store) expireQueues() error {
	_, first := s.log.First()
	if first == s.expiredTo {
		return nil
	}
	for _, q := range s.allQueues() {
		if err := s.expire(q, first); err != nil {
			return err
		}
	}
	if err := s.index.expire(first); err != nil {
		return err
	}
	s.expiredTo = first
	return nil
}

func (s *Store) allQueues() []*queue {
	s.queues.RLock()
	defer s.queues.RUnlock()
	var all []*queue
	for _, m := range s.queues.of {
		all = slices.AppendSeq(all, maps.Values(m))
	}
	return all
}

// call runs f on the goroutine of Run, once that has begun.
func (s *Store) call(f func() error) error {
	got := make(chan error, 1)
	select {
	case s.calls <- func() { got <- f() }:
		return <-got
	case <-s.stopped:
		return ErrClosed
	}
}

// CleanExpired removes what lies before the log's first entry from queues and index now, instead of within ten seconds.
func (s *Store) CleanExpired() error { return s.call(s.expireQueues) }

// Checkpoint makes what is dispatched durable now.
func (s *Store) Checkpoint() error {
	return s.call(func() error {
		if s.saving != nil {
			if err := s.saveDone(<-s.results); err != nil {
				return err
			}
		}
		sv, err := s.beginCheckpoint(false)
		if err != nil {
			return err
		}
		s.saving = sv
		err = s.finish(sv)
		return errors.Join(err, s.saveDone(err))
	})
}

// DeleteTopic removes the queues of a topic and their files. It is called from Meta, for the record at physical offset pos that asks for it: a queue that has
// messages from behind it is one that came after.
func (s *Store) DeleteTopic(topic string, pos int64) error {
	s.queues.RLock()
	all := maps.Clone(s.queues.of[topic])
	s.queues.RUnlock()
	left := len(all)
	for id, q := range all {
		if q.lastPos > pos {
			continue
		}
		left--
		s.urgent = true
		if err := s.dropFiles(q, 0); err != nil {
			return err
		}
		s.queues.Lock()
		delete(s.queues.of[topic], id)
		s.queues.Unlock()
		delete(s.unflushed, q)
		s.at.queues--
		s.at.sum -= q.end
	}
	if left == 0 {
		s.queues.Lock()
		delete(s.queues.of, topic)
		s.queues.Unlock()
	}
	return nil
}

// wake makes Run look around.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Close makes a checkpoint and gives the files back. Run must have returned, or never been called.
func (s *Store) Close() error {
	if s.hurt() {
		s.log.Derived(-1)
		return errors.Join(s.files.remove(s.checkpointName()), s.fs.SyncDir(s.cfg.Dir), s.release())
	}
	sv, err := s.beginCheckpoint(true)
	if err == nil {
		err = s.finish(sv)
	}
	if err == nil {
		s.log.Derived(sv.c.next - 1)
		err = s.fs.Remove(s.abortName())
	}
	if err != nil {
		err = fmt.Errorf("close message store: %w", err)
	}
	return errors.Join(err, s.release())
}

func (s *Store) release() error {
	err := s.files.close()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Stats are counts since Open.
type Stats struct {
	Dispatched   int64 // messages
	Unreadable   int64 // entries that hold no message
	Behind       int64 // bytes of committed log that are not dispatched yet
	Queues       int
	First, End   int64 // positions where the log begins, and where its committed part ends
	DispatchedTo int64
	Checkpoints  int64
	Mended       int64 // units of queues that were damaged and are made anew
	Damaged      int   // queues that wait for that
	IndexRemade  int64 // how often the key index, or its newer part, was damaged and is made anew
	IndexDamaged bool  // that is going on
}

// Stats gives the counts.
func (s *Store) Stats() Stats {
	_, first := s.log.First()
	end, err := s.log.CommittedEnd()
	if err != nil {
		end = s.stats.to.Load() // the log is being closed
	}
	n := 0
	s.queues.RLock()
	for _, m := range s.queues.of {
		n += len(m)
	}
	s.queues.RUnlock()
	s.suspectsMu.Lock()
	damaged := len(s.suspects)
	s.suspectsMu.Unlock()
	to := s.stats.to.Load()
	return Stats{Dispatched: s.stats.dispatched.Load(), Unreadable: s.stats.unreadable.Load(), Behind: max(end-to, 0), Queues: n, First: first, End: end, DispatchedTo: to,
		Checkpoints: s.stats.checkpoints.Load(), Mended: s.stats.mended.Load(), Damaged: damaged,
		IndexRemade: s.stats.remade.Load(), IndexDamaged: s.index.away()}
}
