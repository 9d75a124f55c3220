package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

// Compatibility: a broker of the original (5.3.3) may lead a group with compat 0.3. It does not put topics, groups and offsets into the log, so a
// replica of ours copies them as the original's slaves do: GET_ALL_TOPIC_CONFIG (21), GET_ALL_CONSUMER_OFFSET (43), GET_ALL_DELAY_OFFSET (45),
// GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), every copyEvery; the original does so every ten seconds. Its address is not in the log either: it comes from the
// name servers, GET_BROKER_CLUSTER_INFO (106), and GET_BROKER_CONFIG (26) tells who answers there. What the Java leader did not hear in time from a leader of
// ours before it, it is told: UPDATE_AND_CREATE_TOPIC (17), UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), UPDATE_CONSUMER_OFFSET (15).

const (
	copyEvery = 2 * time.Second
	findEvery = 200 * time.Millisecond // while a Java leader's address is not known
	askMax    = 3 * time.Second
)

// tables are what a Java broker keeps beside messages, in its own files or as it tells.
type tables struct {
	Topics  map[string]mq.TopicConfig
	Groups  map[string]mq.SubscriptionGroupConfig
	Offsets map[string]map[int32]int64 // "topic@group" → queue → offset
	Delays  map[int]int64              // by level
	Counter map[string]int64           // of the versions of the first three
}

// java knows the Java broker that leads, if one does.
type java struct {
	b *Broker

	mu      sync.Mutex
	term    dledger.Term      // in which address leads
	address string            // of the Java broker that serves as leader in term; "" = none is known
	seen    map[string]string // addresses of Java brokers, by id in the log
	ours    bool              // the leader before was one of ours: what it knew the next one is told
}

func (j *java) open(b *Broker) { j.b, j.seen = b, map[string]string{} }

// mixed tells whether the group may hold Java brokers.
func (b *Broker) mixed() bool { return b.cfg.Log.Compat == dledger.Compat03 }

// leaderAddress is where requests go while another replica leads, and whether that is a Java broker; "" if it is not known yet. A leader of ours has
// written a record in its term; where Java brokers may lead, an address from an earlier term proves nothing.
func (b *Broker) leaderAddress(leader string) (address string, java bool) {
	if leader == "" || leader == b.cfg.Log.ID {
		return "", false
	}
	if !b.mixed() {
		return b.meta.addressOf(leader), false
	}
	term, _ := b.ledger.Leading()
	j := &b.java
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.meta.term() >= int64(term) {
		j.ours = true
		return b.meta.addressOf(leader), false
	}
	if j.term == term && j.address != "" {
		return j.address, true
	}
	return "", false
}

// run finds the Java broker that leads, and copies from it for as long as it does.
func (j *java) run(ctx context.Context) {
	if !j.b.mixed() {
		return
	}
	var before *tables // what was copied last in the term of
	var of dledger.Term = -1
	for ctx.Err() == nil {
		term, leads := j.b.ledger.Leading()
		leader := j.b.ledger.Leader()
		if of != term {
			before, of = nil, term
		}
		address, isJava := j.b.leaderAddress(leader)
		pace := findEvery
		switch {
		case leads:
			j.note()
			pace = time.Hour
		case leader == "" || address != "" && !isJava:
			pace = time.Hour
		case address == "":
			if at, ok := j.find(ctx, leader); ok {
				j.set(term, leader, at)
				pace = 0
			}
		default:
			t, err := j.copy(ctx, address)
			if err != nil {
				j.b.log.Debug("nothing copied from the Java broker that leads", "address", address, "error", err)
				if !j.leadsAt(ctx, address, leader) {
					j.set(term, leader, "")
				}
				break
			}
			if j.handOver(ctx, address, t) {
				break // what it was told is in the next copy
			}
			j.b.meta.take(t, before)
			before, pace = t, copyEvery
		}
		j.wait(ctx, pace, term, leader, address)
	}
}

// wait returns when the time is over, or somebody else leads.
func (j *java) wait(ctx context.Context, d time.Duration, term dledger.Term, leader, address string) {
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		changed, told := j.b.ledger.Changed(), j.b.meta.leaderChanged()
		now, _ := j.b.ledger.Leading()
		if at, _ := j.b.leaderAddress(j.b.ledger.Leader()); now != term || j.b.ledger.Leader() != leader || at != address {
			return
		}
		select {
		case <-changed:
		case <-told:
		case <-over.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// note remembers that the leader was one of ours: if the next is a Java broker, it may know less.
func (j *java) note() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ours = true
}

// behind tells whether a Java broker that leads now has to be told what the leader before it knew; until then it may refuse offsets.
func (j *java) behind() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ours
}

