package remoting

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"

	"dledger/internal/golden"

	"pgregory.net/rapid"
)

type goldenFrame struct {
	Name      string
	Serialize string
	Code      int32
	Language  string
	Version   int32
	Opaque    int32
	Flag      int32
	Remark    string
	ExtFields map[string]string
	BodyHex   string
	FrameHex  string
}

func goldenFrames(t testing.TB, file string) []goldenFrame {
	raw, err := golden.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	var content struct{ Frames []goldenFrame }
	if err := json.Unmarshal(raw, &content); err != nil {
		t.Fatal(err)
	}
	return content.Frames
}

func (g goldenFrame) bytes(t testing.TB) []byte {
	b, err := hex.DecodeString(g.FrameHex)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, f *Frame) []byte {
	b, err := appendHead(nil, &f.Header, len(f.Body))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, f.Body...)
}

func TestRocketMQFramesAreReadInBothForms(t *testing.T) {
	for _, g := range goldenFrames(t, "rocketmq-remoting.json") {
		raw := g.bytes(t)
		var f Frame
		if err := f.parse(raw); err != nil {
			t.Errorf("%s: %v", g.Name, err)
			continue
		}
		want := Header{Code: g.Code, Flag: g.Flag, Opaque: g.Opaque, Version: g.Version, Language: g.Language, Remark: g.Remark}
		if g.Serialize == "ROCKETMQ" {
			want.Serial, want.Code = SerialBinary, int32(int16(g.Code)) // the form has 16 bits for it
		}
		got := f.Header
		got.Ext = nil
		if !equal(got, want) || !maps.Equal(f.Ext, g.ExtFields) || hex.EncodeToString(f.Body) != g.BodyHex {
			t.Errorf("%s:\ngot  %+v body %x\nwant %+v %v body %s", g.Name, f.Header, f.Body, want, g.ExtFields, g.BodyHex)
		}
		if len(f.Ext) <= 1 && !bytes.Equal(write(t, &f), raw) { // more fields come in any order
			t.Errorf("%s:\ngot  %q\nwant %q", g.Name, write(t, &f), raw)
		}
	}
}

func equal(a, b Header) bool {
	if !maps.Equal(a.Ext, b.Ext) {
		return false
	}
	return a.Serial == b.Serial && a.Code == b.Code && a.Flag == b.Flag && a.Opaque == b.Opaque && a.Version == b.Version &&
		a.Language == b.Language && a.Remark == b.Remark
}

func TestDLedgerFramesAreWrittenAsTheOriginalWritesThem(t *testing.T) {
	for _, file := range []string{"frames-0.3.1.2.json", "frames-0.4.0.json"} {
		for _, g := range goldenFrames(t, file) {
			raw := g.bytes(t)
			var f Frame
			if err := f.parse(raw); err != nil {
				t.Fatalf("%s: %v", g.Name, err)
			}
			if f.Opaque != g.Opaque || f.Language != "JAVA" {
				t.Errorf("%s: got %+v", g.Name, f.Header)
			}
			if got := write(t, &f); !bytes.Equal(got, raw) {
				t.Errorf("%s:\ngot  %q\nwant %q", g.Name, got, raw)
			}
		}
	}
}

func TestHeadersAreReadTolerantly(t *testing.T) {
	want := Header{Code: 105, Flag: 1, Opaque: -7, Version: 479, Language: "CPP", Remark: "a\"\n\u00e4", Ext: map[string]string{"q": "7"}}
	for _, text := range []string{
		`{"code":105,"flag":1,"opaque":-7,"version":479,"language":"CPP","remark":"a\"\nä","extFields":{"q":"7"}}`,
		` { "version" : 479.0 , "opaque" : "-7", "code":"105", "flag":1e0, "language":"CPP","remark":"a\"\n\u00e4","extFields":{"q":7, "n":null}, "x":[{}]} `,
	} {
		var h Header
		if err := h.parseJSON([]byte(text)); err != nil || !equal(h, want) {
			t.Errorf("%s: got %+v, %v", text, h, err)
		}
	}
	for _, text := range []string{`{}`, `{"remark":null,"extFields":null,"opaque":null}`} {
		var h Header
		if err := h.parseJSON([]byte(text)); err != nil || !equal(h, Header{}) {
			t.Errorf("%s: got %+v, %v", text, h, err)
		}
	}
	for _, text := range []string{``, `null`, `[]`, `{`, `{"code":1`, `{"code":2147483648}`, `{"code":1.5}`, `{"code":{}}`, `{"code":NaN}`,
		`{"extFields":[]}`, `{"code":1}}`, `{"opaque":1e99}`, `{"x":` + strings.Repeat("[", 100000)} {
		var h Header
		if err := h.parseJSON([]byte(text)); err == nil {
			t.Errorf("%.60s: got %+v", text, h)
		}
	}
}

