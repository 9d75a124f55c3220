package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// open does the work of Open.
func (s *Store) open() (err error) {
	dir := s.cfg.Dir
	s.data.size, s.index.size = s.cfg.DataFileSize, s.cfg.IndexFileSize
	s.index.dirs = []string{filepath.Join(dir, "index")}
	for _, d := range s.cfg.DataDirs {
		if !slices.Contains(s.cfg.ReadOnlyDirs, d) {
			s.data.dirs = append(s.data.dirs, d)
		}
	}
	s.data.next.Store(-1)
	s.index.next.Store(-1)
	s.cache.max = s.cfg.CacheBytes
	for _, d := range slices.Concat([]string{dir}, s.index.dirs, s.data.dirs) {
		if err := s.fs.MkdirAll(d); err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
	}
	if s.lock, err = s.fs.Lock(dir); err != nil {
		return err
	}

	name := filepath.Join(dir, sideName)
	side, err := readSide(s.fs, name)
	if err != nil {
		return err
	}
	m, known := side.meta, side.known
	if known && (m.dataSize != s.data.size || m.indexSize != s.index.size) {
		return fmt.Errorf("%s has data files of %d and index files of %d bytes, configured are %d and %d",
			dir, m.dataSize, m.indexSize, s.data.size, s.index.size)
	}
	if !known {
		none := mark{index: -1, term: -1}
		m = meta{prevTerm: -1, commit: -1, lost: -1, term: -1, flushed: none, durable: none, checkpoint: none}
	}
	if side.unread != nil {
		s.log.Warn("the disk does not give what was noted last; the file is made anew, and this node does not vote until it has caught up", "file", name, "reason", side.unread)
		m.clean = false
	}
	if s.side, err = openSide(s.fs, dir, name, m, side.slot, side.unread != nil); err != nil {
		return err
	}
	boot := s.fs.BootID()
	r := recovery{Store: s, m: m, known: known, forgot: side.unread != nil, torn: -1, sameBoot: known && boot != "" && m.boot == bootSum(boot)}
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	defer func() {
		for _, f := range r.gone { // where the start has failed before they could go
			s.done(f)
		}
	}()
	return r.run()
}

// recovery is one Open at work: it finds the end of the log and makes the directory agree with it.
type recovery struct {
	*Store
	m        meta // of the sidecar, as found
	known    bool // there was one
	forgot   bool // a part of the sidecar cannot be read: what m says is true of an earlier moment, perhaps
	sameBoot bool // the machine did not restart since: what was written is there, synced or not
	ballot   ballot
	gone     []*file // that are not part of the log, for unlink
	src      source
	rebuild  bool // the index files cannot be used and are made anew from the data
	full     bool // everything is scanned: there is damage somewhere
	revote   bool // term and vote were made anew and have to be saved
	from     mark // where the scan began: what lies before is durable, with its index records
	stop     error
	stopPos  int64
	stopTerm raft.Term  // lower bound of the terms behind
	sealed   raft.Index // scanner.sealed of the scan
	torn     raft.Index // the entry that stopped the scan, since it may be torn; -1 = none did so
}

func (r *recovery) run() (err error) {
	s := r.Store
	if r.ballot, err = loadBallot(s.fs, s.cfg.Dir, r.m.term, r.ours()); err != nil {
		if err = r.guessBallot(err); err != nil {
			return err
		}
	}
	if bad := r.ballot.instead; bad != nil {
		s.log.Warn("term and vote are taken from an older or a newer file beside their own", "term", r.ballot.term, "vote", r.ballot.vote, "reason", bad)
		r.revote = true
	}
	r.full = r.m.hurt && s.cfg.Repairs
	s.sealed.Store(r.ours() && r.m.sealed)
	if err := errors.Join(r.load(&s.data, s.cfg.DataDirs, s.cfg.ReadOnlyDirs), r.load(&s.index, s.index.dirs, nil)); err != nil {
		return err
	}
	if err := r.begins(); err != nil {
		return err
	}
	if r.known && !r.m.clean {
		// If only the process died, a power cut may still undo what it did to the directories, in part.
		if err := s.syncDirs(slices.Concat(s.index.dirs, s.data.dirs)); err != nil {
			return err
		}
	}
	if err := r.finishIntents(); err != nil {
		return err
	}
	if err := r.lengthen(); err != nil {
		return err
	}
	if f, err := s.data.irregular(); err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	for _, f := range s.data.list {
		r.src.files = append(r.src.files, sourceFile{off: f.off, name: f.name, f: f.File})
	}
	r.src.size = s.data.size
	if f, err := s.index.irregular(); err != nil {
		s.log.Warn("index is made anew from the data files", "file", f, "reason", err)
		r.rebuild = true
	}
	if err := r.find(); err != nil {
		return err
	}
	if err := r.judge(); err != nil {
		return err
	}
	return r.settle()
}

