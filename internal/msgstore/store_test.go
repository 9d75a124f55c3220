package msgstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/internal/golden"
	"dledger/internal/mq"
	"dledger/internal/vfs"
)

func TestUnitsAreTheOriginals(t *testing.T) {
	var g struct {
		ConsumeQueueUnits []struct {
			TagsCode, CommitLogOffset int64
			Size                      int32
			UnitHex                   string
		}
		CqPreBlankUnitHex string
		IndexFile         struct {
			HashSlotNum, IndexNum int32
			Puts                  []struct {
				Key            string
				Offset         int64
				StoreTimestamp int64
			}
			FileHex string
		}
	}
	raw, err := golden.Read("rocketmq-message.json")
	if err == nil {
		err = json.Unmarshal(raw, &g)
	}
	if err != nil || len(g.ConsumeQueueUnits) == 0 || len(g.IndexFile.Puts) == 0 {
		t.Fatal(err)
	}
	for _, k := range g.ConsumeQueueUnits {
		u := unit{k.CommitLogOffset, k.Size, k.TagsCode}
		if got := hex.EncodeToString(u.append(nil)); got != k.UnitHex {
			t.Errorf("unit %+v is %s, want %s", u, got, k.UnitHex)
		}
		if got := parseUnit(u.append(nil)); got != u {
			t.Errorf("unit %+v read as %+v", u, got)
		}
	}
	if got := hex.EncodeToString(blankUnit.append(nil)); got != g.CqPreBlankUnitHex {
		t.Errorf("blank unit is %s, want %s", got, g.CqPreBlankUnitHex)
	}

	// The index file, written in one checkpoint and in three.
	for _, step := range []int{1, len(g.IndexFile.Puts)} {
		disk := vfs.NewMem()
		x := index{dir: "index", slots: g.IndexFile.HashSlotNum, items: g.IndexFile.IndexNum, files: newDescriptors(disk), now: time.Now}
		if _, err := x.load(indexFile{}); err != nil {
			t.Fatal(err)
		}
		for some := range slices.Chunk(g.IndexFile.Puts, step) {
			for _, p := range some {
				x.pending = append(x.pending, item{mq.KeyHash(p.Key), p.Offset, p.StoreTimestamp})
			}
			if err := x.write(len(x.pending)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := vfs.ReadFile(disk, x.name(x.mark().stamp))
		want, err2 := hex.DecodeString(g.IndexFile.FileHex)
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("index file in steps of %d: %v\ngot  %x\nwant %x", step, err, got, want)
		}
	}
}

func TestMessagesComeBackInOrder(t *testing.T) {
	r := newRig(t)
	r.lead()
	for i := range 3 {
		r.fill("A", int32(i), 50+i)
	}
	p := r.put(message("A", 0, "x"), message("B", 7, "y"), message("A", 0, "z"))
	if p.Status != PutOK || p.QueueOffset != 50 || len(p.Pos) != 3 {
		t.Errorf("batch: %+v", p)
	}
	r.settle()
	r.check()
	m, _, err := mq.ParseStored(r.s.Get("A", 0, 51, 1, 1, nil).Messages[0])
	if err != nil || string(m.Body) != "z" || m.PhysicalOffset != p.Pos[2] || m.StoreHost != host || m.StoreTime == 0 {
		t.Errorf("last of the batch: %+v, %v", m, err)
	}
	if b, err := r.s.MessageAt(p.Pos[1]); err != nil || !strings.Contains(string(b), "y") {
		t.Errorf("by position: %q, %v", b, err)
	}
	for _, pos := range []int64{-1, 0, 47, p.Pos[1] + 1, p.Pos[1] - 1, 1 << 40} {
		if b, err := r.s.MessageAt(pos); !errors.Is(err, ErrNotFound) {
			t.Errorf("message at %d: %q, %v", pos, b, err)
		}
	}
	if s := r.s.Stats(); s.Behind != 0 || s.Dispatched != 50+51+52+3+1 || s.Queues != 4 {
		t.Errorf("stats %+v", s)
	}
}

// tagged wants one tag, and of those only even bodies.
type tagged struct{ code int64 }

func (f tagged) MatchCode(c int64) bool { return c == f.code }
func (f tagged) Match(b []byte) bool {
	m, _, err := mq.ParseStored(b)
	return err == nil && (m.Body[len(m.Body)-1]-'0')%2 == 0
}

// TestPullTable is the table of what a pull finds, with the answer's code and where to go on (protocol 3.4).
func TestPullTable(t *testing.T) {
	r := newRig(t)
	r.lead()
	for i := range 40 {
		r.put(message("T", 0, fmt.Sprint(i), mq.PropTags, []string{"a", "b"}[i/20]))
	}
	r.settle()
	at := r.s.Get("T", 0, 10, 1, 1, nil)
	m, _, err := mq.ParseStored(at.Messages[0])
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.log.EntryAt(m.PhysicalOffset - headerSize)
	if err != nil {
		t.Fatal(err)
	}
	r.log.retain(e.Index)
	b := tagged{mq.TagsCode("b")}
	for _, k := range []struct {
		name   string
		topic  string
		queue  int32
		offset int64
		max    int
		bytes  int
		filter Filter
		status GetStatus
		code   int32
		next   int64
		n      int
	}{
		{"no queue, from 0", "N", 0, 0, 32, 1 << 20, nil, NoSuchQueue, 19, 0, 0},
		{"no queue, from elsewhere", "T", 1, 5, 32, 1 << 20, nil, NoSuchQueue, 21, 0, 0},
		{"before the first", "T", 0, 3, 32, 1 << 20, nil, OffsetTooSmall, 21, 10, 0},
		{"negative", "T", 0, -3, 32, 1 << 20, nil, OffsetTooSmall, 21, 10, 0},
		{"the first", "T", 0, 10, 5, 1 << 20, nil, Found, 0, 15, 5},
		{"as many as there are", "T", 0, 30, 32, 1 << 20, nil, Found, 0, 40, 10},
		{"at least one, however large", "T", 0, 30, 32, 1, nil, Found, 0, 31, 1},
		{"as many as fit", "T", 0, 30, 32, at.Size*3 + 1, nil, Found, 0, 33, 3},
		{"at the end", "T", 0, 40, 32, 1 << 20, nil, OffsetOverflowOne, 19, 40, 0},
		{"beyond the end", "T", 0, 41, 32, 1 << 20, nil, OffsetOverflowBadly, 21, 40, 0},
		{"none matches", "T", 0, 10, 32, 1 << 20, tagged{7}, NoMatch, 20, 40, 0},
		{"some match", "T", 0, 10, 3, 1 << 20, b, Found, 0, 25, 3},
		{"the second filter", "T", 0, 21, 32, 1 << 20, b, Found, 0, 40, 9},
	} {
		g := r.s.Get(k.topic, k.queue, k.offset, k.max, k.bytes, k.filter)
		if g.Status != k.status || g.Code(k.offset) != k.code || g.Next != k.next || len(g.Messages) != k.n {
			t.Errorf("%s: %v, code %d, next %d, %d messages; want %v, %d, %d, %d", k.name, g.Status, g.Code(k.offset), g.Next, len(g.Messages), k.status, k.code, k.next, k.n)
		}
		if k.topic == "T" && k.queue == 0 && (g.Min != 10 || g.Max != 40) {
			t.Errorf("%s: queue from %d to %d, want 10 to 40", k.name, g.Min, g.Max)
		}
	}
}

// TestMessageRemovedWhileReading: retention comes between the look at the queue and the message.
func TestMessageRemovedWhileReading(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 20)
	q := r.s.queue("T", 0)
	g := GetResult{Min: 0, Max: 20, Next: 0}
	r.log.retain(9) // entry 0 is the leader's record, so message 8 is the first that stays
	r.s.get(q, &g, 32, 1<<20, nil)
	if g.Status != Removing || g.Next != 8 || g.Code(0) != 20 {
		t.Errorf("%v, next %d", g.Status, g.Next)
	}
	r.log.mu.Lock()
	r.log.fail = errors.New("damaged")
	r.log.mu.Unlock()
	if g := r.s.Get("T", 0, 10, 32, 1<<20, nil); g.Status != OffsetFoundNull || g.Next != 10 || g.Code(10) != 19 {
		t.Errorf("unreadable: %v, next %d", g.Status, g.Next)
	}
	r.log.mu.Lock()
	r.log.fail = nil
	r.log.mu.Unlock()
}

