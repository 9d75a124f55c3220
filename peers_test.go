package dledger

import (
	"testing"
	"testing/synctest"
	"time"

	"dledger/internal/remoting"
)

// FuzzParsePeers: what is taken for peers has ids and addresses, and written out again it is the same.
func FuzzParsePeers(f *testing.F) {
	for _, s := range []string{"n0-localhost:20911", "n0-a-b:1;n1-[::1]:2; ", "n0", "n0-:1;n0-:2", ";;", "n0-a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		peers, err := ParsePeers(s)
		if err != nil {
			return
		}
		if len(peers) == 0 {
			t.Fatal("no peers and no error")
		}
		text, seen := "", map[string]bool{}
		for _, p := range peers {
			if p.ID == "" || p.Address == "" || seen[p.ID] {
				t.Fatalf("peer %+v of %q", p, s)
			}
			seen[p.ID] = true
			text += p.ID + "-" + p.Address + ";"
		}
		again, err := ParsePeers(text)
		if err != nil || len(again) != len(peers) {
			t.Fatalf("%q: %v, %v; first %v", text, again, err, peers)
		}
		for i := range peers {
			if peers[i] != again[i] {
				t.Errorf("got %+v, want %+v", again[i], peers[i])
			}
		}
	})
}

// A peer that was slow once is not waited for as long ever after: a Java node that never answers would be recognized late at each connection.
func TestPatienceFollowsWhatAnswersTake(t *testing.T) {
	p := &peer{t: &transport{}, patience: patience(helloTimeout)}
	want := func(what string, d time.Duration) {
		t.Helper()
		if got := p.helloPatience(); got != d {
			t.Errorf("%s: %v, want %v", what, got, d)
		}
	}
	synctest.Test(t, func(*testing.T) {
		for range 10 {
			p.toldNothing(0, remoting.ErrTimeout)
		}
		want("after many that did not come", rpcTimeout)
		asked := time.Now()
		time.Sleep(800 * time.Millisecond)
		p.said(asked)
		want("after an answer that took 0.8 s", 1600*time.Millisecond)
		p.toldNothing(0, remoting.ErrTimeout)
		want("after one more that did not come", rpcTimeout)
		asked = time.Now()
		time.Sleep(time.Millisecond)
		p.said(asked)
		want("after a quick answer", helloTimeout)
		p.toldNothing(0, remoting.ErrClosed)
		want("after a lost connection", helloTimeout)
		asked = time.Now()
		time.Sleep(time.Minute)
		p.said(asked)
		want("after one that took a minute", rpcTimeout)
	})
}