// load opens the files of a list, whatever they are like.
func (r *recovery) load(l *files, dirs, readOnlyDirs []string) error {
	list, strange, err := listFiles(r.fs, dirs, readOnlyDirs)
	if err != nil {
		return err
	}
	for _, name := range strange {
		r.log.Warn("file ignored; a Java node would not start with it", "file", name)
	}
	for _, f := range list {
		flag := os.O_RDWR
		if f.readOnly {
			flag = os.O_RDONLY
		}
		vf, err := r.fs.OpenFile(f.name, flag)
		if err != nil {
			return err
		}
		o := newFile(vf, f.name, f.off, f.size)
		o.readOnly = f.readOnly
		l.list = append(l.list, o)
	}
	kept, twins, err := untwin(l.list)
	if err != nil {
		return err
	}
	l.list = kept
	r.gone = append(r.gone, twins...)
	return nil
}

// unprepared takes the files off the end of the list that were made ahead in what is a read-only path now, and what is behind them, which is empty, too.
func (r *recovery) unprepared() error {
	l := &r.data
	n := len(l.list)
	if !slices.ContainsFunc(l.list, func(f *file) bool { return f.readOnly }) {
		return nil
	}
	for i := n - 1; i >= 0; i-- {
		empty, err := l.list[i].empty()
		if err != nil {
			return err
		}
		if !empty {
			break
		}
		if l.list[i].readOnly {
			n = i
		}
	}
	r.gone = append(r.gone, l.list[n:]...)
	l.list = slices.Clone(l.list[:n])
	return nil
}

// irregular names a file that does not belong where it is.
func (l *files) irregular() (name string, err error) {
	for i, f := range l.list {
		switch {
		case f.size != l.size:
			return f.name, fmt.Errorf("has %d bytes, configured are %d", f.size, l.size)
		case f.off%l.size != 0:
			return f.name, fmt.Errorf("does not begin at a multiple of %d", l.size)
		case i > 0 && f.off != l.list[i-1].off+l.size:
			return f.name, fmt.Errorf("does not follow %s: %w", l.list[i-1].name, missing(l.list[i-1].off+l.size))
		}
	}
	return "", nil
}

// missing is the error of a data file that holds entries and that lies in none of the directories.
func missing(off int64) error {
	return fmt.Errorf("file %s is missing: name the directory that holds it as a data path, or put it back from a copy; "+
		"where it is gone, replace the node as one that lost its data", fileName(off))
}

// begins tells whether the file is there in which the log begins; see meta.begins.
func (r *recovery) begins() error {
	if !r.known {
		return nil
	}
	var offs []int64
	for _, f := range r.data.list {
		offs = append(offs, f.off)
	}
	excused, err := r.m.begins(r.fs, r.cfg.Dir, offs, r.ballot, r.cfg.Compat)
	if excused {
		r.log.Warn("the log begins later than noted; a Java node has worked here since, and may have deleted old files", "reason", err)
		return nil
	}
	return err
}

