package mq

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"dledger/internal/remoting"
)

// Bounds of a body in JSON: how deep it may nest, how many values it may hold, and how many more once back
// references are followed.
const (
	jsonDepthMax  = 64
	jsonValuesMax = 2 << 20
	jsonRefsMax   = 1 << 16 // values that back references may add, and three times what the document holds itself
)

// ErrJSON wraps every complaint about the form of a body.
var ErrJSON = errors.New("malformed JSON")

// Unmarshal reads a body as the original's library (fastjson 1.2) writes it. Beyond standard JSON it takes
//
//  1. numbers as keys of objects, without quotes: {0:"a"};
//  2. objects as keys of objects: {{"queueId":3}:5}, for maps whose key is a struct here;
//  3. back references to a value written before: {"$ref":"$.statsDay"}, {"$ref":"$"} within bounds;
//  4. numbers and booleans as strings and the other way round, enumerations by their ordinal, names of fields in another case;
//  5. null for everything: it leaves the field as it is.
//
// Fields that v does not have are skipped, those that the body does not have stay as they are in v; in a table of groups they have
// their defaults. v is a pointer to a struct, map or slice.
func Unmarshal(b []byte, v any) error {
	p := jsonParser{in: b}
	root, err := p.document()
	if err != nil {
		return err
	}
	r := jsonReader{root: root, max: 4*p.values + jsonRefsMax}
	return r.read(root, reflect.ValueOf(v).Elem(), 0)
}

// Marshal writes v as the original's library would: fields and keys in ascending order, no blanks, keys of maps in quotes unless they
// are structs, floating numbers with a point. nil pointers are left out, nil maps and slices are empty ones; a field tagged omitempty
// is left out when it is zero. What it writes is standard JSON as long as no map has a struct as key.
func Marshal(v any) []byte { return appendValue(nil, reflect.ValueOf(v)) }

type jsonKind byte

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

// jsonValue is one value of a document. text is the number as written, the string without its escapes, or true and false. Keys of an
// object stand in keys, the values beside them in items.
type jsonValue struct {
	kind  jsonKind
	text  string
	keys  []jsonValue
	items []jsonValue
}

type jsonParser struct {
	in     []byte
	pos    int
	values int
}

func (p *jsonParser) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrJSON, what, p.pos)
}

func (p *jsonParser) document() (*jsonValue, error) {
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.next(); p.pos < len(p.in) {
		return nil, p.fail("something after the end")
	}
	return &v, nil
}

// next skips blanks and gives the byte that follows without taking it, 0 at the end.
func (p *jsonParser) next() byte {
	for p.pos < len(p.in) {
		switch c := p.in[p.pos]; c {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return c
		}
	}
	return 0
}

func (p *jsonParser) take(c byte) bool {
	if p.next() != c || p.pos == len(p.in) {
		return false
	}
	p.pos++
	return true
}

func (p *jsonParser) value(depth int) (v jsonValue, err error) {
	if depth > jsonDepthMax {
		return v, p.fail("nested too deep")
	}
	if p.values++; p.values > jsonValuesMax {
		return v, p.fail("too many values")
	}
	switch c := p.next(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"' || c == '\'':
		v.kind = jsonString
		v.text, err = p.str(c)
		return v, err
	}
	switch word := p.word(); word {
	case "":
		return v, p.fail("no value")
	case "null":
		return v, nil
	case "true", "false":
		return jsonValue{kind: jsonBool, text: word}, nil
	default:
		if _, err := strconv.ParseFloat(word, 64); err != nil && !errors.Is(err, strconv.ErrRange) {
			return v, p.fail(fmt.Sprintf("unknown word %.20q", word))
		}
		return jsonValue{kind: jsonNumber, text: word}, nil
	}
}

// word takes letters, digits and what numbers are made of.
func (p *jsonParser) word() string {
	from := p.pos
	for p.pos < len(p.in) {
		c := p.in[p.pos]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == '_' || c == '$') {
			break
		}
		p.pos++
	}
	return string(p.in[from:p.pos])
}

