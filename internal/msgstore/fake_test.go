package msgstore

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// fakeLog is a log in memory that never loses anything. It is led by whom the test says, and commits when it says.
type fakeLog struct {
	mu      sync.Mutex
	entries []dledger.Entry // with pos; index = first + i
	first   dledger.Index
	end     int64
	commit  dledger.Index
	derived dledger.Index // said by the store
	held    bool          // entries are not committed as they come
	waiting []func()
	term    dledger.Term
	leads   bool
	changed chan struct{}
	cold    bool                   // nothing is fresh
	reads   int                    // calls of ReadAt
	rotten  map[dledger.Index]bool // entries of which ReadAt gives other bytes, and which are damaged for whoever looks closer
	fail    error
}

func newFakeLog() *fakeLog {
	return &fakeLog{commit: -1, changed: make(chan struct{})}
}

func (l *fakeLog) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// lead makes this member the leader of the next term, or with false one of those who follow.
func (l *fakeLog) lead(leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term++
	l.leads = leads
	l.change()
}

// hold keeps what comes from now on uncommitted; release commits it.
func (l *fakeLog) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
}

func (l *fakeLog) release() {
	l.mu.Lock()
	l.held = false
	l.commit = l.first + dledger.Index(len(l.entries)) - 1
	waiting := l.waiting
	l.waiting = nil
	l.change()
	l.mu.Unlock()
	for _, f := range waiting {
		f()
	}
}

// retain deletes the entries before index i.
func (l *fakeLog) retain(i dledger.Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = slices.Clone(l.entries[i-l.first:])
	l.first = i
}

// lose takes the entries from index i on, and gives a function that brings them back.
func (l *fakeLog) lose(i dledger.Index) (back func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, end, commit := l.entries, l.end, l.commit
	l.end, l.commit, l.entries = l.entries[i-l.first].Pos, i-1, slices.Clone(l.entries[:i-l.first])
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.entries, l.end, l.commit = all, end, commit
		l.change()
	}
}

func (l *fakeLog) firstPos() int64 {
	if len(l.entries) == 0 {
		return l.end
	}
	return l.entries[0].Pos
}

func (l *fakeLog) Commit() dledger.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commit
}

func (l *fakeLog) Committed(from dledger.Index, f func(dledger.Entry) bool) (dledger.Index, error) {
	l.mu.Lock()
	commit, first, entries := l.commit, l.first, l.entries
	l.mu.Unlock()
	if from > commit {
		return from, nil
	}
	if from < first {
		return from, dledger.ErrCompacted
	}
	for n := 0; from <= commit && n < 100; n++ {
		e := entries[from-first]
		if l.isRotten(from) {
			if n > 0 {
				break
			}
			return from, dledger.ErrDamaged
		}
		from++
		if len(e.Body) > 0 && !f(e) {
			break
		}
	}
	return from, nil
}

func (l *fakeLog) Get(i dledger.Index) (dledger.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case i > l.commit:
		return dledger.Entry{}, dledger.ErrOutOfRange
	case i < l.first:
		return dledger.Entry{}, dledger.ErrCompacted
	}
	return l.entries[i-l.first], nil
}

func (l *fakeLog) First() (dledger.Index, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.firstPos()
}

func (l *fakeLog) CommittedEnd() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.commit < l.first-1 {
		return 0, dledger.ErrCompacted
	}
	return l.committedEnd(), nil
}

func (l *fakeLog) committedEnd() int64 {
	if l.commit < l.first {
		return l.firstPos()
	}
	e := l.entries[l.commit-l.first]
	return e.Pos + headerSize + int64(len(e.Body))
}

func (l *fakeLog) Derived(i dledger.Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.derived = i
}

// at finds the entry that begins at pos; -1: none does.
func (l *fakeLog) at(pos int64) int {
	i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Pos >= pos })
	if i == len(l.entries) || l.entries[i].Pos != pos {
		return -1
	}
	return i
}

func (l *fakeLog) EntryAt(pos int64) (dledger.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.at(pos)
	switch {
	case l.fail != nil:
		return dledger.Entry{}, l.fail
	case pos < l.firstPos():
		return dledger.Entry{}, dledger.ErrCompacted
	case i < 0 || l.first+dledger.Index(i) > l.commit:
		return dledger.Entry{}, dledger.ErrOutOfRange
	case l.rotten[l.first+dledger.Index(i)]:
		return dledger.Entry{}, dledger.ErrDamaged
	}
	return l.entries[i], nil
}