// begins tells whether the first file that holds entries is among those at offs, or that there is none: a log without any file is another matter, it has lost its tail. What
// removes entries notes that in the sidecar before the first file goes. Only a Java node does not: it is excused where one has worked since, as b or its checkpoint tells, in a
// group that may have one, now that the directory is used in compat, or when the sidecar was written.
func (m *meta) begins(fs vfs.FS, dir string, offs []int64, b ballot, compat raft.Compat) (excused bool, err error) {
	if !m.holdsEntries() {
		return false, nil
	}
	i := slices.IndexFunc(offs, func(off int64) bool { return off+m.dataSize > m.firstPos })
	if i < 0 || offs[i] <= m.firstPos {
		return false, nil
	}
	mixed := m.compat != raft.CompatGo || compat != raft.CompatGo
	excused = mixed && (b.foreign || m.javaSince(fs, dir))
	return excused, fmt.Errorf("the log begins with entry %d, but %w", m.first, missing(m.firstPos-m.firstPos%m.dataSize))
}

// holdsEntries tells whether the log has any.
func (m *meta) holdsEntries() bool {
	return !m.reset && max(m.flushed.index, m.durable.index) >= m.first
}

// javaSince tells whether a Java node has worked here since the sidecar was written, though no term or vote of it shows that: it left another file checkpoint.
func (m *meta) javaSince(fs vfs.FS, dir string) bool {
	c, _, err := readCheckpoint(fs, dir)
	return err == nil && c.end >= 0 && (m.clean && c.end != m.checkpoint.index || c.end > m.flushed.index)
}

// finishIntents goes on with what a crash interrupted: a reset, a cut, an expiry, the creation of a file.
func (r *recovery) finishIntents() error {
	s := r.Store
	if r.known {
		// If only the process died, what was read may not be on the disk yet; it has to be before anything is erased by its word.
		if err := s.side.sync(); err != nil {
			return err
		}
	}
	if err := r.unprepared(); err != nil {
		return err
	}
	if r.m.reset || r.m.cut {
		if err := s.erasable(r.m.keep.end); err != nil {
			return err
		}
	}
	if r.m.reset {
		gone := r.gone
		r.gone = nil
		if _, err := s.unlink(gone); err != nil {
			return err
		}
		s.begin(r.m.keep)
		return s.finishReset(r.m.keep)
	}
	s.createMu.Lock()
	gone := r.gone
	r.gone = nil
	if r.known {
		gone = append(gone, s.dropBefore(&s.data, r.m.firstPos)...)
		gone = append(gone, s.dropBefore(&s.index, int64(r.m.first)*entry.IndexSize)...)
	}
	for _, l := range []*files{&s.data, &s.index} {
		// Where a file system cannot make whole files appear, a crash may leave an empty one.
		if n := len(l.list); n > 0 && l.list[n-1].size == 0 {
			gone = append(gone, l.list[n-1])
			l.list = l.list[:n-1]
		}
	}
	dirs, err := s.unlink(gone)
	if err == nil {
		err = s.syncDirs(dirs)
	}
	s.createMu.Unlock()
	if err == nil && r.m.cut {
		err = s.finishCut(r.m.keep)
	}
	return err
}

// find looks for the last entry: it sets the bounds, the terms and where the log stops, and puts the index records of what it scans right.
func (r *recovery) find() error {
	s := r.Store
	first := scanner{src: &r.src, pos: r.src.base(), next: -1, sealed: anySeal}
	there := first.step()
	switch {
	case s.cfg.Repairs && r.known && !r.ballot.foreign && r.m.commit >= r.m.first && r.src.holds(r.m.firstPos) && !(there && first.hdr.Index == r.m.first && first.at == r.m.firstPos):
		s.first, s.firstPos = r.m.first, r.m.firstPos
		r.full = true
		if err := r.leadingBlank(); err != nil {
			return err
		}
	case !there:
		return r.empty(first.pos, first.err)
	default:
		s.first, s.firstPos = first.hdr.Index, first.at
	}
	switch {
	case r.known && r.m.first == s.first:
		s.prevTerm = r.m.prevTerm
	case s.first == 0:
		s.prevTerm = -1
	default:
		s.prevTerm = raft.UnknownTerm
	}
	if at := int64(s.first) * entry.IndexSize; !s.index.reaches(at) {
		s.log.Warn("index is made anew from the data files", "reason", "no index file holds the log's first entry", "first", s.first)
		r.rebuild = true
	}
	if !r.rebuild {
		r.start()
		if err := r.oldRuns(); err != nil {
			s.log.Warn("index is made anew from the data files", "reason", err)
			r.rebuild = true
		}
	}
	if r.rebuild {
		s.runs = nil
		r.from = r.begin()
		s.createMu.Lock()
		err := s.restart(&s.index, int64(s.first)*entry.IndexSize)
		s.createMu.Unlock()
		if err != nil {
			return err
		}
	}
	return r.scan()
}