func (p *jsonParser) object(depth int) (v jsonValue, err error) {
	v.kind = jsonObject
	p.pos++
	for !p.take('}') {
		if len(v.items) > 0 && !p.take(',') {
			return v, p.fail("no comma")
		}
		if len(v.items) > 0 && p.take('}') { // the original allows a comma before the end
			break
		}
		var key jsonValue
		switch c := p.next(); c {
		case '"', '\'', '{':
			key, err = p.value(depth + 1)
		default:
			if key.text = p.word(); key.text == "" {
				return v, p.fail("no key")
			}
			key.kind = jsonString
		}
		if err != nil {
			return v, err
		}
		if !p.take(':') {
			return v, p.fail("no colon")
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.keys = append(v.keys, key)
		v.items = append(v.items, item)
	}
	return v, nil
}

func (p *jsonParser) array(depth int) (v jsonValue, err error) {
	v.kind = jsonArray
	p.pos++
	for !p.take(']') {
		if len(v.items) > 0 && !p.take(',') {
			return v, p.fail("no comma")
		}
		if len(v.items) > 0 && p.take(']') {
			break
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
	}
	return v, nil
}

func (p *jsonParser) str(quote byte) (string, error) {
	p.pos++
	from := p.pos
	for p.pos < len(p.in) && p.in[p.pos] != quote && p.in[p.pos] != '\\' {
		p.pos++
	}
	if p.pos < len(p.in) && p.in[p.pos] == quote {
		p.pos++
		return string(p.in[from : p.pos-1]), nil
	}
	out := slices.Clone(p.in[from:p.pos])
	for p.pos < len(p.in) {
		c := p.in[p.pos]
		p.pos++
		if c == quote {
			return string(out), nil
		}
		if c != '\\' {
			out = append(out, c)
			continue
		}
		if p.pos == len(p.in) {
			break
		}
		c = p.in[p.pos]
		p.pos++
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'v':
			out = append(out, '\v')
		case '0':
			out = append(out, 0)
		case 'x':
			n, ok := p.hex(2)
			if !ok {
				return "", p.fail("bad escape")
			}
			out = utf8.AppendRune(out, rune(n))
		case 'u':
			n, ok := p.hex(4)
			if !ok {
				return "", p.fail("bad escape")
			}
			r := rune(n)
			if utf16.IsSurrogate(r) && p.pos+1 < len(p.in) && p.in[p.pos] == '\\' && p.in[p.pos+1] == 'u' {
				was := p.pos
				p.pos += 2
				lo, ok := p.hex(4)
				if pair := utf16.DecodeRune(r, rune(lo)); ok && pair != utf8.RuneError {
					r = pair
				} else {
					p.pos = was
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return "", p.fail("string without end")
}

func (p *jsonParser) hex(digits int) (uint64, bool) {
	if p.pos+digits > len(p.in) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.in[p.pos:p.pos+digits]), 16, 32)
	p.pos += digits
	return n, err == nil
}

// field gives the value of a key, nil when there is none.
func (v *jsonValue) field(name string) *jsonValue {
	for i := range v.keys {
		if v.keys[i].kind == jsonString && v.keys[i].text == name {
			return &v.items[i]
		}
	}
	return nil
}

// jsonReader puts a parsed document into Go values.
type jsonReader struct {
	root  *jsonValue
	given int // values given out so far: back references can make a small document large
	max   int // bound of given
}

// follow replaces a back reference by what it points to: "$" or a path from the root. Others ("..", "@") point to a value that holds
// the reference, which no body of ours can hold.
func (r *jsonReader) follow(v *jsonValue) (*jsonValue, error) {
	for hops := 0; v.kind == jsonObject && len(v.keys) == 1 && v.keys[0].text == "$ref" && v.items[0].kind == jsonString; hops++ {
		path := v.items[0].text
		if hops > 8 || !strings.HasPrefix(path, "$") {
			return nil, fmt.Errorf("%w: back reference %.80q leads nowhere", ErrJSON, path)
		}
		at := r.root
		for rest := path[1:]; rest != "" && at != nil; {
			switch end := strings.IndexAny(rest[1:], ".["); {
			case rest[0] == '[':
				n, tail, ok := strings.Cut(rest[1:], "]")
				i, err := strconv.Atoi(n)
				if !ok || err != nil || at.kind != jsonArray || i < 0 || i >= len(at.items) {
					at = nil
				} else {
					at, rest = &at.items[i], tail
				}
			case rest[0] == '.' && end >= 0:
				at, rest = at.field(rest[1:1+end]), rest[1+end:]
			case rest[0] == '.':
				at, rest = at.field(rest[1:]), ""
			default:
				at = nil
			}
		}
		if at == nil {
			return nil, fmt.Errorf("%w: back reference %.80q leads nowhere", ErrJSON, path)
		}
		v = at
	}
	return v, nil
}

// defaults is implemented by elements of tables whose absent fields are not zero.
type defaults interface{ defaults() }

func setDefaults(v reflect.Value) {
	if d, ok := v.Addr().Interface().(defaults); ok {
		d.defaults()
	}
}

// ordinals is implemented by enumerations: the names in the original's order.
type ordinals interface{ ordinals() []string }

func (r *jsonReader) read(v *jsonValue, to reflect.Value, depth int) error {
	if r.given++; r.given > r.max || depth > jsonDepthMax {
		return fmt.Errorf("%w: back references make it too large", ErrJSON)
	}
	v, err := r.follow(v)
	if err != nil || v.kind == jsonNull {
		return err
	}
	mismatch := func() error {
		return fmt.Errorf("%w: %.40q does not fit %s", ErrJSON, v.text, to.Type())
	}
	scalar := v.kind == jsonBool || v.kind == jsonNumber || v.kind == jsonString
	switch to.Kind() {
	case reflect.Pointer:
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
		}
		return r.read(v, to.Elem(), depth)
	case reflect.String:
		if !scalar {
			return mismatch()
		}
		text := v.text
		if e, ok := to.Interface().(ordinals); ok && v.kind == jsonNumber {
			names := e.ordinals()
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 || n >= len(names) {
				return mismatch()
			}
			text = names[n]
		}
		to.SetString(text)
	case reflect.Bool:
		if !scalar {
			return mismatch()
		}
		to.SetBool(ParseBool(v.text))
	case reflect.Int32, reflect.Int64, reflect.Int:
		if !scalar {
			return mismatch()
		}
		n, err := parseInteger(v.text, to.Type().Bits())
		if err != nil {
			return mismatch()
		}
		to.SetInt(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(v.text, 64)
		if !scalar || err != nil {
			return mismatch()
		}
		to.SetFloat(f)
	case reflect.Slice:
		if v.kind != jsonArray {
			return mismatch()
		}
		s := reflect.MakeSlice(to.Type(), len(v.items), len(v.items))
		for i := range v.items {
			setDefaults(s.Index(i))
			if err := r.read(&v.items[i], s.Index(i), depth+1); err != nil {
				return err
			}
		}
		to.Set(s)
	case reflect.Map:
		return r.readMap(v, to, depth)
	case reflect.Struct:
		return r.readStruct(v, to, depth)
	default:
		panic("mq: no JSON for " + to.Type().String())
	}
	return nil
}

// parseInteger takes whole numbers, also written as 5.0 or 1e3; blank is 0, as in the original.
func parseInteger(s string, bits int) (int64, error) {
	if s == "" || s == "null" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, bits)
	if err == nil {
		return n, nil
	}
	f, ferr := strconv.ParseFloat(s, 64)
	if ferr != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 || bits == 32 && math.Abs(f) > math.MaxInt32 {
		return 0, err
	}
	return int64(f), nil
}

func (r *jsonReader) readMap(v *jsonValue, to reflect.Value, depth int) error {
	if v.kind != jsonObject {
		return fmt.Errorf("%w: no object for %s", ErrJSON, to.Type())
	}
	m := reflect.MakeMapWithSize(to.Type(), len(v.items))
	for i := range v.items {
		key, item := reflect.New(to.Type().Key()).Elem(), reflect.New(to.Type().Elem()).Elem()
		setDefaults(item)
		k := &v.keys[i]
		if k.kind == jsonString && key.Kind() == reflect.Struct { // the object once more as a string
			inner := jsonParser{in: []byte(k.text)}
			parsed, err := inner.document()
			if err != nil {
				return err
			}
			k = parsed
		}
		if err := r.read(k, key, depth+1); err != nil {
			return err
		}
		if err := r.read(&v.items[i], item, depth+1); err != nil {
			return err
		}
		m.SetMapIndex(key, item)
	}
	to.Set(m)
	return nil
}

func (r *jsonReader) readStruct(v *jsonValue, to reflect.Value, depth int) error {
	if v.kind != jsonObject {
		return fmt.Errorf("%w: no object for %s", ErrJSON, to.Type())
	}
	fields := fieldsOf(to.Type())
	for i := range v.items {
		name := v.keys[i].text
		at := slices.IndexFunc(fields, func(f jsonField) bool { return f.name == name })
		if at < 0 {
			at = slices.IndexFunc(fields, func(f jsonField) bool { return strings.EqualFold(f.name, name) })
		}
		if at < 0 {
			continue
		}
		if err := r.read(&v.items[i], to.Field(fields[at].index), depth+1); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// jsonField is one field of a struct that takes part, by the name in its json tag.
type jsonField struct {
	name  string
	index int
	omit  bool
}

var fieldsCache sync.Map // reflect.Type → []jsonField

// fieldsOf gives the fields in ascending order of their names.
func fieldsOf(t reflect.Type) []jsonField {
	if f, ok := fieldsCache.Load(t); ok {
		return f.([]jsonField)
	}
	var fields []jsonField
	for i := range t.NumField() {
		if name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields = append(fields, jsonField{name: name, index: i, omit: opts == "omitempty"})
		}
	}
	slices.SortFunc(fields, func(a, b jsonField) int { return strings.Compare(a.name, b.name) })
	fieldsCache.Store(t, fields)
	return fields
}

func appendValue(dst []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(dst, "null"...)
		}
		return appendValue(dst, v.Elem())
	case reflect.String:
		return remoting.AppendString(dst, v.String())
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case reflect.Int32, reflect.Int64, reflect.Int:
		return strconv.AppendInt(dst, v.Int(), 10)
	case reflect.Float64:
		f := v.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return append(dst, "null"...)
		}
		if f == math.Trunc(f) && math.Abs(f) < 1e15 {
			return strconv.AppendFloat(dst, f, 'f', 1, 64)
		}
		return strconv.AppendFloat(dst, f, 'g', -1, 64)
	case reflect.Slice:
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, v.Index(i))
		}
		return append(dst, ']')
	case reflect.Map:
		return appendMap(dst, v)
	case reflect.Struct:
		dst = append(dst, '{')
		some := false
		for _, f := range fieldsOf(v.Type()) {
			field := v.Field(f.index)
			if f.omit && field.IsZero() || field.Kind() == reflect.Pointer && field.IsNil() {
				continue
			}
			if some {
				dst = append(dst, ',')
			}
			some = true
			dst = append(remoting.AppendString(dst, f.name), ':')
			dst = appendValue(dst, field)
		}
		return append(dst, '}')
	}
	panic("mq: no JSON for " + v.Type().String())
}

func appendMap(dst []byte, v reflect.Value) []byte {
	type pair struct {
		key  string // as written
		n    int64
		item reflect.Value
	}
	var pairs []pair
	for it := v.MapRange(); it.Next(); {
		p := pair{item: it.Value()}
		switch k := it.Key(); k.Kind() {
		case reflect.String:
			p.key = string(remoting.AppendString(nil, k.String()))
		case reflect.Struct:
			p.key = string(appendValue(nil, k))
		default:
			p.n = k.Int()
			p.key = `"` + strconv.FormatInt(p.n, 10) + `"`
		}
		pairs = append(pairs, p)
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		if a.n != b.n {
			return int(min(max(a.n-b.n, -1), 1))
		}
		return strings.Compare(a.key, b.key)
	})
	dst = append(dst, '{')
	for i, p := range pairs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, p.key...), ':')
		dst = appendValue(dst, p.item)
	}
	return append(dst, '}')
}