func (l *fakeLog) Whole(pos int64, b []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.at(pos)
	return i >= 0 && len(b) >= headerSize && string(b[headerSize:]) == string(l.entries[i].Body)
}

func (l *fakeLog) isRotten(i dledger.Index) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rotten[i]
}

// rot damages an entry, or makes it whole again.
func (l *fakeLog) rot(i dledger.Index, rotten bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rotten == nil {
		l.rotten = map[dledger.Index]bool{}
	}
	l.rotten[i] = rotten
	l.change()
}

func (l *fakeLog) ReadAt(pos int64, n int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	switch {
	case l.fail != nil:
		return nil, l.fail
	case pos < l.firstPos():
		return nil, dledger.ErrCompacted
	case pos+int64(n) > l.committedEnd():
		return nil, dledger.ErrOutOfRange
	}
	b := make([]byte, 0, n)
	for i := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Pos > pos }) - 1; len(b) < n; i++ {
		e := append(make([]byte, headerSize), l.entries[i].Body...)
		if l.rotten[l.first+dledger.Index(i)] {
			e[len(e)-1] ^= 1
		}
		lo := max(pos+int64(len(b))-l.entries[i].Pos, 0)
		b = append(b, e[lo:min(int64(len(e)), lo+int64(n-len(b)))]...)
	}
	return b, nil
}

func (l *fakeLog) Fresh(pos int64, n int) ([]byte, bool) {
	l.mu.Lock()
	cold := l.cold
	l.mu.Unlock()
	if cold {
		return nil, false
	}
	b, err := l.ReadAt(pos, n)
	return b, err == nil
}

func (l *fakeLog) Leading() (dledger.Term, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.leads
}

func (l *fakeLog) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *fakeLog) ProposeIn(term dledger.Term, batch [][]byte, stamp dledger.Stamp, done func(dledger.Appended, error)) {
	l.mu.Lock()
	if !l.leads || term >= 0 && term != l.term {
		l.mu.Unlock()
		done(dledger.Appended{First: -1}, &dledger.NotLeaderError{})
		return
	}
	a := dledger.Appended{First: l.first + dledger.Index(len(l.entries)), Term: l.term}
	for i, b := range batch {
		b = slices.Clone(b)
		if stamp != nil {
			stamp(i, a.First+dledger.Index(i), l.end, b)
		}
		l.entries = append(l.entries, dledger.Entry{Index: a.First + dledger.Index(i), Term: l.term, Pos: l.end, Body: b})
		a.Pos = append(a.Pos, l.end)
		l.end += headerSize + int64(len(b))
	}
	if l.held {
		l.waiting = append(l.waiting, func() { done(a, nil) })
		l.mu.Unlock()
		return
	}
	l.commit = a.First + dledger.Index(len(batch)) - 1
	l.change()
	l.mu.Unlock()
	done(a, nil)
}

// noop appends an entry without a message.
func (l *fakeLog) noop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, dledger.Entry{Index: l.first + dledger.Index(len(l.entries)), Term: l.term, Pos: l.end})
	l.end += headerSize
	l.commit++
	l.change()
}

// rig is a store over a fakeLog on a disk in memory, that runs.
type rig struct {
	t    testing.TB
	log  *fakeLog
	disk *vfs.Mem
	cfg  Config
	s    *Store
	stop func() error
}

var host = netip.MustParseAddrPort("10.1.2.3:10911")

// newRig starts a store with small files.
func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, log: newFakeLog(), disk: vfs.NewMem()}
	r.cfg = Config{Ledger: r.log, Dir: "store", StoreHost: host, FS: r.disk, QueueFileUnits: 16, IndexSlots: 8, IndexItems: 64, CheckpointEvery: time.Hour}
	for _, f := range change {
		f(&r.cfg)
	}
	r.start()
	t.Cleanup(func() {
		if r.stop != nil {
			r.halt()
		}
	})
	return r
}