// anySeal as scanner.sealed: entries need no checksums.
const anySeal raft.Index = -2

// empty is find for data files that hold no entry at all.
func (r *recovery) empty(pos int64, stop error) error {
	s := r.Store
	s.first, s.firstPos, s.prevTerm = 0, 0, -1
	if r.known {
		s.first, s.firstPos, s.prevTerm = r.m.first, r.m.firstPos, r.m.prevTerm
	}
	r.from = r.begin()
	s.last = r.from
	r.stop, r.stopPos = stop, pos
	if !r.known && !errors.Is(stop, errZeros) && !errors.Is(stop, errNoFile) {
		// A start that was cut short leaves no whole entry behind a torn one.
		d := finder{src: &r.src, records: s.rawRecords, sealed: anySeal}
		if found, ok, err := d.after(pos, 0, 0, 1<<62); err != nil || ok {
			return errors.Join(err, fmt.Errorf("%w; entry %d behind it is whole", r.src.damage(pos, -1, stop), found.index))
		}
	}
	return nil
}

// begin is the mark before the first entry.
func (r *recovery) begin() mark {
	return mark{index: r.first - 1, term: r.prevTerm, pos: r.firstPos, end: r.firstPos}
}

// start chooses the entry from which on the files are scanned: what the sidecar knows to be complete if the entry is really there, else the
// first of the last three files that begins well, as the original does.
func (r *recovery) start() {
	if r.full {
		r.log.Info("the whole log is read, since it is damaged somewhere", "first", r.first)
		r.from = r.begin()
		return
	}
	if r.known && !r.ballot.foreign {
		m := r.m.checkpoint
		if r.sameBoot || r.m.clean {
			m = r.m.flushed
		}
		if m.index < r.first {
			r.from = r.begin()
			return
		}
		if r.verify(m) {
			r.from = m
			return
		}
		r.log.Warn("log does not hold the entry it was left with; another program wrote it, or it is damaged", "index", m.index, "position", m.pos)
	}
	for i := len(r.src.files) - 3; i > 0; i-- {
		sc := scanner{src: &r.src, pos: r.src.files[i].off, next: -1, sealed: anySeal}
		if !sc.step() {
			continue
		}
		recs, err := r.records(sc.hdr.Index, 1)
		if err == nil && sc.at == r.src.files[i].off && sameRecord(recs[0], sc.record()) {
			r.from = mark{index: sc.hdr.Index, term: sc.hdr.Term, pos: sc.at}
			return
		}
	}
	r.from = r.begin()
}

// record is the index record of the entry that step found.
func (sc *scanner) record() entry.Record {
	return entry.Record{Magic: sc.hdr.Magic, Pos: sc.at, Size: sc.hdr.Size, Index: sc.hdr.Index, Term: sc.hdr.Term}
}

// sameRecord compares an index record with the entry's; a Java 0.4 leader writes magic 1 for its no-ops, which is no damage.
func sameRecord(found, want entry.Record) bool {
	if found.Magic == entry.MagicNormal && want.Magic == entry.MagicNoop {
		found.Magic = want.Magic
	}
	return found == want
}

// verify tells whether the entry of mark m is where it should be.
func (r *recovery) verify(m mark) bool {
	if m.pos < r.src.base() || m.pos >= r.src.limit() {
		return false
	}
	sc := scanner{src: &r.src, pos: m.pos, next: m.index, sealed: anySeal}
	return sc.step() && sc.at == m.pos && sc.hdr.Term == m.term
}

