// Package msgstore owns the messages of a broker over one replicated log: how they get their place in a queue, and how they are found again by queue and
// offset, by time, by position and by key. It decides nothing about topics, permissions or clients, and knows no request. Start at Store.
//
// The log's committed entries are all there is to know; consume queues and key index are local, follow from them, and are built again
// when they are missing. Files are those of the Java original (docs/files.md).
package msgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// Config says what a store is built on. Ledger, Dir and StoreHost must be given.
type Config struct {
	// Ledger is the log, for this store alone.
	Ledger *dledger.Ledger
	// Dir holds the directories consumequeue and index and the file checkpoint (storePathRootDir).
	Dir string
	// StoreHost is the address of this broker for its clients. It goes into each message and its id.
	StoreHost netip.AddrPort

	// MetaTopic is the topic of the broker's own records. Meta is called for each committed message of it, in log order, on every member, by the
	// goroutine of Run; pos is the message's physical offset. It begins behind MetaFrom, the offset up to which the caller has them
	// already (-1: nothing), or earlier: what is at or below it must be passed over. An error ends Run.
	MetaTopic string
	MetaFrom  int64
	Meta      func(pos int64, m *mq.Message) error

	// LeaderRecord gives the message with which a new leadership begins, of MetaTopic. It takes no place in a queue. nil: a message with an empty body.
	LeaderRecord func(term dledger.Term) *mq.Message

	// Arrived is called for each message that has become readable in a queue, by the goroutine of Run; it must not block. m is valid until it returns.
	Arrived func(topic string, queueID int32, offset, tagsCode int64, m *mq.Message)

	// Promoted is called when this member has become ready to lead (see Ready), by the goroutine of Run.
	Promoted func(term dledger.Term)

	// DelayLevels are the delays behind the levels 1, 2, …; default DelayLevels.
	DelayLevels []time.Duration

	FS              vfs.FS        // default vfs.OS()
	Logger          *slog.Logger  // default: discarded
	CheckpointEvery time.Duration // default 3 s
	QueueFileUnits  int           // entries in a consume queue file; default 300,000
	IndexSlots      int           // default 5,000,000
	IndexItems      int           // default 20,000,000
}

// DelayLevels are the original's: level 1 is one second.
var DelayLevels = []time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute,
	10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
}

// Errors of the reads.
var (
	ErrNotFound = errors.New("no such message")
	ErrClosed   = errors.New("message store closed")
)

// Store is the messages of one member (DefaultMessageStore and DLedgerCommitLog in the Java original). Its methods may be called from any goroutine,
// Run once.
type Store struct {
	cfg Config
}

// Open finds out what the queues hold and from where on the log has to be dispatched. Run does it.
func Open(cfg Config) (*Store, error) {
	return &Store{cfg: cfg}, nil
}

// Run dispatches committed entries until ctx ends, with nil, or something fails. While this member leads it also prepares it to take messages.
func (s *Store) Run(ctx context.Context) error { return errUnfinished }

// Close makes a checkpoint and gives the files back. Run must have returned; the Ledger is still open.
func (s *Store) Close() error { return errUnfinished }

// Put gives messages to the log: all or none, next to each other, each in the queue that it names, in this order. QueueOffset, PhysicalOffset, StoreTime
// and StoreHost are set by the store. It never waits for the group; done is called once, possibly on the log's own goroutine, so it must not block.
// The messages must not be written to until then.
func (s *Store) Put(msgs []*mq.Message, done func(PutResult)) {
	done(PutResult{Status: UnknownError, QueueOffset: -1, Err: errUnfinished})
}

var errUnfinished = fmt.Errorf("not written yet")

// PutResult tells what became of a Put.
type PutResult struct {
	Status      PutStatus
	QueueOffset int64   // of the first message; -1 if it has none. Those of one queue follow each other
	Pos         []int64 // physical offset of each message
	Err         error   // why Status is not PutOK
}

// Filter chooses messages. Both must say yes; the second is asked only if the first does.
type Filter interface {
	MatchCode(tagsCode int64) bool
	Match(stored []byte) bool
}

// GetStatus says what a Get found.
type GetStatus uint8

