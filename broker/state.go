package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// state is what the records of the metadata topic come to.
//
//  1. it follows from the records in log order, and from the settings for what every broker has from the start: topics of the system, which may differ, so
//     that nothing else depends on whether a topic is in Topics; but for what
//     a Java broker has told that leads, or has left in the files (Taken): that becomes everybody's when the next leader of ours writes a full copy;
//  2. inner maps but those of Locks are never changed, only replaced: who has read one under the lock of meta may go on looking at it. Nor is Floors.
type state struct {
	Pos      int64             `json:"position"` // physical offset of the last record in it; -1 = none
	Term     int64             `json:"term"`     // of that record
	FullPos  int64             `json:"fullPosition"`
	Replicas map[string]string `json:"replicas"` // addresses of those that have led, by id
	Secret   string            `json:"secret"`   // what members of the group know each other by; "" = no leader has written one

	Topics   map[string]mq.TopicConfig             `json:"topics"`
	Groups   map[string]mq.SubscriptionGroupConfig `json:"groups"`
	Offsets  map[string]map[int32]int64            `json:"offsets"` // "topic@group" → queue → offset
	Resets   map[string]map[int32]int64            `json:"resets"`
	Locks    map[string]map[queueKey]lock          `json:"-"`               // by group
	LockList []lockRecord                          `json:"locks,omitempty"` // the same in the file
	Floors   map[string]map[int32]int64            `json:"floors"`          // topic → queue → offset; see meta.floors
	Gone     map[string]int64                      `json:"gone,omitempty"`  // topics that were deleted in the last goneLife → when, by the clock of leaders
	Moved    map[string]int64                      `json:"moved,omitempty"` // when offsets were last moved other than by going on; see movedSince
	Progress map[string]json.RawMessage            `json:"progress"`
	Versions map[string]tableVersion               `json:"versions"` // of topics, groups, offsets
	Taken    bool                                  `json:"taken,omitempty"`

	Swept    int64  `json:"swept,omitempty"` // when expired ones were taken out of Locks, by the clock of leaders
	locks    int    // in Locks, and those given back since
	building *state // a full copy whose last part has not come yet
	before   int64  // Pos in front of it
}

// tableVersion tells two states of a table apart; with the term it is a mq.DataVersion.
type tableVersion struct {
	Counter int64 `json:"counter"`
	At      int64 `json:"timestamp"`
}

// The tables that have versions.
const (
	tableTopics  = "topics"
	tableGroups  = "groups"
	tableOffsets = "offsets"
)

func newState(cfg *Config) state {
	s := state{Pos: -1, FullPos: -1, Replicas: map[string]string{}, Topics: map[string]mq.TopicConfig{}, Groups: map[string]mq.SubscriptionGroupConfig{},
		Offsets: map[string]map[int32]int64{}, Resets: map[string]map[int32]int64{}, Locks: map[string]map[queueKey]lock{},
		Floors: map[string]map[int32]int64{}, Gone: map[string]int64{}, Moved: map[string]int64{}, Progress: map[string]json.RawMessage{}, Versions: map[string]tableVersion{}}
	for _, t := range systemTopics(cfg) {
		s.Topics[t.TopicName] = t
	}
	for _, g := range mq.SystemGroups {
		c := mq.DefaultGroup(g)
		c.ConsumeBroadcastEnable = true
		s.Groups[g] = c
	}
	return s
}

// goneLife is for how long it is remembered that a topic was deleted: longer than offsets are on their way that were committed before.
const goneLife = time.Minute