// oldRuns finds the terms of the entries before the scan by halving over their index records.
func (r *recovery) oldRuns() error {
	s := r.Store
	if r.from.index <= s.first {
		r.from = r.begin()
		return nil
	}
	term := func(i raft.Index) (raft.Term, error) {
		recs, err := s.records(i, 1)
		if err != nil {
			return 0, err
		}
		return recs[0].Term, nil
	}
	lo, err := term(s.first)
	if err != nil {
		return err
	}
	hi, err := term(r.from.index - 1)
	if err != nil {
		return err
	}
	if hi > r.from.term {
		return fmt.Errorf("terms fall from %d at entry %d to %d at entry %d", hi, r.from.index-1, r.from.term, r.from.index)
	}
	s.runs = []raft.Run{{Term: lo, First: s.first}}
	err = splitRuns(term, s.first, lo, r.from.index-1, hi, func(run raft.Run) { s.runs = append(s.runs, run) })
	if err != nil {
		return err
	}
	return r.checkRuns()
}

// checkRuns compares the entries at both sides of each change of terms with what the index says of them.
func (r *recovery) checkRuns() error {
	d := finder{src: &r.src, sealed: r.needsSeal()}
	check := func(i raft.Index, want raft.Term) error {
		recs := r.rawRecords(i, 1)
		if len(recs) != 1 || recs[0].Index != i {
			return fmt.Errorf("index record %d is damaged or missing", i)
		}
		var t raft.Term
		if x := recs[0]; r.src.holds(x.Pos) && d.whole(x.Pos, i, 0) {
			t = d.sc.hdr.Term
		} else if told, ok := r.src.termAt(x); ok && r.follows(x) {
			t = told
		} else {
			return fmt.Errorf("entry %d is damaged, or its index record is", i)
		}
		if t != want {
			return fmt.Errorf("entry %d is of term %d, the index says %d", i, t, want)
		}
		return nil
	}
	for k, run := range r.runs {
		last := r.from.index - 1
		if k+1 < len(r.runs) {
			last = r.runs[k+1].First - 1
		}
		if err := errors.Join(check(run.First, run.Term), check(last, run.Term)); err != nil {
			return err
		}
	}
	return nil
}

// follows tells whether an index record names the position that the one before it gives.
func (r *recovery) follows(x entry.Record) bool {
	if x.Index == r.first {
		return x.Pos == r.firstPos
	}
	recs := r.rawRecords(x.Index-1, 1)
	return len(recs) == 1 && r.adjoin(recs[0], x)
}

// adjoin tells whether index records a and b are of two entries one behind the other, by all they say but the terms.
func (s *Store) adjoin(a, b entry.Record) bool {
	if b.Index != a.Index+1 || a.Size < entry.HeaderSize || b.Size < entry.HeaderSize {
		return false
	}
	pos, _ := entry.Place(a.Pos+int64(a.Size), int(b.Size), s.data.size)
	return pos == b.Pos
}

// splitRuns reports each run that begins in (lo, hi], in order; loTerm and hiTerm are the terms of both ends.
func splitRuns(term func(raft.Index) (raft.Term, error), lo raft.Index, loTerm raft.Term, hi raft.Index, hiTerm raft.Term, found func(raft.Run)) error {
	switch {
	case loTerm == hiTerm:
		return nil
	case loTerm > hiTerm:
		return fmt.Errorf("terms fall from %d at entry %d to %d at entry %d", loTerm, lo, hiTerm, hi)
	case hi == lo+1:
		found(raft.Run{Term: hiTerm, First: hi})
		return nil
	}
	mid := lo + (hi-lo)/2
	midTerm, err := term(mid)
	if err != nil {
		return err
	}
	if err := splitRuns(term, lo, loTerm, mid, midTerm, found); err != nil {
		return err
	}
	return splitRuns(term, mid, midTerm, hi, hiTerm, found)
}

