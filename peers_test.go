package dledger

import (
	"testing"
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