func (j *java) set(term dledger.Term, id, address string) {
	j.mu.Lock()
	j.term, j.address = term, address
	if address != "" {
		j.seen[id] = address
	}
	j.mu.Unlock()
	if address != "" {
		j.b.log.Info("a Java broker leads", "id", id, "address", address, "term", term)
	}
	j.b.becameReady(term)
}

// find gives the address of the Java broker with this id in the log, once it serves as leader.
func (j *java) find(ctx context.Context, id string) (string, bool) {
	var asked []string
	try := func(address string) bool {
		if address == "" || address == j.b.cfg.address() || slices.Contains(asked, address) {
			return false
		}
		asked = append(asked, address)
		return j.leadsAt(ctx, address, id)
	}
	j.mu.Lock()
	seen := j.seen[id]
	j.mu.Unlock()
	if try(seen) {
		return seen, true
	}
	if at := j.b.meta.addressOf(id); try(at) {
		return at, true
	}
	for _, server := range j.b.cfg.NameServers {
		var info mq.ClusterInfo
		if j.ask(ctx, j.b.names.client, server, mq.CodeClusterInfo, nil, &info) != nil {
			continue // the next one may answer
		}
		addresses := info.Brokers[j.b.cfg.Name].BrokerAddrs
		for _, n := range slices.Sorted(maps.Keys(addresses)) {
			if at := addresses[n]; try(at) {
				return at, true
			}
		}
	}
	return "", false
}

// leadsAt tells whether at this address there is a Java broker with this id in the log that serves as leader.
func (j *java) leadsAt(ctx context.Context, address, id string) bool {
	f, err := j.b.replicas.Call(ctx, address, remoting.Request{Code: mq.CodeGetBrokerConfig}, time.Second)
	if err != nil || f.Code != mq.Success {
		return false
	}
	self, role := "", ""
	for line := range strings.Lines(string(f.Body)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key {
		case "dLegerSelfId":
			self = value
		case "brokerRole":
			role = value
		case "compat": // the original has no such key: it is one of ours, and tells of itself in the log
			return false
		}
	}
	return self == id && role == "SYNC_MASTER"
}

// ask gets a body of JSON.
func (j *java) ask(ctx context.Context, c *remoting.Client, address string, code int32, ext map[string]string, to any) error {
	f, err := c.Call(ctx, address, remoting.Request{Code: code, Ext: ext}, askMax)
	switch {
	case err != nil:
		return err
	case f.Code != mq.Success:
		return fmt.Errorf("%s answers %d to request %d: %s", address, f.Code, code, f.Remark)
	case to == nil:
		return nil
	}
	if err := mq.Unmarshal(f.Body, to); err != nil {
		return fmt.Errorf("%s, request %d: %w", address, code, err)
	}
	return nil
}

// copy gets everything from the broker at an address.
func (j *java) copy(ctx context.Context, address string) (*tables, error) {
	var topics mq.TopicConfigTable
	var groups mq.SubscriptionGroupTable
	var offsets mq.ConsumerOffsetTable
	var t tables
	for code, to := range map[int32]any{mq.CodeAllTopicConfig: &topics, mq.CodeAllGroupConfig: &groups, mq.CodeAllConsumerOffset: &offsets,
		mq.CodeAllDelayOffset: &delayBody{Offsets: &t.Delays}} {
		if err := j.ask(ctx, j.b.replicas, address, code, nil, to); err != nil {
			return nil, err
		}
	}
	t.Topics, t.Groups, t.Offsets = topics.Topics, groups.Groups, offsets.Offsets
	t.Counter = map[string]int64{tableTopics: topics.DataVersion.Counter, tableGroups: groups.DataVersion.Counter, tableOffsets: offsets.DataVersion.Counter}
	return &t, nil
}

// delayBody is the original's delayOffset.json, and the answer to GET_ALL_DELAY_OFFSET.
type delayBody struct {
	Offsets *map[int]int64 `json:"offsetTable"`
}

