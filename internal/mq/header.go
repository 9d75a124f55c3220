package mq

import (
	"fmt"
	"strconv"
	"strings"
)

// Fields reads the named parameters of a request (the command custom headers in the Java original).
//
//  1. A getter without "Or" is for a required field; one with it gives def for a field that is absent.
//  2. The first thing that is wrong is kept, and every getter goes on with a zero: read all fields, then ask Err once.
//  3. A field that is present but unreadable is an error, required or not; booleans are never unreadable.
type Fields struct {
	ext map[string]string
	err error
}

// FieldsOf gives a reader of the fields of one request; ext may be nil.
func FieldsOf(ext map[string]string) *Fields { return &Fields{ext: ext} }

// Err is the first fault found by the getters, as "queueId: missing" or "queueId: \"x\" is no number". It is answered with SystemError.
func (f *Fields) Err() error { return f.err }

// Has tells whether the request carries the field at all.
func (f *Fields) Has(name string) bool { _, ok := f.ext[name]; return ok }

func (f *Fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%s: "+format, append([]any{name}, args...)...)
	}
}

func (f *Fields) Str(name string) string {
	v, ok := f.ext[name]
	if !ok {
		f.fail(name, "missing")
	}
	return v
}

func (f *Fields) StrOr(name, def string) string {
	if v, ok := f.ext[name]; ok {
		return v
	}
	return def
}

func (f *Fields) number(name string, bits int) int64 {
	v, ok := f.ext[name]
	if !ok {
		f.fail(name, "missing")
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(v), 10, bits)
	if err != nil {
		if e, ok := err.(*strconv.NumError); ok && e.Err == strconv.ErrRange {
			f.fail(name, "%.40q is out of range", v)
		} else {
			f.fail(name, "%.40q is no number", v)
		}
		return 0
	}
	return n
}

func (f *Fields) Int32(name string) int32 { return int32(f.number(name, 32)) }
func (f *Fields) Int64(name string) int64 { return f.number(name, 64) }

func (f *Fields) Int32Or(name string, def int32) int32 {
	if !f.Has(name) {
		return def
	}
	return f.Int32(name)
}

func (f *Fields) Int64Or(name string, def int64) int64 {
	if !f.Has(name) {
		return def
	}
	return f.Int64(name)
}

// BoolOr reads a flag: "true" in any case and "1" are true, everything else is false, as in the original, but for the "1", which is
// how some C++ clients say it.
func (f *Fields) BoolOr(name string, def bool) bool {
	v, ok := f.ext[name]
	if !ok {
		return def
	}
	return ParseBool(v)
}

// ParseBool is BoolOr's rule for a text.
func ParseBool(s string) bool { return strings.EqualFold(s, "true") || s == "1" }

// Itoa writes a number as a field's value.
func Itoa[N int | int32 | int64](n N) string { return strconv.FormatInt(int64(n), 10) }