// scan reads from r.from to the end of the log.
func (r *recovery) scan() error {
	s := r.Store
	sc := scanner{src: &r.src, pos: r.from.pos, next: r.from.index, term: r.from.term, checkPos: r.checkPositions(), sealed: anySeal}
	s.last = mark{index: r.from.index - 1, pos: r.from.pos, end: r.from.pos}
	if r.from.index < s.first {
		s.last = r.from
		sc.next, sc.term = s.first, max(s.prevTerm, 0)
	}
	// A write that failed may be torn too where the machine kept running; but there the whole entries of a Java leader have no checksum either.
	if r.known && (!r.sameBoot || r.ours()) && !r.m.clean && !r.ballot.foreign {
		sc.sealed = r.m.durable.index
	}
	if s.sealed.Load() {
		sc.sealed = -1
	}
	// But a write that failed, or that a kill interrupted, is torn at one place: the entry ends with zeros, and there is nothing behind it. What is noted as
	// synced or committed was written before it.
	sc.doubts, sc.doubted = r.known && r.sameBoot && !r.ours() && !r.m.clean && !r.ballot.foreign, r.sure()
	sc.blanks = r.known && !r.ballot.foreign
	r.sealed = sc.sealed
	fix := indexFixer{Store: s}
	for {
		for sc.step() {
			s.runs = addRun(s.runs, sc.hdr.Term, sc.hdr.Index)
			s.last = mark{index: sc.hdr.Index, term: sc.hdr.Term, pos: sc.at, end: sc.pos}
			if err := fix.add(sc.record()); err != nil {
				return err
			}
		}
		if err := fix.flush(); err != nil {
			return err
		}
		r.stop, r.stopPos, r.stopTerm, r.torn = sc.err, sc.pos, sc.term, -1
		if errors.Is(sc.err, errDoubt) {
			r.torn = sc.next
		}
		if on, err := r.overDamage(&sc); err != nil || !on {
			return err
		}
	}
}

// addRun gives the terms of a log that goes on with entry i of term t.
func addRun(runs []raft.Run, t raft.Term, i raft.Index) []raft.Run {
	if n := len(runs); n == 0 || runs[n-1].Term != t {
		runs = append(runs, raft.Run{Term: t, First: i})
	}
	return runs
}

// checkPositions tells whether every entry's header must name its real position: not where a Java 0.4 leader may have written.
func (r *recovery) checkPositions() bool {
	if r.known {
		return !r.m.moved && !r.ballot.foreign
	}
	return r.cfg.Compat == raft.Compat03
}

// indexFixer compares index records with what the data files say, a stretch at a time, and rewrites those that differ.
type indexFixer struct {
	*Store
	stretch
}

func (x *indexFixer) add(r entry.Record) error {
	if !x.gather(r, x.index.size) {
		return nil
	}
	return x.flush()
}

// stretch is index records, one after the other, as they should be, and as they are.
type stretch struct {
	from       raft.Index // of the first record in want
	want, have []byte
}

// gather adds a record, and tells whether it is time to compare: the stretch is long, or the next record lies in another file of size bytes.
func (x *stretch) gather(r entry.Record, size int64) bool {
	if len(x.want) == 0 {
		x.from = r.Index
	}
	n := len(x.want)
	x.want = append(x.want, make([]byte, entry.IndexSize)...)
	entry.PutRecord(x.want[n:], r)
	return len(x.want) >= 1024*entry.IndexSize || int64(r.Index+1)*entry.IndexSize%size == 0
}

func (x *indexFixer) flush() error {
	if len(x.want) == 0 {
		return nil
	}
	at := int64(x.from) * entry.IndexSize
	x.have = append(x.have[:0], x.want...)
	f := x.index.find(at)
	if f == nil || !f.reads(x.have, at-f.off) || !bytes.Equal(x.have, x.want) {
		f, err := x.obtain(&x.index, at)
		if err != nil {
			return err
		}
		if err := f.putRight(x.want, at-f.off, at-f.off+int64(len(x.want)), x.index.size); err != nil {
			return x.fail(err)
		}
	}
	x.want = x.want[:0]
	return nil
}

