package broker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dledger"
	"dledger/internal/entry"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// record is a change of what a broker group keeps beside messages: the body of a message in the metadata topic, as JSON. Kind is for readers; every
// member that is set is applied. Times are the leader's clock, in ms, so that all replicas come to the same state.
type record struct {
	Kind string `json:"kind"`
	At   int64  `json:"at"`
	Term int64  `json:"term,omitempty"`

	Absent    bool                                  `json:"absent,omitempty"` // Topics and Groups are defaults for those that are not there: a client has named them
	Leader    *leaderRecord                         `json:"leader,omitempty"`
	Topics    map[string]mq.TopicConfig             `json:"topics,omitempty"`
	NoTopics  []string                              `json:"noTopics,omitempty"`
	Groups    map[string]mq.SubscriptionGroupConfig `json:"groups,omitempty"`
	NoGroups  []string                              `json:"noGroups,omitempty"`
	Offsets   map[string]map[int32]int64            `json:"offsets,omitempty"` // "topic@group" → queue → offset
	Sets      bool                                  `json:"sets,omitempty"`    // the offsets are not what consumers committed, but take its place
	NoOffsets []string                              `json:"noOffsets,omitempty"`
	Resets    map[string]map[int32]int64            `json:"resets,omitempty"` // as Offsets; -1 takes one back
	Floors    map[string]map[int32]int64            `json:"floors,omitempty"` // in a full copy: how far each queue has come
	Lock      *lockRecord                           `json:"lock,omitempty"`
	Unlock    *lockRecord                           `json:"unlock,omitempty"`
	Progress  map[string]json.RawMessage            `json:"progress,omitempty"` // of the services of the leader, by name
	Full      *fullRecord                           `json:"full,omitempty"`
}

// leaderRecord is written first thing by a new leader: where its clients and the other replicas reach it.
type leaderRecord struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Secret  string `json:"secret,omitempty"` // what members of the group know each other by; the first one in the log counts
}

// fullRecord opens a copy of everything: this record and the parts-1 that follow are the whole state. One is made in each data file of the log, so
// that a log whose older files are deleted still tells all.
type fullRecord struct {
	Part  int                     `json:"part"`
	Parts int                     `json:"parts"`
	Locks []lockRecord            `json:"locks,omitempty"`
	Peers map[string]string       `json:"peers,omitempty"` // addresses of replicas that have led, by id
	Ver   map[string]tableVersion `json:"versions,omitempty"`

	Secret string `json:"secret,omitempty"` // as in leaderRecord
	Swept  int64  `json:"swept,omitempty"`  // as in state

	Gone  map[string]int64 `json:"gone,omitempty"`  // as in state
	Moved map[string]int64 `json:"moved,omitempty"` // as in state
}

// change is a record on its way.
type change struct {
	rec  record
	done func(error)
}

// meta writes records, applies committed ones, and keeps the state that follows from them (TopicConfigManager, SubscriptionGroupManager,
// ConsumerOffsetManager and others in the Java original).
//
//  1. the state changes in apply alone, in log order, on every replica;
//  2. the leader has one batch of records on the way at a time, and a batch is of one term, so a full copy made between two batches misses none;
//  3. done of a change is called when its record is committed and applied here, or with the reason why it surely is not, or, wrapping dledger.ErrUndecided, perhaps.
type meta struct {
	b     *Broker
	topic string
	wake  chan struct{}
	ends  atomic.Pointer[map[string]map[int32]int64] // state.Floors, for the log's goroutine, which waits for no lock
	pass  atomic.Pointer[string]                     // state.Secret

	mu         sync.RWMutex // held for as long as it takes to copy the state's tables, but not what they hold
	state      state
	waiting    []change      // for the writer
	told       chan struct{} // closed at the next leader record
	saved      int64         // state.Pos in the files
	takes      int64         // changes of the state without a record
	found      *tables       // what a Java broker has left in the files and is not in the state for good; nil = nothing
	last       dledger.Index // the log's last entry when that was found: records behind it are newer
	savedTakes int64         // takes in the files; save's own
	leading    int64         // term in which the writer works; 0 = it does not
	applied    chan struct{} // closed when a record is applied
	newest     topicChange
}

// topicChange is the last change of the table of topics.
type topicChange struct {
	counter int64  // of the table's version behind it
	topic   string // that it made or changed; "" = more than one, or deleted, or not known
}