// TestColdMessagesAreReadTogether: those of one queue that lie together in the log take one read.
func TestColdMessagesAreReadTogether(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("A", 0, 30)
	r.log.mu.Lock()
	r.log.cold, r.log.reads = true, 0
	r.log.mu.Unlock()
	if g := r.s.Get("A", 0, 0, 30, 1<<20, nil); len(g.Messages) != 30 {
		t.Fatalf("%d messages", len(g.Messages))
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.log.reads > 3 { // 16 units are in a file
		t.Errorf("%d reads for 30 messages", r.log.reads)
	}
}

func TestPreparedMessagesTakeNoPlace(t *testing.T) {
	r := newRig(t)
	r.lead()
	for _, k := range []struct {
		flag int32
		want int64
	}{{mq.SysNotTrans, 0}, {mq.SysPrepared, 0}, {mq.SysCommit, 1}, {mq.SysRollback, 0}, {mq.SysNotTrans, 2}} {
		m := message("T", 0, "x")
		m.SysFlag = k.flag
		if p := r.put(m); p.QueueOffset != k.want {
			t.Errorf("type %d has offset %d, want %d", k.flag, p.QueueOffset, k.want)
		}
	}
	r.settle()
	r.check()
}

func TestDueTimeStandsInTheUnit(t *testing.T) {
	r := newRig(t)
	codes := make(chan int64, 10)
	r.shut()
	r.cfg.Arrived = func(_ string, _ int32, _, code int64, m *mq.Message) { codes <- code - m.StoreTime }
	r.start()
	r.lead()
	for level, want := range map[string]int64{"1": 1000, "18": 7_200_000, "99": 7_200_000} {
		r.put(message(mq.TopicSchedule, 0, "x", mq.PropDelay, level, mq.PropTags, "a"))
		if got := <-codes; got != want {
			t.Errorf("level %s is due after %d ms, want %d", level, got, want)
		}
	}
}

func TestSearchByTime(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 6)
	r.log.mu.Lock()
	for i := range r.log.entries {
		m, _, err := mq.ParseStored(r.log.entries[i].Body)
		if err != nil {
			t.Fatal(err)
		}
		m.StoreTime = int64(1000 + 10*((i-1)/2)) // 1000 1000 1010 1010 1020 1020
		if r.log.entries[i].Body, err = mq.AppendStored(nil, &m); err != nil {
			t.Fatal(err)
		}
	}
	r.log.mu.Unlock()
	for _, k := range []struct{ ts, lower, upper int64 }{{999, 0, 0}, {1000, 0, 1}, {1005, 2, 1}, {1010, 2, 3}, {1020, 4, 5}, {1021, 6, 5}} {
		if got := r.s.OffsetByTime("T", 0, k.ts, false); got != k.lower {
			t.Errorf("lower of %d is %d, want %d", k.ts, got, k.lower)
		}
		if got := r.s.OffsetByTime("T", 0, k.ts, true); got != k.upper {
			t.Errorf("upper of %d is %d, want %d", k.ts, got, k.upper)
		}
	}
	if a, b, c := r.s.StoreTime("T", 0, 2), r.s.EarliestTime("T", 0), r.s.StoreTime("T", 0, 6); a != 1010 || b != 1000 || c != -1 {
		t.Errorf("store times %d, %d, %d; want 1010, 1000, -1", a, b, c)
	}
	if got := r.s.OffsetByTime("T", 9, 1000, false); got != 0 {
		t.Errorf("in no queue: %d", got)
	}
}

