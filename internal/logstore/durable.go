package logstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// Sync makes durable what was flushed before the call, and gives the last index that is. It runs beside appends; a second Sync
// waits for the first. A failed sync is final: what it should have covered may be lost already, and a repeated one would not tell.
//
// Nothing but Sync syncs data files while the log only grows, and what does other work beside it holds no lock over a sync that Sync wants: who waits for an entry
// waits for the syncs of entries alone, however slow each is.
func (s *Store) Sync() (raft.Index, error) {
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if e := s.failure.Load(); e != nil {
		return -1, *e
	}
	s.mu.Lock()
	dirty, target, unsealed := taken(&s.dirty), s.last, s.unsealed
	s.unsealed = false
	s.mu.Unlock()
	defer s.doneAll(dirty)
	synced := dirty
	if plantedTailLostOnRoll && len(dirty) > 1 {
		synced = dirty[len(dirty)-1:]
	}
	if err := s.syncData(synced); err != nil {
		return -1, err
	}
	lost := s.reached(target)
	err := s.side.note(func(m *meta) { m.durable, m.lost = target, lost })
	if err == nil && unsealed {
		// Entries of a Java leader carry no checksum: after a power cut nothing tells a torn one from a whole one but the durable
		// index, so that has to be exact.
		err = s.side.sync()
	}
	if err != nil {
		return -1, s.fail(err)
	}
	return target.index, nil
}

// taken empties a list of files and gives them, for doneAll: they stay open though the log may lose them meanwhile. The caller holds mu.
func taken(list *[]*file) []*file {
	files := *list
	*list = nil
	for _, f := range files {
		f.refs.Add(1)
	}
	return files
}

func (s *Store) doneAll(files []*file) {
	for _, f := range files {
		s.done(f)
	}
}

// syncData syncs data files. The caller holds ioMu.
func (s *Store) syncData(dirty []*file) error {
	begin := s.cfg.Now()
	if err := s.syncFiles(dirty); err != nil {
		return err
	}
	took := s.cfg.Now().Sub(begin)
	s.mu.Lock()
	s.stats.Syncs++
	s.stats.SyncTime += took
	s.mu.Unlock()
	return nil
}

func (s *Store) syncFiles(dirty []*file) error {
	for _, f := range dirty {
		if err := f.Datasync(); err != nil {
			return s.fail(fmt.Errorf("sync %s: %w", f.name, err))
		}
	}
	return nil
}

// reached notes that entries up to m are durable, and gives the index that is still lost, or -1.
func (s *Store) reached(m mark) raft.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.durable = m
	if s.lost <= m.index {
		s.lost = -1
	}
	return s.lost
}

// Checkpoint makes the index records of durable entries durable and notes both, so that recovery need not look at them. It also writes the
// original's file `checkpoint`. Call it every few seconds; what was flushed and not synced is not covered.
func (s *Store) Checkpoint() error {
	s.checkMu.Lock()
	defer s.checkMu.Unlock()
	for {
		if again, err := s.checkpoint(); err != nil || !again {
			return err
		}
	}
}

// checkpoint makes one, or tells that the log's bounds have moved meanwhile, other than forwards. The caller holds checkMu.
func (s *Store) checkpoint() (again bool, err error) {
	s.mu.Lock()
	gen, target, commit := s.gen, s.durable, s.commit
	dirty := taken(&s.dirtyIdx)
	s.mu.Unlock()
	err = s.syncFiles(dirty)
	s.doneAll(dirty)
	if err != nil {
		return false, err
	}
	end, again, err := s.beginCheckpoint(gen, target, commit)
	if err != nil || again {
		return again, s.fail(err)
	}
	if end != nil {
		err = end()
	} else if told := s.tellable(commit); told == commit && s.says.end < 0 || s.says == (checkpointFile{told, target.index}) {
		return false, nil // else what is derived is another one
	}
	if err != nil {
		return false, s.fail(err)
	}
	return false, s.writeCheckpoint(commit, target.index)
}

