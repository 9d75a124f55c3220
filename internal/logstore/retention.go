package logstore

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// Retention says when data files are deleted (CleanSpaceService in the Java original). Zero values stand for the original's defaults, but that
// ForceClean is off: data that has not expired goes only where that is asked for.
type Retention struct {
	ReservedHours int     // age, by a file's last change, from which on it may go; default 72, at least 1
	DeleteWhen    string  // hours of the local day at which expired files go, separated by ";"; default "04"
	CheckRatio    float64 // used share of the disk above which expired files go at any hour; default 0.70
	ForceRatio    float64 // used share above which the disk is nearly full; default 0.85, at least 0.50
	ForceClean    bool    // above ForceRatio, delete also what has not expired

	hours [24]bool
}

func (r Retention) withDefaults() (Retention, error) {
	if r.ReservedHours == 0 {
		r.ReservedHours = 72
	}
	if r.DeleteWhen == "" {
		r.DeleteWhen = "04"
	}
	if r.CheckRatio == 0 {
		r.CheckRatio = 0.70
	}
	if r.ForceRatio == 0 {
		r.ForceRatio = 0.85
	}
	r.ReservedHours = max(r.ReservedHours, 1)
	r.ForceRatio = max(r.ForceRatio, 0.50)
	var err error
	if r.hours, err = Hours(r.DeleteWhen); err != nil {
		return r, fmt.Errorf("logstore: DeleteWhen %w", err)
	}
	return r, nil
}

// Hours reads hours of the day, separated by ";".
func Hours(s string) (of [24]bool, err error) {
	for h := range strings.SplitSeq(s, ";") {
		if h = strings.TrimSpace(h); h == "" {
			continue
		}
		n, err := strconv.Atoi(h)
		if err != nil || n < 0 || n > 23 {
			return of, fmt.Errorf("%.40q: hours of the day from 0 to 23, joined by ';'", s)
		}
		of[n] = true
	}
	return of, nil
}

// expireMax bounds the files that one round deletes, so that a round stays short.
const expireMax = 10

// Expire deletes data files, oldest first, as Retention says, and the index files that go with them: never the one that holds the last entry, never one that
// holds an entry above the commit index. The log's first entry moves up; State.PrevTerm keeps the term before it. Files in read-only paths stay, but are no longer part
// of the log. It gives how many data files are not.
func (s *Store) Expire() (expired int, err error) {
	if e := s.failure.Load(); e != nil {
		return 0, *e
	}
	used, err := s.used()
	if err != nil {
		return 0, err
	}
	now := s.cfg.Now()
	force := s.cfg.Retention.ForceClean && used > s.cfg.Retention.ForceRatio
	if !force && !s.cfg.Retention.hours[now.Hour()] && used <= s.cfg.Retention.CheckRatio {
		return 0, nil
	}
	s.expireMu.Lock()
	defer s.expireMu.Unlock()
	first, err := s.expirable(now, force)
	if err != nil || first.index < 0 {
		return 0, err
	}
	data, index, err := s.raise(first)
	if err != nil {
		return 0, err
	}
	dirs, err := s.unlink(append(data, index...))
	if err == nil {
		err = s.syncDirs(dirs)
	}
	return len(data), err
}

// expirable gives the new first entry, at the beginning of a file, its term being that of the entry before; index -1: nothing expires.
func (s *Store) expirable(now time.Time, force bool) (mark, error) {
	none := mark{index: -1}
	s.mu.RLock()
	list := slices.Clone(s.data.list[:min(len(s.data.list), expireMax+1)])
	last, commit := s.last, s.commit
	s.mu.RUnlock()
	found := none
	for i := 0; i+1 < len(list); i++ {
		next := list[i+1].off
		if next > last.pos {
			break
		}
		if !force {
			info, err := s.fs.Stat(list[i].name)
			if err != nil {
				return none, err
			}
			if now.Sub(info.ModTime) < time.Duration(s.cfg.Retention.ReservedHours)*time.Hour {
				break
			}
		}
		index, err := s.beginningAt(next, commit)
		switch {
		case errors.Is(err, ErrOutOfRange):
			return found, nil // the owner has cut the log meanwhile, or the entry is not committed: the new first one must stay
		case errors.As(err, new(*DamageError)):
			continue // it cannot become the first; it goes together with the files before the next one that begins well
		case err != nil:
			return none, err
		}
		term, err := s.Term(index - 1)
		if err != nil {
			return none, err
		}
		found = mark{index: index, term: term, pos: next}
	}
	return found, nil
}

// beginningAt gives the index of the committed entry that begins a data file, at pos. Its header alone says which entry that is, so it has to carry its checksum or, as a
// Java leader wrote it, to agree with its index record. Else it is damaged, which is marked.
func (s *Store) beginningAt(pos int64, commit raft.Index) (raft.Index, error) {
	for again := false; ; again = true {
		i := raft.Index(-1)
		b, err := s.ReadAt(pos, entry.HeaderSize)
		switch {
		case err == nil:
			i, err = s.believed(b, pos)
		case !errors.Is(err, errUnreadable):
			return -1, err
		}
		if err != nil {
			i = s.indexedAt(pos)
			err = &DamageError{File: fileName(pos), Index: i, Err: err}
		}
		if i > commit {
			return -1, fmt.Errorf("%w: entry %d is not committed", ErrOutOfRange, i)
		}
		if err == nil || again || !s.suspect(err) {
			return i, err
		}
	}
}

