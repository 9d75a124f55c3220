package dledger

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"dledger/internal/entry"
	"dledger/internal/vfs"
)

// StateMachine is a state that follows from the committed entries alone (StateMachine in the Java original). A Machine calls its methods, one at
// a time; what else reads the state has to be kept apart from Apply and Restore by the implementation.
type StateMachine interface {
	// Apply takes the next committed entry. It must come to the same state on every member, so it must look neither at a clock nor at chance. An
	// error ends Machine.Run. e.Body must not be written to.
	Apply(e Entry) error
	// Snapshot writes the state as it is. Nothing is applied meanwhile; the log goes on.
	Snapshot(w io.Writer) error
	// Restore replaces the state by one that Snapshot wrote. The bytes are checked already.
	Restore(r io.Reader) error
}

// SnapshotConfig says where snapshots go and how often they are made. Zero values mean the defaults.
type SnapshotConfig struct {
	Dir     string // on the disk of the log; "" = none: the state is built from the log's first entry at each start
	Entries int64  // a snapshot after this many applied entries; default 100,000
	Bytes   int64  // or after this many bytes of bodies; default 64 MiB
}

// snapshotsKept is how many snapshots stay: one may be damaged, and an older one be wanted to look at.
const snapshotsKept = 3

// Machine keeps a StateMachine up with a Ledger.
//
//  1. each entry is applied once, in log order, after those that the snapshot it started from holds;
//  2. a snapshot appears in its directory whole and durable, or not at all.
//
// A linearizable read is l.Confirm, Wait for the index it gives, then a look at the state.
type Machine struct {
	l   *Ledger
	sm  StateMachine
	cfg SnapshotConfig
	fs  vfs.FS

	// Run's goroutine only.
	term    Term // of the applied entry
	entries int64
	bytes   int64

	mu      sync.Mutex
	applied Index
	ended   error         // why Run has ended; nil while it has not
	watch   chan struct{} // closed when applied moves or Run ends; nil while nobody waits
}

// NewMachine restores the newest sound snapshot, if there is one. Run then applies what follows it.
func NewMachine(l *Ledger, sm StateMachine, cfg SnapshotConfig) (*Machine, error) {
	or(&cfg.Entries, 100_000)
	or(&cfg.Bytes, 64<<20)
	m := &Machine{l: l, sm: sm, cfg: cfg, fs: l.cfg.FS, applied: -1, term: -1}
	if m.fs == nil {
		m.fs = vfs.OS()
	}
	if cfg.Dir == "" {
		return m, nil
	}
	if l.cfg.Memory {
		return nil, errors.New("state machine: a log in memory begins anew at each start, a snapshot of it would be of another log; leave Dir empty")
	}
	if err := m.restore(); err != nil {
		return nil, fmt.Errorf("state machine: %w", err)
	}
	return m, nil
}

// Applied is the index of the last applied entry, or no-op; -1 if there is none.
func (m *Machine) Applied() Index {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied
}

// Wait waits until entry i is applied. Errors: ctx's; and that of Run, once that has ended without entry i.
func (m *Machine) Wait(ctx context.Context, i Index) error {
	for {
		m.mu.Lock()
		if m.applied >= i {
			m.mu.Unlock()
			return nil
		}
		if m.ended != nil {
			defer m.mu.Unlock()
			return fmt.Errorf("entry %d will not be applied: %w", i, m.ended)
		}
		if m.watch == nil {
			m.watch = make(chan struct{})
		}
		changed := m.watch
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for entry %d to be applied: %w", i, ctx.Err())
		}
	}
}

func (m *Machine) advance(i Index) { m.tell(func() { m.applied = i }) }

// tell changes what Wait looks at.
func (m *Machine) tell(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	if m.watch != nil {
		close(m.watch)
		m.watch = nil
	}
}