func drawHeader(t *rapid.T) Header {
	h := Header{
		Serial: rapid.SampledFrom([]Serial{SerialJSON, SerialBinary}).Draw(t, "serial"), Code: int32(rapid.Int16().Draw(t, "code")),
		Flag: rapid.Int32().Draw(t, "flag"), Opaque: rapid.Int32().Draw(t, "opaque"), Version: int32(rapid.Int16().Draw(t, "version")),
		Language: rapid.SampledFrom(languages[:]).Draw(t, "language"), Remark: rapid.String().Draw(t, "remark"),
	}
	if rapid.Bool().Draw(t, "fields") {
		h.Ext = rapid.MapOf(rapid.StringN(1, 8, -1), rapid.StringN(1, 8, -1)).Draw(t, "ext")
	}
	return h
}

func TestHeadersSurviveWritingAndReading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Frame{Header: drawHeader(t), Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body")}
		b, err := appendHead([]byte("before"), &want.Header, len(want.Body))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b[len("before"):], want.Body...)
		if n, err := frameSize(b); n != len(b) || err != nil {
			t.Fatalf("got size %d, %v of %d", n, err, len(b))
		}
		var got Frame
		if err := got.parse(b); err != nil {
			t.Fatal(err)
		}
		if !equal(got.Header, want.Header) || !bytes.Equal(got.Body, want.Body) {
			t.Fatalf("\ngot  %+v\nwant %+v", got, want)
		}
	})
}

// However a stream of frames is cut into reads, the same frames come out, and each frame's bytes stay as they were.
func TestFramesDoNotDependOnHowTheyArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var want [][]byte
		for range rapid.IntRange(1, 8).Draw(t, "frames") {
			h := drawHeader(t)
			body := make([]byte, rapid.SampledFrom([]int{0, 10, 1000, chunkMin, chunkMax, 200_000}).Draw(t, "body"))
			for i := range body {
				body[i] = byte(len(want) + i)
			}
			start := len(stream)
			stream, _ = appendHead(stream, &h, len(body))
			stream = append(stream, body...)
			want = append(want, stream[start:])
		}
		var src io.Reader = bytes.NewReader(stream)
		switch rapid.IntRange(0, 2).Draw(t, "pace") {
		case 0:
			src = iotest.HalfReader(src)
		case 1:
			src = iotest.DataErrReader(src)
		case 2:
			sizes := rapid.SliceOfN(rapid.IntRange(1, 5000), 1, 20).Draw(t, "sizes")
			src = &unevenReader{src: src, sizes: sizes}
		}
		var d reader
		var got [][]byte
		for {
			_, err := d.fill(src)
			for {
				whole, bad := d.next()
				if bad != nil {
					t.Fatal(bad)
				}
				if whole == nil {
					break
				}
				got = append(got, whole)
			}
			if err != nil {
				break
			}
		}
		if len(got) != len(want) {
			t.Fatalf("got %d frames, want %d", len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("frame %d differs", i)
			}
		}
	})
}

type unevenReader struct {
	src   io.Reader
	sizes []int
	turn  int
}

func (u *unevenReader) Read(p []byte) (int, error) {
	n := u.sizes[u.turn%len(u.sizes)]
	u.turn++
	return u.src.Read(p[:min(n, len(p))])
}