// What a Get finds; the remark of a PULL answer names it.
const (
	Found   GetStatus = iota
	NoMatch           // messages are there, none that the filter wants
	NoMessageInQueue
	NoSuchQueue
	OffsetTooSmall
	OffsetOverflowOne // the offset is the queue's end: wait for what comes
	OffsetOverflowBadly
	Removing // the messages were just removed by retention
	OffsetFoundNull
)

var getStatusNames = [...]string{"FOUND", "NO_MATCHED_MESSAGE", "NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE", "OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_ONE",
	"OFFSET_OVERFLOW_BADLY", "MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL"}

// String is the original's name.
func (g GetStatus) String() string { return getStatusNames[g] }

// GetResult is what a Get found.
type GetResult struct {
	Status   GetStatus
	Next     int64    // where to go on
	Min, Max int64    // of the queue: the first offset that is kept, and the one behind the last
	Messages [][]byte // in stored form; the log's memory, not to be written to
	Size     int      // of them all
	Behind   int64    // bytes of log between the last message looked at and the log's end
}

// Get reads messages of a queue from offset on: at most maxMsgs and maxBytes, but at least one if one is there. A nil filter wants all.
func (s *Store) Get(topic string, queueID int32, offset int64, maxMsgs, maxBytes int, filter Filter) GetResult {
	return GetResult{Status: NoSuchQueue}
}

// MinOffset is the first offset of a queue that is kept, MaxOffset the one behind its last message; 0 for a queue that is not there.
func (s *Store) MinOffset(topic string, queueID int32) int64 { return 0 }
func (s *Store) MaxOffset(topic string, queueID int32) int64 { return 0 }

// OffsetByTime finds the first message of a queue that was stored at ts (ms) or later, or with upper the last that was stored then or earlier.
func (s *Store) OffsetByTime(topic string, queueID int32, ts int64, upper bool) int64 { return 0 }

// StoreTime is when the message at offset of a queue was stored (ms); -1 if there is none.
func (s *Store) StoreTime(topic string, queueID int32, offset int64) int64 { return -1 }

// EarliestTime is when the first kept message of a queue was stored (ms); -1 if there is none.
func (s *Store) EarliestTime(topic string, queueID int32) int64 { return -1 }

// EarliestLogTime is when the first message of the whole log was stored (ms); -1 if there is none.
func (s *Store) EarliestLogTime() int64 { return -1 }

// MessageAt gives the committed message at a physical offset, in stored form. ErrNotFound: none begins there.
func (s *Store) MessageAt(pos int64) ([]byte, error) { return nil, errUnfinished }

// QueryResult is what a Query found.
type QueryResult struct {
	Messages [][]byte // in stored form, newest first
	LastTime int64    // store time (ms) and physical offset of the newest message in the index
	LastPos  int64
}

// Query finds messages of a topic by a key or unique key that were stored between begin and end (ms), at most max. Other messages whose key has the same hash may
// be among them.
func (s *Store) Query(topic, key string, max int, begin, end int64) (QueryResult, error) {
	return QueryResult{}, errUnfinished
}

// Ready tells whether this member leads and may take messages: all that was committed when it was elected is committed in its own term and in the queues.
// Term is the term it is ready in.
func (s *Store) Ready() (term dledger.Term, ok bool) { return 0, false }

// WaitReady waits until Ready or ctx ends.
func (s *Store) WaitReady(ctx context.Context) error { return errUnfinished }

// Bounds are those of a queue.
type Bounds struct{ Min, Max int64 }

// Queues gives the queues of a topic that hold or held messages.
func (s *Store) Queues(topic string) map[int32]Bounds { return nil }

// DeleteTopic removes the queues of a topic and their files. pos is the physical offset of the record that asks for it: what the queues got from behind it
// stays.
func (s *Store) DeleteTopic(topic string, pos int64) error { return errUnfinished }

// CleanExpired removes what lies before the log's first entry from queues and index now, instead of within ten seconds.
func (s *Store) CleanExpired() error { return errUnfinished }

// Stats are counts since Open.
type Stats struct {
	Dispatched   int64 // messages
	Unreadable   int64 // entries that hold no message
	Behind       int64 // bytes of committed log that are not dispatched yet
	Queues       int
	First, End   int64 // physical offsets: where the log begins, and where the committed part ends
	DispatchedTo int64
	Checkpoints  int64
}

// Stats gives the counts.
func (s *Store) Stats() Stats { return Stats{} }