// judge decides whether a log that ends at s.last can be what a crash left, and what of it is missing.
//
// What a sync covered is there after every crash, and what was written is there if the machine kept running. If the log ends before that, then
// either the rest is zeros: the files were put back, or their end was lost, and a shorter log is still a right one, but others may count on
// what is gone. Or there are other bytes: that is damage, and going on would hide it.
func (r *recovery) judge() error {
	s := r.Store
	unread := errors.Is(r.stop, errRead)
	if unread && (!r.known || r.ballot.foreign || !s.cfg.Repairs) {
		return r.stop
	}
	s.lost = -1
	// A crash of the machine may have taken entries that others count on, and, beside them, what was noted of them.
	s.behind = r.m.behind || r.known && r.m.async && !r.m.clean && !r.sameBoot || !r.known && r.cfg.Async && r.ballot.term > 0 && !r.ballot.foreign
	s.new = r.m.new || !r.known && len(s.data.list) == 0 && r.ballot == ballot{}
	// So may what is not read hold what was synced, though a power cut took the note of that.
	s.behind = s.behind || unread && !r.m.clean && !r.sameBoot || r.forgot
	s.behind = s.behind && !plantedLossForgotten
	if s.behind && !r.forgot {
		s.log.Warn("the machine went down, and what it took is not known; this node does not vote until it has caught up", "last", s.last.index)
	}
	if !r.known {
		return nil
	}
	next, sure := s.last.index+1, r.sure()
	had := max(r.m.durable.index, r.m.lost)
	if r.m.async {
		had = max(had, r.m.commit, r.torn) // else a committed entry that was not synced here is one that others committed: nobody counts on it
	}
	counted := r.m.async && r.sameBoot && !r.m.clean && !r.ballot.foreign // others count on what was written, and all of that is there if it is not damaged
	if counted {
		had = max(had, r.m.flushed.index)
	}
	if r.ballot.foreign {
		had = r.m.commit // a Java node wrote since: it may have cut what was not committed, and synced nothing
	}
	switch {
	case errors.Is(r.stop, errNoFile):
	case next <= sure:
		zeros, err := r.src.zerosFrom(r.stopPos)
		if err != nil && !s.cfg.Repairs {
			return err
		}
		zeros = zeros && err == nil // what is not read is not known to be zeros
		if damage := r.src.damage(r.stopPos, next, r.stop); !zeros {
			if !s.cfg.Repairs {
				return damage
			}
			// Nobody knows whether what follows is committed, so it cannot be fetched one by one: it is a tail that is lost.
			s.log.Warn("entries are damaged; the log is cut before them, and they come again from the leader", "first", next, "at", damage)
			s.stats.Damages++
			behind, err := r.wholeBehind(next)
			if err != nil {
				return err
			}
			had = max(had, behind)
		}
	case counted && s.cfg.Repairs:
		behind, err := r.wholeBehind(next)
		if err != nil {
			return err
		}
		had = max(had, behind)
	}
	if had > s.last.index {
		s.lost = had
		s.log.Warn("the end of the log is lost; this node does not vote until it has it again", "last", s.last.index, "lost", had)
	}
	return nil
}

// wholeBehind gives the last whole entry behind the damaged place where the log ends now, or -1. It may have been synced and acknowledged, though a power cut took the
// note of that, or before it was synced, if others count on it then: a log that ends where a write was torn has nothing to tell of what follows, one that ends at damage has.
func (r *recovery) wholeBehind(next raft.Index) (last raft.Index, err error) {
	last = -1
	d := finder{src: &r.src, records: r.rawRecords, checkPos: r.checkPositions(), sealed: r.sealed}
	for pos, term := r.stopPos, r.stopTerm; r.src.holds(pos); {
		found, ok, err := d.after(pos, next, term, math.MaxInt64-1)
		if err != nil || !ok {
			return last, err
		}
		for d.sc.step() {
		}
		last, pos, next, term = d.sc.next-1, d.sc.pos, d.sc.next, max(found.term, d.sc.term)
	}
	return last, nil
}

// sure is the last entry that no crash can have taken.
func (r *recovery) sure() raft.Index {
	switch {
	case !r.known, r.ballot.foreign:
		return -1
	case r.sameBoot:
		return max(r.m.durable.index, r.m.commit)
	}
	return r.m.durable.index
}