// apply takes one record. It must come to the same on every replica.
func (s *state) apply(rec *record, pos int64, fresh func() state) {
	if f := rec.Full; f != nil {
		s.applyFull(rec, pos, fresh)
		return
	}
	s.building = nil
	s.Pos, s.Term = pos, max(s.Term, rec.Term)
	if rec.Leader != nil {
		s.Replicas[rec.Leader.ID] = rec.Leader.Address
		if s.Secret == "" {
			s.Secret = rec.Leader.Secret
		}
	}
	if rec.Absent {
		// Which topics of the system are there depends on the settings of this replica: what is the same on all is touched also where nothing changes.
		for name := range rec.Topics {
			delete(s.Gone, name)
		}
		if len(rec.Topics) > 0 && len(rec.NoTopics) == 0 {
			s.touch(tableTopics, rec.At)
		}
		maps.DeleteFunc(rec.Topics, func(name string, _ mq.TopicConfig) bool { _, there := s.Topics[name]; return there })
		maps.DeleteFunc(rec.Groups, func(name string, _ mq.SubscriptionGroupConfig) bool { _, there := s.Groups[name]; return there })
	}
	if len(rec.Topics) > 0 && !rec.Absent || len(rec.NoTopics) > 0 {
		s.touch(tableTopics, rec.At)
	}
	if len(rec.Groups) > 0 || len(rec.NoGroups) > 0 {
		s.touch(tableGroups, rec.At)
	}
	if len(rec.Offsets) > 0 || len(rec.NoOffsets) > 0 {
		s.touch(tableOffsets, rec.At)
	}
	maps.DeleteFunc(rec.Offsets, func(key string, _ map[int32]int64) bool { // committed while the topic was being deleted
		topic, _ := splitOffsetKey(key)
		_, gone := s.Gone[topic]
		_, comes := rec.Topics[topic]
		return gone && !comes
	})
	s.noteMoves(rec)
	s.merge(rec)
	if len(rec.NoTopics) > 0 {
		s.Floors = maps.Clone(s.Floors)
		maps.DeleteFunc(s.Gone, func(_ string, at int64) bool { return rec.At-at > goneLife.Milliseconds() })
	}
	for _, name := range rec.NoTopics {
		delete(s.Topics, name)
		delete(s.Floors, name)
		s.Gone[name] = rec.At
		gone := func(key string, _ map[int32]int64) bool { return strings.HasPrefix(key, name+"@") }
		maps.DeleteFunc(s.Offsets, gone)
		maps.DeleteFunc(s.Resets, gone)
	}
	for _, name := range rec.NoGroups {
		delete(s.Groups, name)
		delete(s.Locks, name)
	}
	for _, key := range rec.NoOffsets {
		delete(s.Offsets, key)
		delete(s.Resets, key)
	}
	if rec.Lock != nil {
		s.lock(rec.Lock, rec.At)
	}
	if rec.Unlock != nil {
		s.unlock(rec.Unlock)
	}
}

// movedMax bounds Moved; what is older counts for all groups then.
const movedMax = 1000

// movedAll is what counts for all in Moved. No topic has an empty name.
const movedAll = ""

// noteMoves notes the term in which offsets do not go on but are set, go back or end: what was committed in a term before does not count any more, however far it is.
func (s *state) noteMoves(rec *record) {
	moved := func(what string) { s.Moved[what] = max(s.Moved[what], rec.Term) }
	for key, queues := range rec.Offsets {
		old := s.Offsets[key]
		for q, n := range queues {
			if at, ok := old[q]; rec.Sets || ok && n < at {
				moved(key)
			}
		}
	}
	for key := range rec.Resets {
		moved(key)
	}
	for _, key := range rec.NoOffsets {
		moved(key)
	}
	for _, topic := range rec.NoTopics {
		moved(topic)
	}
	for _, group := range rec.NoGroups {
		moved(offsetKey("", group))
	}
	if len(s.Moved) > movedMax {
		last := slices.Max(slices.Collect(maps.Values(s.Moved)))
		clear(s.Moved)
		s.Moved[movedAll] = last
	}
}

// movedSince tells whether a group's offset in a topic may have been moved since a term, other than by going on.
func (s *state) movedSince(key string, term int64) bool {
	topic, group := splitOffsetKey(key)
	return max(s.Moved[key], s.Moved[topic], s.Moved[offsetKey("", group)], s.Moved[movedAll]) > term
}

