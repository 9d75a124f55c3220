package mq

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"dledger/internal/golden"
)

type goldenMessages struct {
	Messages []struct {
		Name                string
		Topic, Body         string
		QueueID, Flag       int32
		BodyCRC             uint32
		SysFlag             int32
		BornTimestamp       int64
		BornHost, StoreHost string
		StoreTimestamp      int64
		ReconsumeTimes      int32
		PreparedTransaction int64 `json:"preparedTransactionOffset"`
		QueueOffset         int64
		PhysicalOffset      int64
		Properties          map[string]string
		PropertiesStringHex string
		TotalSize           int
		OffsetMsgID         string `json:"offsetMsgId"`
		EncodedHex          string
		TagsCode            int64
	}
	ClientBatch struct {
		Messages []struct {
			Flag       int32
			Body       string
			Properties map[string]string
		}
		EncodedHex string
	}
	ConsumeQueueUnits []struct {
		Tag      string
		TagsCode int64
	}
	IndexKeys []struct {
		IndexKey string
		JavaHash int32
		KeyHash  int32
	}
	CRC32 []struct {
		Text         string
		UtilAllCrc32 uint32
	} `json:"crc32"`
}

func messages(t testing.TB) goldenMessages {
	t.Helper()
	b, err := golden.Read("rocketmq-message.json")
	if err != nil {
		t.Fatal(err)
	}
	var g goldenMessages
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Messages) != 6 || len(g.ConsumeQueueUnits) == 0 || len(g.IndexKeys) == 0 || len(g.CRC32) == 0 {
		t.Fatal("the golden file holds less than it should")
	}
	return g
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStoredFormIsTheOriginals reads each message of the Java encoder, compares every field, and writes it again.
func TestStoredFormIsTheOriginals(t *testing.T) {
	for _, g := range messages(t).Messages {
		t.Run(g.Name, func(t *testing.T) {
			b := unhex(t, g.EncodedHex)
			m, n, err := ParseStored(append(bytes.Clone(b), 1, 2, 3))
			if err != nil {
				t.Fatal(err)
			}
			want := Message{Topic: g.Topic, QueueID: g.QueueID, Flag: g.Flag, QueueOffset: g.QueueOffset, PhysicalOffset: g.PhysicalOffset, SysFlag: g.SysFlag,
				BornTime: g.BornTimestamp, BornHost: netip.MustParseAddrPort(strings.TrimPrefix(g.BornHost, "/")),
				StoreTime: g.StoreTimestamp, StoreHost: netip.MustParseAddrPort(strings.TrimPrefix(g.StoreHost, "/")),
				ReconsumeTimes: g.ReconsumeTimes, PreparedOffset: g.PreparedTransaction, BodyCRC: g.BodyCRC, Properties: string(unhex(t, g.PropertiesStringHex))}
			if string(m.Body) != g.Body {
				t.Errorf("body %q, want %q", m.Body, g.Body)
			}
			got := m
			got.Body = nil
			if !equal(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if n != g.TotalSize || m.StoredSize() != n {
				t.Errorf("length %d, computed %d, want %d", n, m.StoredSize(), g.TotalSize)
			}
			if p := propMap(m.Properties); !maps.Equal(p, g.Properties) {
				t.Errorf("properties %v, want %v", p, g.Properties)
			}
			if id := m.MsgID(); id != g.OffsetMsgID {
				t.Errorf("id %s, want %s", id, g.OffsetMsgID)
			}
			if h, o, err := ParseMsgID(g.OffsetMsgID); err != nil || h != want.StoreHost || o != want.PhysicalOffset {
				t.Errorf("id parsed: %v, %d, %v", h, o, err)
			}
			if err := checkBody(&m); err != nil {
				t.Error(err)
			}
			again, err := AppendStored([]byte("before"), &m)
			if err != nil || !bytes.Equal(again[6:], b) {
				t.Errorf("encoded again: %x, %v\nwant %x", again[6:], err, b)
			}
			if len(g.Properties) > 0 && TagsCode(m.Prop(PropTags)) != g.TagsCode {
				t.Errorf("tags code %d, want %d", TagsCode(m.Prop(PropTags)), g.TagsCode)
			}
		})
	}
}

// equal compares all but the bodies.
func equal(a, b Message) bool {
	a.Body, b.Body = nil, nil
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// TestDamagedMessageIsRefused cuts a message at each length, and flips each of its bits: what is taken then lies within the bytes.
func TestDamagedMessageIsRefused(t *testing.T) {
	for _, g := range messages(t).Messages {
		b := unhex(t, g.EncodedHex)
		for n := range b {
			if _, _, err := ParseStored(b[:n]); err == nil {
				t.Errorf("%s: %d of %d bytes are taken", g.Name, n, len(b))
			}
		}
		for bit := range 8 * len(b) {
			c := bytes.Clone(b)
			c[bit/8] ^= 1 << (bit % 8)
			if m, n, err := ParseStored(c); err == nil && (n > len(c) || m.StoredSize() > len(c)+1) {
				t.Errorf("%s: bit %d flipped gives a message of %d bytes", g.Name, bit, n)
			}
		}
	}
}

func FuzzParseStored(f *testing.F) {
	for _, g := range messages(f).Messages {
		f.Add(unhex(f, g.EncodedHex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := ParseStored(b)
		if err != nil {
			return
		}
		if n > len(b) {
			t.Fatalf("%d bytes of %d", n, len(b))
		}
		again, err := AppendStored(nil, &m)
		if err != nil {
			if len(m.Topic) > TopicMax {
				return
			}
			t.Fatal(err)
		}
		m2, _, err := ParseStored(again)
		if err != nil || !bytes.Equal(m2.Body, m.Body) || m2.Topic != m.Topic || m2.Properties != m.Properties || m2.QueueOffset != m.QueueOffset {
			t.Fatalf("%+v became %+v, %v", m, m2, err)
		}
	})
}

// TestEntryOfJavaLeaderHoldsTheMessage: the append hook has put position + 48 into the message.
func TestEntryOfJavaLeaderHoldsTheMessage(t *testing.T) {
	raw, err := golden.Read("rocketmq-dledger-entry.json")
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		BodyOffset            int
		MessagePhysicalOffset int64
		EntryHex              string
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	b := unhex(t, messages(t).Messages[0].EncodedHex)
	SetStored(b, 77, e.MessagePhysicalOffset)
	if want := unhex(t, e.EntryHex)[e.BodyOffset:]; !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
}

func TestHashesAreTheOriginals(t *testing.T) {
	g := messages(t)
	for _, u := range g.ConsumeQueueUnits {
		if c := TagsCode(u.Tag); c != u.TagsCode {
			t.Errorf("tags code of %q is %d, want %d", u.Tag, c, u.TagsCode)
		}
	}
	for _, k := range g.IndexKeys {
		if h := JavaHash(k.IndexKey); h != k.JavaHash {
			t.Errorf("hash of %q is %d, want %d", k.IndexKey, h, k.JavaHash)
		}
		if h := KeyHash(k.IndexKey); h != k.KeyHash {
			t.Errorf("key hash of %q is %d, want %d", k.IndexKey, h, k.KeyHash)
		}
	}
	for _, c := range g.CRC32 {
		if s := BodyCRC([]byte(c.Text)); uint32(s) != c.UtilAllCrc32 {
			t.Errorf("CRC of %q is %d, want %d", c.Text, s, c.UtilAllCrc32)
		}
	}
	if h := JavaHash("a😀"); h != 31*(31*97+0xd83d)+0xde00 {
		t.Errorf("hash beyond 16 bits: %d", h)
	}
}

func TestBatchIsTheOriginals(t *testing.T) {
	g := messages(t).ClientBatch
	b := unhex(t, g.EncodedHex)
	items, err := SplitBatch(b)
	if err != nil || len(items) != len(g.Messages) {
		t.Fatalf("%d messages, %v; want %d", len(items), err, len(g.Messages))
	}
	var again []byte
	for i, it := range items {
		w := g.Messages[i]
		if it.Flag != w.Flag || string(it.Body) != w.Body || !maps.Equal(propMap(it.Properties), w.Properties) {
			t.Errorf("message %d is %+v, want %+v", i, it, w)
		}
		again = AppendBatchItem(again, it)
	}
	if !bytes.Equal(again, b) {
		t.Errorf("written again: %x\nwant %x", again, b)
	}
	for n := 1; n < len(b); n++ {
		if items, err := SplitBatch(b[:n]); err == nil && n != 60 { // the first message has 60 bytes
			t.Errorf("%d bytes are taken as %d messages", n, len(items))
		}
	}
}

func FuzzSplitBatch(f *testing.F) {
	f.Add(unhex(f, messages(f).ClientBatch.EncodedHex))
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := SplitBatch(b)
		if err != nil {
			return
		}
		n := 0
		for _, it := range items {
			n += len(AppendBatchItem(nil, it))
		}
		if n != len(b) {
			t.Fatalf("messages of %d bytes in %d", n, len(b))
		}
	})
}

func TestProperties(t *testing.T) {
	const p = "A\x01b\x02KEYS\x01k1 k2\x02\x01x\x02EMPTY\x01\x02nothing\x02V\x01a\x01b\x02A\x01c"
	if m := propMap(p); !maps.Equal(m, map[string]string{"A": "c", "KEYS": "k1 k2", "V": "a\x01b"}) {
		t.Errorf("read as %q", m)
	}
	for _, k := range []struct{ name, got, want string }{
		{"get the last of two", PropGet(p, "A"), "c"},
		{"get none", PropGet(p, "B"), ""},
		{"set in nothing", PropSet("", "A", "1"), "A\x011\x02"},
		{"set behind a missing end", PropSet("B\x012", "A", "1"), "B\x012\x02A\x011\x02"},
		{"set anew", PropSet("A\x011\x02B\x012\x02", "A", "3"), "B\x012\x02A\x013\x02"},
		{"set to nothing", PropSet("A\x011\x02B\x012\x02", "A", ""), "B\x012\x02"},
		{"delete two", PropDel("A\x011\x02B\x012\x02C\x013\x02A\x014\x02", "A", "C"), "B\x012\x02"},
		{"delete none", PropDel("B\x012", "A"), "B\x012"},
	} {
		if k.got != k.want {
			t.Errorf("%s: got %q, want %q", k.name, k.got, k.want)
		}
	}
	m := Message{Topic: "T", Properties: "KEYS\x01k1  k2\x02UNIQ_KEY\x01U\x02"}
	var keys []string
	for k := range m.IndexKeys() {
		keys = append(keys, k)
	}
	if got := strings.Join(keys, ","); got != "T#U,T#k1,T#k2" {
		t.Errorf("keys %s", got)
	}
}

func FuzzProperties(f *testing.F) {
	f.Add("A\x01b\x02KEYS\x01k1 k2\x02", "A", "x")
	f.Fuzz(func(t *testing.T, p, name, value string) {
		if strings.ContainsAny(name, "\x01\x02") || strings.Contains(value, "\x02") || name == "" || value == "" {
			return
		}
		want := propMap(p)
		if got := PropGet(p, name); got != want[name] {
			t.Fatalf("get %q from %q: %q, want %q", name, p, got, want[name])
		}
		want[name] = value
		if got := propMap(PropSet(p, name, value)); !maps.Equal(got, want) {
			t.Fatalf("set %q to %q in %q: %q, want %q", name, value, p, got, want)
		}
		delete(want, name)
		if got := propMap(PropDel(p, name)); !maps.Equal(got, want) {
			t.Fatalf("delete %q from %q: %q, want %q", name, p, got, want)
		}
	})
}

func TestUniqueKeysDiffer(t *testing.T) {
	now := time.Date(2026, 3, 2, 1, 0, 0, 5e6, time.UTC)
	for addr, n := range map[string]int{"10.1.2.3": 32, "2001:db8::1": 56} {
		u := NewUniqKeys(netip.MustParseAddr(addr))
		a, b := u.Next(now), u.Next(now)
		if len(a) != n || len(b) != n || a == b {
			t.Errorf("%s: keys %s and %s, want two of %d characters", addr, a, b, n)
		}
		if ms := a[n-12 : n-4]; ms != "055D4A85" { // 25 hours and 5 ms
			t.Errorf("%s: time in the key is %s", addr, ms)
		}
	}
}

// propMap gives all properties; of several with one name the last.
func propMap(p string) map[string]string {
	m := map[string]string{}
	for k, v := range PropAll(p) {
		m[k] = v
	}
	return m
}

// checkBody tells whether the body is the one that the checksum was made of.
func checkBody(m *Message) error {
	if c := uint32(BodyCRC(m.Body)); c != m.BodyCRC {
		return fmt.Errorf("body checksum %#x, stored %#x", c, m.BodyCRC)
	}
	return nil
}
