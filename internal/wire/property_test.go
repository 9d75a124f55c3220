package wire

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"

	"pgregory.net/rapid"
)

// drawEntries gives encoded entries first… with terms that never fall, and their runs, cut into pieces anywhere.
func drawEntries(t *rapid.T, n int) (raft.Payload, raft.Index, []raft.Run) {
	first := raft.Index(rapid.Int64Range(0, 1<<40).Draw(t, "first"))
	term := raft.Term(rapid.Int64Range(0, 1<<40).Draw(t, "term"))
	var all []byte
	var runs []raft.Run
	for i := range n {
		if step := rapid.IntRange(0, 3).Draw(t, "step"); step == 3 && i > 0 {
			term++
		}
		if len(runs) == 0 || runs[len(runs)-1].Term != term {
			runs = append(runs, raft.Run{Term: term, First: first + raft.Index(i)})
		}
		body := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "body")
		all = append(all, encoded(first+raft.Index(i), term, rapid.Int64().Draw(t, "pos"), body, rapid.Bool().Draw(t, "sealed"))...)
	}
	var p raft.Payload
	for len(all) > 0 {
		k := rapid.IntRange(1, len(all)).Draw(t, "piece")
		p = append(p, all[:k])
		all = all[k:]
	}
	return p, first, runs
}

func encoded(index raft.Index, term raft.Term, pos int64, body []byte, sealed bool) []byte {
	b := sealedNot(entry.Header{Magic: entry.MagicNormal, Size: int32(entry.HeaderSize + len(body)), Index: index, Term: term, Pos: pos,
		BodyLen: int32(len(body))}, string(body))
	if sealed {
		entry.Seal(b)
	}
	return b
}

// same compares messages; payloads count by their bytes, not by how they are cut.
func same(a, b raft.Message) bool {
	if !bytes.Equal(bytes.Join(a.Payload, nil), bytes.Join(b.Payload, nil)) {
		return false
	}
	a.Payload, b.Payload = nil, nil
	return reflect.DeepEqual(a, b)
}

func drawID(t *rapid.T, label string) raft.ID {
	return raft.ID(rapid.StringMatching(`[a-z0-9"\\ä/_]{1,8}`).Draw(t, label))
}

// drawRequest gives any request that the dialect can carry.
func drawRequest(t *rapid.T, dialect raft.Compat) raft.Message {
	index := func(label string) raft.Index { return raft.Index(rapid.Int64Range(-1, 1<<60).Draw(t, label)) }
	m := raft.Message{From: drawID(t, "from"), To: drawID(t, "to"), Leader: drawID(t, "leader"), Term: raft.Term(index("term"))}
	types := []raft.MsgType{raft.MsgPreVote, raft.MsgVote, raft.MsgHeartbeat, raft.MsgCompare, raft.MsgTruncate, raft.MsgAppend,
		raft.MsgCommit, raft.MsgReset, raft.MsgTransfer}
	m.Type = rapid.SampledFrom(types).Draw(t, "type")
	if m.Type.IsPush() {
		m.Commit = index("commit")
	}
	switch m.Type {
	case raft.MsgPreVote, raft.MsgVote:
		m.Index, m.LogTerm = index("index"), raft.Term(index("logTerm"))
	case raft.MsgHeartbeat:
		m.Commit = -1
		if dialect == raft.CompatGo {
			m.Commit = index("commit")
		}
	case raft.MsgTransfer:
		m.Transferer, m.Transferee, m.Index = drawID(t, "transferer"), drawID(t, "transferee"), index("index")
	case raft.MsgReset:
		m.Index, m.LogTerm, m.Pos = index("index"), raft.Term(index("logTerm")), rapid.Int64Range(0, 1<<60).Draw(t, "pos")
		m.Commit = index("commit")
	case raft.MsgAppend:
		n := rapid.IntRange(1, 5).Draw(t, "n")
		var first raft.Index
		m.Payload, first, m.Runs = drawEntries(t, n)
		m.First, m.Last, m.Index, m.LogTerm = first, first+raft.Index(n-1), first-1, raft.UnknownTerm
		if dialect == raft.CompatGo {
			m.LogTerm = raft.Term(index("logTerm"))
		}
	case raft.MsgCompare, raft.MsgTruncate:
		m.Index, m.LogTerm = index("index"), raft.Term(index("logTerm"))
		if dialect == raft.Compat03 {
			var runs []raft.Run
			m.Payload, m.Index, runs = drawEntries(t, 1)
			m.LogTerm = runs[0].Term
		}
		if m.Type == raft.MsgTruncate && dialect == raft.Compat04 {
			m.LogTerm = raft.UnknownTerm
		}
		if m.Type == raft.MsgTruncate && rapid.Bool().Draw(t, "tells") {
			m.Runs = []raft.Run{{Term: max(0, raft.Term(index("nextTerm"))), First: m.Index + 1}}
			if dialect == raft.Compat03 && rapid.Bool().Draw(t, "anew") {
				m.Runs = behindIndex(&m, int64(m.Runs[0].Term), true)
			}
		}
		if m.Type == raft.MsgCompare {
			m.End = index("end")
		}
	}
	return m
}

func TestRequestsOfEveryDialectSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dialect := rapid.SampledFrom([]raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03}).Draw(t, "dialect")
		m := drawRequest(t, dialect)
		group := string(drawID(t, "group"))
		code, pieces, err := EncodeRequest(dialect, group, &m)
		if err != nil {
			t.Fatal(err)
		}
		base, got, err := DecodeRequest(dialect, code, bytes.Join(pieces, nil))
		if err != nil {
			t.Fatal(err)
		}
		if base.Group != group || base.RemoteID != m.To || base.LocalID != m.From || base.Term != m.Term {
			t.Fatalf("got base %+v of %+v", base, m)
		}
		if !same(got, m) {
			t.Fatalf("\ngot  %+v\nwant %+v", got, m)
		}
	})
}

func TestAnswersOfEveryDialectSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dialect := rapid.SampledFrom([]raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03}).Draw(t, "dialect")
		req := drawRequest(t, dialect)
		code, pieces, err := EncodeRequest(dialect, "g", &req)
		if err != nil {
			t.Fatal(err)
		}
		base, received, err := DecodeRequest(dialect, code, bytes.Join(pieces, nil))
		if err != nil {
			t.Fatal(err)
		}
		ans := raft.Message{Type: req.Type.Answer(), From: req.To, To: req.From, Index: req.Index, First: req.First, Last: req.Last,
			Status: raft.Status(rapid.IntRange(0, int(raft.StatusNotReady)).Draw(t, "status")),
			Term:   raft.Term(rapid.Int64Range(0, 1<<60).Draw(t, "term"))}
		binary := dialect == raft.CompatGo && (req.Type.IsPush() || req.Type == raft.MsgReset)
		switch {
		case req.Type == raft.MsgVote || req.Type == raft.MsgPreVote:
			ans.Vote, ans.Leader = raft.VoteResult(rapid.IntRange(0, 11).Draw(t, "vote")), req.Leader // echoed, as in the original
		case req.Type == raft.MsgHeartbeat && ans.Status == raft.StatusOK:
			ans.Term = req.Term // not carried
		case req.Type == raft.MsgTransfer && ans.Status != raft.StatusOK:
			ans.Leader = "n7"
		case req.Type.IsPush() || req.Type == raft.MsgReset:
			ans.Begin, ans.End = raft.Index(rapid.Int64Range(-1, 1<<60).Draw(t, "begin")), raft.Index(rapid.Int64Range(-1, 1<<60).Draw(t, "end"))
			ans.XTerm, ans.XIndex = -1, -1
			if req.Type == raft.MsgCompare && ans.Status == raft.StatusInconsistentState && dialect != raft.Compat03 {
				ans.XTerm, ans.XIndex = 3, 77
			}
			if binary {
				ans.Leader = "n7"
			} else if ans.Status != raft.StatusExpiredTerm {
				ans.Term = req.Term
			}
		}
		got, err := DecodeAnswer(dialect, &req, HeaderOK, AppendAnswer(nil, &base, &received, &ans))
		if err != nil {
			t.Fatal(err)
		}
		if !same(got, ans) {
			t.Fatalf("\ngot  %+v\nwant %+v", got, ans)
		}
	})
}

func TestBatchesSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		append1 := AppendBatchRequest{Group: string(drawID(t, "group")), RemoteID: drawID(t, "to"),
			Bodies: rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, 6).Draw(t, "bodies")}
		append1.Bodies[0] = append(append1.Bodies[0], make([]byte, rapid.SampledFrom([]int{0, joinMax, joinMax + 1, 9000}).Draw(t, "large"))...)
		var append2 AppendBatchRequest
		if err := append2.Decode(bytes.Join(append1.Pieces(), nil)); err != nil {
			t.Fatal(err)
		}
		if append2.Group != append1.Group || append2.RemoteID != append1.RemoteID || len(append2.Bodies) != len(append1.Bodies) {
			t.Fatalf("got %+v, want %+v", append2, append1)
		}
		for i := range append1.Bodies {
			if !bytes.Equal(append1.Bodies[i], append2.Bodies[i]) {
				t.Fatalf("body %d: got %x, want %x", i, append2.Bodies[i], append1.Bodies[i])
			}
		}

		answer1 := AppendBatchResponse{Code: ResultOK, LeaderID: drawID(t, "leader"), Term: 4, First: 9,
			Positions: rapid.SliceOfN(rapid.Int64(), 1, 5).Draw(t, "positions")}
		var answer2 AppendBatchResponse
		if err := answer2.Decode(HeaderOK, answer1.AppendTo(nil)); err != nil || !reflect.DeepEqual(answer1, answer2) {
			t.Fatalf("got %+v, %v, want %+v", answer2, err, answer1)
		}

		get1 := GetBatchRequest{Group: "g", RemoteID: "n1", From: raft.Index(rapid.Int64Range(0, 1<<60).Draw(t, "from")), BytesMax: 1 << 20,
			EntriesMax: 7, Confirmed: rapid.Bool().Draw(t, "confirmed"), Wait: 1500 * time.Millisecond}
		var get2 GetBatchRequest
		if err := get2.Decode(get1.AppendTo(nil)); err != nil || get2 != get1 {
			t.Fatalf("got %+v, %v, want %+v", get2, err, get1)
		}

		n := rapid.IntRange(0, 5).Draw(t, "n")
		payload, first, _ := drawEntries(t, n)
		got1 := GetBatchResponse{Code: ResultOK, LeaderID: "n1", Term: 4, Commit: 100, First: first, Last: first + raft.Index(n-1), Entries: payload}
		if n == 0 {
			got1.First, got1.Last = -1, -1
		}
		var got2 GetBatchResponse
		if err := got2.Decode(HeaderOK, bytes.Join(got1.Pieces(), nil)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.Join(got1.Entries, nil), bytes.Join(got2.Entries, nil)) {
			t.Fatal("entries differ")
		}
		got1.Entries, got2.Entries = nil, nil
		if !reflect.DeepEqual(got1, got2) {
			t.Fatalf("got %+v, want %+v", got2, got1)
		}
	})
}

