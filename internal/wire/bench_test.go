package wire

import (
	"bytes"
	"testing"

	"dledger/internal/raft"
)

// BenchmarkAppend is the JSON work of a leader for one append of 1 KiB: read the request, write the answer.
func BenchmarkAppend(b *testing.B) {
	request := (&AppendRequest{Base: ClientBase("group", "n1"), Body: make([]byte, 1024)}).AppendTo(nil)
	body := make([]byte, len(request))
	var out []byte
	b.ReportAllocs()
	b.SetBytes(1024)
	for b.Loop() {
		copy(body, request) // decoding overwrites it
		var r AppendRequest
		if err := r.Decode(body); err != nil {
			b.Fatal(err)
		}
		out = (&AppendResponse{Base: Base{Code: ResultOK, Group: r.Group, LeaderID: "n1", Term: 3}, Index: 123456, Pos: 123456789}).AppendTo(out[:0])
	}
}

func BenchmarkAppendRequestWrite(b *testing.B) {
	r := AppendRequest{Base: ClientBase("group", "n1"), Body: make([]byte, 1024)}
	var out []byte
	b.ReportAllocs()
	b.SetBytes(1024)
	for b.Loop() {
		out = r.AppendTo(out[:0])
	}
}

// BenchmarkGet is the JSON work for one entry of 1 KiB: read the request, write the answer.
func BenchmarkGet(b *testing.B) {
	request := (&GetRequest{Base: ClientBase("group", "n1"), BeginIndex: 123456}).AppendTo(nil)
	payload := raft.Payload{encoded(123456, 3, 1<<30, make([]byte, 1024), true)}
	var out []byte
	b.ReportAllocs()
	b.SetBytes(1024)
	for b.Loop() {
		var r GetRequest
		if err := r.Decode(request); err != nil {
			b.Fatal(err)
		}
		var err error
		if out, err = (&GetResponse{Base: Base{Code: ResultOK, Group: r.Group, Term: -1}, Entries: payload}).AppendTo(out[:0]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPush is the work of leader and follower for a push of 100 entries of 1 KiB, in each dialect; socket not included.
func BenchmarkPush(b *testing.B) {
	const n = 100
	var all []byte
	for i := range raft.Index(n) {
		all = append(all, encoded(1000+i, 3, int64(i)*1072, make([]byte, 1024), true)...)
	}
	m := raft.Message{Type: raft.MsgAppend, From: "n0", To: "n1", Leader: "n0", Term: 3, Index: 999, LogTerm: 3, First: 1000, Last: 1000 + n - 1,
		Runs: []raft.Run{{Term: 3, First: 1000}}, Commit: 900, Payload: raft.Payload{all}}
	for _, dialect := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
		b.Run("write/"+dialect.String(), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(n * 1024)
			for b.Loop() {
				if _, _, err := EncodeRequest(dialect, "group", &m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("read/"+dialect.String(), func(b *testing.B) {
			code, pieces, err := EncodeRequest(dialect, "group", &m)
			if err != nil {
				b.Fatal(err)
			}
			request := bytes.Join(pieces, nil)
			body := make([]byte, len(request))
			b.ReportAllocs()
			b.SetBytes(n * 1024)
			for b.Loop() {
				if dialect != raft.CompatGo {
					copy(body, request) // decoding overwrites it
				} else {
					body = request
				}
				if _, _, err := DecodeRequest(dialect, code, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHeartbeatRead(b *testing.B) {
	_, pieces, err := EncodeRequest(raft.Compat04, "group", &raft.Message{Type: raft.MsgHeartbeat, From: "n0", To: "n1", Leader: "n0", Term: 3})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := DecodeRequest(raft.Compat04, CodeHeartbeat, pieces[0]); err != nil {
			b.Fatal(err)
		}
	}
}
