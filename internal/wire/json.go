package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"dledger/internal/raft"
	"dledger/internal/remoting"
)

// depthMax bounds the nesting of values that are skipped.
const depthMax = 64

// scanner reads JSON from front to back, as tolerantly as the original's library does for these messages: any key order, blanks,
// escapes, numbers as strings, null for "keep the default". The first error stays and makes all later calls do nothing.
type scanner struct {
	b   []byte
	i   int
	err error
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: at byte %d: %s", ErrMalformed, s.i, fmt.Sprintf(format, args...))
	}
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek gives the first byte of the next token, 0 at the end of the input or after an error.
func (s *scanner) peek() byte {
	if s.i < len(s.b) && s.b[s.i] > ' ' && s.err == nil {
		return s.b[s.i]
	}
	s.space()
	if s.i < len(s.b) && s.err == nil {
		return s.b[s.i]
	}
	return 0
}

// open reads the bracket c of an object or array; for null it reports false without an error.
func (s *scanner) open(c byte) bool {
	if s.peek() == c {
		s.i++
		return true
	}
	if !s.null() {
		s.fail("%q expected", c)
	}
	return false
}

// more tells whether another member follows, and reads the comma before it or the closing bracket c.
func (s *scanner) more(c byte, first bool) bool {
	switch next := s.peek(); {
	case next == c:
		s.i++
		return false
	case first && next != 0:
		return true
	case next == ',':
		s.i++
		return true
	}
	s.fail("%q or comma expected", c)
	return false
}

// key reads an object's key and the colon behind it.
func (s *scanner) key() []byte {
	if s.peek() != '"' {
		s.fail("key expected")
		return nil
	}
	key := s.chars()
	if s.peek() != ':' {
		s.fail("colon expected")
		return nil
	}
	s.i++
	return key
}

// chars reads a string that starts here; the result aliases the input unless the string has escapes.
func (s *scanner) chars() []byte {
	from := s.i + 1
	n := bytes.IndexByte(s.b[from:], '"')
	if n < 0 {
		s.fail("string without end")
		return nil
	}
	raw := s.b[from : from+n]
	if bytes.IndexByte(raw, '\\') < 0 {
		s.i = from + n + 1
		return raw
	}
	return s.escaped()
}

// escaped reads a string with escapes.
func (s *scanner) escaped() []byte {
	for end := s.i + 1; end < len(s.b); end++ {
		switch s.b[end] {
		case '\\':
			end++
		case '"':
			var out string
			if err := json.Unmarshal(s.b[s.i:end+1], &out); err != nil {
				s.fail("string: %v", err)
				return nil
			}
			s.i = end + 1
			return []byte(out)
		}
	}
	s.fail("string without end")
	return nil
}

// literal reads a number, true, false or null as it is spelled.
func (s *scanner) literal() []byte {
	s.peek()
	from := s.i
	for s.i < len(s.b) {
		c := s.b[s.i]
		if c-'0' > 9 && c|0x20-'a' > 'z'-'a' && c != '-' && c != '+' && c != '.' {
			break
		}
		s.i++
	}
	if s.i == from {
		s.fail("value expected")
	}
	return s.b[from:s.i]
}

func (s *scanner) null() bool {
	if s.peek() == 'n' && bytes.HasPrefix(s.b[s.i:], []byte("null")) {
		s.i += 4
		return true
	}
	return false
}

// int reads an integer; *to keeps its value for null and for an empty string.
func (s *scanner) int(to *int64) {
	c := s.peek()
	i, n := s.i, uint64(0)
	if c == '-' {
		i++
	}
	from := i
	for i < len(s.b) && s.b[i]-'0' < 10 && i-from < 18 {
		n = n*10 + uint64(s.b[i]-'0')
		i++
	}
	if i > from && i < len(s.b) && (s.b[i] == ',' || s.b[i] == '}' || s.b[i] == ']') {
		s.i = i
		if *to = int64(n); c == '-' {
			*to = -*to
		}
		return
	}
	s.tolerantInt(to)
}