// A refused request of any code has an answer that its sender can read, whatever was read of the request.
func TestEveryRefusalCanBeRead(t *testing.T) {
	requests := map[int32]raft.MsgType{CodeVote: raft.MsgVote, CodeHeartbeat: raft.MsgHeartbeat,
		CodePush: raft.MsgAppend, CodePushBinary: raft.MsgAppend, CodeTransfer: raft.MsgTransfer, CodeReset: raft.MsgReset}
	for code, of := range requests {
		dialect := raft.Compat04
		if code == CodePushBinary {
			dialect = raft.CompatGo
		}
		base, _, err := DecodeRequest(dialect, code, []byte("{"))
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("code %d: got %v", code, err)
		}
		b := AppendError(nil, code, &base, ResultDiskFull, "n2")
		ans, err := DecodeAnswer(dialect, &raft.Message{Type: of}, HeaderOK, b)
		if err != nil || ans.Status != raft.StatusDiskFull {
			t.Errorf("code %d: got %+v, %v", code, ans, err)
		}
	}
	base := ClientBase("g", "n1")
	var appended AppendResponse
	var got GetResponse
	var appendedBatch AppendBatchResponse
	var gotBatch GetBatchResponse
	for code, decode := range map[int32]func([]byte) (Result, raft.ID, error){
		CodeAppend: func(b []byte) (Result, raft.ID, error) {
			err := appended.Decode(HeaderOK, b)
			return appended.Code, appended.LeaderID, err
		},
		CodeGet: func(b []byte) (Result, raft.ID, error) {
			err := got.Decode(HeaderOK, b)
			return got.Code, got.LeaderID, err
		},
		CodeAppendBatch: func(b []byte) (Result, raft.ID, error) {
			err := appendedBatch.Decode(HeaderOK, b)
			return appendedBatch.Code, appendedBatch.LeaderID, err
		},
		CodeGetBatch: func(b []byte) (Result, raft.ID, error) {
			err := gotBatch.Decode(HeaderOK, b)
			return gotBatch.Code, gotBatch.LeaderID, err
		},
	} {
		result, leader, err := decode(AppendError(nil, code, &base, ResultNotLeader, "n2"))
		if result != ResultNotLeader || leader != "n2" || err != nil {
			t.Errorf("code %d: got %v, leader %q, %v", code, result, leader, err)
		}
	}
	if appended.Index != -1 || appended.Pos != -1 {
		t.Errorf("a refused append has index %d, pos %d", appended.Index, appended.Pos)
	}
}

func TestAnswersWithoutABodyAreNetworkErrors(t *testing.T) {
	req := raft.Message{Type: raft.MsgVote}
	for _, c := range []struct {
		code int32
		body string
		want error
	}{{1, "{}", ErrNetwork}, {2, "", ErrNetwork}, {3, "", ErrUnsupported}, {HeaderOK, "", ErrNetwork}, {HeaderOK, "{", ErrMalformed}} {
		if _, err := DecodeAnswer(raft.Compat04, &req, c.code, []byte(c.body)); !errors.Is(err, c.want) {
			t.Errorf("code %d, body %q: got %v, want %v", c.code, c.body, err, c.want)
		}
	}
}

func TestResultsAndStatusesAreOneTable(t *testing.T) {
	for s := raft.StatusOK; s <= raft.StatusNotReady; s++ {
		if got := ResultOf(s).Status(); got != s {
			t.Errorf("%v travels as %v and arrives as %v", s, ResultOf(s), got)
		}
		if _, ok := resultNames[ResultOf(s)]; !ok {
			t.Errorf("%v has code %d without a name", s, ResultOf(s))
		}
	}
}

// validBodies gives one body for each request code and dialect, and for each kind of answer.
func validBodies(t testing.TB) map[string][]byte {
	p := raft.Payload{encoded(5, 2, 100, []byte("hello"), true), encoded(6, 3, 153, nil, true)}
	bodies := map[string][]byte{}
	for _, dialect := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
		_, pieces, err := EncodeRequest(dialect, "g", &raft.Message{Type: raft.MsgAppend, From: "n0", To: "n1", Leader: "n0", Term: 4,
			Index: 4, LogTerm: 2, First: 5, Last: 6, Runs: []raft.Run{{Term: 2, First: 5}, {Term: 3, First: 6}}, Commit: 3, Payload: p})
		if err != nil {
			t.Fatal(err)
		}
		bodies["push "+dialect.String()] = bytes.Join(pieces, nil)
	}
	bodies["push answer"] = appendPushBinaryAnswer(nil, &raft.Message{Leader: "n0", Begin: 1, End: 2})
	bodies["append batch"] = bytes.Join((&AppendBatchRequest{Group: "g", RemoteID: "n1", Bodies: [][]byte{[]byte("a"), []byte("bc")}}).Pieces(), nil)
	bodies["append batch answer"] = (&AppendBatchResponse{Code: ResultOK, LeaderID: "n0", Positions: []int64{3, 4}}).AppendTo(nil)
	bodies["get batch"] = (&GetBatchRequest{Group: "g", RemoteID: "n1", From: 3}).AppendTo(nil)
	bodies["get batch answer"] = bytes.Join((&GetBatchResponse{Code: ResultOK, LeaderID: "n0", First: 5, Last: 6, Entries: p}).Pieces(), nil)
	bodies["append"] = (&AppendRequest{Base: ClientBase("g", "n1"), Body: []byte("hello")}).AppendTo(nil)
	get, err := (&GetResponse{Base: ClientBase("g", "n1"), Entries: p}).AppendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	bodies["get answer"] = get
	return bodies
}