func (r *rig) start() {
	r.t.Helper()
	s, err := Open(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(s)
}

func (r *rig) run(s *Store) {
	r.s = s
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	r.stop = func() error {
		cancel()
		return <-ran
	}
}

// halt ends Run and leaves the store as a crash of the process would. The member does not lead afterwards.
func (r *rig) halt() {
	r.t.Helper()
	r.log.lead(false)
	if err := r.stop(); err != nil {
		r.t.Error(err)
	}
	r.stop = nil
	if err := r.s.release(); err != nil {
		r.t.Error(err)
	}
}

// shut closes the store cleanly.
func (r *rig) shut() {
	r.t.Helper()
	r.log.lead(false)
	if err := r.stop(); err != nil {
		r.t.Error(err)
	}
	r.stop = nil
	if err := r.s.Close(); err != nil {
		r.t.Error(err)
	}
}

// lead makes the store ready.
func (r *rig) lead() {
	r.t.Helper()
	r.log.lead(true)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.s.WaitReady(ctx); err != nil {
		r.t.Fatal(err)
	}
}

func message(topic string, queue int32, body string, props ...string) *mq.Message {
	m := &mq.Message{Topic: topic, QueueID: queue, Body: []byte(body), BornHost: netip.MustParseAddrPort("127.0.0.1:5000")}
	for i := 0; i < len(props); i += 2 {
		m.SetProp(props[i], props[i+1])
	}
	return m
}

// put puts messages and waits for the outcome.
func (r *rig) put(msgs ...*mq.Message) PutResult {
	r.t.Helper()
	got := make(chan PutResult, 1)
	r.s.Put(msgs, func(p PutResult) { got <- p })
	select {
	case p := <-got:
		return p
	case <-time.After(10 * time.Second):
		r.t.Fatal("a put is never done")
		panic("unreachable")
	}
}

// fill puts n messages to a queue, one by one.
func (r *rig) fill(topic string, queue int32, n int) {
	r.t.Helper()
	for i := range n {
		if p := r.put(message(topic, queue, fmt.Sprintf("%s-%d-%d", topic, queue, i))); p.Status != PutOK {
			r.t.Fatalf("put: %v, %v", p.Status, p.Err)
		}
	}
	r.settle()
}

// settle waits until all that is committed is dispatched.
func (r *rig) settle() {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		changed := false
		if err := r.s.call(func() error {
			for {
				more, err := r.s.dispatchSome()
				if err != nil || !more {
					return err
				}
				changed = true
			}
		}); err != nil {
			r.t.Fatal(err)
		}
		if !changed {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("dispatching does not end")
		}
	}
}

// all gives the bodies of a queue from its first message on, read in several Gets.
func (r *rig) all(topic string, queue int32) []string {
	r.t.Helper()
	var out []string
	for at := r.s.MinOffset(topic, queue); ; {
		g := r.s.Get(topic, queue, at, 7, 1<<20, nil)
		if g.Status != Found {
			if g.Status != OffsetOverflowOne && g.Status != NoSuchQueue {
				r.t.Errorf("%s %d at %d: %v", topic, queue, at, g.Status)
			}
			return out
		}
		for i, b := range g.Messages {
			m, _, err := mq.ParseStored(b)
			if err != nil || m.QueueOffset != at+int64(i) || m.Topic != topic || m.QueueID != queue {
				r.t.Fatalf("%s %d at %d: %+v, %v", topic, queue, at+int64(i), m, err)
			}
			out = append(out, string(m.Body))
		}
		at = g.Next
	}
}

// check compares the queues with the log: each holds exactly the committed messages that name it, at the offsets that they carry.
func (r *rig) check() {
	r.t.Helper()
	want := map[string][]string{}
	at := map[string]int64{}
	r.log.mu.Lock()
	entries, commit, first := r.log.entries, r.log.commit, r.log.first
	r.log.mu.Unlock()
	for _, e := range entries[:commit-first+1] {
		m, _, err := mq.ParseStored(e.Body)
		if err != nil || !m.InQueue() || !isName(m.Topic) {
			continue
		}
		key := fmt.Sprintf("%s|%d", m.Topic, m.QueueID)
		if n, ok := at[key]; ok && n != m.QueueOffset {
			r.t.Errorf("%s: offset %d follows %d in the log", key, m.QueueOffset, n-1)
		}
		at[key] = m.QueueOffset + 1
		want[key] = append(want[key], string(m.Body))
	}
	for key, bodies := range want {
		var topic string
		var id int32
		if i := slices.Index([]byte(key), '|'); i >= 0 {
			topic = key[:i]
			fmt.Sscan(key[i+1:], &id)
		}
		if got := r.all(topic, id); !slices.Equal(got, bodies) {
			r.t.Errorf("queue %s has %q, want %q", key, got, bodies)
		}
		if got := r.s.MaxOffset(topic, id); got != at[key] {
			r.t.Errorf("queue %s ends at %d, want %d", key, got, at[key])
		}
	}
	n := 0
	for _, t := range r.s.Topics() {
		n += len(r.s.Queues(t))
	}
	if n < len(want) {
		r.t.Errorf("%d queues, want %d", n, len(want))
	}
}