// TestQueryByKey, with items in memory and in several files.
func TestQueryByKey(t *testing.T) {
	r := newRig(t)
	r.lead()
	want := map[string][]string{}
	for i := range 300 {
		k, u := fmt.Sprint("k", i%10), fmt.Sprint("u", i)
		r.put(message("T", int32(i%3), fmt.Sprint(i), mq.PropKeys, k+" all", mq.PropUniqKey, u))
		want[k], want[u] = append(want[k], fmt.Sprint(i)), []string{fmt.Sprint(i)}
		if i%40 == 39 {
			r.settle()
			if err := r.s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.settle()
	query := func(key string, most int) []string {
		q, err := r.s.Query("T", key, most, 0, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range q.Messages {
			m, _, err := mq.ParseStored(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(m.Body))
		}
		slices.Reverse(got)
		return got
	}
	check := func() {
		t.Helper()
		for k, w := range want {
			if got := query(k, 64); !slices.Equal(got, w) {
				t.Errorf("%s: %v, want %v", k, got, w)
			}
		}
		if got := query("all", 5); !slices.Equal(got, []string{"295", "296", "297", "298", "299"}) {
			t.Errorf("newest five: %v", got)
		}
		if got := query("none", 5); len(got) > 0 {
			t.Errorf("no such key: %v", got)
		}
	}
	check()
	if n := len(r.s.index.list); n < 5 {
		t.Errorf("%d index files, want more", n)
	}
	r.halt()
	r.start()
	r.settle()
	check()
	r.shut()
	r.start()
	check()
	if r.s.rebuilt || r.s.Stats().IndexRemade > 0 {
		t.Error("the index was taken for a damaged one")
	}
}

func TestNotReadyUntilEverythingIsDispatchedInOwnTerm(t *testing.T) {
	r := newRig(t)
	if p := r.put(message("T", 0, "x")); p.Status != ServiceNotAvailable || !errors.Is(p.Err, ErrNotReady) {
		t.Errorf("as follower: %+v", p)
	}
	r.log.hold()
	r.log.lead(true)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := r.s.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ready before its record is committed: %v", err)
	}
	r.log.release()
	if err := r.s.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if term, ok := r.s.Ready(); !ok || term != 1 {
		t.Errorf("ready in %d, %v", term, ok)
	}
	r.fill("T", 0, 3)
	r.log.lead(false)
	if _, ok := r.s.Ready(); ok {
		t.Error("ready without leadership")
	}
	if p := r.put(message("T", 0, "x")); p.Status != ServiceNotAvailable {
		t.Errorf("without leadership: %+v", p)
	}
}

// TestOffsetsGoOnAfterLeadersOfOtherTerms: another leader appends meanwhile.
func TestOffsetsGoOnAfterLeadersOfOtherTerms(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 3)
	r.log.lead(false)
	r.log.mu.Lock()
	r.log.leads = true // so that the other leader can use the same log
	term := r.log.term
	r.log.mu.Unlock()
	for i := range 5 {
		m := message("T", 0, "other")
		m.QueueOffset, m.StoreHost = int64(3+i), host
		b, err := mq.AppendStored(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		r.log.ProposeIn(term, [][]byte{b}, func(_ int, _ dledger.Index, pos int64, b []byte) { mq.SetStored(b, m.QueueOffset, pos+headerSize) }, func(dledger.Appended, error) {})
	}
	r.lead()
	if p := r.put(message("T", 0, "x")); p.QueueOffset != 8 {
		t.Errorf("offset %d, want 8", p.QueueOffset)
	}
	r.settle()
	r.check()
}

func TestForeignEntriesArePassedOver(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 2)
	evil := message("../../etc", 0, "x")
	evil.StoreHost = host
	b, err := mq.AppendStored(nil, evil)
	if err != nil {
		t.Fatal(err)
	}
	stamp := func(_ int, _ dledger.Index, pos int64, b []byte) {
		if len(b) > 40 {
			mq.SetStored(b, 0, pos+headerSize)
		}
	}
	for _, body := range [][]byte{[]byte("x"), b} {
		r.log.ProposeIn(-1, [][]byte{body}, stamp, func(dledger.Appended, error) {})
	}
	r.log.noop()
	r.fill("T", 0, 2)
	if s := r.s.Stats(); s.Unreadable != 2 {
		t.Errorf("%d unreadable entries, want 2", s.Unreadable)
	}
	r.check()
	if p := r.put(message("a/b", 0, "x")); p.Status != MessageIllegal {
		t.Errorf("topic a/b: %+v", p)
	}
	if p := r.put(message(strings.Repeat("x", 300), 0, "x")); p.Status != MessageIllegal {
		t.Errorf("long topic: %+v", p)
	}
}

// TestRestarts: clean, after a crash, and with files gone, the queues are the same.
func TestRestarts(t *testing.T) {
	for _, k := range []struct {
		name string
		stop func(r *rig)
		redo bool // whether messages are dispatched again
	}{
		{"clean", func(r *rig) { r.shut() }, false},
		{"crash without checkpoint", func(r *rig) { r.halt() }, true},
		{"crash after a checkpoint", func(r *rig) {
			if err := r.s.Checkpoint(); err != nil {
				r.t.Fatal(err)
			}
			r.halt()
		}, false},
		{"a queue file is gone", func(r *rig) { r.shut(); remove(r, "store/consumequeue/T/0/00000000000000000320") }, true},
		{"the index is gone", func(r *rig) { r.shut(); remove(r, "store/index/") }, true},
		{"the checkpoint is gone", func(r *rig) { r.shut(); remove(r, "store/checkpoint") }, true},
		{"the checkpoint is damaged", func(r *rig) {
			r.shut()
			for _, at := range slotAt {
				if err := r.disk.Flip("store/checkpoint", at+50, 1); err != nil {
					r.t.Fatal(err)
				}
			}
		}, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			r := newRig(t)
			r.lead()
			r.fill("T", 0, 40)
			r.fill("T", 1, 3)
			r.fill("U", 0, 16)
			r.put(message("U", 0, "with a key", mq.PropKeys, "k"))
			r.settle()
			k.stop(r)
			r.start()
			r.settle()
			r.check()
			if n := r.s.Stats().Dispatched; n > 0 != k.redo {
				t.Errorf("%d messages dispatched again", n)
			}
			r.lead()
			r.fill("T", 0, 10)
			r.fill("V", 0, 10)
			r.check()
		})
	}
}

