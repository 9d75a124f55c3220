package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// Inspector looks at a store's directory, of ours or of a Java node, without locking or changing it. A server may be
// writing to it meanwhile: what it wrote after Inspect may or may not be seen.
type Inspector struct {
	dir       string
	data      source
	index     source
	readIndex bool // index files follow each other and have one size
	side      meta
	known     bool // side was read
	info      Info
	problems  []error // found by Inspect already
	noLog     error   // why no position in the data files can be trusted; one of problems
	opened    []vfs.File
}

// Info is what a directory holds at first sight: the end is looked for in the last files only.
type Info struct {
	First, Last                 raft.Index // empty: Last = First-1
	FirstPos, End               int64      // position of the first entry, and behind the last one
	Commit                      raft.Index // -1 if unknown
	Term                        raft.Term
	Vote                        raft.ID
	DataFileSize, IndexFileSize int64       // deduced from the files; 0 without files
	Ours                        bool        // it was opened by this program at least once
	Clean                       bool        // ours, and stopped cleanly: everything must fit
	Compat                      raft.Compat // of the last start; go where Ours is false
}

// Item is one entry as it lies in the data files.
type Item struct {
	entry.Header
	At     int64  // real position; Header.Pos is what the leader said
	File   string // where it lies
	Offset int64  // within File
	Bytes  []byte // whole and encoded; good until the next item
}

// Body is the entry's body; good until the next item.
func (it Item) Body() []byte { return it.Bytes[entry.HeaderSize:] }

// ErrNoDataFiles: a directory belongs to a log whose data files are not where they were looked for.
var ErrNoDataFiles = errors.New("the data files of the log are not here")

// Inspect opens the files of ROOT dir for reading. dataDirs, which have to be there, replace the default, dir/data.
func Inspect(fs vfs.FS, dir string, dataDirs ...string) (*Inspector, error) {
	in := &Inspector{dir: dir}
	if err := in.open(fs, dataDirs); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// Close closes the files.
func (in *Inspector) Close() error {
	var errs []error
	for _, f := range in.opened {
		errs = append(errs, f.Close())
	}
	in.opened = nil
	return errors.Join(errs...)
}

// Info gives the directory's bounds and saved state.
func (in *Inspector) Info() Info { return in.info }

func (in *Inspector) open(fs vfs.FS, dataDirs []string) (err error) {
	if info, err := fs.Stat(in.dir); err != nil {
		return err
	} else if !info.Dir {
		return fmt.Errorf("%s is no directory", in.dir)
	}
	for _, d := range dataDirs {
		if _, err := fs.Stat(d); err != nil {
			return err
		}
	}
	if len(dataDirs) == 0 {
		dataDirs = []string{filepath.Join(in.dir, "data")}
	}
	// The sidecar first: what it tells was written before, so the files read later hold it.
	side, err := readSide(fs, filepath.Join(in.dir, sideName))
	if err != nil {
		return err
	}
	in.side, in.known = side.meta, side.known
	if side.unread != nil {
		in.problems, in.side.clean = append(in.problems, side.unread), false
	}
	var dataOK bool
	if in.data, dataOK, err = in.load(fs, dataDirs, in.side.dataSize, in.side.firstPos); err != nil {
		return err
	}
	if !dataOK {
		in.data.files = in.data.files[:0]
		in.noLog = in.problems[len(in.problems)-1]
	}
	if in.index, in.readIndex, err = in.load(fs, []string{filepath.Join(in.dir, "index")}, in.side.indexSize, int64(in.side.first)*entry.IndexSize); err != nil {
		return err
	}
	in.info = Info{Commit: -1, DataFileSize: in.data.size, IndexFileSize: in.index.size, Ours: in.known, Clean: in.side.clean, Compat: in.side.compat}
	if lacks := in.known && in.side.holdsEntries() || !in.known && len(in.index.files) > 0; lacks && dataOK && len(in.data.files) == 0 {
		return fmt.Errorf("%s: %w: there are none in %s", in.dir, ErrNoDataFiles, strings.Join(dataDirs, ", "))
	}
	floor := raft.Term(-1)
	if in.known {
		floor = in.side.term
	}
	b, err := loadBallot(fs, in.dir, floor, false)
	if err = errors.Join(err, b.instead); err != nil {
		in.problems = append(in.problems, err)
	}
	in.info.Term, in.info.Vote = b.term, b.vote
	if in.known {
		var offs []int64
		for _, f := range in.data.files {
			offs = append(offs, f.off)
		}
		if excused, err := in.side.begins(fs, in.dir, offs, b, in.side.compat); err != nil && !excused {
			in.problems = append(in.problems, err)
		}
	}
	in.bounds()
	in.info.Commit = in.side.commit
	if !in.known {
		c, unread, err := readCheckpoint(fs, in.dir)
		if err != nil {
			return err
		}
		if unread != nil {
			in.problems = append(in.problems, unread)
		}
		in.info.Commit = c.commit
		if in.info.Commit < in.info.First-1 || in.info.Commit > in.info.Last {
			in.info.Commit = -1
		}
	}
	return nil
}

// load opens the files of a list that do not lie wholly before byte from, and tells whether they follow each other. The size is that of the sidecar or, without one, of
// the first file.
func (in *Inspector) load(fs vfs.FS, dirs []string, size, from int64) (source, bool, error) {
	list, strange, err := listFiles(fs, dirs, nil)
	if err != nil {
		return source{}, false, err
	}
	for _, name := range strange {
		in.problems = append(in.problems, fmt.Errorf("%s: its name is no position; a Java node would not start with it", name))
	}
	src := source{size: size}
	l := files{size: size}
	for _, f := range list {
		vf, err := fs.OpenFile(f.name, os.O_RDONLY)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed by a running server since it was listed
		}
		if err != nil {
			return src, false, err
		}
		in.opened = append(in.opened, vf)
		if src.size == 0 {
			src.size, l.size = f.size, f.size
		}
		if from == 0 || f.off+src.size > from {
			l.list = append(l.list, newFile(vf, f.name, f.off, f.size))
		}
	}
	if l.list, _, err = untwin(l.list); err != nil {
		return src, false, err
	}
	if n := len(l.list); in.known && n > 0 && l.list[n-1].size == 0 {
		l.list = l.list[:n-1] // a crash may leave it, and the next start leaves it out
	}
	for _, f := range l.list {
		src.files = append(src.files, sourceFile{off: f.off, name: f.name, f: f.File})
	}
	if src.size == 0 && len(src.files) > 0 {
		in.problems = append(in.problems, fmt.Errorf("%s is empty", src.files[0].name))
		return src, false, nil
	}
	if name, err := l.irregular(); err != nil {
		in.problems = append(in.problems, fmt.Errorf("%s %w", name, err))
		return src, false, nil
	}
	return src, true, nil
}

