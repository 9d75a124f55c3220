// Package logstore owns the entries of one replica on disk, in the file format of the Java original, and its term, vote and commit
// index: how they are written, recovered after a crash, checked, read and expired. It decides nothing about replication, starts no
// timer and opens no socket. Start at Store; docs/files.md draws every file.
//
// Calls and goroutines. One goroutine, the owner, calls what changes the log: Append, AppendEncoded, Flush, Truncate, Reset, SaveTerm,
// SetCommit, Close. Sync, Checkpoint and Expire run beside the owner on any goroutine, one at a time among themselves.
// State, Stats, Full and everything that reads may be called from anywhere.
//
// What is durable when. Append stages in memory, Flush hands to the operating system (entries outlive the process from then on, and
// readers see them), Sync makes durable. SaveTerm, Truncate and Reset are durable when they return. SetCommit is a hint: after
// a crash the commit index may be an older one, never a newer one.
package logstore

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// Outcomes that a caller acts on.
var (
	// ErrDiskFull: there is no space for what was asked. Nothing was staged; staged entries stay staged and Flush may be called again.
	ErrDiskFull = errors.New("disk full")
	// ErrFailed: a write or a sync failed earlier, or does now. The store takes no more changes, since nobody knows what the disk holds;
	// only closing it and opening it again finds out.
	ErrFailed = errors.New("store failed")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
	// ErrCompacted: the entry or position lies before the first that is kept.
	ErrCompacted = errors.New("entry is no longer kept")
	// ErrOutOfRange: the entry or position lies behind the last that was flushed.
	ErrOutOfRange = errors.New("no such entry")
	// ErrTooLarge: no data file, or no buffer of the Java original, has room for the entry.
	ErrTooLarge = errors.New("entry too large")
	// ErrOrder: an entry does not continue the log: its index is not the next one or its term is lower than its predecessor's.
	ErrOrder = errors.New("entry does not continue the log")
	// ErrEntry: what AppendEncoded was given is not whole entries: cut, of no form, or with checksums that do not fit.
	ErrEntry = errors.New("not a whole entry")
	// ErrCommitted: Truncate or Reset would remove a committed entry (R5).
	ErrCommitted = errors.New("entry is committed")
)

// PositionError: an entry's header names another position than the entry gets here. The logs differ before it.
type PositionError struct {
	Index     raft.Index
	Want, Got int64 // where the entry belongs here, what its header says
}

func (e *PositionError) Error() string {
	return fmt.Sprintf("entry %d has position %d, belongs at %d", e.Index, e.Got, e.Want)
}