// What the log is told to be derived is in the queues' files, whatever is committed: after a checkpoint, after a clean stop while more is committed, and at the start after a crash.
func TestLogIsToldWhatTheFilesHold(t *testing.T) {
	r := newRig(t)
	derived := func(what string, want dledger.Index) {
		t.Helper()
		r.log.mu.Lock()
		defer r.log.mu.Unlock()
		if r.log.derived != want {
			t.Errorf("%s: got %d, want %d", what, r.log.derived, want)
		}
	}
	derived("nothing is there", -1)
	r.lead()
	r.fill("T", 0, 5)
	r.settle()
	derived("dispatched, but not on disk", -1)
	if err := r.s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	saved := r.log.Commit()
	derived("a checkpoint", saved)
	r.fill("T", 0, 5)
	r.settle()
	r.halt()
	r.start()
	derived("a start after a crash", saved)
	r.settle()
	r.shut()
	derived("a clean stop", r.log.Commit())
}

// remove removes a file, or all files of a directory.
func remove(r *rig, name string) {
	r.t.Helper()
	names := []string{name}
	if dir, ok := strings.CutSuffix(name, "/"); ok {
		list, err := r.disk.ReadDir(dir)
		if err != nil || len(list) == 0 {
			r.t.Fatal(list, err)
		}
		names = nil
		for _, n := range list {
			names = append(names, dir+"/"+n)
		}
	}
	for _, n := range names {
		if err := r.disk.Remove(n); err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestQueuesOfAnotherLogAreRemoved: the log was put in place of another one.
func TestQueuesOfAnotherLogAreRemoved(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 40)
	r.fill("Old", 0, 4)
	r.shut()
	r.log = newFakeLog()
	r.cfg.Ledger = r.log
	r.log.lead(true)
	for range 100 {
		r.log.noop()
	}
	r.start()
	if err := r.s.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.fill("T", 0, 3)
	r.check()
	if got := r.s.Topics(); !slices.Equal(got, []string{"T"}) {
		t.Errorf("topics %v", got)
	}
}

// TestRetention: queue files and index files go with the log, offsets stay.
func TestRetention(t *testing.T) {
	r := newRig(t)
	r.lead()
	for i := range 100 {
		r.put(message("T", 0, fmt.Sprint(i), mq.PropKeys, fmt.Sprint("k", i)))
		if i < 20 {
			r.put(message("Idle", 0, fmt.Sprint(i)))
		}
	}
	r.settle()
	if err := r.s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	before := len(r.s.index.list)
	r.log.retain(91) // 1 record, 20 of both, then T alone: message 70 of T
	if err := r.s.CleanExpired(); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if b := r.s.Bounds("T", 0); b.Min != 70 || b.Max != 100 {
			t.Errorf("T from %d to %d, want 70 to 100", b.Min, b.Max)
		}
		if b := r.s.Bounds("Idle", 0); b.Min != 20 || b.Max != 20 {
			t.Errorf("Idle from %d to %d, want 20 to 20", b.Min, b.Max)
		}
		if g := r.s.Get("Idle", 0, 20, 32, 1000, nil); g.Status != OffsetOverflowOne {
			t.Errorf("Idle at its end: %v", g.Status)
		}
		if g := r.s.Get("Idle", 0, 3, 32, 1000, nil); g.Status != OffsetTooSmall || g.Next != 20 {
			t.Errorf("Idle before its end: %v, %d", g.Status, g.Next)
		}
		r.check()
	}
	check()
	if names, err := r.disk.ReadDir("store/consumequeue/T/0"); err != nil || len(names) != 3 || names[0] != fmt.Sprintf("%020d", 64*unitSize) {
		t.Errorf("files %v, %v", names, err)
	}
	if n := len(r.s.index.list); n >= before || n == 0 {
		t.Errorf("%d index files of %d stay", n, before)
	}
	r.halt()
	r.start()
	r.settle()
	check()
	// Without the checkpoint all is built again, and how far an empty queue had come is still known.
	r.shut()
	remove(r, "store/checkpoint")
	r.start()
	r.settle()
	check()
	r.lead()
	if p := r.put(message("Idle", 0, "x")); p.QueueOffset != 20 {
		t.Errorf("next of Idle is %d, want 20", p.QueueOffset)
	}
	// Without anything, only what the log holds is known.
	r.shut()
	r.disk = vfs.NewMem()
	r.cfg.FS = r.disk
	r.start()
	r.settle()
	r.check()
	if b := r.s.Bounds("T", 0); b.Min != 70 || b.Max != 100 {
		t.Errorf("T from %d to %d, want 70 to 100", b.Min, b.Max)
	}
	r.shut()
	b, err := vfs.ReadFile(r.disk, "store/consumequeue/T/0/"+fmt.Sprintf("%020d", 64*unitSize))
	if err != nil || !bytes.Equal(b[:6*unitSize], bytes.Repeat(blankUnit.append(nil), 6)) {
		t.Errorf("blanks before the first message: %x, %v", b[:min(len(b), 6*unitSize)], err)
	}
}

// TestLogThatBeginsAnewFurtherOn: the member was so far behind that its log was reset.
func TestLogThatBeginsAnewFurtherOn(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 30)
	r.halt()
	m := message("T", 0, "far")
	m.StoreHost = host
	body, err := mq.AppendStored(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	far := r.log.Commit() + 1000
	r.log.mu.Lock()
	mq.SetStored(body, 900, 1<<20+headerSize)
	r.log.entries = []dledger.Entry{{Index: far, Term: 1, Pos: 1 << 20, Body: body}}
	r.log.first, r.log.commit, r.log.end = far, far, 1<<20+headerSize+int64(len(body))
	r.log.mu.Unlock()
	r.start()
	r.settle()
	if b := r.s.Bounds("T", 0); b.Min != 900 || b.Max != 901 {
		t.Errorf("T from %d to %d, want 900 to 901", b.Min, b.Max)
	}
	r.check()
}

// records is what a broker does with its own messages, here: topics that are deleted.
type records struct {
	mu  sync.Mutex
	r   *rig
	got []int64
}

func (k *records) apply(pos int64, m *mq.Message) error {
	k.mu.Lock()
	k.got = append(k.got, pos)
	k.mu.Unlock()
	if topic, ok := strings.CutPrefix(string(m.Body), "delete "); ok {
		return k.r.s.DeleteTopic(topic, pos)
	}
	return nil
}