// merge adds what a record sets in the tables.
func (s *state) merge(rec *record) {
	maps.Copy(s.Topics, rec.Topics)
	for topic := range rec.Topics {
		delete(s.Gone, topic)
	}
	maps.Copy(s.Groups, rec.Groups)
	for key, queues := range rec.Offsets {
		s.Offsets[key] = merged(s.Offsets[key], queues)
	}
	for key, queues := range rec.Resets {
		all := merged(s.Resets[key], queues)
		maps.DeleteFunc(all, func(_ int32, offset int64) bool { return offset < 0 })
		if len(all) == 0 {
			delete(s.Resets, key)
		} else {
			s.Resets[key] = all
		}
	}
	if len(rec.Floors) > 0 {
		s.Floors = maps.Clone(s.Floors)
	}
	for topic, queues := range rec.Floors {
		s.Floors[topic] = merged(s.Floors[topic], queues)
	}
	maps.Copy(s.Progress, rec.Progress)
}

// merged is old with what changes, as a new map.
func merged(old, changes map[int32]int64) map[int32]int64 {
	all := make(map[int32]int64, len(old)+len(changes))
	maps.Copy(all, old)
	maps.Copy(all, changes)
	return all
}

func (s *state) touch(table string, at int64) {
	v := s.Versions[table]
	v.Counter++
	v.At = at
	s.Versions[table] = v
}

// applyFull takes one part of a full copy; the last one makes it the state. Nobody sees a part of it.
func (s *state) applyFull(rec *record, pos int64, fresh func() state) {
	f := rec.Full
	if f.Part == 0 {
		n := fresh()
		n.FullPos, n.Secret, n.Swept = pos, f.Secret, f.Swept
		maps.Copy(n.Gone, f.Gone)
		maps.Copy(n.Moved, f.Moved)
		maps.Copy(n.Replicas, f.Peers)
		maps.Copy(n.Versions, f.Ver)
		s.building, s.before = &n, s.Pos
	}
	s.Pos, s.Term = pos, max(s.Term, rec.Term)
	if s.building == nil {
		return // the beginning was cut off by retention; the copy in the next file is whole
	}
	for i := range f.Locks {
		s.building.lock(&f.Locks[i], f.Locks[i].At)
	}
	s.building.merge(rec)
	if f.Part == f.Parts-1 {
		n := s.building
		n.Pos, n.Term = s.Pos, s.Term
		*s = *n
	}
}

// queueKey names a queue of this broker.
type queueKey struct {
	Topic string
	ID    int32
}

// lock says who may consume a queue in order.
type lock struct {
	client string
	at     int64 // when it was taken or renewed
}

// lockLife is how long a lock lasts after its renewal (rocketmq.broker.rebalance.lockMaxLiveTime in the original).
const lockLife = 60 * time.Second

// lockRecord takes, renews or gives back locks of one client.
type lockRecord struct {
	Group  string      `json:"group"`
	Client string      `json:"client"`
	Queues []lockQueue `json:"queues"`
	At     int64       `json:"at,omitempty"` // in a full copy: when it was taken or renewed
}

type lockQueue struct {
	Topic string `json:"topic"`
	ID    int32  `json:"id"`
}

func (s *state) lock(r *lockRecord, at int64) {
	if at-s.Swept > lockLife.Milliseconds() {
		s.sweep(at)
	}
	held := s.Locks[r.Group]
	if held == nil {
		held = map[queueKey]lock{}
		s.Locks[r.Group] = held
	}
	for _, q := range r.Queues {
		key := queueKey(q)
		old, taken := held[key]
		if !taken {
			s.locks++
		}
		if !taken || old.client == r.Client || old.expired(at) {
			held[key] = lock{r.Client, at}
		}
	}
}

// sweep takes locks out that nobody holds any more.
func (s *state) sweep(at int64) {
	s.locks, s.Swept = 0, at
	for group, held := range s.Locks {
		maps.DeleteFunc(held, func(_ queueKey, l lock) bool { return l.expired(at) })
		if s.locks += len(held); len(held) == 0 {
			delete(s.Locks, group)
		}
	}
}

func (s *state) unlock(r *lockRecord) {
	held := s.Locks[r.Group]
	for _, q := range r.Queues {
		if held[queueKey(q)].client == r.Client {
			delete(held, queueKey(q))
		}
	}
	if len(held) == 0 {
		delete(s.Locks, r.Group)
	}
}

