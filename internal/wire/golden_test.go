package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/golden"
	"dledger/internal/raft"
)

// goldenFrame is one frame that the classes of the original wrote.
type goldenFrame struct {
	Name, Kind   string
	RemotingCode int32
	Opaque       int32
	BodyJSON     string
	FrameHex     string
}

func goldenFrames(t testing.TB, version string) []goldenFrame {
	raw, err := golden.Read("frames-" + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Frames []goldenFrame }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file.Frames
}

var versions = map[string]raft.Compat{"0.3.1.2": raft.Compat03, "0.4.0": raft.Compat04}

// sameJSON compares two JSON texts as values.
func sameJSON(t *testing.T, got []byte, want string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Every frame of the original is read, written again from what was read, and comes out with the same keys and values; requests even
// with the same bytes.
func TestOriginalFramesSurviveReadingAndWriting(t *testing.T) {
	for version, compat := range versions {
		t.Run(version, func(t *testing.T) {
			requests := map[int32]goldenFrame{}
			for _, f := range goldenFrames(t, version) {
				if f.Kind == "request" {
					requests[f.Opaque] = f
				}
				t.Run(f.Name, func(t *testing.T) {
					if f.Kind == "request" {
						testRequest(t, compat, f)
					} else {
						testAnswer(t, compat, requests[f.Opaque], f)
					}
				})
			}
		})
	}
}

func testRequest(t *testing.T, compat raft.Compat, f goldenFrame) {
	body := []byte(f.BodyJSON)
	var got []byte
	switch f.RemotingCode {
	case CodeMetadata:
		var r MetadataRequest
		if err := r.Decode(body); err != nil {
			t.Fatal(err)
		}
		got = r.AppendTo(nil)
	case CodeAppend:
		var r AppendRequest
		if err := r.Decode(body); err != nil {
			t.Fatal(err)
		}
		got = r.AppendTo(nil)
	case CodeGet:
		var r GetRequest
		if err := r.Decode(body); err != nil {
			t.Fatal(err)
		}
		got = r.AppendTo(nil)
	case CodePull, CodeInstallSnapshot, CodeUserDefined: // only the base is ever needed of these
		base, err := DecodeBase(body)
		if err != nil {
			t.Fatal(err)
		}
		if string(body) != f.BodyJSON {
			t.Fatalf("reading the base wrote %s", body)
		}
		if base.Group != "g0" || base.RemoteID != "n1" {
			t.Fatalf("got base %+v", base)
		}
		return
	default:
		base, m, err := DecodeRequest(compat, f.RemotingCode, body)
		if err != nil {
			t.Fatal(err)
		}
		code, pieces, err := EncodeRequest(compat, base.Group, &m)
		if err != nil {
			t.Fatal(err)
		}
		if code != f.RemotingCode {
			t.Errorf("got code %d, want %d", code, f.RemotingCode)
		}
		if base.Dialect != compat && f.RemotingCode == CodePush {
			t.Errorf("got dialect %v", base.Dialect)
		}
		got = bytes.Join(pieces, nil)
	}
	if string(got) != f.BodyJSON {
		t.Errorf("got  %s\nwant %s", got, f.BodyJSON)
	}
}

func testAnswer(t *testing.T, compat raft.Compat, request, f goldenFrame) {
	body := []byte(f.BodyJSON)
	var got []byte
	var err error
	switch request.RemotingCode {
	case CodeMetadata:
		var r MetadataResponse
		if err := r.Decode(HeaderOK, body); err != nil {
			t.Fatal(err)
		}
		got = r.AppendTo(nil)
	case CodeAppend:
		var r AppendResponse
		if err := r.Decode(HeaderOK, body); err != nil {
			t.Fatal(err)
		}
		got = r.AppendTo(nil)
	case CodeGet:
		var r GetResponse
		if err := r.Decode(HeaderOK, body); err != nil {
			t.Fatal(err)
		}
		if got, err = r.AppendTo(nil); err != nil {
			t.Fatal(err)
		}
	case CodeInstallSnapshot:
		base, err := DecodeBase(body)
		if err != nil {
			t.Fatal(err)
		}
		got = base.appendTo(nil)
	default:
		base, req, err := DecodeRequest(compat, request.RemotingCode, []byte(request.BodyJSON))
		if err != nil {
			t.Fatal(err)
		}
		ans, err := DecodeAnswer(compat, &req, HeaderOK, body)
		if err != nil {
			t.Fatal(err)
		}
		if ans.Type != req.Type.Answer() || ans.From != req.To || ans.To != req.From {
			t.Errorf("got answer %+v", ans)
		}
		got = AppendAnswer(nil, &base, &req, &ans)
	}
	sameJSON(t, got, f.BodyJSON)
}

// What the requests of the original mean to the core.
func TestOriginalRequestsMeanWhatTheyMean(t *testing.T) {
	hello := sealedNot(entry.Header{Magic: 1, Size: 53, Index: 7, Term: 3, Pos: 384, BodyLen: 5}, "hello")
	oneEntry := sealedNot(entry.Header{Magic: 1, Size: 51, Index: 8, Term: 4, Pos: 437, BodyLen: 3}, "one")
	two := sealedNot(entry.Header{Magic: 1, Size: 51, Index: 9, Term: 4, Pos: 488, BodyLen: 3}, "two")
	noop := sealedNot(entry.Header{Magic: 2, Size: 48, Index: 9, Term: 4, Pos: 488}, "")
	runs := []raft.Run{{Term: 4, First: 8}}
	push := func(m raft.Message) raft.Message {
		m.From, m.To, m.Leader, m.Term = "n0", "n1", "n0", 4
		return m
	}
	want := map[string]raft.Message{
		"0.4.0 vote request":                                       push(raft.Message{Type: raft.MsgVote, Index: 7, LogTerm: 3}),
		"0.4.0 heartbeat request":                                  push(raft.Message{Type: raft.MsgHeartbeat, Commit: -1}),
		"0.4.0 push COMPARE request":                               push(raft.Message{Type: raft.MsgCompare, Index: 7, LogTerm: 3, Commit: 6, End: -1}),
		"0.4.0 push TRUNCATE request":                              push(raft.Message{Type: raft.MsgTruncate, Index: 7, LogTerm: raft.UnknownTerm, Commit: 6}),
		"0.4.0 push APPEND request, 2 entries":                     push(raft.Message{Type: raft.MsgAppend, Index: 7, LogTerm: raft.UnknownTerm, First: 8, Last: 9, Runs: runs, Commit: 6, Payload: raft.Payload{append(bytes.Clone(oneEntry), noop...)}}),
		"0.4.0 push COMMIT request":                                push(raft.Message{Type: raft.MsgCommit, Commit: 9}),
		"0.3.1.2 push COMPARE request":                             push(raft.Message{Type: raft.MsgCompare, Index: 7, LogTerm: 3, Commit: 6, End: -1, Payload: raft.Payload{hello}}),
		"0.3.1.2 push TRUNCATE request":                            push(raft.Message{Type: raft.MsgTruncate, Index: 7, LogTerm: 3, Commit: 6, Payload: raft.Payload{hello}}),
		"0.3.1.2 push APPEND request, single":                      push(raft.Message{Type: raft.MsgAppend, Index: 7, LogTerm: raft.UnknownTerm, First: 8, Last: 8, Runs: runs, Commit: 6, Payload: raft.Payload{oneEntry}}),
		"0.3.1.2 push APPEND request, batch of 2":                  push(raft.Message{Type: raft.MsgAppend, Index: 7, LogTerm: raft.UnknownTerm, First: 8, Last: 9, Runs: runs, Commit: 6, Payload: raft.Payload{append(bytes.Clone(oneEntry), two...)}}),
		"0.3.1.2 push COMMIT request":                              push(raft.Message{Type: raft.MsgCommit, Commit: 9}),
		"0.4.0 leadership transfer request from client":            {Type: raft.MsgTransfer, To: "n1", Term: 4, Transferer: "n1", Transferee: "n2"},
		"0.4.0 leadership transfer request leader to transferee":   {Type: raft.MsgTransfer, From: "n1", To: "n2", Leader: "n1", Term: 4, Transferer: "n1", Transferee: "n2", Index: 8},
		"0.3.1.2 leadership transfer request leader to transferee": {Type: raft.MsgTransfer, From: "n1", To: "n2", Leader: "n1", Term: 4, Transferer: "n1", Transferee: "n2", Index: 8},
	}
	seen := 0
	for version := range versions {
		for _, f := range goldenFrames(t, version) {
			name := version + " " + f.Name
			w, ok := want[name]
			if !ok {
				continue
			}
			seen++
			// The keys tell the dialect, whatever the group's own setting is.
			for _, compat := range []raft.Compat{raft.CompatGo, raft.Compat03, raft.Compat04} {
				_, m, err := DecodeRequest(compat, f.RemotingCode, []byte(f.BodyJSON))
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if !reflect.DeepEqual(m, w) {
					t.Errorf("%s:\ngot  %+v\nwant %+v", name, m, w)
				}
			}
		}
	}
	if seen != len(want) {
		t.Errorf("%d of %d frames found", seen, len(want))
	}
}

// sealedNot gives an entry as the original writes it, without checksums.
func sealedNot(h entry.Header, body string) []byte {
	b := make([]byte, entry.HeaderSize, entry.HeaderSize+len(body))
	entry.PutHeader(b, h)
	return append(b, body...)
}

// The bodies in the golden frames' hex are those of their JSON field, so that nothing above tests a transcription.
func TestGoldenFramesEndInTheirBodies(t *testing.T) {
	for version := range versions {
		for _, f := range goldenFrames(t, version) {
			raw, err := hex.DecodeString(f.FrameHex)
			if err != nil || !strings.HasSuffix(string(raw), f.BodyJSON) {
				t.Errorf("%s: %v", f.Name, err)
			}
		}
	}
}

// Answers that running nodes of the original gave to hand-made requests are given by us too.
func TestErrorAnswersAreThoseOfRunningOriginals(t *testing.T) {
	raw, err := golden.Read("live-exchanges.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Exchanges []struct {
			Node               string
			ResponseBody       string
			ResponseHeaderCode int32
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	live := func(i int) string { return file.Exchanges[i].ResponseBody }
	base := func(dialect raft.Compat, b Base) *Base {
		b.Code, b.Dialect = ResultOK, dialect
		return &b
	}
	ids := Base{Group: "gm", RemoteID: "n0", Term: -1}
	foreign := Base{Group: "zz", RemoteID: "n0", Term: -1}
	commit := raft.Message{Type: raft.MsgCommit, Term: -1}
	cases := []struct {
		name string
		got  []byte
		want string
	}{
		{"metadata of a candidate", (&MetadataResponse{Base: Base{Code: 200, Group: "gm", Term: -1}, Peers: map[string]string{
			"n0": "127.0.0.1:34911", "n1": "127.0.0.1:34912", "n2": "127.0.0.1:34913"}}).AppendTo(nil), live(0)},
		{"probe, 0.3", AppendAnswer(nil, base(raft.Compat03, ids), &commit, &raft.Message{Status: raft.StatusNotFollower, Begin: -1, End: -1}), live(1)},
		{"probe, 0.4", AppendAnswer(nil, base(raft.Compat04, ids), &commit, &raft.Message{Status: raft.StatusNotFollower}), live(2)},
		{"push with an unknown group, 0.3", AppendError(nil, CodePush, base(raft.Compat03, foreign), ResultUnknownGroup, ""), live(3)},
		{"push with an unknown group, 0.4", AppendError(nil, CodePush, base(raft.Compat04, foreign), ResultUnknownGroup, ""),
			strings.Replace(live(4), `"n2"`, `"n0"`, 1)},
		{"get at a follower", AppendError(nil, CodeGet, base(0, ids), ResultNotLeader, ""), live(5)},
		{"snapshot without data", AppendError(nil, CodeInstallSnapshot, base(0, ids), ResultUnexpectedArgument, ""),
			strings.Replace(live(7), `"n2"`, `"n0"`, 1)},
		{"compare without entry, 0.3", AppendError(nil, CodePush, base(raft.Compat03, Base{Group: "gm", LocalID: "n1", RemoteID: "n0", Term: 1}),
			ResultUnexpectedArgument, ""), live(9)},
		{"vote of a higher term", AppendAnswer(nil, base(0, Base{Group: "gm", LeaderID: "n1", LocalID: "n1", RemoteID: "n0", Term: 5}),
			&raft.Message{Type: raft.MsgVote}, &raft.Message{Term: 0, Vote: raft.VoteTermNotReady}), live(10)},
		{"heartbeat of an old term", AppendAnswer(nil, base(0, ids), &raft.Message{Type: raft.MsgHeartbeat},
			&raft.Message{Status: raft.StatusExpiredTerm, Term: 5}), live(11)},
		{"transfer to a stranger", AppendAnswer(nil, base(0, ids), &raft.Message{Type: raft.MsgTransfer},
			&raft.Message{Status: raft.StatusUnknownMember, Term: 0}), live(12)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { sameJSON(t, c.got, c.want) })
	}

	t.Run("generations", func(t *testing.T) {
		for i, want := range map[int]raft.Compat{6: raft.Compat03, 7: raft.Compat04} {
			if got, err := SnapshotDialect(file.Exchanges[i].ResponseHeaderCode, []byte(live(i))); got != want || err != nil {
				t.Errorf("exchange %d: got %v, %v, want %v", i, got, err, want)
			}
		}
	})
}

// The reading cases of json-behaviour.json, each with the class it was tried on.
func TestReaderIsAsTolerantAsTheOriginals(t *testing.T) {
	appendBody := func(in string) string {
		var r AppendRequest
		if err := r.Decode([]byte(in)); err != nil {
			return "error"
		}
		return fmt.Sprintf("%x", r.Body)
	}
	request := func(code int32, in string) string {
		_, m, err := DecodeRequest(raft.Compat04, code, []byte(in))
		switch {
		case err != nil && strings.Contains(err.Error(), "without entries"):
			return "APPEND"
		case err != nil:
			return "error"
		}
		return fmt.Sprintf("%v term %d leader %s", m.Type, m.Term, m.Leader)
	}
	cases := []struct{ name, got, want string }{
		{"numbers", appendBody(`{"body":[1,2,-3]}`), "0102fd"},
		{"unpadded", appendBody(`{"body":"AAE"}`), "0001"},
		{"escaped slash", appendBody(`{"body":"\/\/8="}`), "ffff"},
		{"escaped plus", appendBody(`{"body":"\u002b\u002b8="}`), "fbef"},
		{"empty", appendBody(`{"body":""}`), ""},
		{"no body", appendBody(`{}`), "error"},
		{"null body", appendBody(`{"body":null}`), "error"},
		{"URL alphabet, which the original silently takes for nothing", appendBody(`{"body":"-_8="}`), "error"},
		{"type by ordinal", request(CodePush, `{"type":2,"preLogIndex":3}`), "compare term -1 leader "},
		{"unknown type", request(CodePush, `{"type":"XXX"}`), "error"},
		{"type of a later release", request(CodePush, `{"type":"INSTALL_SNAPSHOT"}`), "error"},
		{"no keys", request(CodePush, `{}`), "APPEND"},
		{"null entries", request(CodePush, `{"entries":null}`), "APPEND"},
		{"number as string", request(CodeHeartbeat, `{"term":"7"}`), "heartbeat term 7 leader "},
		{"number with zeros", request(CodeHeartbeat, `{"term":1.0}`), "heartbeat term 1 leader "},
		{"fraction", request(CodeHeartbeat, `{"term":1.5}`), "error"},
		{"not finite", request(CodeHeartbeat, `{"term":NaN}`), "error"},
		{"infinite", request(CodeHeartbeat, `{"term":1e999}`), "error"},
		{"null keeps the default", request(CodeHeartbeat, `{"term":null}`), "heartbeat term -1 leader "},
		{"other spelling", request(CodeHeartbeat, `{"leader_id":"a"}`), "heartbeat term -1 leader a"},
		{"other case", request(CodeHeartbeat, `{"LEADERID":"a"}`), "heartbeat term -1 leader a"},
		{"blanks and order", request(CodeHeartbeat, " {\n\"term\" : 3 ,\t\"leaderId\": \"a\" }\r\n"), "heartbeat term 3 leader a"},
		{"unknown keys", request(CodeHeartbeat, `{"x":{"y":[1,{"z":null}]},"term":3,"q":"\""}`), "heartbeat term 3 leader "},
		{"escaped text", request(CodeHeartbeat, `{"leaderId":"\u00e4\n"}`), "heartbeat term -1 leader ä\n"},
		{"empty body", request(CodeHeartbeat, ""), "error"},
		{"null body", request(CodeHeartbeat, "null"), "error"},
		{"array", request(CodeHeartbeat, "[]"), "error"},
		{"trailing text", request(CodeHeartbeat, `{"term":3}x`), "error"},
		{"largest number", request(CodeHeartbeat, `{"term":9223372036854775807}`), "heartbeat term 9223372036854775807 leader "},
		{"too large a number", request(CodeHeartbeat, `{"term":9223372036854775808}`), "error"},
		{"deep", request(CodeHeartbeat, `{"x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`), "error"},
	}
	for _, c := range cases {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
		}
	}
	if _, err := DecodeAnswer(raft.Compat04, &raft.Message{Type: raft.MsgVote}, HeaderOK, []byte(`{"voteResult":"FOO"}`)); err == nil {
		t.Error("an unknown vote result passed")
	}
}

// The JSON form of an entry that the original wrote is read into the bytes that it keeps on disk, and written again from those.
func TestEntriesOfTheOriginalPassBetweenJSONAndDisk(t *testing.T) {
	for version := range versions {
		t.Run(version, func(t *testing.T) {
			raw, err := golden.Read("entries-" + version + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var file struct {
				Entries []struct{ EntryHex, JSON string }
			}
			if err := json.Unmarshal(raw, &file); err != nil {
				t.Fatal(err)
			}
			for _, g := range file.Entries {
				want, err := hex.DecodeString(g.EntryHex)
				if err != nil {
					t.Fatal(err)
				}
				e := noEntries()
				s := scanner{b: []byte(g.JSON)}
				e.one(&s)
				if s.err != nil || e.bad != nil || !bytes.Equal(e.buf, want) {
					t.Errorf("%s: read as %x, %v, %v, want %x", g.JSON, e.buf, s.err, e.bad, want)
				}
				h, err := entry.Parse(want)
				if err != nil {
					t.Fatal(err)
				}
				var w writer
				w.entry(h, want[entry.HeaderSize:])
				if got := strings.TrimSuffix(string(w.b), ","); got != g.JSON {
					t.Errorf("written %s, want %s", got, g.JSON)
				}
			}
			if len(file.Entries) < 5 {
				t.Errorf("%d entries", len(file.Entries))
			}
		})
	}
}