func withRecords(t *testing.T) (*rig, *records) {
	k := &records{}
	ready := make(chan struct{})
	r := newRig(t, func(c *Config) {
		c.MetaTopic = "rmq_sys_metadata_b"
		c.Meta = func(pos int64, m *mq.Message) error { <-ready; return k.apply(pos, m) }
	})
	k.r = r
	close(ready)
	return r, k
}

// TestDeletedTopicBeginsAnew, also when the records are applied again after a restart.
func TestDeletedTopicBeginsAnew(t *testing.T) {
	r, k := withRecords(t)
	r.lead()
	r.fill("T", 0, 20)
	r.fill("T", 1, 20)
	r.fill("U", 0, 20)
	if n := r.s.Stats().Checkpoints; n != 0 {
		t.Fatalf("%d checkpoints without a reason", n)
	}
	if p := r.put(message("rmq_sys_metadata_b", 0, "delete T")); p.Status != PutOK {
		t.Fatal(p)
	}
	r.settle()
	if q := r.s.Queues("T"); len(q) != 0 || r.s.MaxOffset("T", 0) != 0 {
		t.Errorf("T has %v", q)
	}
	for deadline := time.Now().Add(10 * time.Second); r.s.Stats().Checkpoints == 0; r.settle() {
		if time.Now().After(deadline) {
			t.Fatal("no checkpoint: a crash now would have all queues built anew")
		}
	}
	// The offsets of this leadership go on, since messages may be on their way.
	if p := r.put(message("T", 0, "x")); p.QueueOffset != 20 {
		t.Errorf("offset %d", p.QueueOffset)
	}
	r.settle()
	check := func() {
		t.Helper()
		if b := r.s.Bounds("T", 0); b.Min != 20 || b.Max != 21 {
			t.Errorf("T from %d to %d, want 20 to 21", b.Min, b.Max)
		}
		if n := len(r.all("U", 0)); n != 20 {
			t.Errorf("U has %d", n)
		}
		if b := r.s.Bounds("T", 1); b.Max != 0 {
			t.Errorf("queue 1 of T ends at %d", b.Max)
		}
	}
	check()
	first := len(k.got)
	r.shut()
	r.start()
	r.settle()
	if len(k.got) != 2*first {
		t.Errorf("%d records, then %d: want all once more", first, len(k.got)-first)
	}
	check()
	r.shut()
	r.cfg.MetaFrom = k.got[first-1]
	n := len(k.got)
	r.start()
	r.settle()
	if len(k.got) != n {
		t.Errorf("records that are known already come again: %v", k.got[n:])
	}
	check()
	r.halt()
	remove(r, "store/checkpoint")
	r.start()
	r.settle()
	check()
}

// TestLogThatLostItsEnd: after a power loss queues and saved records can be ahead of a log that was not synced. It comes again from the others.
func TestLogThatLostItsEnd(t *testing.T) {
	for _, saved := range []int{0, 1, 2} { // records that were
		r, k := withRecords(t)
		r.lead()
		record := func() {
			if p := r.put(message("rmq_sys_metadata_b", 0, "delete U")); p.Status != PutOK {
				t.Fatal(p)
			}
		}
		r.fill("T", 0, 20)
		lost := r.log.Commit() + 1
		record()
		r.fill("U", 0, 20)
		record()
		r.fill("T", 0, 20)
		r.shut()
		got := slices.Clone(k.got[1:]) // the first opened the leadership
		if k.got = nil; saved > 0 {
			r.cfg.MetaFrom = got[saved-1]
		}
		back := r.log.lose(lost)
		r.start()
		r.settle()
		back()
		r.settle()
		if want := got[saved:]; !slices.Equal(k.got[max(len(k.got)-len(want), 0):], want) {
			t.Errorf("%d records saved: then came %v, want %v at least", saved, k.got, want)
		}
		if n := len(r.s.Queues("U")); n != 0 {
			t.Errorf("%d queues of a deleted topic", n)
		}
		if n := r.s.MaxOffset("T", 0); n != 40 {
			t.Errorf("T ends at %d", n)
		}
		r.halt()
	}
}

func TestFailedRecordEndsRun(t *testing.T) {
	bad := errors.New("no such kind")
	r := newRig(t, func(c *Config) {
		c.MetaTopic, c.Meta = "rmq_sys_metadata_b", func(int64, *mq.Message) error { return bad }
	})
	r.log.lead(true)
	<-r.s.stopped
	if err := r.stop(); !errors.Is(err, bad) {
		t.Errorf("Run: %v", err)
	}
	r.stop = nil
	if err := r.s.WaitReady(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("WaitReady: %v", err)
	}
	if err := r.s.Close(); err != nil {
		t.Error(err)
	}
}

// TestCrashAtEveryWrite (M2): images of the disk as a crash before each change would leave it, whole, without what was not synced, and with parts of that by chance, are opened and compared with the log. Some are
// opened by a member that does not know yet how much was committed. Once with many queues whose files are smaller than a block of the disk, once with one queue whose file
// has several, so that one may be lost between two that are kept.
func TestCrashAtEveryWrite(t *testing.T) {
	t.Run("many queues", func(t *testing.T) { crashAtEveryWrite(t, 4, 3, 16, 2) })
	chances := 30
	if testing.Short() {
		chances = 3
	}
	t.Run("one queue", func(t *testing.T) { crashAtEveryWrite(t, 1, 1, 5*vfs.BlockSize/20, chances) })
}