// DamageError names the place in a file where a record is not what it has to be.
type DamageError struct {
	File   string
	Offset int64 // within File
	Index  raft.Index
	Err    error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%s at byte %d: entry %d: %v", e.File, e.Offset, e.Index, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Default sizes, those of the original.
const (
	DefaultDataFileSize  int64 = 1 << 30
	DefaultIndexFileSize int64 = 32 * 5 << 20
	DefaultCacheBytes    int64 = 16 << 20
)

// Config says where a store lies and how it behaves. Zero values stand for the defaults.
type Config struct {
	FS  vfs.FS // default vfs.OS()
	Dir string // ROOT = <storeBaseDir>/dledger-<id>; made if missing

	DataDirs     []string // default ROOT/data. With several, file number k goes to the k mod n-th of those that have space
	ReadOnlyDirs []string // data files in these are read, never written and never removed

	DataFileSize  int64 // bytes, default 1 GiB
	IndexFileSize int64 // bytes, a multiple of 32, default 160 MiB

	Async      bool        // others count on entries of this node as soon as they are flushed, not only once they are synced
	Compat     raft.Compat // go and 0.3 check each entry's position against the one it gets here
	CacheBytes int64       // newest entries kept in memory, default 16 MiB
	Retention  Retention

	// Repairs tells that other members hold copies of what is committed: damage is marked, and waits for Repair, instead of stopping the start.
	Repairs bool

	// Prewrite is how many bytes are written with zeros ahead of the log, so that syncs are quick; -1 is none. The default is 32 MiB, and with
	// Async, where nobody waits for a sync, none.
	Prewrite int64

	// Inline makes the owner create files when it needs them, instead of ahead in the background: nothing runs
	// beside the caller. For simulations.
	Inline bool

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default: discarded
}

// withDefaults fills the zero fields and checks the others.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("logstore: Dir is empty")
	}
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if len(c.DataDirs) == 0 {
		c.DataDirs = []string{filepath.Join(c.Dir, "data")}
	}
	c.DataDirs, c.ReadOnlyDirs = cleaned(c.DataDirs), cleaned(c.ReadOnlyDirs)
	if !slices.ContainsFunc(c.DataDirs, func(d string) bool { return !slices.Contains(c.ReadOnlyDirs, d) }) {
		return c, fmt.Errorf("logstore: data path %s is read-only, and there is no other one", c.DataDirs[0])
	}
	if c.DataFileSize == 0 {
		c.DataFileSize = DefaultDataFileSize
	}
	if c.IndexFileSize == 0 {
		c.IndexFileSize = DefaultIndexFileSize
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.Prewrite == 0 {
		c.Prewrite = DefaultPrewrite
		if c.Async {
			c.Prewrite = -1
		}
	}
	if c.DataFileSize < entry.HeaderSize+entry.BlankSize {
		return c, fmt.Errorf("logstore: DataFileSize %d holds no entry", c.DataFileSize)
	}
	if c.IndexFileSize < entry.IndexSize || c.IndexFileSize%entry.IndexSize != 0 {
		return c, fmt.Errorf("logstore: IndexFileSize %d is not a multiple of %d", c.IndexFileSize, entry.IndexSize)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	c.Retention, err = c.Retention.withDefaults()
	return c, err
}

// cleaned gives each directory the one spelling by which it is known again.
func cleaned(dirs []string) (out []string) {
	for _, d := range dirs {
		out = append(out, filepath.Clean(d))
	}
	return out
}

// mark names an entry and where it begins; index first-1 with the position of the first entry stands for "before the first".
type mark struct {
	index raft.Index
	term  raft.Term
	pos   int64
	end   int64 // position behind the entry
}

// ioLock is a mutex that is held over I/O. It is made of a channel so that on virtual time (testing/synctest) those who wait for a disk that
// hangs count as waiting, and time goes on.
type ioLock chan struct{}

func newIOLock() ioLock  { return make(ioLock, 1) }
func (l ioLock) Lock()   { l <- struct{}{} }
func (l ioLock) Unlock() { <-l }

// Store is a replica's log, term, vote and commit index on disk (DLedgerMmapFileStore and MemberState's file in the Java original).
//
//  1. bytes behind the last entry are zeros, in the data files and in the index files, up to what an unfinished Flush left there;
//  2. durable.index <= last.index, commit <= last.index, and both may lie on either side of each other;
//  3. what Read gives was flushed, and carries the index asked for and checksums that fit or are absent.
type Store struct {
	cfg  Config
	fs   vfs.FS
	log  *slog.Logger
	lock io.Closer
	side *sidecar

	// Owner only: the log including what is staged.
	tail   tail
	arena  arena
	closed bool
	spare  bool // the spare file for a term is there

	failure atomic.Pointer[error] // why the store failed; set once
	needed  atomic.Int64          // bytes that the last creation of a file did not get; 0 = none
	refused atomic.Bool           // an append has met that
	space   spaceCheck

	// ioMu is held, over I/O, by what makes entries durable or moves the log's bounds other than forwards: Sync, Truncate, Reset, Repair, and, not
	// over a sync, by Checkpoint and Expire for their bookkeeping, and by whoever finds a record to put right. It is taken before createMu and mu.
	ioMu ioLock
	// checkMu is held over a checkpoint. It is taken before ioMu.
	checkMu ioLock
	says    checkpointFile // written last; guarded by checkMu
	// expireMu keeps Reset and a round of Expire apart; it is taken before careMu and ioMu.
	expireMu ioLock
	// createMu is held while files come and go. It is taken before mu.
	createMu ioLock
	// careMu is held while damage is looked for or repaired. It is taken before ioMu.
	careMu     ioLock
	sealed     atomic.Bool    // every entry of the log carries checksums: none of another implementation was ever in it
	hurt       atomic.Bool    // holes is not empty
	hurting    chan struct{}  // see Hurting
	background sync.WaitGroup // goroutines "prepare" and "ahead"
	stopping   atomic.Bool    // Close waits for them

	unbegun *mark                // owner's: a log that began here still wants its files; see beginLate
	trueEnd atomic.Pointer[mark] // where the last entry ends, as Repair found out; see settleEnd

	mu       sync.RWMutex // guards all below; never held over I/O
	data     files
	index    files
	first    raft.Index
	firstPos int64
	prevTerm raft.Term // term of entry first-1; UnknownTerm if nobody knows
	last     mark      // the last flushed entry
	runs     []raft.Run
	cache    cache
	gen      uint64 // changes with Truncate, Reset and Expire: a reader that failed looks whether the log moved under it
	durable  mark
	commit   raft.Index
	derived  raft.Index // see SetDerived
	lost     raft.Index // see State.TailLost
	behind   bool       // see State.Behind
	new      bool       // see State.New
	term     raft.Term
	vote     raft.ID
	dirty    []*file // data files written since their last sync
	dirtyIdx []*file
	unsealed bool // an entry without checksum was flushed since the last Sync
	holes    []hole
	scrub    scrub
	stats    Stats
}

// UnknownVote as State.Vote: the log shows that the term began, but not for whom this node voted in it. No member has this name,
// so that no second vote is given.
const UnknownVote raft.ID = "?"

// State is what a replica needs to know of its store when it starts.
type State struct {
	First, Last raft.Index // empty: Last = First-1
	PrevTerm    raft.Term  // of entry First-1; -1 if First is 0, raft.UnknownTerm if nobody knows
	Runs        []raft.Run // terms of First..Last
	End         int64      // byte position behind the last entry
	Durable     raft.Index
	Commit      raft.Index // First-1 (or -1) where unknown
	Term        raft.Term
	Vote        raft.ID

	// TailLost is -1, or an index that others may count on this node for and that a crash took: it was durable, or, with Config.Async, known to be
	// committed. The log is valid but shorter: the node must not vote until it holds that index again.
	TailLost raft.Index
	// Behind tells that others may count on this node for more than it has, and that nobody knows for what: with Config.Async, after a crash of
	// the machine, which may have taken entries and all that was noted of them.
	Behind bool
	// New tells that the directory was empty when it was first opened, and that Joined has not been called since.
	New bool
}

// Stats counts since Open; sizes are in bytes.
type Stats struct {
	Appends, Entries, Bytes int64 // Flush calls that wrote, entries and their bytes
	Syncs                   int64
	SyncTime                time.Duration // in total
	CacheReads, DiskReads   int64         // Read calls by where they found their entries
	DataFiles, IndexFiles   int
	CacheBytes              int64
	Expired                 int64 // data files that Expire took out of the log and deleted
	Damages                 int64 // damaged stretches found
	Repaired                int64 // entries that Repair made whole
	Mended                  int64 // index and blank records that were made whole from what is around them
	Scrubbed, ScrubPasses   int64 // bytes that Scrub has read, passes that it has ended
}

// Open takes the directory, finishes what a crash interrupted and finds the log's end. It changes nothing that Java would not accept.
// vfs.ErrLocked: another process has it. *DamageError: something that was durable is no longer readable.
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, fs: cfg.FS, log: cfg.Log, lost: -1, derived: math.MaxInt64, says: checkpointFile{-1, -1}, ioMu: newIOLock(), checkMu: newIOLock(), expireMu: newIOLock(), createMu: newIOLock(), careMu: newIOLock(),
		hurting: make(chan struct{}, 1)}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// release closes every file and gives the directory back.
