// Package sqlfilter decides by an SQL92 condition whether a subscriber wants a message. It knows properties as texts by name, and
// nothing of messages. Start at Parse; the language is described there.
package sqlfilter

import (
	"math"
	"strconv"
	"strings"
)

// Bounds of an expression, so that neither reading nor evaluating it can be made long.
const (
	LenMax   = 16 << 10 // bytes
	DepthMax = 100      // parentheses, NOT and signs within each other
)

// Expr is a parsed condition. It is never changed and may be used by any number of goroutines.
type Expr struct {
	root node
	text string
}

// String gives the expression as it was written.
func (e *Expr) String() string { return e.text }

// Match tells whether the condition holds for a message with these properties. get gives a property, false when there is none. Only
// what is certainly true matches: what cannot be known because a property is missing, or is no number where one is needed, does not.
func (e *Expr) Match(get func(name string) (string, bool)) bool {
	return e.root.eval(get) == truth(true)
}

// Properties gives a lookup in a map.
func Properties(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

// kind is what a value is. Properties are texts; they are read as what they are compared with.
type kind byte

const (
	unknown kind = iota // SQL's NULL
	boolean
	integer
	floating
	text
)

// value is the outcome of an expression.
type value struct {
	kind kind
	b    bool
	i    int64
	f    float64
	s    string
}

func truth(b bool) value { return value{kind: boolean, b: b} }

// node is one expression. eval has no side effects and cannot fail: what makes no sense is unknown.
type node interface {
	eval(get func(string) (string, bool)) value
}

type constant struct{ v value }

func (n constant) eval(func(string) (string, bool)) value { return n.v }

// property is unknown where the message has none of that name.
type property struct{ name string }

func (n property) eval(get func(string) (string, bool)) value {
	if s, ok := get(n.name); ok {
		return value{kind: text, s: s}
	}
	return value{}
}

// condition makes a truth value of a property that stands where one is needed: it is a text, so it is never true, but with NOT it is,
// as in the original (createBooleanCast).
type condition struct{ of node }

func (n condition) eval(get func(string) (string, bool)) value {
	if v := n.of.eval(get); v.kind == unknown || v.kind == boolean {
		return v
	}
	return truth(false)
}

type not struct{ of node }

func (n not) eval(get func(string) (string, bool)) value {
	v := n.of.eval(get)
	if v.kind != boolean {
		return value{}
	}
	return truth(!v.b)
}

type negate struct{ of node }

func (n negate) eval(get func(string) (string, bool)) value {
	switch v := n.of.eval(get); v.kind {
	case integer:
		return value{kind: integer, i: -v.i}
	case floating:
		return value{kind: floating, f: -v.f}
	}
	return value{} // of a property too: it is a text, and the original does not read it here
}

// and and or are three-valued: what is unknown does not matter where the other side decides.
type and struct{ left, right node }

func (n and) eval(get func(string) (string, bool)) value {
	l := n.left.eval(get)
	if l == truth(false) {
		return l
	}
	if r := n.right.eval(get); l.kind == boolean || r == truth(false) {
		return r
	}
	return value{}
}

type or struct{ left, right node }

func (n or) eval(get func(string) (string, bool)) value {
	l := n.left.eval(get)
	if l == truth(true) {
		return l
	}
	if r := n.right.eval(get); l.kind == boolean || r == truth(true) {
		return r
	}
	return value{}
}

// isNull is never unknown: it asks for it.
type isNull struct{ of node }

func (n isNull) eval(get func(string) (string, bool)) value {
	return truth(n.of.eval(get).kind == unknown)
}

// in finds a text in a list.
type in struct {
	of   node
	list map[string]bool
}

func (n in) eval(get func(string) (string, bool)) value {
	v := n.of.eval(get)
	if v.kind != text {
		return value{}
	}
	return truth(n.list[v.s])
}

// search is CONTAINS, STARTSWITH and ENDSWITH. Searching for nothing finds nothing, with NOT before the word too.
type search struct {
	of     node
	what   string
	not    bool
	within func(s, what string) bool
}

func (n search) eval(get func(string) (string, bool)) value {
	v := n.of.eval(get)
	if v.kind != text {
		return value{}
	}
	return truth(n.what != "" && n.within(v.s, n.what) != n.not)
}

// operator is one of the six comparisons, as the outcomes that make it true.
type operator struct{ less, equal, greater bool }

var operators = map[string]operator{
	"=": {equal: true}, "<>": {less: true, greater: true}, "<": {less: true}, "<=": {less: true, equal: true},
	">": {greater: true}, ">=": {greater: true, equal: true},
}

// ordering tells < <= > >= from = and <>.
func (o operator) ordering() bool { return o.less != o.greater }

type comparison struct {
	op          operator
	left, right node
}

func (n comparison) eval(get func(string) (string, bool)) value {
	l, r := n.left.eval(get), n.right.eval(get)
	if l.kind == unknown || r.kind == unknown {
		return value{}
	}
	if l.kind == text && r.kind == text && n.op.ordering() { // two properties: texts have no order here, numbers do
		l, r = l.as(floating), r.as(floating)
	} else if l.kind == text {
		l = l.as(r.kind)
	} else if r.kind == text {
		r = r.as(l.kind)
	}
	switch {
	case l.kind == integer && r.kind == floating:
		l = value{kind: floating, f: float64(l.i)}
	case l.kind == floating && r.kind == integer:
		r = value{kind: floating, f: float64(r.i)}
	}
	if l.kind != r.kind || l.kind == unknown {
		return value{}
	}
	switch l.kind {
	case integer:
		return truth(n.op.less && l.i < r.i || n.op.equal && l.i == r.i || n.op.greater && l.i > r.i)
	case floating:
		return truth(n.op.less && l.f < r.f || n.op.equal && l.f == r.f || n.op.greater && l.f > r.f)
	case boolean:
		if n.op.ordering() {
			return value{}
		}
		return truth((l.b == r.b) == n.op.equal)
	}
	return truth((l.s == r.s) == n.op.equal)
}

// as reads a text as what it is compared with; what it is not is unknown. A whole number in the expression wants whole numbers in the
// property, as in the original.
func (v value) as(k kind) value {
	switch k {
	case integer:
		if n, err := strconv.ParseInt(v.s, 10, 64); err == nil {
			return value{kind: integer, i: n}
		}
	case floating:
		if f, ok := parseFloat(v.s); ok {
			return value{kind: floating, f: f}
		}
	case boolean:
		return truth(strings.EqualFold(v.s, "true"))
	case text:
		return v
	}
	return value{}
}

// parseFloat reads decimal numbers alone: no names of infinity, no hexadecimal.
func parseFloat(s string) (float64, bool) {
	s = strings.TrimSpace(s)
	for i := 0; i < len(s); i++ {
		if c := s[i]; !(c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E') {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && !math.IsInf(f, 0)
}
