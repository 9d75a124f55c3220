package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// This file is what recovery does about damage that a crash cannot explain.

// errBallot: the file currterm is damaged or missing.
var errBallot = errors.New("term and vote are not readable")

// ours tells that no Java node has written in this directory since the sidecar was.
func (r *recovery) ours() bool {
	return r.known && r.m.compat == raft.CompatGo && r.cfg.Compat == raft.CompatGo
}

// guessBallot makes a term anew whose file is damaged: after a clean stop, or where the machine kept running, the sidecar knows which it was. The vote in it
// is not known, and none is given. Where a Java node may have voted since, or a power cut may have taken the newest hints, cause stays the last word.
func (r *recovery) guessBallot(cause error) error {
	if exact := r.ours() && (r.m.clean || r.sameBoot) && !r.forgot; !exact || !errors.Is(cause, errBallot) {
		return cause
	}
	r.log.Warn("term is taken from the sidecar; this node does not vote in it", "term", r.m.term, "reason", cause)
	r.ballot = ballot{term: max(r.m.term, 0), vote: UnknownVote}
	r.revote = true
	return nil
}

// lengthen gives data files that were cut short their size back. What they lack reads as damage.
func (r *recovery) lengthen() error {
	if !r.known || !r.cfg.Repairs || r.ballot.foreign {
		return nil
	}
	for _, f := range r.data.list {
		if f.size >= r.data.size || f.readOnly {
			continue
		}
		r.log.Warn("data file is too short; it gets its size back", "file", f.name, "bytes", f.size, "want", r.data.size)
		if err := f.Allocate(0, r.data.size); err != nil {
			return fmt.Errorf("lengthen %s: %w", f.name, err)
		}
		if err := f.Datasync(); err != nil {
			return fmt.Errorf("sync %s: %w", f.name, err)
		}
		f.size, r.full = r.data.size, true
	}
	return nil
}

// leadingBlank writes the blank record before the first entry once more, where there is to be one and is not.
func (r *recovery) leadingBlank() error {
	f := r.data.find(r.firstPos)
	if f == nil || f.readOnly {
		return nil
	}
	n := r.firstPos - f.off
	if n < entry.BlankSize {
		return nil
	}
	b := make([]byte, entry.BlankSize)
	if want := blankRecord(n)[:entry.BlankSize]; !f.reads(b, 0) || binary.BigEndian.Uint64(b) != binary.BigEndian.Uint64(want) {
		r.log.Warn("damaged blank record is whole again", "file", f.name, "offset", 0)
		if err := f.putRight(want, 0, entry.BlankSize, r.data.size); err != nil {
			return r.fail(err)
		}
		if err := f.makeReadable(n, f.size, r.data.size); err != nil {
			return r.fail(err)
		}
		if err := f.Zero(entry.BlankSize, n-entry.BlankSize); err != nil {
			return r.fail(fmt.Errorf("write %s: %w", f.name, err))
		}
		if err := f.Datasync(); err != nil {
			return r.fail(fmt.Errorf("sync %s: %w", f.name, err))
		}
	}
	return nil
}

// overDamage marks what is damaged where sc has stopped, if the log goes on behind it, and lets sc go on there. What is not known to be committed is
// left alone, since nobody could give it.
func (r *recovery) overDamage(sc *scanner) (bool, error) {
	s := r.Store
	if sc.next > r.sure() || errors.Is(sc.err, errNoFile) {
		return false, nil
	}
	limit := sc.next // only a blank record is damaged
	if s.cfg.Repairs {
		limit = max(limit, r.m.commit+1)
	}
	cause := sc.err
	d := finder{src: &r.src, records: s.rawRecords, checkPos: sc.checkPos, sealed: sc.sealed}
	found, ok, err := d.afterDamage(sc, limit)
	switch {
	case err != nil || !ok:
		return false, err
	case found.index == sc.next:
		if err := s.fillBlank(sc.pos, found.pos, cause, func(f *file, b []byte, off int64) (bool, error) { return false, s.replace(&s.data, f, b, off) }); err != nil {
			return false, err
		}
	case found.index-1 > r.m.commit:
		return false, nil
	default:
		h := hole{lo: sc.next, hi: found.index, pos: sc.pos, end: found.pos}
		if !r.runsOver(h, found.term) {
			return false, nil // in which terms they were written nobody here knows any more
		}
		if err := r.indexOver(h); err != nil {
			return false, err
		}
		s.holes = append(s.holes, h)
		s.stats.Damages++
		s.log.Warn("entries are damaged; they are fetched from another member", "first", h.lo, "last", h.hi-1, "bytes", h.end-h.pos,
			"at", r.src.damage(h.pos, h.lo, cause))
	}
	sc.pos, sc.next, sc.err = found.pos, found.index, nil
	return true, nil
}

// runsOver notes the terms of damaged entries: those around tell them, if they are of one term, or else what is left of their headers, and their index records.
func (r *recovery) runsOver(h hole, after raft.Term) bool {
	if n := len(r.runs); n > 0 && r.runs[n-1].Term == after {
		return true
	}
	term, end := max(r.prevTerm, 0), h.pos
	if n := len(r.runs); n > 0 {
		term = r.runs[n-1].Term
	}
	recs := r.rawRecords(h.lo, int(h.hi-h.lo))
	if len(recs) != int(h.hi-h.lo) {
		return false
	}
	runs := slices.Clone(r.runs)
	for i, x := range recs {
		pos, _ := entry.Place(end, int(x.Size), r.data.size)
		if x.Index != h.lo+raft.Index(i) || x.Size < entry.HeaderSize || x.Pos != pos {
			return false
		}
		end = x.Pos + int64(x.Size)
		t, ok := r.src.termAt(x)
		if !ok || t < term || t > after {
			return false
		}
		runs, term = addRun(runs, t, x.Index), t
	}
	if end != h.end && (h.end%r.data.size != 0 || r.data.base(end) != h.end-r.data.size) {
		return false
	}
	r.runs = runs
	return true
}

// indexOver makes the index files of damaged entries, where the index is being made anew.
func (r *recovery) indexOver(h hole) error {
	for at := int64(h.lo) * entry.IndexSize; at < int64(h.hi)*entry.IndexSize; at = r.index.base(at) + r.index.size {
		if _, err := r.obtain(&r.index, at); err != nil {
			return err
		}
	}
	return nil
}