func crashAtEveryWrite(t *testing.T, topics, queues, units, chances int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, func(c *Config) { c.CheckpointEvery, c.QueueFileUnits = time.Millisecond, units })
	r.lead()
	type image struct {
		disk *vfs.Mem
		what string
	}
	var mu sync.Mutex
	var images []image
	calls := uint64(0)
	r.disk.SetHook(func(c vfs.Call) error {
		if c.Op == "read" || c.Op == "open" || c.Op == "stat" || c.Op == "readdir" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		calls++
		keeps := []vfs.Keep{vfs.KeepAll, vfs.KeepNone}
		for range chances {
			keeps = append(keeps, vfs.KeepRandom(seed+calls*uint64(len(keeps))))
		}
		for i, keep := range keeps {
			images = append(images, image{r.disk.Fork(keep), fmt.Sprintf("call %d, %v, loss %d", calls, c, i)})
		}
		return nil
	})
	const n = 90
	for i := range n {
		topic := fmt.Sprint("T", rnd.IntN(topics))
		r.put(message(topic, int32(rnd.IntN(queues)), fmt.Sprint(i), mq.PropKeys, fmt.Sprint("k", i%5), mq.PropUniqKey, fmt.Sprint("u", i)))
		r.settle()
		if rnd.IntN(5*12/(topics*queues)) == 0 {
			if err := r.s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.disk.SetHook(nil)
	r.shut()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d calls, %d images", calls, len(images))
	commit := r.log.Commit()
	for k, im := range images {
		y := &rig{t: t, log: r.log, disk: im.disk, cfg: r.cfg}
		y.cfg.FS, y.cfg.CheckpointEvery = im.disk, time.Hour
		if k%3 == 0 {
			r.log.commit = commit / 3
		}
		y.start()
		if y.s.rebuilt {
			t.Error("queues or index are not what the checkpoint says")
		}
		if k%3 == 0 {
			r.log.release()
		}
		y.settle()
		y.check()
		for i := k % 7; i < n; i += 7 {
			if q, err := y.s.Query(topicOf(r.log, i), fmt.Sprint("u", i), 10, 0, 1<<60); err != nil || len(q.Messages) != 1 {
				t.Errorf("message %d by its key: %d found, %v", i, len(q.Messages), err)
			}
		}
		if err := y.s.call(func() error {
			for {
				if more, err := y.s.checkSome(); err != nil || !more {
					return err
				}
			}
		}); err != nil {
			t.Error(err)
		}
		if st := y.s.Stats(); st.IndexRemade > 0 || st.IndexDamaged {
			t.Error("what a crash leaves of the index was taken for damage")
		}
		y.halt()
		if t.Failed() {
			t.Fatal(im.what)
		}
	}
}

// topicOf finds the topic of the message with this body.
func topicOf(l *fakeLog, k int) string {
	for _, e := range l.entries {
		if m, _, err := mq.ParseStored(e.Body); err == nil && string(m.Body) == fmt.Sprint(k) {
			return m.Topic
		}
	}
	return ""
}

func TestFullDiskOnlyPutsTheCheckpointOff(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 20)
	if err := r.s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	r.disk.SetCapacity(r.disk.Used())
	for i := range 20 {
		r.fill("U", int32(i), 20)
	}
	if err := r.s.Checkpoint(); !noSpace(err) {
		t.Errorf("checkpoint on a full disk: %v", err)
	}
	r.fill("T", 0, 20)
	r.check()
	r.disk.SetCapacity(1 << 30)
	if err := r.s.Checkpoint(); err != nil {
		t.Error(err)
	}
	r.check()
	r.halt()
	r.start()
	r.settle()
	r.check()
}

// TestPutOfAFormerLeadershipIsRefused (M1): this member leads again, in a later term, and has not noticed yet that it lost leadership in between.
func TestPutOfAFormerLeadershipIsRefused(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 3)
	var p PutResult
	if err := r.s.call(func() error {
		r.log.lead(true)
		r.s.Put([]*mq.Message{message("T", 0, "x")}, func(got PutResult) { p = got })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if p.Status != ServiceNotAvailable || p.QueueOffset != -1 || p.Pos != nil {
		t.Errorf("taken: %+v", p)
	}
	if err := r.s.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := r.put(message("T", 0, "y")); p.QueueOffset != 3 {
		t.Errorf("offset %d, want 3", p.QueueOffset)
	}
}

// TestBacklogIsDispatchedWithoutNewEntries: much is committed when the store is opened, and nothing comes.
func TestBacklogIsDispatchedWithoutNewEntries(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 1000)
	r.halt()
	r.start()
	end, err := r.log.CommittedEnd()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.s.WaitDispatched(ctx, end-1); err != nil {
		t.Fatal(err)
	}
	r.check()
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := r.s.WaitDispatched(ctx, end); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what is not there is dispatched: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- r.s.WaitDispatched(t.Context(), end) }()
	r.log.lead(true)
	if err := <-waited; err != nil { // the leader's record
		t.Error(err)
	}
}

// TestFloorOfAQueueThatIsNotHere: all its messages went from the log before this member came.
func TestFloorOfAQueueThatIsNotHere(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Floor = func(topic string, id int32) int64 {
			if topic == "T" && id == 1 {
				return 40
			}
			return 0
		}
	})
	if g := r.s.Get("T", 1, 40, 32, 1<<20, nil); g.Status != NoSuchQueue {
		t.Errorf("while this member does not lead, it does not know: %v", g.Status)
	}
	r.lead()
	for offset, want := range map[int64]GetStatus{39: OffsetTooSmall, 40: OffsetOverflowOne, 41: OffsetOverflowBadly} {
		if g := r.s.Get("T", 1, offset, 32, 1<<20, nil); g.Status != want || g.Next != 40 || g.Min != 40 || g.Max != 40 {
			t.Errorf("from %d: %+v, want %v", offset, g, want)
		}
	}
	if p := r.put(message("T", 1, "x")); p.QueueOffset != 40 {
		t.Errorf("offset %d, want 40", p.QueueOffset)
	}
	if p := r.put(message("T", 2, "x")); p.QueueOffset != 0 {
		t.Errorf("offset %d, want 0", p.QueueOffset)
	}
	r.settle()
	if b := r.s.Bounds("T", 1); b != (Bounds{40, 41}) || r.s.MaxOffset("T", 1) != 41 {
		t.Errorf("bounds %+v", b)
	}
	r.check()
	r.halt()
	r.start()
	r.settle()
	r.check()
}