func openMeta(b *Broker) (*meta, error) {
	m := &meta{b: b, topic: mq.TopicMetadataStem + b.cfg.Name, wake: make(chan struct{}, 1), told: make(chan struct{}), applied: make(chan struct{}), saved: -1}
	m.state = newState(&b.cfg)
	if err := m.load(); err != nil {
		return nil, err
	}
	m.publish()
	return m, nil
}

// ErrNotServing: this replica is not, or no longer, the leader that writes records.
var errNotServing = &dledger.NotLeaderError{}

// publish shows others what they look at without a lock. mu is held.
func (m *meta) publish() {
	floors, secret := m.state.Floors, m.state.Secret
	m.ends.Store(&floors)
	m.pass.Store(&secret)
}

// submit gives the group a change. done is called once, from another goroutine or this one, and must not block.
func (m *meta) submit(rec record, done func(error)) {
	rec.At = milliseconds(time.Now())
	m.mu.Lock()
	if m.leading == 0 {
		m.mu.Unlock()
		done(errNotServing)
		return
	}
	if len(m.waiting) >= changesMax {
		m.mu.Unlock()
		done(errChangesFull)
		return
	}
	rec.Term = m.leading
	m.waiting = append(m.waiting, change{rec, done})
	m.mu.Unlock()
	m.kick()
}

// Bounds of the changes that wait, and of those that travel together.
const (
	changesMax = 20000
	batchMax   = 1000
	batchBytes = 1 << 20
)

var errChangesFull = fmt.Errorf("%d changes wait already", changesMax)

// write is submit for a caller that waits.
func (m *meta) write(ctx context.Context, rec record) error {
	got := make(chan error, 1)
	m.submit(rec, func(err error) { got <- err })
	return awaited(ctx, got)
}

// awaited waits for what became of a change.
func awaited(ctx context.Context, got <-chan error) error {
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w; %w", ctx.Err(), dledger.ErrUndecided)
	}
}

func (m *meta) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// leaderMessage is what the store opens each leadership with.
func (m *meta) leaderMessage(term dledger.Term) *mq.Message {
	secret := *m.pass.Load()
	if secret == "" {
		secret = rand.Text()
	}
	return m.message(&record{Kind: "leader", Term: int64(term), Leader: &leaderRecord{ID: m.b.cfg.Log.ID, Address: m.b.cfg.address(), Secret: secret}})
}

// lead begins to write in a term; resign ends it, what waits is refused.
func (m *meta) lead(term dledger.Term) {
	m.mu.Lock()
	m.leading = int64(term)
	m.mu.Unlock()
	m.kick()
}

func (m *meta) resign() {
	m.mu.Lock()
	m.leading = 0
	m.mu.Unlock()
	m.kick()
}