// decodeAll reads b as everything it could be.
func decodeAll(b []byte) map[string]error {
	read := func() []byte { return bytes.Clone(b) } // decoding may write into it
	errs := map[string]error{}
	for _, dialect := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
		code := CodePush
		if dialect == raft.CompatGo {
			code = CodePushBinary
		}
		_, _, errs["push "+dialect.String()] = DecodeRequest(dialect, code, read())
	}
	errs["push answer"] = decodePushBinaryAnswer(read(), new(raft.Message))
	errs["append batch"] = new(AppendBatchRequest).Decode(read())
	errs["append batch answer"] = new(AppendBatchResponse).Decode(HeaderOK, read())
	errs["get batch"] = new(GetBatchRequest).Decode(read())
	errs["get batch answer"] = new(GetBatchResponse).Decode(HeaderOK, read())
	errs["append"] = new(AppendRequest).Decode(read())
	errs["get answer"] = new(GetResponse).Decode(HeaderOK, read())
	return errs
}

func TestBodiesCutAnywhereAreRefused(t *testing.T) {
	for name, body := range validBodies(t) {
		if err := decodeAll(body)[name]; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for n := range body {
			if decodeAll(body[:n:n])[name] == nil {
				t.Errorf("%s cut at byte %d of %d passed", name, n, len(body))
			}
		}
		if decodeAll(append(bytes.Clone(body), 0))[name] == nil {
			t.Errorf("%s with a byte behind it passed", name)
		}
	}
}

// The entries of a binary push are what its header says they are: a flipped bit in the parts that the core relies on is noticed.
func TestBinaryPushMustHoldTheEntriesItAnnounces(t *testing.T) {
	valid := validBodies(t)["push go"]
	entries := bytes.Index(valid, encoded(5, 2, 100, []byte("hello"), true))
	second := entries + entry.HeaderSize + len("hello")
	for name, at := range map[string]int{"version": 0, "type": 1, "first": 35, "last": 43, "index": 19, "runs": 71, "entry size": entries + 7,
		"entry index": entries + 15, "entry term": entries + 23, "body length": entries + 47, "second index": second + 15, "second term": second + 23} {
		for bit := range 8 {
			b := bytes.Clone(valid)
			b[at] ^= 1 << bit
			if _, _, err := DecodeRequest(raft.CompatGo, CodePushBinary, b); err == nil {
				t.Errorf("%s: bit %d of byte %d flipped and not noticed", name, bit, at)
			}
		}
	}
}

func FuzzBodies(f *testing.F) {
	for _, body := range validBodies(f) {
		f.Add(body)
	}
	for version := range versions {
		for _, frame := range goldenFrames(f, version) {
			f.Add([]byte(frame.BodyJSON))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		decodeAll(b)
		for _, code := range []int32{CodeVote, CodeHeartbeat, CodePush, CodePushBinary, CodeTransfer, CodeReset} {
			base, m, err := DecodeRequest(raft.Compat04, code, bytes.Clone(b))
			if err != nil {
				AppendError(nil, code, &base, ResultUnexpectedArgument, "")
				continue
			}
			// What passes can be written again and means the same.
			dialect := base.Dialect
			if code == CodeReset {
				dialect = raft.Compat04
			}
			if len(base.Group)+len(m.From)+len(m.To)+len(m.Leader) > maxString {
				continue
			}
			code2, pieces, err := EncodeRequest(dialect, base.Group, &m)
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			_, again, err := DecodeRequest(raft.Compat04, code2, bytes.Join(pieces, nil))
			if err != nil || !same(m, again) {
				t.Fatalf("\nread  %+v\nagain %+v, %v", m, again, err)
			}
		}
	})
}

