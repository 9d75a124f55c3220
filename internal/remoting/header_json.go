package remoting

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// appendJSON appends h as the original writes it: keys in alphabetical order, no blanks, no key without a value.
func (h *Header) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, int64(h.Code), 10)
	if len(h.Ext) > 0 {
		dst = append(dst, `,"extFields":{`...)
		first := true
		for key, value := range h.Ext {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = AppendString(dst, key)
			dst = append(dst, ':')
			dst = AppendString(dst, value)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, `,"flag":`...)
	dst = strconv.AppendInt(dst, int64(h.Flag), 10)
	dst = append(dst, `,"language":`...)
	dst = AppendString(dst, h.Language)
	dst = append(dst, `,"opaque":`...)
	dst = strconv.AppendInt(dst, int64(h.Opaque), 10)
	if h.Remark != "" {
		dst = append(dst, `,"remark":`...)
		dst = AppendString(dst, h.Remark)
	}
	dst = append(dst, `,"serializeTypeCurrentRPC":"JSON","version":`...)
	dst = strconv.AppendInt(dst, int64(h.Version), 10)
	return append(dst, '}')
}

// AppendString appends s as a JSON string: control characters, quotes and backslashes escaped, bytes that are no UTF-8 replaced.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			dst = append(append(dst, s[from:i]...), "\ufffd"...)
		} else if c == '"' || c == '\\' {
			dst = append(append(dst, s[from:i]...), '\\', c)
		} else {
			dst = append(append(dst, s[from:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// parseJSON reads a header. The headers that this package and the originals write take the quick way; everything else that is
// JSON takes the tolerant one: blanks, numbers as strings, field values that are no strings, null.
func (h *Header) parseJSON(b []byte) error {
	if h.parseQuick(b) {
		return nil
	}
	*h = Header{Serial: SerialJSON}
	return h.parseTolerant(b)
}

// parseQuick reads b when it has no blanks and only the known keys with values of their own type, in any order.
// It reports false, with h half filled, as soon as that is not so.
func (h *Header) parseQuick(b []byte) bool {
	q := quick{b: b}
	if !q.eat('{') {
		return false
	}
	for {
		key, plain, ok := q.string()
		if !ok || !plain || !q.eat(':') {
			return false
		}
		switch string(key) {
		case "code":
			h.Code, ok = q.int()
		case "flag":
			h.Flag, ok = q.int()
		case "opaque":
			h.Opaque, ok = q.int()
		case "version":
			h.Version, ok = q.int()
		case "language":
			var value []byte
			if value, plain, ok = q.string(); ok && plain {
				h.Language = languageName(value)
			}
			ok = ok && plain
		case "remark":
			h.Remark, ok = q.text()
		case "serializeTypeCurrentRPC":
			_, _, ok = q.string()
		case "extFields":
			h.Ext, ok = q.fields()
		default:
			return false
		}
		if !ok {
			return false
		}
		if q.eat(',') {
			continue
		}
		return q.eat('}') && q.i == len(b)
	}
}

// languageName gives the name that b spells, without an allocation for the usual ones.
func languageName(b []byte) string {
	switch string(b) {
	case "JAVA":
		return "JAVA"
	case Language:
		return Language
	}
	return string(b)
}

// quick is a reader of the plainest JSON.
type quick struct {
	b []byte
	i int
}

func (q *quick) eat(c byte) bool {
	if q.i < len(q.b) && q.b[q.i] == c {
		q.i++
		return true
	}
	return false
}

// string reads a string as it is spelled between its quotes; the result aliases the input. plain says that it is also spelled as it reads.
func (q *quick) string() (s []byte, plain, ok bool) {
	if !q.eat('"') {
		return nil, false, false
	}
	ascii, escapes := true, false
	for i := q.i; i < len(q.b); i++ {
		switch c := q.b[i]; {
		case c == '"':
			s := q.b[q.i:i]
			q.i = i + 1
			return s, !escapes, ascii || utf8.Valid(s)
		case c == '\\':
			escapes = true
			i++ // whatever it is, it ends no string
		case c < ' ':
			return nil, false, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false, false
}

// text reads a string. Escapes that make no character are left to the tolerant way.
func (q *quick) text() (string, bool) {
	s, plain, ok := q.string()
	if !ok || plain {
		return string(s), ok
	}
	return unescape(s)
}

// unescape gives the text that s spells.
func unescape(s []byte) (string, bool) {
	var out strings.Builder
	out.Grow(len(s))
	for i := 0; i < len(s); i++ {
		n := bytes.IndexByte(s[i:], '\\')
		if n < 0 {
			out.Write(s[i:])
			break
		}
		out.Write(s[i : i+n])
		i += n + 1 // there is one: the quote behind the string was not escaped
		switch s[i] {
		case '"', '\\', '/':
			out.WriteByte(s[i])
		case 'b':
			out.WriteByte('\b')
		case 'f':
			out.WriteByte('\f')
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 't':
			out.WriteByte('\t')
		case 'u':
			r, ok := hex4(s[i+1:])
			if !ok {
				return "", false
			}
			i += 4
			if utf16.IsSurrogate(r) {
				if len(s) < i+3 || s[i+1] != '\\' || s[i+2] != 'u' {
					return "", false
				}
				low, ok := hex4(s[i+3:])
				if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
					return "", false
				}
				i += 6
			}
			out.WriteRune(r)
		default:
			return "", false
		}
	}
	return out.String(), true
}

func hex4(s []byte) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for _, c := range s[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (q *quick) int() (int32, bool) {
	negative := q.eat('-')
	from, n := q.i, int64(0)
	for q.i < len(q.b) && q.b[q.i]-'0' < 10 && q.i-from < 10 {
		n = n*10 + int64(q.b[q.i]-'0')
		q.i++
	}
	plain := q.i > from && (q.b[from] != '0' || q.i == from+1)
	if negative {
		n = -n
	}
	return int32(n), plain && n >= math.MinInt32 && n <= math.MaxInt32
}

// fields reads an object of strings. All of them that are spelled as they read share one piece of memory.
func (q *quick) fields() (map[string]string, bool) {
	if !q.eat('{') {
		return nil, false
	}
	if q.eat('}') {
		return map[string]string{}, true
	}
	fields := make(map[string]string, 14) // one of 15 takes twice the memory; a send has 13
	base, all := q.i, string(q.b[q.i:])
	text := func() (string, bool) {
		s, plain, ok := q.string()
		switch {
		case !ok:
			return "", false
		case !plain:
			return unescape(s)
		}
		hi := q.i - 1 - base // the closing quote
		return all[hi-len(s) : hi], true
	}
	for {
		key, ok := text()
		if !ok || !q.eat(':') {
			return nil, false
		}
		value, ok := text()
		if !ok {
			return nil, false
		}
		fields[key] = value
		if q.eat(',') {
			continue
		}
		return fields, q.eat('}')
	}
}

func (h *Header) parseTolerant(b []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if fields == nil {
		return errors.New("header is null")
	}
	for _, f := range []struct {
		name string
		to   *int32
	}{{"code", &h.Code}, {"flag", &h.Flag}, {"opaque", &h.Opaque}, {"version", &h.Version}} {
		if raw, ok := fields[f.name]; ok {
			n, err := tolerantInt(raw)
			if err != nil {
				return fmt.Errorf("header %s: %w", f.name, err)
			}
			*f.to = n
		}
	}
	h.Language, _ = text(fields["language"])
	h.Remark, _ = text(fields["remark"])
	if raw, ok := fields["extFields"]; ok {
		var ext map[string]json.RawMessage
		if err := json.Unmarshal(raw, &ext); err != nil {
			return fmt.Errorf("header extFields: %w", err)
		}
		if ext != nil {
			h.Ext = make(map[string]string, len(ext))
		}
		for key, value := range ext {
			if s, ok := text(value); ok {
				h.Ext[key] = s
			}
		}
	}
	return nil
}

// text gives a string's characters, and any other value as it is spelled; null and absent values are not ok.
func text(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", false
	}
	if raw[0] != '"' {
		return string(raw), true
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

func tolerantInt(raw json.RawMessage) (int32, error) {
	s, ok := text(raw)
	if !ok {
		return 0, nil
	}
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseInt(s, 10, 32); err == nil {
		return int32(n), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
		return 0, fmt.Errorf("%.40q is no int32", s)
	}
	return int32(f), nil
}