// run is the writer: it gives what waits to the log as a batch, and when that is applied the next.
func (m *meta) run(ctx context.Context) {
	defer func() {
		m.mu.Lock()
		line := m.waiting
		m.waiting, m.leading = nil, 0
		m.mu.Unlock()
		for _, c := range line {
			c.done(dledger.ErrClosed)
		}
	}()
	unsure := false            // a batch before may yet be applied
	var since, again time.Time // a full copy is due since then (zero: is not), and is tried again then
	for {
		m.mu.Lock()
		term, idle := m.leading, len(m.waiting) == 0
		m.mu.Unlock()
		now := time.Now()
		switch due := term != 0 && m.fullDue(); {
		case !due:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		if !since.IsZero() && !now.Before(again) && (idle || now.Sub(since) > fullWait) {
			if err := m.copyAll(ctx, term, unsure); err == nil {
				unsure = false
			} else if ctx.Err() == nil {
				again = time.Now().Add(time.Second)
				m.b.log.Warn("no full copy of the metadata in this file yet, it is tried again", "error", err)
			}
		}
		m.mu.Lock()
		line := m.waiting[:min(len(m.waiting), batchMax)]
		if m.waiting = m.waiting[len(line):]; len(m.waiting) == 0 {
			m.waiting = nil
		}
		term = m.leading
		m.mu.Unlock()
		if len(line) == 0 {
			select {
			case <-m.wake:
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
			continue
		}
		for len(line) > 0 {
			n, err := m.putSome(ctx, term, line)
			unsure = unsure || errors.Is(err, dledger.ErrUndecided)
			for _, c := range line[:n] {
				c.done(err)
			}
			line = line[n:]
		}
	}
}

// putSome gives the first changes of a line to the log, and tells how many. One that the log has no room for harms no other.
func (m *meta) putSome(ctx context.Context, term int64, line []change) (n int, err error) {
	if term == 0 {
		return len(line), errNotServing
	}
	var msgs []*mq.Message
	for size := 0; n < len(line) && (n == 0 || size < batchBytes); n++ {
		msg := m.message(&line[n].rec)
		if size += len(msg.Body); size > batchBytes && n > 0 {
			break
		}
		msgs = append(msgs, msg)
	}
	return n, m.put(ctx, term, msgs)
}

// copyAll writes a full copy. What may yet be applied has to be before, or the copy would undo it.
func (m *meta) copyAll(ctx context.Context, term int64, unsure bool) error {
	if unsure {
		if err := m.put(ctx, term, []*mq.Message{m.message(&record{Kind: "barrier", Term: term})}); err != nil {
			return err
		}
	}
	var msgs []*mq.Message
	recs := m.full()
	for i := range recs {
		msgs = append(msgs, m.message(&recs[i]))
	}
	return m.put(ctx, term, msgs)
}

// put gives records to the log and waits until they are applied here. Its error wraps dledger.ErrUndecided where they may yet be.
func (m *meta) put(ctx context.Context, term int64, msgs []*mq.Message) error {
	got := make(chan msgstore.PutResult, 1)
	m.b.store.PutIn(dledger.Term(term), msgs, func(r msgstore.PutResult) { got <- r })
	var r msgstore.PutResult
	select {
	case r = <-got:
	case <-ctx.Done():
		return fmt.Errorf("%w; %w", ctx.Err(), dledger.ErrUndecided)
	}
	if r.Status != msgstore.PutOK {
		if r.Err == nil {
			return fmt.Errorf("metadata: %v", r.Status)
		}
		return r.Err
	}
	for {
		m.mu.RLock()
		applied, at := m.applied, m.state.Pos
		m.mu.RUnlock()
		if at >= r.Pos[len(r.Pos)-1] {
			return nil
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return fmt.Errorf("%w; %w", ctx.Err(), dledger.ErrUndecided) // it is committed, and will be applied
		}
	}
}

// message is a record as the log gets it.
func (m *meta) message(rec *record) *mq.Message {
	rec.At = milliseconds(time.Now())
	body, err := json.Marshal(rec)
	if err != nil {
		panic(fmt.Sprintf("a record of kind %s cannot be written: %v", rec.Kind, err)) // it consists of texts and numbers
	}
	return &mq.Message{Topic: m.topic, Body: body, BornTime: rec.At, BornHost: m.b.host, Properties: mq.PropSet("", mq.PropTags, rec.Kind)}
}

// apply takes a committed message of the metadata topic; the store calls it in log order, also again for some after a restart.
func (m *meta) apply(pos int64, msg *mq.Message) error {
	var rec record
	if len(msg.Body) == 0 {
		return nil // of a leader that has nothing to say
	}
	if err := json.Unmarshal(msg.Body, &rec); err != nil {
		m.b.log.Error("a message of the metadata topic is no record; it is passed over, on all replicas", "position", pos, "error", err)
		return nil
	}
	// The queues go first, and again when the record is read once more: the store may have built them anew from messages before it.
	for _, topic := range rec.NoTopics {
		if err := m.b.store.DeleteTopic(topic, pos); err != nil {
			return fmt.Errorf("topic %s: %w", topic, err)
		}
	}
	if m.waitsFor() {
		e, err := m.b.ledger.EntryAt(pos - headerSize)
		if err != nil {
			return fmt.Errorf("metadata at %d: %w", pos, err)
		}
		if e.Index > m.last {
			m.settle()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if pos <= m.state.Pos && rec.Term <= m.state.Term {
		return nil
	}
	before := m.state.Versions[tableTopics].Counter
	m.state.apply(&rec, pos, func() state { return newState(&m.b.cfg) })
	if now := m.state.Versions[tableTopics].Counter; now != before {
		m.newest = topicChange{counter: now}
		if now == before+1 && rec.Full == nil && len(rec.Topics) == 1 && len(rec.NoTopics) == 0 {
			for m.newest.topic = range rec.Topics {
			}
		}
	}
	m.publish()
	if rec.Leader != nil {
		close(m.told)
		m.told = make(chan struct{})
	}
	close(m.applied)
	m.applied = make(chan struct{})
	return nil
}

// leaderChanged gives a channel that is closed when the next leader record is applied.
func (m *meta) leaderChanged() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.told
}

// addressOf gives the broker address of another replica; "" if it never led.
func (m *meta) addressOf(id string) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Replicas[id]
}

// term is that of the last record.
func (m *meta) term() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Term
}

// headerSize is how far a message begins behind its entry.
const headerSize = entry.HeaderSize

// fullDue tells whether the log has gone on to another data file since the last full copy, be it with messages alone, or the state has become what no record tells.
func (m *meta) fullDue() bool {
	at := m.b.store.DispatchedTo()
	m.mu.RLock()
	defer m.mu.RUnlock()
	size := m.b.cfg.Log.DataFileSize
	if size == 0 {
		size = dledger.DefaultDataFileSize
	}
	return max(at, m.state.Pos)/size != m.state.FullPos/size || m.state.FullPos < 0 || m.state.Taken
}

// partMax bounds a part of a full copy, and a record of offsets, by what weigh gives: some 2 MiB of JSON, where an entry of the log holds 4.
const partMax = 100000

// fullWait is how long a full copy lets changes go first: they may never end.
const fullWait = 2 * time.Second

// full gives the records of a full copy.
func (m *meta) full() []record {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.fullOf(&m.state, m.floors())
}

// fullOf is full for a state and the floors that belong to it.
func (m *meta) fullOf(s *state, floors map[string]map[int32]int64) []record {
	first := record{Kind: "full", Term: m.leading, Full: &fullRecord{Peers: maps.Clone(s.Replicas), Ver: maps.Clone(s.Versions), Secret: s.Secret, Swept: s.Swept, Gone: maps.Clone(s.Gone), Moved: maps.Clone(s.Moved)}, Progress: maps.Clone(s.Progress)}
	recs := []record{first}
	part := func() *record {
		recs = append(recs, record{Kind: "full", Term: m.leading, Full: &fullRecord{}})
		return &recs[len(recs)-1]
	}
	for locks := range slices.Chunk(s.lockRecords(), partMax/50) {
		part().Full.Locks = locks
	}
	chunk(s.Topics, flat, part, func(r *record, t map[string]mq.TopicConfig) { r.Topics = t })
	chunk(s.Groups, flat, part, func(r *record, t map[string]mq.SubscriptionGroupConfig) { r.Groups = t })
	chunk(s.Offsets, perQueue, part, func(r *record, t map[string]map[int32]int64) { r.Offsets = t })
	chunk(s.Resets, perQueue, part, func(r *record, t map[string]map[int32]int64) { r.Resets = t })
	chunk(floors, perQueue, part, func(r *record, t map[string]map[int32]int64) { r.Floors = t })
	for i := range recs {
		recs[i].Full.Part, recs[i].Full.Parts = i, len(recs)
	}
	return recs
}

// floors tells how far each queue has come, for replicas that will not see its messages. mu is held.
func (m *meta) floors() map[string]map[int32]int64 {
	all := maps.Clone(m.state.Floors)
	for topic, ends := range m.b.store.Ends() {
		all[topic] = merged(all[topic], ends)
	}
	return all
}

// floor tells how far a queue had come at the last full copy. It waits for nobody (msgstore.Config.Floor).
func (m *meta) floor(topic string, queue int32) int64 {
	return (*m.ends.Load())[topic][queue]
}

// flat and perQueue weigh an entry of a table, in pieces of some 20 bytes: a name and a configuration, or a name and a number for each queue.
func flat[V any](V) int                   { return 50 }
func perQueue(queues map[int32]int64) int { return 20 + len(queues) }

// chunk copies a table into parts of at most partMax. The inner tables are not copied: records are encoded before the lock is given up, or not changed any more.
func chunk[V any](table map[string]V, weigh func(V) int, part func() *record, set func(*record, map[string]V)) {
	piece, weight := map[string]V{}, 0
	flush := func() {
		if len(piece) > 0 {
			set(part(), piece)
			piece, weight = map[string]V{}, 0
		}
	}
	for k, v := range table {
		if weight += weigh(v); weight > partMax {
			flush()
			weight = weigh(v)
		}
		piece[k] = v
	}
	flush()
}