func (l lock) expired(now int64) bool { return now-l.at > lockLife.Milliseconds() }

// lockRecords gives the locks for a full copy, in an order that does not depend on chance.
func (s *state) lockRecords() []lockRecord {
	var out []lockRecord
	for _, group := range slices.Sorted(maps.Keys(s.Locks)) {
		for key, l := range s.Locks[group] {
			out = append(out, lockRecord{Group: group, Client: l.client, Queues: []lockQueue{lockQueue(key)}, At: l.at})
		}
	}
	return out
}

// offsetKey is a group's place in a topic, as the original writes it.
func offsetKey(topic, group string) string { return topic + "@" + group }

// splitOffsetKey takes an offsetKey apart; group names have no "@", nor have topics.
func splitOffsetKey(key string) (topic, group string) {
	topic, group, _ = strings.Cut(key, "@")
	return topic, group
}

// What a look at the state needs the lock of meta for.

func (m *meta) topicConfig(name string) (mq.TopicConfig, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t, ok := m.state.Topics[name]
	return t, ok
}

func (m *meta) groupConfig(name string) (mq.SubscriptionGroupConfig, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	g, ok := m.state.Groups[name]
	return g, ok
}

// counts tells how many topics and groups there are.
func (m *meta) counts() (topics, groups int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.state.Topics), len(m.state.Groups)
}

func (m *meta) topics() map[string]mq.TopicConfig {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return maps.Clone(m.state.Topics)
}

func (m *meta) groups() map[string]mq.SubscriptionGroupConfig {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return maps.Clone(m.state.Groups)
}

// allOffsets gives every group's offsets, "topic@group" → queue → offset; the inner maps are not to be changed.
func (m *meta) allOffsets() map[string]map[int32]int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return maps.Clone(m.state.Offsets)
}

func (m *meta) offset(key string, queue int32) (int64, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, ok := m.state.Offsets[key][queue]
	return n, ok
}

func (m *meta) reset(key string, queue int32) (int64, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, ok := m.state.Resets[key][queue]
	return n, ok
}

// outdated tells whether an offset that was committed in an earlier term says nothing any more: the group is as far, or was moved since.
func (m *meta) outdated(key string, queue int32, offset, term int64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	at, ok := m.state.Offsets[key][queue]
	return ok && at >= offset || m.state.movedSince(key, term)
}

// progress gives what a service of the leader has last written of itself; nil if nothing.
func (m *meta) progress(name string) json.RawMessage {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Progress[name]
}

// version gives a table's version as clients and name servers see it.
func (m *meta) version(table string) mq.DataVersion {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v := m.state.Versions[table]
	return mq.DataVersion{Counter: v.Counter, Timestamp: v.At, StateVersion: max(m.leading, m.state.Term)}
}

// leads tells whether this replica leads its group as far as it knows: it does not if another one has begun a later term.
func (m *meta) leads() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.leadsNow()
}

// leadsNow is leads for who holds mu.
func (m *meta) leadsNow() bool { return m.leading > 0 && m.leading >= m.state.Term }

// standing is what a registration tells, all of one moment. leads: as the leader of version.StateVersion.
func (m *meta) standing() (leads bool, version mq.DataVersion, topics map[string]mq.TopicConfig, newest topicChange) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	leads, version = m.leadsNow(), m.state.dataVersion(tableTopics)
	if leads {
		version.StateVersion = m.leading
	}
	return leads, version, maps.Clone(m.state.Topics), m.newest
}

// Files of the state. metadata.json is what this broker reads; the others are written beside it for tools, and for a Java broker that takes
// over the directory, and are read when a Java broker has written them.
const (
	fileState   = "metadata.json"
	fileTopics  = "topics.json"
	fileGroups  = "subscriptionGroup.json"
	fileOffsets = "consumerOffset.json"
	fileDelays  = "delayOffset.json"
)

// fs is the file system of the log.
func (m *meta) fs() vfs.FS { return m.b.cfg.fs() }