// FuzzAnswers: what a peer or a client is answered gives an answer to what was asked, or an error, and is never written to.
func FuzzAnswers(f *testing.F) {
	for _, body := range validBodies(f) {
		f.Add(int32(200), body)
	}
	for version := range versions {
		for _, frame := range goldenFrames(f, version) {
			f.Add(int32(200), []byte(frame.BodyJSON))
		}
	}
	f.Add(int32(1), []byte("x"))
	f.Add(int32(3), []byte(nil))
	types := []raft.MsgType{raft.MsgVote, raft.MsgPreVote, raft.MsgHeartbeat, raft.MsgAppend, raft.MsgCompare, raft.MsgTruncate, raft.MsgCommit, raft.MsgReset, raft.MsgTransfer}
	f.Fuzz(func(t *testing.T, code int32, b []byte) {
		read := func() []byte { return bytes.Clone(b) }
		for _, dialect := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
			for _, typ := range types {
				req := raft.Message{Type: typ, From: "n0", To: "n1", Term: 4, Index: 4, First: 5, Last: 6}
				a, err := DecodeAnswer(dialect, &req, code, read())
				if err == nil && (a.Type != typ.Answer() || a.From != "n1" || a.To != "n0") {
					t.Fatalf("%s in %s: the answer is %+v", typ, dialect, a)
				}
			}
		}
		for name, err := range map[string]error{
			"append": new(AppendResponse).Decode(code, read()), "get": new(GetResponse).Decode(code, read()), "metadata": new(MetadataResponse).Decode(code, read()),
			"append batch": new(AppendBatchResponse).Decode(code, read()), "get batch": new(GetBatchResponse).Decode(code, read()),
			"get request": new(GetRequest).Decode(read()), "metadata request": new(MetadataRequest).Decode(read()),
		} {
			if err != nil && err.Error() == "" {
				t.Errorf("%s: an error without a message", name)
			}
		}
		if c, err := SnapshotDialect(code, read()); err == nil && c != raft.Compat03 && c != raft.Compat04 {
			t.Errorf("a dialect that no original speaks: %v", c)
		}
		if base, err := DecodeBase(read()); err == nil && len(base.Group) > len(b) {
			t.Errorf("group %q of %d bytes", base.Group, len(b))
		}
	})
}

// A port with several groups looks at the base first, to find the group, and then reads the whole request.
func TestReadingTheBaseLeavesTheRequestAsItIs(t *testing.T) {
	for name, body := range validBodies(t) {
		before := bytes.Clone(body)
		base, err := DecodeBase(body)
		if !bytes.Equal(body, before) {
			t.Errorf("%s was written to", name)
		}
		if name == "push 0.4" && (err != nil || base.Group != "g" || base.RemoteID != "n1" || base.LocalID != "n0" || base.Term != 4) {
			t.Errorf("%s: got %+v, %v", name, base, err)
		}
	}
}

// Little input must not become much memory: keys that repeat, and entries that are nothing but braces.
func TestHostileBodiesCostLittleMemory(t *testing.T) {
	for name, body := range map[string]string{
		"entries again and again": "{" + strings.Repeat(`"entries":[{}],`, 5_000) + `"type":0}`,
		"entry again and again":   "{" + strings.Repeat(`"entry":{},`, 5_000) + `"type":0}`,
		"empty entries":           `{"entries":[` + strings.Repeat(`{},`, 100_000) + `{}]}`,
		"unknown keys":            "{" + strings.Repeat(`"x":[[[[]]]],`, 5_000) + `"type":0}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, _, err := DecodeRequest(raft.Compat04, CodePush, []byte(body)); err == nil {
			t.Errorf("%s: passed", name)
		}
		runtime.ReadMemStats(&after)
		if cost := after.TotalAlloc - before.TotalAlloc; cost > 32*uint64(len(body)) {
			t.Errorf("%s: %d bytes made %d", name, len(body), cost)
		}
	}
}
