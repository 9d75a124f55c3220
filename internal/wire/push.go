package wire

import (
	"encoding/binary"
	"fmt"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// The binary PUSH, between our nodes only (CodePushBinary), big-endian:
//
//	offset size field
//	     0    1 version, 1
//	     1    1 type: 0 append, 1 commit, 2 compare, 3 truncate, 4 reset
//	     2    2 0
//	     4    8 term
//	    12    8 index     last entry before the first (append), entry to compare, last entry to keep
//	    20    8 log term  of that entry
//	    28    8 first     -1 without entries; in a truncate the term of the leader's entry behind index, -1 = not said
//	    36    8 last      -1 without entries; in a compare the leader's last entry
//	    44    8 commit
//	    52    8 pos       reset: byte position of the next entry
//	    60    2 length of group, 62 of remote id, 64 of local id, 66 of leader id
//	    68    4 number of runs
//	    72    … the four strings, then runs of (term int64, first int64), then the entries as they are on disk
//
// Its answer:
//
//	 0    1 version, 1
//	 1    1 0
//	 2    2 result
//	 4    8 term
//	12    8 begin, 20 end       the follower's log
//	28    8 x term, 36 x index  where its term differs; -1 = not said
//	44    2 length of leader id
//	46    … leader id
const (
	pushVersion    = 1
	pushFixed      = 72
	pushAnswerSize = 46
	runSize        = 16
)

var pushMsgTypes = [...]raft.MsgType{pushAppend: raft.MsgAppend, pushCommit: raft.MsgCommit, pushCompare: raft.MsgCompare,
	pushTruncate: raft.MsgTruncate, pushReset: raft.MsgReset}

func encodePushBinary(group string, m *raft.Message) ([][]byte, error) {
	for _, s := range []string{group, string(m.To), string(m.From), string(m.Leader)} {
		if len(s) > maxString {
			return nil, fmt.Errorf("encode %v: %.40q is longer than %d bytes", m.Type, s, maxString)
		}
	}
	b := make([]byte, 0, pushFixed+len(group)+len(m.To)+len(m.From)+len(m.Leader)+runSize*len(m.Runs))
	b = append(b, pushVersion, byte(pushTypes[m.Type]), 0, 0)
	b = append64(b, int64(m.Term))
	b = append64(b, int64(m.Index))
	b = append64(b, int64(m.LogTerm))
	first, last := m.First, m.Last
	if m.Type != raft.MsgAppend {
		first, last = raft.Index(nextTerm(m)), -1
	}
	if m.Type == raft.MsgCompare {
		last = m.End
	}
	b = append64(b, int64(first))
	b = append64(b, int64(last))
	b = append64(b, int64(m.Commit))
	b = append64(b, m.Pos)
	b = append16(b, len(group))
	b = append16(b, len(m.To))
	b = append16(b, len(m.From))
	b = append16(b, len(m.Leader))
	runs := m.Runs
	if m.Type != raft.MsgAppend {
		runs = nil
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(runs)))
	b = append(b, group...)
	b = append(b, m.To...)
	b = append(b, m.From...)
	b = append(b, m.Leader...)
	for _, run := range runs {
		b = append64(b, int64(run.Term))
		b = append64(b, int64(run.First))
	}
	if m.Type != raft.MsgAppend {
		return one(b), nil
	}
	return append(append(make([][]byte, 0, 1+len(m.Payload)), b), m.Payload...), nil
}

func decodePushBinary(b []byte) (Base, raft.Message, error) {
	base := Base{Code: ResultOK, Term: -1, Dialect: raft.CompatGo}
	var m raft.Message
	if len(b) < pushFixed {
		return base, m, fmt.Errorf("%w: push of %d bytes", ErrMalformed, len(b))
	}
	if b[0] != pushVersion {
		return base, m, fmt.Errorf("%w: push version %d", ErrMalformed, b[0])
	}
	if int(b[1]) >= len(pushMsgTypes) {
		return base, m, fmt.Errorf("%w: push type %d", ErrMalformed, b[1])
	}
	r := cutter{b: b[pushFixed:]}
	base.Group = r.text(get16(b, 60))
	base.RemoteID = raft.ID(r.text(get16(b, 62)))
	base.LocalID = raft.ID(r.text(get16(b, 64)))
	base.LeaderID = raft.ID(r.text(get16(b, 66)))
	base.Term = raft.Term(get64(b, 4))
	m = raft.Message{
		Type: pushMsgTypes[b[1]], From: base.LocalID, To: base.RemoteID, Leader: base.LeaderID, Term: base.Term,
		Index: raft.Index(get64(b, 12)), LogTerm: raft.Term(get64(b, 20)), Commit: raft.Index(get64(b, 44)), Pos: get64(b, 52),
	}
	n := int64(binary.BigEndian.Uint32(b[68:]))
	runs := r.take(n * runSize)
	if r.short {
		return base, m, fmt.Errorf("%w: push cut at %d bytes", ErrMalformed, len(b))
	}
	if m.Index < -1 || m.Pos < 0 {
		return base, m, fmt.Errorf("%w: %v at index %d, position %d", ErrArgument, m.Type, m.Index, m.Pos)
	}
	if m.Type != raft.MsgAppend {
		if len(runs) > 0 || len(r.b) > 0 {
			return base, m, fmt.Errorf("%w: entries in a %v", ErrArgument, m.Type)
		}
		switch m.Type {
		case raft.MsgTruncate:
			m.Runs = behindIndex(&m, get64(b, 28), false)
		case raft.MsgCompare:
			m.End = raft.Index(get64(b, 36))
		}
		return base, m, nil
	}
	m.First, m.Last = raft.Index(get64(b, 28)), raft.Index(get64(b, 36))
	if n > 0 {
		m.Runs = make([]raft.Run, n)
	}
	for i := range m.Runs {
		m.Runs[i] = raft.Run{Term: raft.Term(get64(runs, i*runSize)), First: raft.Index(get64(runs, i*runSize+8))}
	}
	if err := checkEntries(r.b, m.First, m.Last, m.Runs); err != nil {
		return base, m, fmt.Errorf("%w: %w", ErrArgument, err)
	}
	if m.First != m.Index+1 {
		return base, m, fmt.Errorf("%w: entry %d behind entry %d", ErrArgument, m.First, m.Index)
	}
	m.Payload = raft.Payload{r.b}
	return base, m, nil
}