// settle makes memory and directory agree with what was found, and everything durable.
func (r *recovery) settle() error {
	s := r.Store
	var err error
	s.commit = r.m.commit
	if !r.known {
		c, unread, err := readCheckpoint(s.fs, s.cfg.Dir)
		if err != nil {
			return err
		}
		if unread != nil {
			s.log.Warn("no commit index is known; the next checkpoint makes the file anew", "reason", unread)
		}
		s.commit = c.commit
		if s.commit < s.first-1 || s.commit > s.last.index {
			s.commit = s.first - 1
		}
	}
	s.commit = min(max(s.commit, s.first-1), s.last.index)
	s.term, s.vote = r.ballot.term, r.ballot.vote
	if s.last.term > s.term {
		s.term, s.vote = s.last.term, UnknownVote
	}
	s.tail.reset(s.last)
	if err := s.erasable(s.last.end); err != nil {
		return err
	}
	if r.known && s.last.index < s.first {
		// Entries are going to follow: the next start would find none of them behind a damaged blank.
		if err := r.leadingBlank(); err != nil {
			return err
		}
	}

	boot := bootSum(s.fs.BootID())
	clean := r.m.clean && r.m.flushed.index == s.last.index && errors.Is(r.stop, errZeros)
	s.side.m.boot, s.side.m.compat, s.side.m.clean = boot, s.cfg.Compat, false
	s.side.m.dataSize, s.side.m.indexSize = s.data.size, s.index.size
	s.side.m.first, s.side.m.firstPos, s.side.m.prevTerm = s.first, s.firstPos, s.prevTerm
	s.side.m.commit, s.side.m.lost = s.commit, s.lost
	s.side.m.async, s.side.m.behind, s.side.m.new = s.cfg.Async, s.behind, s.new
	if s.last.index < s.first && s.cfg.Compat == raft.CompatGo {
		s.sealed.Store(true) // nothing is there yet
	}
	s.side.m.sealed = s.sealed.Load()
	s.hurt.Store(len(s.holes) > 0)
	s.side.m.hurt = len(s.holes) > 0
	if len(s.holes) > 0 {
		s.hurting <- struct{}{}
	}
	if !r.known && len(s.data.list) == 0 {
		s.side.m.scrubbed = s.cfg.Now().Unix() // an empty log holds no damage
	}
	if s.side.m.scrubbed > 0 {
		s.scrub.last = time.Unix(s.side.m.scrubbed, 0)
	}
	s.side.m.moved = r.m.moved || s.cfg.Compat == raft.Compat04 || s.last.index >= s.first && (r.ballot.foreign || !r.known && s.cfg.Compat != raft.Compat03)
	if !clean && len(s.data.list)+len(s.index.list) > 0 {
		if !errors.Is(r.stop, errZeros) && !errors.Is(r.stop, errNoFile) {
			s.log.Info("log cut at the first record that is not whole", "last", s.last.index, "position", r.stopPos, "reason", r.stop)
		}
		if err := s.cut(s.last); err != nil {
			return err
		}
	}
	r.unsynced()
	if _, _, err := s.syncAll(); err != nil {
		return err
	}
	s.durable = s.last
	err = s.side.save(func(m *meta) { m.flushed, m.durable, m.checkpoint = s.last, s.last, s.last })
	if err == nil {
		err = s.side.replace(s.fs, s.cfg.Dir)
	}
	if err != nil {
		return s.fail(err)
	}
	b := r.ballot
	if r.revote {
		return s.SaveTerm(s.term, s.vote)
	}
	if unsure := !r.m.clean && (b.term > 0 || b.vote != "") && !plantedTermOfTheDead; s.term == b.term && (b.foreign || unsure) {
		return s.SaveTerm(b.term, b.vote) // if only the process died while it saved them, they may be in the page cache alone (R6)
	}
	s.keepSpare()
	return nil
}

// unsynced marks the files as dirty that may hold bytes which are only in the page cache: all but those that a checkpoint covered.
func (r *recovery) unsynced() {
	s := r.Store
	from := r.begin()
	if r.known && !r.ballot.foreign && r.m.checkpoint.index <= r.from.index {
		from = r.m.checkpoint
	}
	for _, f := range s.data.list {
		if f.off+s.data.size > from.pos && !f.readOnly {
			s.dirty = with(s.dirty, f)
		}
	}
	for _, f := range s.index.list {
		if f.off+s.index.size > int64(from.index)*entry.IndexSize {
			s.dirtyIdx = with(s.dirtyIdx, f)
		}
	}
}