// Run applies committed entries until ctx ends or something fails; call it once. Errors: ctx's; ErrClosed and ErrFailed of the Ledger; what Apply or
// Snapshot returns; and ErrCompacted when the log no longer holds the next entry, because retention went past it or the member was so far behind that
// its log had to start anew. Then a snapshot of another member, copied into Dir, helps. A full disk only puts the snapshot off.
func (m *Machine) Run(ctx context.Context) error {
	err := m.run(ctx)
	m.tell(func() { m.ended = err })
	return err
}

func (m *Machine) run(ctx context.Context) error {
	var failed error
	start := m.Applied()
	err := m.l.scan(ctx, start+1, func(h entry.Header, body []byte) bool {
		if h.Index == start+1 {
			if failed = m.belongs(start, m.term); failed != nil {
				return false
			}
		}
		failed = m.apply(Entry{Index: h.Index, Term: h.Term, Pos: h.Pos, Body: body}, h.Magic == entry.MagicNormal)
		return failed == nil && ctx.Err() == nil
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, ErrCompacted):
		return fmt.Errorf("state machine needs entry %d, the log begins at %d; copy the newest snapshot of another member to %q: %w",
			m.Applied()+1, m.l.store.State().First, m.cfg.Dir, err)
	case err == nil:
		return ctx.Err()
	}
	return err
}

func (m *Machine) apply(e Entry, normal bool) error {
	if normal {
		if err := m.sm.Apply(e); err != nil {
			return fmt.Errorf("apply entry %d: %w", e.Index, err)
		}
	}
	m.term = e.Term
	m.entries++
	m.bytes += int64(len(e.Body))
	m.advance(e.Index)
	if m.cfg.Dir == "" || m.entries < m.cfg.Entries && m.bytes < m.cfg.Bytes {
		return nil
	}
	m.entries, m.bytes = 0, 0
	err := m.snapshot(e.Index)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		m.l.cfg.Logger.Warn("no space for a snapshot; it is tried again later", "dir", m.cfg.Dir, "index", e.Index, "error", err)
	case err != nil:
		return fmt.Errorf("snapshot of entry %d: %w", e.Index, err)
	default:
		m.l.cfg.Logger.Info("snapshot made", "index", e.Index)
	}
	return nil
}

// A snapshot file is named after the last entry that its state holds, "snapshot-" and 20 digits:
//
//	offset size field
//	     0    8 "DLSNAP1\n"
//	     8    8 index
//	    16    8 term of that entry
//	    24    n the state
//	  24+n    4 CRC-32C of all before
const (
	snapshotPrefix = "snapshot-"
	snapshotMagic  = "DLSNAP1\n"
	snapshotHead   = 24
	snapshotTail   = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (m *Machine) snapshotName(i Index) string {
	return filepath.Join(m.cfg.Dir, fmt.Sprintf("%s%020d", snapshotPrefix, i))
}

// snapshot writes the state, which holds entry i, and drops the oldest.
func (m *Machine) snapshot(i Index) error {
	name := m.snapshotName(i)
	f, err := m.fs.OpenFile(name+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	err = m.write(f, i)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, m.fs.Remove(name+".tmp"))
	}
	if err := m.fs.Rename(name+".tmp", name); err != nil {
		return err
	}
	if err := m.fs.SyncDir(m.cfg.Dir); err != nil {
		return err
	}
	have, err := m.list()
	if err != nil {
		return err
	}
	for _, old := range have[:max(0, len(have)-snapshotsKept)] {
		if err := m.fs.Remove(m.snapshotName(old)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) write(f vfs.File, i Index) error {
	out := bufio.NewWriterSize(io.NewOffsetWriter(f, 0), 256<<10)
	sum := crc32.New(castagnoli)
	w := io.MultiWriter(out, sum)
	head := append(make([]byte, 0, snapshotHead), snapshotMagic...)
	head = binary.BigEndian.AppendUint64(head, uint64(i))
	head = binary.BigEndian.AppendUint64(head, uint64(m.term))
	if _, err := w.Write(head); err != nil {
		return err
	}
	if err := m.sm.Snapshot(w); err != nil {
		return err
	}
	if _, err := out.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32())); err != nil {
		return err
	}
	return out.Flush()
}