// nextTerm gives the term that a truncate tells of the entry behind its index, -1 where it tells none.
func nextTerm(m *raft.Message) raft.Term {
	if m.Type != raft.MsgTruncate || len(m.Runs) == 0 {
		return -1
	}
	return m.Runs[len(m.Runs)-1].Term
}

// startsAnew tells whether a truncate is for a log that lacks the entry it carries, too.
func startsAnew(m *raft.Message) bool { return nextTerm(m) >= 0 && m.Runs[0].First == m.Index }

// behindIndex is the reverse of nextTerm and startsAnew.
func behindIndex(m *raft.Message, t int64, anew bool) []raft.Run {
	behind := raft.Run{Term: raft.Term(t), First: m.Index + 1}
	switch {
	case t < 0:
		return nil
	case anew && behind.Term == m.LogTerm:
		return []raft.Run{{Term: m.LogTerm, First: m.Index}}
	case anew:
		return []raft.Run{{Term: m.LogTerm, First: m.Index}, behind}
	}
	return []raft.Run{behind}
}

// checkEntries checks that b holds exactly the entries first…last with the terms that runs gives, looking at their headers only.
func checkEntries(b []byte, first, last raft.Index, runs []raft.Run) error {
	index, run := first, -1
	for len(b) > 0 {
		h, err := entry.Parse(b)
		if err != nil {
			return err
		}
		if int(h.Size) > len(b) {
			return fmt.Errorf("entry %d: %w", h.Index, entry.ErrShort)
		}
		if run+1 < len(runs) && runs[run+1].First == index {
			run++
			if run > 0 && runs[run].Term <= runs[run-1].Term {
				return fmt.Errorf("term %d behind term %d", runs[run].Term, runs[run-1].Term)
			}
		}
		if run < 0 || h.Index != index || h.Term != runs[run].Term {
			return fmt.Errorf("entry %d of term %d where index %d is due", h.Index, h.Term, index)
		}
		index++
		b = b[h.Size:]
	}
	if index == first || index-1 != last || run+1 != len(runs) {
		return fmt.Errorf("entries %d to %d where %d to %d are announced", first, index-1, first, last)
	}
	return nil
}

func appendPushBinaryAnswer(b []byte, ans *raft.Message) []byte {
	b = append(b, pushVersion, 0)
	b = append16(b, int(ResultOf(ans.Status)))
	b = append64(b, int64(ans.Term))
	b = append64(b, int64(ans.Begin))
	b = append64(b, int64(ans.End))
	b = append64(b, int64(ans.XTerm))
	b = append64(b, int64(ans.XIndex))
	leader := ans.Leader[:min(len(ans.Leader), maxString)]
	b = append16(b, len(leader))
	return append(b, leader...)
}

func decodePushBinaryAnswer(b []byte, ans *raft.Message) error {
	if len(b) < pushAnswerSize || b[0] != pushVersion {
		return fmt.Errorf("%w: push answer of %d bytes", ErrMalformed, len(b))
	}
	r := cutter{b: b[pushAnswerSize:]}
	ans.Leader = raft.ID(r.text(get16(b, 44)))
	if !r.done() {
		return fmt.Errorf("%w: push answer with %d bytes", ErrMalformed, len(b))
	}
	ans.Status = result16(b).Status()
	ans.Term = raft.Term(get64(b, 4))
	ans.Begin, ans.End = raft.Index(get64(b, 12)), raft.Index(get64(b, 20))
	ans.XTerm, ans.XIndex = raft.Term(get64(b, 28)), raft.Index(get64(b, 36))
	return nil
}

// maxString bounds group and ids in binary messages.
const maxString = 255

func append16(b []byte, n int) []byte   { return binary.BigEndian.AppendUint16(b, uint16(n)) }
func append64(b []byte, n int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }

func get16(b []byte, at int) int64 { return int64(binary.BigEndian.Uint16(b[at:])) }
func get64(b []byte, at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }

// cutter takes fields off the front of b. Where b is too short it gives empty ones and says so.
type cutter struct {
	b     []byte
	short bool
}

func (r *cutter) take(n int64) []byte {
	if n < 0 || n > int64(len(r.b)) {
		r.short = true
		return nil
	}
	field := r.b[:n]
	r.b = r.b[n:]
	return field
}

// done tells that b held exactly what was taken.
func (r *cutter) done() bool { return !r.short && len(r.b) == 0 }

func (r *cutter) text(n int64) string { return intern(r.take(n)) }