// believed gives the index of the entry at pos as its header b says, if that can be believed.
func (s *Store) believed(b []byte, pos int64) (raft.Index, error) {
	h, err := entry.Parse(b)
	switch {
	case err != nil:
		return -1, err
	case !entry.HeaderSealed(b) && h.ChainCRC != 0:
		return -1, entry.ErrChain
	case !entry.HeaderSealed(b) && s.sealed.Load():
		return -1, errBare
	case h.Pos != pos && !s.side.moved():
		return -1, errPosition
	case h.Pos == pos && entry.HeaderSealed(b):
		return h.Index, nil
	}
	r := s.rawRecords(h.Index, 1)
	if term, err := s.Term(h.Index); err != nil || term != h.Term {
		return -1, errOrder
	}
	if want := (entry.Record{Magic: h.Magic, Pos: pos, Size: h.Size, Index: h.Index, Term: h.Term}); len(r) != 1 || !sameRecord(r[0], want) {
		return -1, errors.New("header and index record differ")
	}
	return h.Index, nil
}

// indexedAt gives the entry that lies at pos by what the index records say.
func (s *Store) indexedAt(pos int64) raft.Index {
	s.mu.RLock()
	first, last := s.first, s.last.index
	s.mu.RUnlock()
	return first + raft.Index(sort.Search(int(last-first), func(n int) bool {
		r := s.rawRecords(first+raft.Index(n), 1)
		return len(r) == 0 || r[0].Pos >= pos
	}))
}

// raise moves the log's first entry up, durably, and gives the files that are no longer part of it. The caller holds expireMu.
func (s *Store) raise(first mark) (data, index []*file, err error) {
	// The term goes to disk before the entry that holds it goes away.
	err = s.side.save(func(m *meta) { m.first, m.firstPos, m.prevTerm = first.index, first.pos, first.term })
	if err != nil {
		return nil, nil, s.fail(err)
	}
	s.ioMu.Lock()
	s.mu.Lock()
	s.gen++
	s.dropHoles(first.index)
	s.first, s.firstPos, s.prevTerm = first.index, first.pos, first.term
	for len(s.runs) > 1 && s.runs[1].First <= first.index {
		s.runs = s.runs[1:]
	}
	s.runs = append([]raft.Run{{Term: s.runs[0].Term, First: first.index}}, s.runs[1:]...)
	s.mu.Unlock()
	s.ioMu.Unlock() // who makes the next file may hold createMu over a sync of its directory
	s.createMu.Lock()
	defer s.createMu.Unlock()
	data = s.dropBefore(&s.data, first.pos)
	index = s.dropBefore(&s.index, int64(first.index)*entry.IndexSize)
	s.mu.Lock()
	for _, f := range data {
		if !f.readOnly {
			s.stats.Expired++
		}
	}
	s.mu.Unlock()
	s.log.Info("expired data files go", "files", len(data), "first", first.index)
	return data, index, nil
}

// used gives the used share of the disk as retention sees it: that of the store's partition or that of its data paths, of several the emptiest one.
func (s *Store) used() (float64, error) {
	base, err := s.fs.Space(s.cfg.Dir)
	if err != nil {
		return 0, err
	}
	low := 1.0
	for _, d := range s.data.dirs {
		sp, err := s.fs.Space(d)
		if err != nil {
			return 0, err
		}
		low = min(low, sp.Used())
	}
	return max(base.Used(), low), nil
}

// spaceCheck remembers the answer of Full for a while.
type spaceCheck struct {
	mu   sync.Mutex
	at   time.Time
	full bool
	shut time.Time // where a file got no space though the disk says that there is some: full at least until then
}

// spaceEvery is how long an answer of Full is good, spaceShut how long a refusal counts that the free space of the disk does not explain. A leader has to have
// the time to find a better one meanwhile.
const (
	spaceEvery = time.Second
	spaceShut  = 5 * time.Second
)

// Full tells whether the disk is fuller than ForceRatio + 5 % (at most 95 %), or a file that was needed got no space and there is still
// too little. Where a file is refused though there is enough (a quota, no inodes or descriptors left), the answer is yes for some seconds.
// It looks at the disk at most once a second, so it may be asked for each request.
func (s *Store) Full() bool {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	now := s.cfg.Now()
	needed := s.needed.Load()
	ago := now.Sub(s.space.at) // negative where a clock was set back
	if !s.space.at.IsZero() && ago >= 0 && ago < spaceEvery && (needed == 0 || s.space.full) {
		return s.space.full
	}
	used, err := s.used()
	full := err != nil || used > min(s.cfg.Retention.ForceRatio+0.05, 0.95)
	if needed > 0 && !full {
		roomy := false
		for _, d := range s.data.dirs {
			sp, err := s.fs.Space(d)
			roomy = roomy || err == nil && sp.Free >= needed
		}
		if roomy && !s.space.full && s.refused.Swap(false) {
			s.space.shut = now.Add(spaceShut)
		}
		full = !roomy || now.Before(s.space.shut) && s.space.shut.Sub(now) <= spaceShut // it is further off where a clock was set back
		if !full {
			s.needed.CompareAndSwap(needed, 0)
		}
	}
	if full != s.space.full {
		s.log.Warn("disk full, appends are refused: "+strconv.FormatBool(full), "dir", s.cfg.Dir, "used", used)
	}
	s.space.at, s.space.full = now, full
	return full
}