func (s *Store) release() error {
	s.mu.Lock()
	var errs []error
	for _, l := range []*files{&s.data, &s.index} {
		for _, f := range l.list {
			errs = append(errs, f.release())
		}
		l.list = nil
	}
	s.mu.Unlock()
	if s.side != nil {
		errs = append(errs, s.side.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// State gives the bounds and the saved state as flushed.
func (s *Store) State() State {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return State{First: s.first, Last: s.last.index, PrevTerm: s.prevTerm, Runs: slices.Clone(s.runs), End: s.last.end,
		Durable: s.durable.index, Commit: s.commit, Term: s.term, Vote: s.vote, TailLost: s.lost, Behind: s.behind, New: s.new}
}

// Joined notes that nobody counts on this node any more for what it does not have: State.TailLost, State.Behind and State.New are over. It is durable
// when it returns.
func (s *Store) Joined() error {
	if err := s.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	s.behind, s.new, s.lost = false, false, -1
	s.mu.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	return s.fail(s.side.save(func(m *meta) { m.behind, m.new, m.lost = false, false, -1 }))
}

// Bounds is where the log begins.
type Bounds struct {
	First    raft.Index
	FirstPos int64
}

// Bounds gives where the log begins; unlike State it copies nothing.
func (s *Store) Bounds() Bounds {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Bounds{First: s.first, FirstPos: s.firstPos}
}

// Stats gives the counters.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := s.stats
	st.CacheReads, st.DiskReads = s.cache.hits.Load(), s.cache.misses.Load()
	st.DataFiles, st.IndexFiles, st.CacheBytes = len(s.data.list), len(s.index.list), s.cache.size
	return st
}

// SetCommit notes that entries up to i are committed. An index below the present one is ignored, one above the last
// flushed entry counts as that (R7). It costs one short write to the page cache.
func (s *Store) SetCommit(i raft.Index) error {
	if err := s.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	i = min(i, s.last.index)
	if i <= s.commit {
		s.mu.Unlock()
		return nil
	}
	s.commit = i
	last := s.last
	s.mu.Unlock()
	return s.fail(s.side.note(func(m *meta) { m.commit, m.flushed = i, last }))
}

// usable tells why no more changes are taken.
func (s *Store) usable() error {
	if e := s.failure.Load(); e != nil {
		return *e
	}
	if s.closed {
		return ErrClosed
	}
	return nil
}

// fail makes err, if there is one, the store's last word, and gives it as callers shall see it.
func (s *Store) fail(err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrFailed) {
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if s.failure.CompareAndSwap(nil, &err) {
		s.log.Error("store failed; restart the replica once the disk is well", "dir", s.cfg.Dir, "error", err)
	}
	return *s.failure.Load()
}

// Close stops cleanly: what is staged is flushed, everything is synced, and the directory is marked so that the next Open
// need not search. The directory is given back even if that fails.
func (s *Store) Close() error {
	if s.closed {
		return ErrClosed
	}
	err := s.Flush()
	s.stopping.Store(true)
	s.background.Wait()
	if err == nil {
		err = s.finish()
	}
	s.closed = true
	return errors.Join(err, s.release())
}