// handOver tells a Java broker that has just followed a leader of ours what it did not hear from that; true: something. It asks for such news every ten
// seconds, and not at all in the first half minute of a leadership. Topics and groups go first: without them it takes no offsets.
func (j *java) handOver(ctx context.Context, address string, t *tables) bool {
	if !j.behind() {
		return false
	}
	n := 0
	tell := func(code int32, ext map[string]string, body []byte) {
		n++
		f, err := j.b.replicas.Call(ctx, address, remoting.Request{Code: code, Ext: ext}, askMax, body)
		if err == nil && f.Code != mq.Success {
			err = fmt.Errorf("code %d, %s", f.Code, f.Remark)
		}
		if err != nil && ctx.Err() == nil {
			j.b.log.Warn("the Java broker that leads was not told what it does not know", "request", code, "fields", ext, "error", err)
		}
	}
	for name, c := range j.b.meta.topics() {
		if old, known := t.Topics[name]; j.b.isSystemTopic(name) || known && same(old, c) {
			continue
		}
		tell(mq.CodeCreateTopic, map[string]string{"topic": name, "defaultTopic": mq.TopicDefault, "readQueueNums": mq.Itoa(c.ReadQueueNums),
			"writeQueueNums": mq.Itoa(c.WriteQueueNums), "perm": mq.Itoa(c.Perm), "topicFilterType": c.TopicFilterType, "topicSysFlag": mq.Itoa(c.TopicSysFlag), "order": boolText(c.Order)}, nil)
	}
	for name, c := range j.b.meta.groups() {
		if _, known := t.Groups[name]; !known && !mq.IsSystemGroup(name) {
			tell(mq.CodeCreateGroup, nil, mq.Marshal(c))
		}
	}
	for key, queues := range j.b.allOffsets() { // also those that did not get into the log any more
		topic, group := splitOffsetKey(key)
		for q, offset := range queues {
			if offset > t.Offsets[key][q] {
				tell(mq.CodeUpdateConsumerOffset, map[string]string{"consumerGroup": group, "topic": topic, "queueId": mq.Itoa(q), "commitOffset": mq.Itoa(offset)}, nil)
			}
		}
	}
	if ctx.Err() == nil {
		j.mu.Lock()
		j.ours = false
		j.mu.Unlock()
	}
	if n > 0 {
		j.b.log.Info("the Java broker that leads was told what it did not know of the leader before it", "address", address, "changes", n)
	}
	return n > 0
}

func same[T any](a, b T) bool { return string(mq.Marshal(a)) == string(mq.Marshal(b)) }

// take makes what a Java broker tells part of the state; before is what it told before, in the same term. It is told on to the other replicas by the next
// leader of ours, with a full copy.
func (m *meta) take(t, before *tables) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leading != 0 {
		return
	}
	m.found = nil
	if m.state.take(t, before, milliseconds(time.Now())) {
		m.takes++
	}
}

// adopt notes where in the log the time of found ends.
func (m *meta) adopt() error {
	if m.found == nil {
		return nil
	}
	m.b.log.Info("a Java broker has had this directory; what it left is taken over", "topics", len(m.found.Topics), "groups", len(m.found.Groups), "offsets", len(m.found.Offsets))
	ctx, cancel := context.WithTimeout(m.b.ctx, closeMax)
	defer cancel()
	status, err := m.b.ledger.Status(ctx)
	m.last = status.Last
	return err
}

// waitsFor tells whether something found in the files is to be taken once more.
func (m *meta) waitsFor() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.found != nil
}

// settle takes once more what a Java broker has left in the files: all records that are older have been applied by now, and may have said less.
func (m *meta) settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.found != nil && m.state.take(m.found, nil, milliseconds(time.Now())) {
		m.takes++
	}
	m.found = nil
}

