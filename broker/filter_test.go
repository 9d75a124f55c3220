package broker

import (
	"net/netip"
	"strings"
	"testing"

	"dledger/internal/mq"
)

func TestSQLSubscriptionLooksAtProperties(t *testing.T) {
	b := &Broker{}
	s := b.subscribe(mq.SubscriptionData{Topic: "T", ExpressionType: mq.ExprSQL, SubString: "n > 3 AND TAGS = 'a'"})
	if s.err != nil {
		t.Fatal(s.err)
	}
	stored := func(properties ...string) []byte {
		m := &mq.Message{Topic: "T", BornHost: netip.MustParseAddrPort("127.0.0.1:1"), StoreHost: netip.MustParseAddrPort("127.0.0.1:2")}
		for i := 0; i < len(properties); i += 2 {
			m.SetProp(properties[i], properties[i+1])
		}
		b, err := mq.AppendStored(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if !s.filter.MatchCode(mq.TagsCode("b")) || !s.filter.MatchCode(0) {
		t.Error("the code of a tag decides")
	}
	for _, c := range []struct {
		name string
		m    []byte
		want bool
	}{
		{"fulfilled", stored("n", "4", mq.PropTags, "a"), true},
		{"number too small", stored("n", "3", mq.PropTags, "a"), false},
		{"other tag", stored("n", "4", mq.PropTags, "b"), false},
		{"no number", stored("n", "x", mq.PropTags, "a"), false},
		{"missing", stored(mq.PropTags, "a"), false},
	} {
		if got := s.filter.Match(c.m); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if s := b.subscribe(mq.SubscriptionData{Topic: "T", ExpressionType: mq.ExprSQL, SubString: "n >"}); s.err == nil || !strings.Contains(s.err.Error(), "n >") {
		t.Errorf("got %v, want an error that shows the expression", s.err)
	}
}