// tolerantInt reads an integer that is written as a string, with a fraction of zeros, or in nineteen digits.
func (s *scanner) tolerantInt(to *int64) {
	var text string
	switch s.peek() {
	case '"':
		text = strings.TrimSpace(string(s.chars()))
		if text == "" || text == "null" {
			return
		}
	default:
		text = string(s.literal())
		if text == "null" || s.err != nil {
			return
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(text, 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			s.fail("%.40q is no integer", text)
			return
		}
		n = int64(f)
	}
	*to = n
}

// int32 is int for fields of 32 bits.
func (s *scanner) int32(to *int32) {
	n := int64(*to)
	s.int(&n)
	if n < math.MinInt32 || n > math.MaxInt32 {
		s.fail("%d exceeds 32 bits", n)
		return
	}
	*to = int32(n)
}

// crc is int for a checksum: 32 bits, signed in the original and accepted without a sign too.
func (s *scanner) crc() uint32 {
	var n int64
	s.int(&n)
	if n < math.MinInt32 || n > math.MaxUint32 {
		s.fail("%d exceeds 32 bits", n)
	}
	return uint32(n)
}

// text reads a string, or a number or truth value as it is spelled; *to keeps its value for null.
func (s *scanner) text(to *string) {
	switch s.peek() {
	case '"':
		raw := s.chars()
		if !utf8.Valid(raw) {
			raw = bytes.ToValidUTF8(raw, []byte("\ufffd"))
		}
		*to = intern(raw)
	case '{', '[':
		s.fail("string expected")
	default:
		if raw := s.literal(); s.err == nil && string(raw) != "null" {
			*to = string(raw)
		}
	}
}

func (s *scanner) id(to *raft.ID) { s.text((*string)(to)) }

// bool reads true or false, as a word, a string or 1 and 0.
func (s *scanner) bool(to *bool) {
	var word string
	s.text(&word)
	switch strings.ToLower(word) {
	case "true", "1":
		*to = true
	case "false", "0":
		*to = false
	case "":
	default:
		s.fail("%.40q is neither true nor false", word)
	}
}

// enum reads one of names or its ordinal; -1 stands for anything else, *to keeps its value for null.
func (s *scanner) enum(names []string, to *int) {
	if s.peek() == '"' {
		raw := s.chars()
		*to = -1
		for i, name := range names {
			if string(raw) == name {
				*to = i
			}
		}
		return
	}
	ordinal := int64(*to)
	s.int(&ordinal)
	if *to = int(ordinal); ordinal < 0 || ordinal >= int64(len(names)) {
		*to = -1
	}
}

// bytes reads a byte[]: base64 with or without padding, or an array of numbers. It decodes in place: the result lies where the
// string lay. null gives nil.
func (s *scanner) bytes() []byte {
	if s.peek() == '"' {
		raw := s.chars()
		n := s.decode(raw, raw)
		return raw[:n:n]
	}
	return s.byteArray()
}

// appendBytes is bytes, but appends them to dst.
func (s *scanner) appendBytes(dst []byte) []byte {
	if s.peek() == '"' {
		raw := s.chars()
		dst = slices.Grow(dst, len(raw)/4*3+8) // and room to write 8 bytes at a time
		n := s.decode(dst[len(dst):cap(dst)], raw)
		return dst[:len(dst)+n]
	}
	return append(dst, s.byteArray()...)
}

func (s *scanner) decode(dst, src []byte) int {
	n, err := decodeBase64(dst, src)
	if err != nil {
		s.fail("%v", err)
	}
	return n
}

// byteArray reads an array of numbers; null gives nil.
func (s *scanner) byteArray() []byte {
	if !s.open('[') {
		return nil
	}
	out := []byte{}
	for first := true; s.more(']', first); first = false {
		var n int64
		s.int(&n)
		if n < math.MinInt8 || n > math.MaxUint8 {
			s.fail("%d is no byte", n)
		}
		if s.err != nil {
			return nil
		}
		out = append(out, byte(n))
	}
	return out
}

// skip reads any value.
func (s *scanner) skip(depth int) {
	if depth > depthMax {
		s.fail("nested deeper than %d", depthMax)
		return
	}
	switch s.peek() {
	case '"':
		s.chars()
	case '{':
		s.i++
		for first := true; s.more('}', first); first = false {
			s.key()
			s.skip(depth + 1)
		}
	case '[':
		s.i++
		for first := true; s.more(']', first); first = false {
			s.skip(depth + 1)
		}
	default:
		s.literal()
	}
}

// end checks that nothing but blanks follows.
func (s *scanner) end() {
	if s.peek() != 0 || s.i < len(s.b) {
		s.fail("more behind the value")
	}
}

// writer appends a JSON object, keys as given. Every field ends in a comma; end turns the last one into the closing brace.
type writer struct{ b []byte }

func begin(b []byte) writer { return writer{append(b, '{')} }

func (w *writer) end() []byte {
	w.b[len(w.b)-1] = '}'
	return w.b
}

func (w *writer) int(key string, n int64) {
	w.b = append(strconv.AppendInt(append(w.b, key...), n, 10), ',')
}

// text writes a string, unless it is empty: the original leaves null out, and has no empty ids.
func (w *writer) text(key, value string) {
	if value != "" {
		w.b = append(remoting.AppendString(append(w.b, key...), value), ',')
	}
}

// raw writes value as it is.
func (w *writer) raw(key, value string) {
	w.b = append(append(append(w.b, key...), value...), ',')
}

func (w *writer) bytes(key string, value []byte) {
	w.b = append(appendBase64(append(append(w.b, key...), '"'), value), '"', ',')
}

// grow makes room for n more bytes, so that a large object is not copied while it grows.
func grow(b []byte, n int) []byte { return slices.Grow(b, n) }
