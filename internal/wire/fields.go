package wire

import (
	"bytes"

	"dledger/internal/raft"
)

// fields are the values of any request or answer of the original, with its defaults where a key is missing or null: the messages
// share their keys, so one reader serves them all.
type fields struct {
	Base
	body         []byte // APPEND, or data of INSTALL_SNAPSHOT
	index, pos   int64
	beginIndex   int64
	endIndex     int64
	maxSize      int32
	commitIndex  int64
	preLogIndex  int64
	preLogTerm   int64
	nextTerm     int64 // TRUNCATE between ours
	xIndex       int64
	xTerm        int64
	endTerm      int64 // ledgerEndTerm of VOTE
	ledgerEnd    int64 // ledgerEndIndex of VOTE, and of COMPARE between ours
	included     int64 // lastIncludedIndex of INSTALL_SNAPSHOT
	includedTerm int64
	takeIndex    int64 // takeLeadershipLedgerIndex
	transferer   raft.ID
	transferee   raft.ID
	pushType     int // -1: unknown
	vote         int // -1: unknown
	batch        bool
	anew         bool // TRUNCATE between ours in dialect 0.3
	preVote      bool // VOTE between ours: a pre-vote
	peers        map[string]string
	single       entries // entry
	batched      entries // batchEntry
	list         entries // entries

	has04 bool // preLogIndex or xTerm is there
	has03 bool // batch or batchEntry is there
}

// parse reads a body. It may overwrite b: base64 is decoded in place.
func (f *fields) parse(b []byte) error {
	*f = fields{
		Base:  Base{Code: ResultOK, Term: -1},
		index: -1, pos: -1, commitIndex: -1, preLogIndex: -1, preLogTerm: -1, nextTerm: -1, xIndex: -1, xTerm: -1, endTerm: -1, ledgerEnd: -1,
		single: noEntries(), batched: noEntries(), list: noEntries(),
	}
	s := scanner{b: b}
	s.object(&f.Base, f)
	return s.err
}

// object reads the whole input as one object: every key into f, or with f nil those of the base alone.
func (s *scanner) object(base *Base, f *fields) {
	if s.peek() != '{' {
		s.fail("object expected")
		return
	}
	s.i++
	for first := true; s.more('}', first); first = false {
		key := s.key()
		if s.err != nil || s.value(base, f, key) {
			continue
		}
		if other := smartKey(key); other == nil || !s.value(base, f, other) {
			s.skip(0)
		}
	}
	s.end()
}

func (s *scanner) value(base *Base, f *fields, key []byte) bool {
	if f != nil {
		return f.value(s, key)
	}
	return base.value(s, key)
}

// value reads the value of key; false means that the key is none of the base, and nothing is read.
func (base *Base) value(s *scanner, key []byte) bool {
	switch string(key) {
	case "code":
		s.int32((*int32)(&base.Code))
	case "group":
		s.text(&base.Group)
	case "remoteId":
		s.id(&base.RemoteID)
	case "localId":
		s.id(&base.LocalID)
	case "leaderId":
		s.id(&base.LeaderID)
	case "term":
		s.int((*int64)(&base.Term))
	default:
		return false
	}
	return true
}

// value reads the value of key; false means that the key is not known, and nothing is read.
func (f *fields) value(s *scanner, key []byte) bool {
	switch string(key) {
	case "body", "data":
		f.body = s.bytes()
	case "index":
		s.int(&f.index)
	case "pos":
		s.int(&f.pos)
	case "beginIndex":
		s.int(&f.beginIndex)
	case "endIndex":
		s.int(&f.endIndex)
	case "maxSize":
		s.int32(&f.maxSize)
	case "commitIndex":
		s.int(&f.commitIndex)
	case "preLogIndex":
		f.has04 = true
		s.int(&f.preLogIndex)
	case "preLogTerm":
		s.int(&f.preLogTerm)
	case "nextTerm":
		s.int(&f.nextTerm)
	case "xIndex":
		s.int(&f.xIndex)
	case "xTerm":
		f.has04 = true
		s.int(&f.xTerm)
	case "ledgerEndIndex":
		s.int(&f.ledgerEnd)
	case "ledgerEndTerm":
		s.int(&f.endTerm)
	case "lastIncludedIndex":
		s.int(&f.included)
	case "lastIncludedTerm":
		s.int(&f.includedTerm)
	case "takeLeadershipLedgerIndex":
		s.int(&f.takeIndex)
	case "transferId":
		s.id(&f.transferer)
	case "transfereeId":
		s.id(&f.transferee)
	case "type":
		s.enum(pushNames, &f.pushType)
	case "voteResult":
		s.enum(voteNames, &f.vote)
	case "anew":
		s.bool(&f.anew)
	case "batch":
		f.has03 = true
		s.bool(&f.batch)
	case "preVote":
		s.bool(&f.preVote)
	case "peers":
		f.peers = s.textMap()
	case "entry":
		f.single.reset()
		f.single.one(s)
	case "batchEntry":
		f.has03 = true
		f.batched.list(s)
	case "entries":
		f.list.list(s)
	default:
		return f.Base.value(s, key)
	}
	return true
}

// textMap reads an object of strings.
func (s *scanner) textMap() map[string]string {
	if !s.open('{') {
		return nil
	}
	m := make(map[string]string)
	for first := true; s.more('}', first); first = false {
		key := string(s.key())
		var value string
		s.text(&value)
		m[key] = value
	}
	return m
}

// knownKeys are the keys that smartKey finds, by their form without case and underscores.
var knownKeys = func() map[string][]byte {
	known := make(map[string][]byte)
	for _, key := range []string{"code", "group", "remoteId", "localId", "leaderId", "term", "body", "data", "index", "pos",
		"beginIndex", "endIndex", "maxSize", "commitIndex", "preLogIndex", "preLogTerm", "xIndex", "xTerm", "ledgerEndIndex",
		"ledgerEndTerm", "lastIncludedIndex", "lastIncludedTerm", "takeLeadershipLedgerIndex", "transferId", "transfereeId", "type",
		"voteResult", "batch", "peers", "entry", "batchEntry", "entries", "magic", "size", "channel", "chainCrc", "bodyCrc"} {
		known[string(foldKey([]byte(key)))] = []byte(key)
	}
	return known
}()

// smartKey gives the known key that is spelled like key but for case, '_' and '-', or nil ("smart match" of the original's library).
func smartKey(key []byte) []byte {
	if len(key) > internMax {
		return nil
	}
	other := knownKeys[string(foldKey(key))]
	if bytes.Equal(other, key) {
		return nil // known, but not here
	}
	return other
}

func foldKey(key []byte) []byte {
	folded := make([]byte, 0, internMax)
	for _, c := range key {
		if c != '_' && c != '-' {
			folded = append(folded, c|0x20)
		}
	}
	return folded
}