// list gives the indexes of the snapshots that are there, ascending.
func (m *Machine) list() ([]Index, error) {
	names, err := m.fs.ReadDir(m.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var have []Index
	for _, n := range names {
		digits, ok := strings.CutPrefix(n, snapshotPrefix)
		if i, err := strconv.ParseInt(digits, 10, 64); ok && err == nil && len(digits) == 20 {
			have = append(have, Index(i))
		}
	}
	slices.Sort(have)
	return have, nil
}

// restore takes the newest snapshot whose bytes are sound, and clears away what a crash left of an unfinished one.
func (m *Machine) restore() error {
	if err := m.fs.MkdirAll(m.cfg.Dir); err != nil {
		return err
	}
	names, err := m.fs.ReadDir(m.cfg.Dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, snapshotPrefix) && strings.HasSuffix(n, ".tmp") {
			if err := m.fs.Remove(filepath.Join(m.cfg.Dir, n)); err != nil {
				return err
			}
		}
	}
	have, err := m.list()
	if err != nil {
		return err
	}
	for _, i := range slices.Backward(have) {
		err := m.load(i)
		if errors.Is(err, errUnsound) {
			m.l.cfg.Logger.Warn("snapshot passed over", "file", m.snapshotName(i), "reason", err)
			continue
		}
		return err
	}
	return nil
}

// errUnsound: the bytes are not those of a finished snapshot.
var errUnsound = errors.New("snapshot is damaged")

// load restores the state from snapshot i, if it is sound and one of this log.
func (m *Machine) load(i Index) (err error) {
	name := m.snapshotName(i)
	f, err := m.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, term, err := checkSnapshot(f, i)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := m.belongs(i, term); err != nil {
		return err
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, snapshotHead, size-snapshotHead-snapshotTail), 256<<10)
	if err := m.sm.Restore(r); err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	m.applied, m.term = i, term
	m.l.cfg.Logger.Info("snapshot restored", "index", i)
	return nil
}

// belongs tells whether a state that holds entry i of term t can be one of this log, as far as that is known yet.
func (m *Machine) belongs(i Index, t Term) error {
	if h, _, err := m.l.store.Entry(i); err == nil && h.Term != t {
		return fmt.Errorf("%s is of another log: entry %d has term %d there, %d here", m.snapshotName(i), i, t, h.Term)
	}
	return nil
}

// checkSnapshot reads the whole file once, before any of it is believed.
func checkSnapshot(f vfs.File, i Index) (size int64, term Term, err error) {
	if size, err = f.Size(); err != nil {
		return 0, 0, err
	}
	if size < snapshotHead+snapshotTail {
		return 0, 0, fmt.Errorf("%w: %d bytes", errUnsound, size)
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size-snapshotTail)); err != nil {
		return 0, 0, err
	}
	var head [snapshotHead]byte
	var tail [snapshotTail]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, 0, err
	}
	if _, err := f.ReadAt(tail[:], size-snapshotTail); err != nil && err != io.EOF {
		return 0, 0, err
	}
	switch {
	case string(head[:8]) != snapshotMagic:
		return 0, 0, fmt.Errorf("%w: it does not begin as one", errUnsound)
	case binary.BigEndian.Uint32(tail[:]) != sum.Sum32():
		return 0, 0, fmt.Errorf("%w: its checksum differs", errUnsound)
	case Index(binary.BigEndian.Uint64(head[8:])) != i:
		return 0, 0, fmt.Errorf("%w: it is of entry %d", errUnsound, binary.BigEndian.Uint64(head[8:]))
	}
	return size, Term(binary.BigEndian.Uint64(head[16:])), nil
}