// TestFewFilesStayOpen, however many queues there are; and all of them are written and found again.
func TestFewFilesStayOpen(t *testing.T) {
	r := newRig(t)
	r.lead()
	for i := range 3 * descriptorsMax {
		r.put(message(fmt.Sprint("T", i), 0, "x"))
	}
	r.settle()
	if err := r.s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	r.check()
	r.shut()
	r.start()
	r.check()
	if n := len(r.s.files.open); n > descriptorsMax {
		t.Errorf("%d files are open, at most %d wanted", n, descriptorsMax)
	}
	if s := r.s.Stats(); s.Queues != 3*descriptorsMax || s.Dispatched != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFloorAboveTheEndOfAQueue: this member was away while the rest of the queue came and went.
func TestFloorAboveTheEndOfAQueue(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Floor = func(string, int32) int64 { return 40 }
	})
	r.lead()
	for i := range 41 {
		if p := r.put(message("T", 0, "x")); p.QueueOffset != 40+int64(i) {
			t.Fatalf("offset %d, want %d", p.QueueOffset, 40+i)
		}
	}
	r.s.cfg.Floor = func(string, int32) int64 { return 90 }
	r.settle()
	r.log.lead(false)
	r.log.retain(r.log.Commit() + 1)
	r.lead()
	if b := r.s.Bounds("T", 0); b != (Bounds{90, 90}) || r.s.MaxOffset("T", 0) != 90 {
		t.Errorf("bounds %+v, end %d, want 90", b, r.s.MaxOffset("T", 0))
	}
	if g := r.s.Get("T", 0, 90, 32, 1<<20, nil); g.Status != OffsetOverflowOne || g.Next != 90 {
		t.Errorf("from the end: %+v", g)
	}
	if p := r.put(message("T", 0, "y")); p.QueueOffset != 90 {
		t.Errorf("offset %d, want 90", p.QueueOffset)
	}
	r.settle()
	if b := r.s.Bounds("T", 0); b != (Bounds{90, 91}) {
		t.Errorf("bounds %+v", b)
	}
	r.check()
}

// damagedQueue fills queue 0 of topic T with 40 messages, in three files, of which do damages the second. It gives what they held before.
func (r *rig) damagedQueue(logFirst int, do func(name string)) (names []string, before [][]byte) {
	r.t.Helper()
	r.lead()
	for i := range 40 {
		r.put(message("T", 0, fmt.Sprint(i)), message("T", 1, fmt.Sprint(i)))
	}
	r.settle()
	if err := r.s.Checkpoint(); err != nil {
		r.t.Fatal(err)
	}
	if logFirst > 0 {
		r.log.retain(dledger.Index(1 + 2*logFirst)) // entry 0 is the leader's record
	}
	for _, n := range []string{"00000000000000000000", "00000000000000000320", "00000000000000000640"} {
		name := "store/consumequeue/T/0/" + n
		b, err := vfs.ReadFile(r.disk, name)
		if err != nil {
			r.t.Fatal(err)
		}
		names, before = append(names, name), append(before, b)
	}
	do(names[1])
	return names, before
}

// TestDamagedQueueIsMadeAnew: a bit flips in a unit, so that it leads to another message, to none, or beyond the log; or a file is cut, gone or full of zeros. Nothing
// wrong is served, other queues are, and the files soon are what they were.
func TestDamagedQueueIsMadeAnew(t *testing.T) {
	type damage struct {
		name     string
		at       int64 // offset of a damaged message
		logFirst int
		do       func(r *rig, name string)
	}
	var all []damage
	for _, logFirst := range []int{0, 5, 18} {
		for bit := range 8 * 12 { // position and size
			const at = 19
			all = append(all, damage{fmt.Sprintf("bit %d, log from %d", bit, logFirst), at, logFirst, func(r *rig, name string) {
				if err := r.disk.Flip(name, (at-16)*unitSize+int64(bit/8), 1<<(bit%8)); err != nil {
					t.Fatal(err)
				}
			}})
		}
		for name, size := range map[string]int64{"cut": 5*unitSize + 3, "empty": 0, "zeros": -1} {
			all = append(all, damage{fmt.Sprintf("%s, log from %d", name, logFirst), 22, logFirst, func(r *rig, name string) {
				f, err := r.disk.OpenFile(name, os.O_RDWR)
				if err == nil {
					err = f.Truncate(max(size, 0))
				}
				if err == nil && size < 0 {
					err = f.Truncate(16 * unitSize)
				}
				if err := errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
			}})
		}
		all = append(all, damage{fmt.Sprintf("gone, log from %d", logFirst), 19, logFirst, func(r *rig, name string) {
			if err := r.s.files.remove(name); err != nil {
				t.Fatal(err)
			}
		}})
	}
	for _, k := range all {
		r := newRig(t)
		names, before := r.damagedQueue(k.logFirst, func(name string) { k.do(r, name) })
		for deadline := time.Now().Add(10 * time.Second); ; {
			g := r.s.Get("T", 0, k.at, 32, 1<<20, nil)
			if g.Status == Found {
				if m, _, err := mq.ParseStored(g.Messages[0]); err != nil || string(m.Body) != fmt.Sprint(k.at) {
					t.Errorf("%s: %q, next %d, %v", k.name, m.Body, g.Next, err)
				}
				if r.s.Stats().Damaged == 0 {
					break
				}
			} else if g.Status != OffsetFoundNull || g.Next != k.at {
				t.Fatalf("%s: %v, next %d", k.name, g.Status, g.Next)
			}
			if g := r.s.Get("T", 1, k.at, 32, 1<<20, nil); g.Status != Found {
				t.Errorf("%s: the other queue: %v", k.name, g.Status)
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not mended", k.name)
			}
			runtime.Gosched()
		}
		r.check()
		if b := r.s.Bounds("T", 0); b != (Bounds{int64(k.logFirst), 40}) {
			t.Errorf("%s: bounds %+v", k.name, b)
		}
		if s := r.s.Stats(); s.Mended == 0 || s.Damaged != 0 {
			t.Errorf("%s: %+v", k.name, s)
		}
		for i, name := range names {
			b, err := vfs.ReadFile(r.disk, name)
			lo, hi := max(k.logFirst-16*i, 0)*unitSize, min(40-16*i, 16)*unitSize // those of messages that the log has
			if err != nil || len(b) < hi || lo < hi && !bytes.Equal(b[lo:hi], before[i][lo:hi]) {
				t.Errorf("%s: file %d is another one (%v)", k.name, i, err)
			}
		}
		r.shut()
		r.start()
		r.settle()
		r.check()
		r.halt()
		if t.Failed() {
			return
		}
	}
}

