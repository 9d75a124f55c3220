package dledger

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

// What waits to be sent is read from the log when its turn comes. If this member was deposed meanwhile, and its log cut and continued by the next leader,
// other entries lie there: they are not sent in the old leader's name. In JSON nothing tells them from those that were meant.
func TestEntriesOfTheNextLeaderAreNotSentInTheNameOfTheLast(t *testing.T) {
	s, err := logstore.Open(logstore.Config{FS: vfs.NewMem(), Dir: "n0", DataFileSize: 4096, IndexFileSize: 320, Inline: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		first raft.Index
		term  raft.Term
	}{{0, 1}, {3, 3}} { // 3..5 were of term 4, and were never committed
		if err := errors.Join(s.Append(x.first, x.term, entry.MagicNormal, [][]byte{{1}, {2}, {3}}, nil), s.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		name string
		runs []raft.Run
		sent bool
	}{
		{"as they are", []raft.Run{{Term: 1, First: 1}, {Term: 3, First: 3}}, true},
		{"of another term", []raft.Run{{Term: 1, First: 1}, {Term: 4, First: 3}}, false},
		{"of two terms", []raft.Run{{Term: 1, First: 1}, {Term: 3, First: 3}, {Term: 4, First: 5}}, false},
	} {
		var dials atomic.Int32
		client := remoting.NewClient(remoting.ClientConfig{Dial: func(context.Context, string) (net.Conn, error) {
			dials.Add(1)
			return nil, errors.New("nobody is there")
		}})
		p := &peer{t: &transport{self: "n0", group: "g", compat: raft.Compat04, client: client, store: s, log: slog.New(slog.DiscardHandler)}, id: "n1", address: "n1:1"}
		p.cond.L = &p.mu
		p.pumpOne(raft.Message{Type: raft.MsgAppend, From: "n0", To: "n1", Leader: "n0", Term: 4, Index: 0, LogTerm: 1, First: 1, Last: 5, Runs: x.runs, Commit: 0}, 0)
		if err := client.Close(); err != nil { // waits for a dial under way
			t.Error(err)
		}
		if sent := dials.Load() > 0; sent != x.sent {
			t.Errorf("%s: sent %t, want %t", x.name, sent, x.sent)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