// scanner gives one that begins at pos and expects index next, of term at least.
func (in *Inspector) scanner(pos int64, next raft.Index, term raft.Term) *scanner {
	return &scanner{src: &in.data, pos: pos, next: next, term: term, sealed: anySeal, checkPos: in.known && !in.side.moved}
}

// bounds finds the first and the last entry.
func (in *Inspector) bounds() {
	first := in.scanner(in.data.base(), -1, 0)
	if !first.step() {
		in.info.First, in.info.FirstPos = in.side.first, first.pos
		in.info.Last, in.info.End = in.info.First-1, first.pos
		return
	}
	in.info.First, in.info.FirstPos = first.hdr.Index, first.at
	end := first
	for i := len(in.data.files) - 1; i > 0; i-- {
		sc := in.scanner(in.data.files[i].off, -1, 0)
		if sc.step() && sc.at == in.data.files[i].off {
			end = sc
			break
		}
	}
	for !in.cutAt(end.next) && end.step() {
	}
	in.info.Last, in.info.End = end.next-1, end.at+int64(end.hdr.Size)
}

// cutAt tells whether entry i and what follows are on their way out: a Truncate was interrupted, or is under way.
func (in *Inspector) cutAt(i raft.Index) bool {
	return in.known && in.side.cut && i > in.side.keep.index
}

// Entries walks over the entries from index from on, or from the first one. It ends with the last one, or with an error that names the place
// where the next should be if other bytes stand there, or that tells that it was there; what an older leader left behind the end counts as the end.
func (in *Inspector) Entries(from raft.Index) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		if in.noLog != nil {
			yield(Item{}, in.noLog)
			return
		}
		sc := in.seek(from)
		for {
			if in.cutAt(sc.next) {
				return
			}
			if !sc.step() {
				break
			}
			if sc.hdr.Index >= from && !yield(in.item(sc), nil) {
				return
			}
		}
		switch {
		case !isEnd(sc.err):
			yield(Item{}, in.data.damage(sc.pos, sc.next, sc.err))
		case in.known && sc.next <= in.sure():
			yield(Item{}, in.endsEarly(sc.next-1))
		}
	}
}

// isEnd tells the ways in which a log may end from those in which it may not.
func isEnd(err error) bool {
	return errors.Is(err, errZeros) || errors.Is(err, errNoFile) || errors.Is(err, errOrder)
}