func TestMalformedFramesAreErrors(t *testing.T) {
	head := `{"code":1}`
	cases := map[string]string{
		"length 3":             "\x00\x00\x00\x03abc",
		"negative length":      "\xff\xff\xff\xffabcd",
		"length over the max":  "\x00\xff\xff\xfdabcd",
		"header over frame":    "\x00\x00\x00\x0e\x00\x00\x00\x0b" + head,
		"header no JSON":       "\x00\x00\x00\x0e\x00\x00\x00\x0a" + strings.Repeat("x", 10),
		"unknown form":         "\x00\x00\x00\x0e\x02\x00\x00\x0a" + head,
		"no header":            "\x00\x00\x00\x04\x00\x00\x00\x00",
		"binary header short":  "\x00\x00\x00\x0e\x01\x00\x00\x0a" + head,
		"binary remark length": "\x00\x00\x00\x19\x01\x00\x00\x15" + strings.Repeat("\x00", 13) + "\x7f\xff\xff\xff" + strings.Repeat("\x00", 4),
	}
	for name, b := range cases {
		n, err := frameSize([]byte(b))
		if err == nil {
			if n > len(b) {
				t.Errorf("%s: %d bytes awaited", name, n)
				continue
			}
			err = new(Frame).parse([]byte(b)[:n])
		}
		if !errors.Is(err, ErrFrame) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n, err := frameSize([]byte("\x00\xff\xff\xfc")); n != FrameMax || err != nil {
		t.Errorf("the largest frame: got %d, %v", n, err)
	}
}

func TestFramesOverTheMaximumAreNotWritten(t *testing.T) {
	h := Header{Code: 1, Language: Language}
	b, err := appendHead(nil, &h, 0)
	if err != nil {
		t.Fatal(err)
	}
	room := FrameMax - len(b)
	if _, err := appendHead(nil, &h, room); err != nil {
		t.Errorf("a frame of the largest size: %v", err)
	}
	if b, err := appendHead([]byte("x"), &h, room+1); !errors.Is(err, ErrTooLarge) || string(b) != "x" {
		t.Errorf("a larger one: got %q, %v", b, err)
	}
	if _, err := appendHead(nil, &Header{Serial: SerialBinary, Code: 51004}, 0); err == nil {
		t.Error("a code that a binary header cuts was written")
	}
}

// FuzzFrames: whatever arrives, in whatever pieces, is cut into the same frames, one behind the other; what is read of one can be written, and reads the same again; and memory
// grows with what has arrived, not with what is promised.
func FuzzFrames(f *testing.F) {
	var all []byte
	for _, file := range []string{"rocketmq-remoting.json", "frames-0.3.1.2.json", "frames-0.4.0.json"} {
		for i, g := range goldenFrames(f, file) {
			b := g.bytes(f)
			f.Add(b, uint16(i*i))
			all = append(all, b...)
		}
	}
	f.Add(all, uint16(100))
	f.Add([]byte("\x7f\xff\xff\xff\x00\x00\x00\x00"), uint16(1))
	f.Add([]byte("\x00\xff\xff\xf0\x00\xff\xff\xff"), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, pace uint16) {
		var frames [2][][]byte
		var ends [2]error
		for k, size := range []int{max(len(b), 1), int(pace)%5000 + 1} {
			src := &unevenReader{src: bytes.NewReader(b), sizes: []int{size, 1, size}}
			var d reader
			for end := false; !end; {
				_, err := d.fill(src)
				for {
					whole, bad := d.next()
					if bad != nil {
						err = bad
					}
					if whole == nil {
						break
					}
					frames[k] = append(frames[k], whole)
				}
				if most := max(chunkMax, 2*len(b)+chunkMin, d.trust); len(d.chunk) > most {
					t.Fatalf("%d bytes of memory for %d that have arrived", len(d.chunk), len(b))
				}
				end, ends[k] = err != nil, err
			}
		}
		if len(frames[0]) != len(frames[1]) || errors.Is(ends[0], ErrFrame) != errors.Is(ends[1], ErrFrame) {
			t.Fatalf("in one piece %d frames and %v, in pieces %d and %v", len(frames[0]), ends[0], len(frames[1]), ends[1])
		}
		rest := b
		for i, whole := range frames[0] {
			if !bytes.Equal(whole, frames[1][i]) || !bytes.HasPrefix(rest, whole) {
				t.Fatalf("frame %d is not what arrived", i)
			}
			rest = rest[len(whole):]
			var g, again Frame
			if err := g.parse(whole); err != nil {
				if !errors.Is(err, ErrFrame) {
					t.Fatalf("frame %d: %v", i, err)
				}
				continue
			}
			if !bytes.HasSuffix(whole, g.Body) {
				t.Fatalf("frame %d has body %q", i, g.Body)
			}
			head, err := appendHead(nil, &g.Header, len(g.Body))
			if err != nil {
				if g.Serial != SerialBinary && !errors.Is(err, ErrTooLarge) {
					t.Fatalf("frame %d cannot be written: %v", i, err)
				}
				continue
			}
			if err := again.parse(append(head, g.Body...)); err != nil || !equal(g.Header, again.Header) || !bytes.Equal(g.Body, again.Body) {
				t.Fatalf("frame %d\nread  %+v\nagain %+v, %v", i, g, again, err)
			}
		}
	})
}

func FuzzHeaderJSON(f *testing.F) {
	for _, g := range goldenFrames(f, "rocketmq-remoting.json") {
		if g.Serialize == "JSON" {
			b := g.bytes(f)
			f.Add(b[prefixSize : len(b)-len(g.BodyHex)/2])
		}
	}
	for _, file := range []string{"frames-0.3.1.2.json", "frames-0.4.0.json"} {
		for _, g := range goldenFrames(f, file) {
			var h Frame
			if b := g.bytes(f); h.parse(b) == nil {
				f.Add(b[prefixSize : len(b)-len(h.Body)])
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// What the quick way accepts, the tolerant one reads alike.
		var quick, tolerant Header
		if quick.parseQuick(b) {
			if err := tolerant.parseTolerant(b); err != nil || !equal(quick, tolerant) {
				t.Fatalf("\nquick    %+v\ntolerant %+v, %v", quick, tolerant, err)
			}
		}
		var h, again Header
		if h.parseJSON(b) == nil {
			if err := again.parseJSON(h.appendJSON(nil)); err != nil || !equal(h, again) {
				t.Fatalf("\nread  %+v\nagain %+v, %v", h, again, err)
			}
		}
	})
}

func FuzzHeaderBinary(f *testing.F) {
	for _, g := range goldenFrames(f, "rocketmq-remoting.json") {
		if g.Serialize != "JSON" {
			b := g.bytes(f)
			f.Add(b[prefixSize : len(b)-len(g.BodyHex)/2])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		if h.parseBinary(b) != nil {
			return
		}
		out, err := h.appendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.parseBinary(out); err != nil || !equal(h, again) {
			t.Fatalf("\nread  %+v\nagain %+v, %v", h, again, err)
		}
	})
}
