package harness

import (
	"encoding/json"
	"reflect"
	"testing"
)

// What is read without reflection is what encoding/json reads, or nothing.
func TestQuickReadingIsExact(t *testing.T) {
	const get = `{"code":200,"entries":[{"body":"aGVsbG8=","bodyCrc":0,"chainCrc":0,"channel":0,"index":7,"magic":1,"pos":53,"size":53,"term":2}],"group":"g","term":-1}`
	for _, test := range []struct {
		name  string
		code  int
		raw   string
		quick bool
	}{
		{"append", codeAppend, `{"code":200,"group":"g","index":5,"leaderId":"n0","pos":265,"remoteId":"n0","term":3}`, true},
		{"append, other order", codeAppend, `{"term":3,"pos":265,"index":-1,"code":200}`, true},
		{"append refused", codeAppend, `{"code":404,"group":"g","index":-1,"leaderId":"n1","pos":-1,"term":3}`, false},
		{"append, key missing", codeAppend, `{"code":200,"pos":265,"term":3}`, false},
		{"append, escape", codeAppend, `{"code":200,"group":"\"code\":404","index":5,"pos":265,"term":3}`, false},
		{"get", codeGet, get, true},
		{"get, no body", codeGet, `{"code":200,"entries":[{"index":7,"pos":53,"term":2}],"term":-1}`, true},
		{"get, two entries", codeGet, `{"code":200,"entries":[{"index":7,"pos":53,"term":2},{"index":8,"pos":99,"term":2}],"term":-1}`, false},
		{"get, none", codeGet, `{"code":200,"entries":[],"term":-1}`, false},
		{"get, bad base64", codeGet, `{"code":200,"entries":[{"body":"aGVsbG8","index":7,"pos":53,"term":2}],"term":-1}`, false},
		{"metadata", codeMetadata, `{"code":200,"leaderId":"n0","peers":{"n0":"a:1"}}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := Answer{Index: -1, Pos: -1, Term: -1}
			if got := a.quick(test.code, []byte(test.raw)); got != test.quick {
				t.Fatalf("read quickly: %v, want %v", got, test.quick)
			}
			if !test.quick {
				return
			}
			want := Answer{Index: -1, Pos: -1, Term: -1}
			if err := json.Unmarshal([]byte(test.raw), &want); err != nil {
				t.Fatal(err)
			}
			if test.code == codeGet {
				want.Term = -1 // the answer's own is not looked at
			}
			want.LeaderID = ""
			if !reflect.DeepEqual(a, want) {
				t.Errorf("got %+v, want %+v", a, want)
			}
		})
	}
}