// seek gives a scanner in front of the last file that begins at or before entry from.
func (in *Inspector) seek(from raft.Index) *scanner {
	for i := len(in.data.files) - 1; i > 0; i-- {
		sc := in.scanner(in.data.files[i].off, -1, 0)
		if sc.step() && sc.at == in.data.files[i].off && sc.hdr.Index <= from {
			return in.scanner(sc.at, sc.hdr.Index, sc.hdr.Term)
		}
	}
	return in.scanner(in.data.base(), -1, 0)
}

func (in *Inspector) item(sc *scanner) Item {
	f := in.data.at(sc.at)
	return Item{Header: sc.hdr, At: sc.at, File: f.name, Offset: sc.at - f.off, Bytes: sc.bytes}
}

// Records walks over the index records of the entries from index from on, or from the first one, as far as the log goes.
func (in *Inspector) Records(from raft.Index) iter.Seq2[entry.Record, error] {
	return func(yield func(entry.Record, error) bool) {
		if in.noLog != nil {
			yield(entry.Record{}, in.noLog)
			return
		}
		for i := max(from, in.info.First); i <= in.info.Last; i++ {
			r, err := in.record(i)
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// record reads the index record of entry i.
func (in *Inspector) record(i raft.Index) (entry.Record, error) {
	at := int64(i) * entry.IndexSize
	if !in.readIndex || at < in.index.base() || at >= in.index.limit() {
		return entry.Record{}, fmt.Errorf("no index file holds the record of entry %d", i)
	}
	var b [entry.IndexSize]byte
	f := in.index.at(at)
	if _, err := f.f.ReadAt(b[:], at-f.off); err != nil && err != io.EOF {
		return entry.Record{}, fmt.Errorf("read %s at byte %d: %w", f.name, at-f.off, err)
	}
	return entry.ParseRecord(b[:]), nil
}

// Report is the outcome of Verify.
type Report struct {
	Info     Info // with the end that the whole scan found
	Entries  int64
	Bytes    int64
	Moved    int64    // entries whose header names another position than their own, as a Java 0.4 leader may write them
	Problems []error  // what must not be, each with file and byte offset; none: the directory is well
	Notes    []string // what may be: an unsynced tail, what an older leader left behind the end
}

// problemsMax bounds Report.Problems.
const problemsMax = 100

func (r *Report) problem(err error) {
	if len(r.Problems) < problemsMax {
		r.Problems = append(r.Problems, err)
	}
}

// Verify reads every entry and index record and checks them: form, checksums, order, positions, names and sizes of files. What a running
// server has not synced, or a killed one left half written, is a note; so is what the original leaves behind the end.
// The error is one of reading.
func (in *Inspector) Verify() (Report, error) {
	rep := Report{Info: in.info, Problems: append([]error(nil), in.problems...)}
	sure := in.sure()
	sc := in.scanner(in.data.base(), -1, 0)
	sc.blanks = true
	for len(in.data.files) > 0 {
		if in.cutAt(sc.next) {
			break
		}
		if sc.step() {
			rep.Entries++
			rep.Bytes += int64(sc.hdr.Size)
			if sc.hdr.Pos != sc.at {
				rep.Moved++
			}
			if err := in.checkRecord(sc, sure); err != nil {
				rep.problem(err)
			}
			continue
		}
		if in.stopped(&rep, sc, sure) {
			break
		}
	}
	if rep.Entries > 0 {
		rep.Info.Last, rep.Info.End = sc.next-1, sc.at+int64(sc.hdr.Size)
	}
	if rep.Info.Last < sure && len(rep.Problems) == 0 {
		rep.problem(in.endsEarly(rep.Info.Last))
	}
	in.checkBehind(&rep, sc)
	return rep, nil
}

// endsEarly is the error of a log that ends at entry last, before what is sure.
func (in *Inspector) endsEarly(last raft.Index) error {
	return fmt.Errorf("%s: the log ends at entry %d, but entry %d was there", in.dir, last, in.sure())
}

// sure is the last entry that must be whole: everything up to it was written before the sidecar's words were.
func (in *Inspector) sure() raft.Index {
	if !in.known {
		return in.info.Commit
	}
	sure := max(in.side.commit, in.side.durable.index, in.side.flushed.index)
	switch {
	case in.side.reset:
		return -1 // what is there is on its way out
	case in.side.cut:
		return min(sure, in.side.keep.index)
	}
	return sure
}

// checkRecord compares the index record of the entry that sc found.
func (in *Inspector) checkRecord(sc *scanner, sure raft.Index) error {
	if !in.readIndex {
		return nil // named already
	}
	r, err := in.record(sc.hdr.Index)
	if in.known && sc.hdr.Index > sure && !unreadable(err) && (err != nil || r == entry.Record{}) {
		return nil // its data was written, the record is not yet
	}
	if err == nil && !sameRecord(r, sc.record()) {
		err = fmt.Errorf("index record says index %d, term %d, position %d, size %d; the entry is index %d, term %d, position %d, size %d",
			r.Index, r.Term, r.Pos, r.Size, sc.hdr.Index, sc.hdr.Term, sc.at, sc.hdr.Size)
	}
	if err == nil {
		return nil
	}
	at := int64(sc.hdr.Index) * entry.IndexSize
	if at < in.index.base() || at >= in.index.limit() {
		return err
	}
	return in.index.damage(at, sc.hdr.Index, err)
}

// stopped judges why the scan ended, and tells whether it is over; otherwise sc goes on behind the damage, where the index records lead.
func (in *Inspector) stopped(rep *Report, sc *scanner, sure raft.Index) bool {
	if sc.next < 0 {
		sc.next = in.info.First // nothing was found at all
	}
	end := errors.Is(sc.err, errZeros) || errors.Is(sc.err, errNoFile)
	if end && sc.next > sure {
		return true
	}
	cause := in.data.damage(sc.pos, sc.next, sc.err)
	r, err := in.record(sc.next)
	indexed := err == nil && r.Index == sc.next && r.Size >= entry.HeaderSize && r.Pos >= sc.pos && r.Pos+int64(r.Size) <= in.data.limit()
	torn := sc.next > sure && !in.info.Clean && !errors.Is(sc.err, errRead)
	stale := !in.known && (errors.Is(sc.err, errOrder) || !indexed || r.Pos != sc.pos)
	if torn && (in.known || stale) {
		rep.Notes = append(rep.Notes, fmt.Sprintf("the log ends here, other bytes follow: %v", cause))
		return true
	}
	rep.problem(cause)
	if !indexed {
		return true
	}
	if r.Pos == sc.pos {
		sc.pos, sc.next = r.Pos+int64(r.Size), sc.next+1
	} else {
		sc.pos = r.Pos
	}
	sc.err = nil
	return false
}

// checkBehind looks for bytes behind the end of a log that was stopped cleanly.
func (in *Inspector) checkBehind(rep *Report, sc *scanner) {
	if !in.known || !in.side.clean || len(in.data.files) == 0 || len(rep.Problems) > 0 {
		return
	}
	in.checkZeros(rep, &in.data, sc.pos, sc.next, "entry")
	if at := int64(rep.Info.Last+1) * entry.IndexSize; in.readIndex && at >= in.index.base() {
		in.checkZeros(rep, &in.index, at, rep.Info.Last+1, "index record")
	}
}

func (in *Inspector) checkZeros(rep *Report, src *source, pos int64, next raft.Index, last string) {
	switch zeros, err := src.zerosFrom(pos); {
	case err != nil:
		rep.problem(src.damage(pos, next, fmt.Errorf("what is behind the last %s is not known: %w", last, err)))
	case !zeros:
		rep.problem(src.damage(pos, next, fmt.Errorf("bytes behind the last %s are not zeros", last)))
	}
}

// Compared is the outcome of Compare.
type Compared struct {
	From, To raft.Index // entries that were compared; To < From: there is nothing both should have
	Equal    bool
	Differ   string // the first difference: entry, files and offsets
}

// Compare proves that two replicas hold the same bytes at the same positions, up to the smaller of their commit indexes, or up to the smaller end where a
// commit index is unknown, from the larger of their first entries on.
func Compare(a, b *Inspector) (Compared, error) {
	c := Compared{From: max(a.info.First, b.info.First), To: min(a.comparable(), b.comparable()), Equal: true}
	nextB, stop := iter.Pull2(b.Entries(c.From))
	defer stop()
	if c.To < c.From {
		return c, nil
	}
	i := c.From
	for x, err := range a.Entries(c.From) {
		if err != nil {
			return c, fmt.Errorf("%s: %w", a.dir, err)
		}
		y, err, ok := nextB()
		if err != nil {
			return c, fmt.Errorf("%s: %w", b.dir, err)
		}
		if !ok {
			return c, fmt.Errorf("%s ends before entry %d", b.dir, i)
		}
		if x.At != y.At || !bytes.Equal(x.Bytes, y.Bytes) {
			c.Equal = false
			c.Differ = fmt.Sprintf("entry %d: %s at byte %d (term %d, size %d) and %s at byte %d (term %d, size %d)",
				i, x.File, x.Offset, x.Term, x.Size, y.File, y.Offset, y.Term, y.Size)
			return c, nil
		}
		if i == c.To {
			return c, nil
		}
		i++
	}
	return c, fmt.Errorf("%s ends before entry %d", a.dir, i)
}

// comparable is the last entry that another replica must hold equally.
func (in *Inspector) comparable() raft.Index {
	if in.info.Commit < 0 && !in.known {
		return in.info.Last
	}
	return min(in.info.Commit, in.info.Last)
}