// load reads the state, and what a Java broker has left. That is written into the log by the first leader (see run), where it becomes the group's.
func (m *meta) load() error {
	dir := m.b.configDir()
	text, err := vfs.ReadFile(m.fs(), filepath.Join(dir, fileState))
	switch {
	case errors.Is(err, os.ErrNotExist):
		text = nil
	case err != nil:
		return err
	default:
		s := newState(&m.b.cfg)
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("%s: %w; without the file the state is read from the log", filepath.Join(dir, fileState), err)
		}
		for i := range s.LockList {
			s.lock(&s.LockList[i], s.LockList[i].At)
		}
		s.LockList = nil
		m.state, m.saved = s, s.Pos
	}
	if m.found, err = m.left(dir, text != nil); err != nil || m.found == nil {
		return err
	}
	m.state.take(m.found, nil, milliseconds(time.Now())) // and again when the records are applied that are older (settle)
	return nil
}

// saves writes the files from time to time; Close does it a last time.
func (m *meta) saves(ctx context.Context) {
	tick := time.NewTicker(m.b.cfg.SnapshotEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := m.save(); err != nil {
				m.b.log.Warn("the metadata files cannot be written; they are made anew from the log if need be", "error", err)
			}
		}
	}
}

// save writes the files if the state has changed since.
func (m *meta) save() error {
	s, takes, news := m.snapshot()
	if !news {
		return nil
	}
	names, texts, err := s.files()
	if err != nil {
		return err
	}
	dir := m.b.configDir()
	if err := m.fs().MkdirAll(dir); err != nil {
		return err
	}
	for i, name := range names {
		name = filepath.Join(dir, name)
		if i < len(names)-1 {
			err = vfs.WriteAside(m.fs(), name, texts[i], false)
		} else {
			err = vfs.Replace(m.fs(), name, texts[i])
		}
		if err != nil {
			return err
		}
	}
	m.saved, m.savedTakes = s.Pos, takes
	return nil
}

// snapshot copies the state for the files; news: they do not have it yet.
func (m *meta) snapshot() (s state, takes int64, news bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s, takes = m.state, m.takes
	if s.building != nil { // a start in the middle of a full copy would be without it
		s.Pos = s.before
	}
	if s.Pos == m.saved && takes == m.savedTakes || m.found != nil { // the latter is still in the files, and they must not be lost before it is in the state
		return s, takes, false
	}
	s.LockList, s.Locks, s.building = s.lockRecords(), nil, nil
	s.Replicas, s.Progress, s.Versions = maps.Clone(s.Replicas), maps.Clone(s.Progress), maps.Clone(s.Versions)
	s.Topics, s.Groups, s.Offsets, s.Resets = maps.Clone(s.Topics), maps.Clone(s.Groups), maps.Clone(s.Offsets), maps.Clone(s.Resets)
	s.Gone, s.Moved = maps.Clone(s.Gone), maps.Clone(s.Moved)
	return s, takes, true
}

// files encodes a snapshot, which takes long for a large state: by name what stands in them, the one that this broker reads last.
func (s *state) files() (names []string, texts [][]byte, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, nil, err
	}
	return []string{fileTopics, fileGroups, fileOffsets, fileDelays, fileState}, [][]byte{
		marked(mq.Marshal(mq.TopicConfigTable{Topics: s.Topics, DataVersion: s.dataVersion(tableTopics)}), s.Pos),
		marked(mq.Marshal(mq.SubscriptionGroupTable{Groups: s.Groups, DataVersion: s.dataVersion(tableGroups)}), s.Pos),
		marked(mq.Marshal(mq.ConsumerOffsetTable{Offsets: s.Offsets, DataVersion: s.dataVersion(tableOffsets)}), s.Pos),
		marked(delayTable(s.dataVersion(tableOffsets), s.Progress[serviceDelay]), s.Pos),
		text,
	}, nil
}

func (s *state) dataVersion(table string) mq.DataVersion {
	v := s.Versions[table]
	return mq.DataVersion{Counter: v.Counter, Timestamp: v.At, StateVersion: s.Term}
}