// TestDispatchWaitsForADamagedEntry: while queues and index are built anew, and afterwards while a record is compared with the log. Nothing ends, and once the
// entry is whole all is there.
func TestDispatchWaitsForADamagedEntry(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 12)
	r.fill("T", 1, 12)
	r.shut()
	if err := r.disk.Remove("store/checkpoint"); err != nil {
		t.Fatal(err)
	}
	r.log.rot(7, true)
	r.start()
	if err := r.s.WaitIndex(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	r.log.noop() // has Run look again
	if got := r.s.MaxOffset("T", 0); got != 6 {
		t.Errorf("queue 0 ends at %d, want 6: entry 0 is the leader's record, and 7 is damaged", got)
	}
	select {
	case <-r.s.stopped:
		t.Fatal("the damage has ended Run")
	default:
	}
	r.log.rot(7, false)
	if err := r.s.WaitIndex(t.Context(), 24); err != nil {
		t.Fatal(err)
	}
	r.check()
}

// TestDamagedMessageIsNotServed: what ReadAt gives is compared with the checksums of its entry, whatever asks for it; the others in the same window are served.
func TestDamagedMessageIsNotServed(t *testing.T) {
	r := newRig(t)
	r.lead()
	var pos []int64
	for i := range 8 {
		pos = append(pos, r.put(message("T", 0, fmt.Sprint("body ", i), mq.PropKeys, "k")).Pos[0])
	}
	r.settle()
	r.log.mu.Lock()
	r.log.cold = true
	r.log.mu.Unlock()
	r.log.rot(4, true) // message 3
	if g := r.s.Get("T", 0, 0, 32, 1<<20, nil); g.Status != Found || g.Next != 3 || len(g.Messages) != 3 {
		t.Errorf("before it: %v, next %d, %d messages", g.Status, g.Next, len(g.Messages))
	}
	if g := r.s.Get("T", 0, 3, 32, 1<<20, nil); g.Status != OffsetFoundNull || g.Next != 3 || !errors.Is(g.Err, dledger.ErrDamaged) || g.Code(3) != mq.PullNotFound {
		t.Errorf("at it: %v, next %d, %v", g.Status, g.Next, g.Err)
	}
	if g := r.s.Get("T", 0, 4, 32, 1<<20, nil); g.Status != Found || len(g.Messages) != 4 {
		t.Errorf("behind it: %v, %d messages", g.Status, len(g.Messages))
	}
	if _, err := r.s.MessageAt(pos[3]); !errors.Is(err, dledger.ErrDamaged) {
		t.Errorf("by position: %v", err)
	}
	if res, err := r.s.Query("T", "k", 32, 0, 1<<60); !errors.Is(err, dledger.ErrDamaged) || len(res.Messages) != 7 {
		t.Errorf("by key: %d messages, %v", len(res.Messages), err)
	}
	if ts := r.s.StoreTime("T", 0, 3); ts != -1 {
		t.Errorf("its time is %d", ts)
	}
	for _, upper := range []bool{false, true} {
		if o := r.s.OffsetByTime("T", 0, 1, upper); o != 0 {
			t.Errorf("the first is at %d", o)
		}
	}
	if r.s.hurt() {
		t.Error("the queue is blamed")
	}
	r.log.rot(4, false)
	r.check()
}

// TestDamagedQueueOverADamagedLog: what the log cannot tell for now is not written into the queue; a store that is closed before it can builds its queues anew at the
// next start.
func TestDamagedQueueOverADamagedLog(t *testing.T) {
	for _, closed := range []bool{false, true} {
		r := newRig(t)
		names, before := r.damagedQueue(0, func(name string) {
			if err := r.disk.Flip(name, 3*unitSize+2, 1); err != nil {
				t.Fatal(err)
			}
		})
		r.log.mu.Lock()
		r.log.cold = true
		r.log.mu.Unlock()
		r.log.rot(1+2*19, true) // the message of the unit
		g := r.s.Get("T", 0, 19, 32, 1<<20, nil)
		if g.Status != OffsetFoundNull || r.s.Stats().Damaged != 1 {
			t.Errorf("%v, %+v", g.Status, r.s.Stats())
		}
		if closed {
			r.shut()
			r.log.rot(1+2*19, false)
			r.start()
			if !r.s.rebuilt && r.s.from > 0 {
				t.Error("the queues are not built anew")
			}
		} else {
			r.log.rot(1+2*19, false)
			for deadline := time.Now().Add(10 * time.Second); r.s.Stats().Damaged > 0 && time.Now().Before(deadline); {
				runtime.Gosched()
			}
			if b, err := vfs.ReadFile(r.disk, names[1]); err != nil || !bytes.Equal(b, before[1]) {
				t.Errorf("the file is another one (%v)", err)
			}
		}
		r.settle()
		r.check()
		r.halt()
	}
}

// TestWhatLooksLikeDamageOfAQueueAndIsNone: gaps in a log, wherever the search for the first message meets them, and a log of which is not known yet what is committed.
func TestWhatLooksLikeDamageOfAQueueAndIsNone(t *testing.T) {
	r := newRig(t)
	r.lead()
	r.fill("T", 0, 10)
	q := r.s.queue("T", 0)
	r.log.retain(9)                                  // entry 0 is the leader's record, so message 8 is the first that stays
	for offset := int64(11); offset < 40; offset++ { // message 10 is missing
		m := message("T", 0, fmt.Sprint(offset))
		m.StoreHost = host
		b, err := mq.AppendStored(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		r.log.ProposeIn(-1, [][]byte{b}, func(_ int, _ dledger.Index, pos int64, b []byte) { mq.SetStored(b, offset, pos+headerSize) }, func(dledger.Appended, error) {})
		r.settle()
		q.mu.Lock()
		q.leastFor = -1 // it is searched anew
		q.mu.Unlock()
		r.s.Bounds("T", 0)
		if n := r.s.Stats().Damaged; n != 0 {
			t.Fatalf("with %d messages the queue is called damaged", offset)
		}
	}
	r.log.mu.Lock()
	r.log.cold, r.log.commit = true, -1
	r.log.mu.Unlock()
	for at := int64(8); at < 40; at++ {
		if g := r.s.Get("T", 0, at, 32, 1<<20, nil); g.Status == Found {
			t.Errorf("%d messages from %d on of a log of which nothing is known to be committed", len(g.Messages), at)
		}
	}
	if s := r.s.Stats(); s.Damaged != 0 || s.Mended != 0 {
		t.Errorf("%+v", s)
	}
}