// beginCheckpoint begins to save that everything up to target is durable, if that is not saved already; end ends it.
func (s *Store) beginCheckpoint(gen uint64, target mark, commit raft.Index) (end func() error, again bool, err error) {
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if e := s.failure.Load(); e != nil {
		return nil, false, *e
	}
	if s.movedSince(gen) {
		return nil, true, nil
	}
	if s.side.holds(target, commit, false) {
		return nil, false, nil
	}
	end, err = s.side.begin(func(m *meta) {
		for _, k := range []*mark{&m.flushed, &m.durable} { // the owner may have noted later ones
			if k.index < target.index {
				*k = target
			}
		}
		m.checkpoint, m.commit, m.clean = target, max(m.commit, commit), false
	})
	return end, false, err
}

// finish is the checkpoint of a clean stop: of everything, and so noted.
func (s *Store) finish() error {
	s.checkMu.Lock()
	defer s.checkMu.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if e := s.failure.Load(); e != nil {
		return *e
	}
	target, commit, err := s.syncAll()
	if err != nil {
		return err
	}
	lost := s.reached(target)
	err = s.side.save(func(m *meta) {
		m.flushed, m.durable, m.checkpoint, m.commit, m.lost, m.clean = target, target, target, max(m.commit, commit), lost, true
	})
	if err != nil {
		return s.fail(err)
	}
	return s.writeCheckpoint(commit, target.index)
}

// syncAll syncs data and index files, and gives the last entry that is durable by it, record and all, and the commit index. The caller holds ioMu.
func (s *Store) syncAll() (target mark, commit raft.Index, err error) {
	s.mu.Lock()
	dirty, dirtyIdx := taken(&s.dirty), taken(&s.dirtyIdx)
	s.unsealed = false
	target, commit = s.last, s.commit
	s.mu.Unlock()
	defer s.doneAll(dirtyIdx)
	defer s.doneAll(dirty)
	if err := s.syncData(dirty); err != nil {
		return target, commit, err
	}
	return target, commit, s.syncFiles(dirtyIdx)
}

const checkpointName = "checkpoint"

// SetDerived tells up to which entry files that are built from the log hold it: the original's file `checkpoint` names no later commit index from then on. A Java
// broker that takes the directory over enters into its queues what lies behind the commit index that it finds there, and nothing before.
func (s *Store) SetDerived(i raft.Index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.derived = i
}

// writeCheckpoint writes the original's text file, for Java nodes of 0.3 that take the directory over. Nothing of ours depends on it while
// the sidecar is there, so it is not synced, and a full disk leaves the old one. The caller holds checkMu.
func (s *Store) writeCheckpoint(commit, end raft.Index) error {
	commit = s.tellable(commit)
	text := fmt.Appendf(nil, "committedIndex=%d\nendIndex=%d\n", commit, end)
	err := vfs.WriteAside(s.fs, filepath.Join(s.cfg.Dir, checkpointName), text, false)
	if isFull(err) {
		s.log.Warn("checkpoint not written, disk is full", "dir", s.cfg.Dir)
		return nil
	}
	if err == nil {
		s.says = checkpointFile{commit, end}
	}
	return s.fail(err)
}

// tellable is the commit index that a Java node may find.
func (s *Store) tellable(commit raft.Index) raft.Index {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return min(commit, s.derived)
}

// checkpointFile is what the original's file says; -1 is nothing that can be believed.
type checkpointFile struct{ commit, end raft.Index }

// readCheckpoint reads the original's file. It may be missing, and one that the disk does not give, as unread says, counts for nothing either.
func readCheckpoint(fs vfs.FS, dir string) (c checkpointFile, unread, err error) {
	text, unread, err := readSmall(fs, filepath.Join(dir, checkpointName))
	if errors.Is(err, os.ErrNotExist) {
		return checkpointFile{-1, -1}, nil, nil
	}
	if err != nil || unread != nil {
		return checkpointFile{-1, -1}, unread, err
	}
	return parseCheckpoint(text), nil, nil
}

func parseCheckpoint(text []byte) checkpointFile {
	props, err := parseProperties(string(text))
	if err != nil {
		return checkpointFile{-1, -1}
	}
	index := func(key string) raft.Index {
		n, err := strconv.ParseInt(props[key], 10, 64)
		if err != nil || n < 0 {
			return -1
		}
		return raft.Index(n)
	}
	return checkpointFile{commit: index("committedIndex"), end: index("endIndex")}
}