// take adds what a Java broker tells, and tells whether that changes anything.
//
//  1. topics and groups: those it has count, those that it had before are gone;
//  2. offsets: the greater one counts, as a Java broker that has just begun to lead may lack the newest, but one that it lowers is lowered.
func (s *state) take(t, before *tables, at int64) bool {
	if before == nil {
		before = &tables{}
	}
	changed := map[string]bool{}
	for name, c := range t.Topics {
		if old, known := s.Topics[name]; !known || !same(old, c) && !mq.IsSystemTopic(name) {
			s.Topics[name], changed[tableTopics] = c, true
			delete(s.Gone, name)
		}
	}
	for name := range before.Topics {
		if _, stays := t.Topics[name]; !stays && !mq.IsSystemTopic(name) && s.Topics[name].TopicName != "" {
			delete(s.Topics, name)
			changed[tableTopics] = true
		}
	}
	for name, c := range t.Groups {
		if old, known := s.Groups[name]; !known || !same(old, c) {
			s.Groups[name], changed[tableGroups] = c, true
		}
	}
	for name := range before.Groups {
		if _, stays := t.Groups[name]; !stays && s.Groups[name].GroupName != "" {
			delete(s.Groups, name)
			changed[tableGroups] = true
		}
	}
	for key, queues := range t.Offsets {
		news := map[int32]int64{}
		for q, offset := range queues {
			old, known := s.Offsets[key][q]
			if !known || offset > old || offset < before.Offsets[key][q] && offset < old {
				news[q] = offset
			}
		}
		if len(news) > 0 {
			s.Offsets[key], changed[tableOffsets] = merged(s.Offsets[key], news), true
		}
	}
	for key := range before.Offsets {
		if _, stays := t.Offsets[key]; !stays && s.Offsets[key] != nil {
			delete(s.Offsets, key)
			changed[tableOffsets] = true
		}
	}
	progress := s.takeProgress(t)
	for table := range changed {
		s.touch(table, at)
		v := s.Versions[table]
		v.Counter = max(v.Counter, t.Counter[table])
		s.Versions[table] = v
	}
	if len(changed) == 0 && !progress {
		return false
	}
	s.Taken = true
	return true
}

// takeProgress takes over how far the services of a Java leader are.
func (s *state) takeProgress(t *tables) (changed bool) {
	var delays delayProgress
	if raw := s.Progress[serviceDelay]; raw != nil && mq.Unmarshal(raw, &delays) != nil {
		return false // the service says so
	}
	further := maps.Clone(delays.Offsets)
	if further == nil {
		further = map[int]int64{}
	}
	for level, offset := range t.Delays {
		further[level] = max(further[level], offset)
	}
	if !maps.Equal(further, delays.Offsets) && len(further) > 0 {
		s.Progress[serviceDelay], changed = mq.Marshal(delayProgress{Offsets: further}), true
	}
	half, known := t.Offsets[mq.TopicHalf+"@"+mq.GroupTransaction] // the original's services consume their topics
	if !known {
		return changed
	}
	var p transactionProgress
	if raw := s.Progress[serviceTransaction]; raw != nil && mq.Unmarshal(raw, &p) != nil {
		return changed
	}
	next := transactionProgress{Half: max(p.Half, half[0]), Mark: max(p.Mark, t.Offsets[mq.TopicOpHalf+"@"+mq.GroupTransaction][0]), Checks: p.Checks}
	if next.Half != p.Half || next.Mark != p.Mark {
		s.Progress[serviceTransaction], changed = mq.Marshal(next), true
	}
	return changed
}

// ownMark is a key in the original's files that says that this program wrote them. A Java broker leaves it out when it writes them.
const ownMark = "dledgerPosition"

// marked adds the mark to a file.
func marked(text []byte, pos int64) []byte {
	return fmt.Appendf(text[:len(text)-1:len(text)-1], `,"%s":%d}`, ownMark, pos)
}

// left reads what a Java broker has left in the files; nil if nothing. Files that this program wrote itself are passed over. They are not synced: where
// there is a state beside them (known), a torn one is one of those.
func (m *meta) left(dir string, known bool) (*tables, error) {
	found := false
	read := func(name string, to any) error {
		text, err := vfs.ReadFile(m.fs(), filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) || err == nil && (len(text) == 0 || strings.Contains(string(text), `"`+ownMark+`":`)) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := mq.Unmarshal(text, to); err != nil && !known {
			return fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		} else if err == nil {
			found = true
		}
		return nil
	}
	var topics mq.TopicConfigTable
	var groups mq.SubscriptionGroupTable
	var offsets mq.ConsumerOffsetTable
	var t tables
	if err := errors.Join(read(fileTopics, &topics), read(fileGroups, &groups), read(fileOffsets, &offsets), read(fileDelays, &delayBody{Offsets: &t.Delays})); err != nil || !found {
		return nil, err
	}
	t.Topics, t.Groups, t.Offsets = topics.Topics, groups.Groups, offsets.Offsets
	t.Counter = map[string]int64{tableTopics: topics.DataVersion.Counter, tableGroups: groups.DataVersion.Counter, tableOffsets: offsets.DataVersion.Counter}
	return &t, nil
}
