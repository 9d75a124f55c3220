package sqlfilter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Parse reads a condition:
//
//	condition  = and { OR and }
//	and        = not { AND not }
//	not        = NOT not | equality
//	equality   = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
//	comparison = unary { ( "<" | "<=" | ">" | ">=" ) unary
//	             | [ NOT ] BETWEEN unary AND unary
//	             | [ NOT ] IN "(" string { "," string } ")"
//	             | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) string }
//	unary      = ( "+" | "-" ) unary | primary
//	primary    = number | string | TRUE | FALSE | NULL | name | "(" condition ")"
//
// Names of properties are letters, digits, _ and $, and do not begin with a digit; words in capitals above may be written in any case
// and are no names. A string is in single quotes, a quote in it is doubled. Numbers are whole (42, 42L) or have a point or an exponent.
// Comments are -- to the end of the line and /* */.
//
// NOT binds as in SQL: NOT a = 1 is NOT (a = 1). The original reads (NOT a) = 1, which never holds.
//
// Refused is also what can never be true: texts where an order is asked for, NULL compared with =, BETWEEN with bounds that are the
// wrong way round, IN on anything but a property.
func Parse(expr string) (*Expr, error) {
	if len(expr) > LenMax {
		return nil, fmt.Errorf("expression of %d bytes: at most %d are allowed", len(expr), LenMax)
	}
	p := parser{lexer: lexer{in: expr}}
	p.advance()
	n := p.truth(p.or())
	if p.err == nil && p.tok.kind != tokEnd {
		p.fail("nothing more is expected")
	}
	if p.err != nil {
		return nil, p.err
	}
	return &Expr{n, expr}, nil
}

type tokenKind byte

const (
	tokEnd tokenKind = iota
	tokName
	tokKeyword // text in capitals
	tokString
	tokInteger
	tokFloat
	tokSymbol
)

type token struct {
	kind tokenKind
	text string
	at   int
}

var keywords = map[string]bool{
	"NOT": true, "AND": true, "OR": true, "BETWEEN": true, "IN": true, "TRUE": true, "FALSE": true, "NULL": true, "IS": true,
	"CONTAINS": true, "STARTSWITH": true, "ENDSWITH": true,
}

type lexer struct {
	in  string
	pos int
}

// skip passes over blanks and comments; false: a comment has no end.
func (l *lexer) skip() bool {
	for l.pos < len(l.in) {
		rest := l.in[l.pos:]
		switch {
		case strings.IndexByte(" \t\r\n\f", rest[0]) >= 0:
			l.pos++
		case strings.HasPrefix(rest, "--"):
			end := strings.IndexAny(rest, "\r\n")
			if end < 0 {
				end = len(rest)
			}
			l.pos += end
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest[2:], "*/")
			if end < 0 {
				return false
			}
			l.pos += end + 4
		default:
			return true
		}
	}
	return true
}

func letter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$'
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func (l *lexer) next() (token, error) {
	if !l.skip() {
		return token{}, fmt.Errorf("the comment at byte %d has no end", l.pos)
	}
	from := l.pos
	if from == len(l.in) {
		return token{kind: tokEnd, at: from}, nil
	}
	c := l.in[from]
	switch {
	case letter(c):
		for l.pos < len(l.in) && (letter(l.in[l.pos]) || digit(l.in[l.pos])) {
			l.pos++
		}
		name := l.in[from:l.pos]
		if upper := strings.ToUpper(name); keywords[upper] {
			return token{tokKeyword, upper, from}, nil
		}
		return token{tokName, name, from}, nil
	case digit(c), c == '.':
		return l.number()
	case c == '\'':
		return l.str()
	}
	for _, s := range []string{"<>", "<=", ">=", "=", "<", ">", "(", ")", ",", "+", "-"} {
		if strings.HasPrefix(l.in[from:], s) {
			l.pos += len(s)
			return token{tokSymbol, s, from}, nil
		}
	}
	return token{}, fmt.Errorf("%q at byte %d means nothing here", l.in[from:from+1], from)
}

func (l *lexer) digits() (n int) {
	for l.pos < len(l.in) && digit(l.in[l.pos]) {
		l.pos++
		n++
	}
	return n
}

func (l *lexer) number() (token, error) {
	from, kind := l.pos, tokInteger
	n := l.digits()
	if l.pos < len(l.in) && l.in[l.pos] == '.' {
		kind = tokFloat
		l.pos++
		n += l.digits()
	}
	if n == 0 {
		return token{}, fmt.Errorf("a point without digits at byte %d", from)
	}
	if l.pos < len(l.in) && (l.in[l.pos] == 'e' || l.in[l.pos] == 'E') {
		kind = tokFloat
		l.pos++
		if l.pos < len(l.in) && (l.in[l.pos] == '+' || l.in[l.pos] == '-') {
			l.pos++
		}
		if l.digits() == 0 {
			return token{}, fmt.Errorf("an exponent without digits at byte %d", from)
		}
	}
	t := token{kind, l.in[from:l.pos], from}
	if kind == tokInteger && l.pos < len(l.in) && (l.in[l.pos] == 'l' || l.in[l.pos] == 'L') {
		l.pos++
	}
	if l.pos < len(l.in) && (letter(l.in[l.pos]) || l.in[l.pos] == '.') {
		return token{}, fmt.Errorf("no number at byte %d", from)
	}
	return t, nil
}

func (l *lexer) str() (token, error) {
	from := l.pos
	l.pos++
	var b strings.Builder
	for {
		end := strings.IndexByte(l.in[l.pos:], '\'')
		if end < 0 {
			return token{}, fmt.Errorf("the text at byte %d has no end", from)
		}
		b.WriteString(l.in[l.pos : l.pos+end])
		l.pos += end + 1
		if l.pos == len(l.in) || l.in[l.pos] != '\'' {
			return token{tokString, b.String(), from}, nil
		}
		b.WriteByte('\'')
		l.pos++
	}
}

// parser reads by descent. After the first error it takes no more tokens: every loop ends.
type parser struct {
	lexer
	tok   token
	err   error
	depth int
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		found := "the end"
		if p.tok.kind != tokEnd {
			found = strconv.Quote(p.tok.text) + fmt.Sprintf(" at byte %d", p.tok.at)
		}
		p.err = fmt.Errorf("%s, but found %s", fmt.Sprintf(format, args...), found)
	}
	p.tok = token{kind: tokEnd}
}

// reject is fail for an expression that can be read but makes no sense.
func (p *parser) reject(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.tok = token{kind: tokEnd}
}

func (p *parser) advance() {
	if p.err != nil {
		return
	}
	t, err := p.next()
	if err != nil {
		p.err, t = err, token{kind: tokEnd}
	}
	p.tok = t
}

func (p *parser) is(kind tokenKind, text string) bool {
	return p.tok.kind == kind && p.tok.text == text
}

func (p *parser) take(kind tokenKind, text string) bool {
	if !p.is(kind, text) {
		return false
	}
	p.advance()
	return true
}

func (p *parser) word(text string) bool   { return p.take(tokKeyword, text) }
func (p *parser) symbol(text string) bool { return p.take(tokSymbol, text) }

// isTruth tells expressions whose value is true, false or unknown.
func isTruth(n node) bool {
	switch n := n.(type) {
	case constant:
		return n.v.kind == boolean
	case property, negate:
		return false
	}
	return true
}

// truth makes sure that an operand of AND, OR and NOT, or the whole, is a condition.
func (p *parser) truth(n node) node {
	switch n := n.(type) {
	case property:
		return condition{n}
	default:
		if !isTruth(n) {
			p.reject("a condition is expected, not a text or a number")
		}
		return n
	}
}

func (p *parser) or() node {
	n := p.and()
	for p.word("OR") {
		n = or{p.truth(n), p.truth(p.and())}
	}
	return n
}

func (p *parser) and() node {
	n := p.not()
	for p.word("AND") {
		n = and{p.truth(n), p.truth(p.not())}
	}
	return n
}

// deeper notes one more level of nesting; false: too many.
func (p *parser) deeper() bool {
	if p.depth++; p.depth > DepthMax {
		p.reject("nested deeper than %d", DepthMax)
		return false
	}
	return true
}

func (p *parser) not() node {
	if !p.word("NOT") {
		return p.equality()
	}
	defer func() { p.depth-- }()
	if !p.deeper() {
		return constant{}
	}
	return not{p.truth(p.not())}
}

func (p *parser) equality() node {
	n := p.comparison()
	for {
		switch {
		case p.is(tokSymbol, "="), p.is(tokSymbol, "<>"):
			op := operators[p.tok.text]
			p.advance()
			right := p.comparison()
			p.equatable(n, right)
			n = comparison{op, n, right}
		case p.word("IS"):
			negated := p.word("NOT")
			if !p.word("NULL") {
				p.fail("NULL is expected after IS")
			}
			n = isNull{n}
			if negated {
				n = not{n}
			}
		default:
			return n
		}
	}
}

// equatable refuses what = and <> can never be sure of.
func (p *parser) equatable(left, right node) {
	l, lconst := left.(constant)
	r, rconst := right.(constant)
	if lconst && l.v.kind == unknown || rconst && r.v.kind == unknown {
		p.reject("NULL equals nothing, use IS NULL")
	}
	if lconst && rconst && (l.v.kind == boolean) != (r.v.kind == boolean) {
		p.reject("TRUE and FALSE can be compared with each other and with properties alone")
	}
}

// orderable refuses what < and the like make no sense of.
func (p *parser) orderable(n node) {
	switch n := n.(type) {
	case property, negate:
	case constant:
		if n.v.kind != integer && n.v.kind != floating {
			p.reject("only numbers have an order")
		}
	default:
		p.reject("only numbers have an order")
	}
}

func (p *parser) comparison() node {
	n := p.unary()
	for {
		op, ordering := operators[p.tok.text]
		if p.tok.kind == tokSymbol && ordering && op.ordering() {
			p.advance()
			right := p.unary()
			p.orderable(n)
			p.orderable(right)
			n = comparison{op, n, right}
			continue
		}
		negated := p.word("NOT") // as an operator NOT stands before an operand, never after one
		var next node
		switch {
		case p.word("BETWEEN"):
			next = p.between(n)
		case p.word("IN"):
			next = p.in(n)
		case p.is(tokKeyword, "CONTAINS"), p.is(tokKeyword, "STARTSWITH"), p.is(tokKeyword, "ENDSWITH"):
			n = p.search(n, negated)
			continue
		case negated:
			p.fail("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH is expected after NOT")
			return n
		default:
			return n
		}
		if n = next; negated {
			n = not{n}
		}
	}
}

func (p *parser) between(n node) node {
	lo := p.unary()
	if !p.word("AND") {
		p.fail("AND is expected in BETWEEN")
	}
	hi := p.unary()
	for _, operand := range []node{n, lo, hi} {
		p.orderable(operand)
	}
	if l, ok := number(lo); ok {
		if h, ok := number(hi); ok && (comparison{operators[">"], constant{l}, constant{h}}).eval(nil).b {
			p.reject("BETWEEN with its bounds the wrong way round holds for nothing")
		}
	}
	return and{comparison{operators[">="], n, lo}, comparison{operators["<="], n, hi}}
}

// number gives the value of a number in the expression, with its sign.
func number(n node) (value, bool) {
	switch n := n.(type) {
	case constant:
		return n.v, n.v.kind == integer || n.v.kind == floating
	case negate:
		if _, ok := number(n.of); ok {
			return n.eval(nil), true
		}
	}
	return value{}, false
}

func (p *parser) in(n node) node {
	if _, ok := n.(property); !ok {
		p.reject("IN is for properties alone")
	}
	if !p.symbol("(") {
		p.fail(`"(" is expected after IN`)
	}
	list := map[string]bool{}
	for {
		list[p.str("in the list of IN")] = true
		if !p.symbol(",") {
			break
		}
	}
	if !p.symbol(")") {
		p.fail(`"," or ")" is expected in the list of IN`)
	}
	return in{n, list}
}

func (p *parser) str(where string) string {
	s := p.tok.text
	if p.tok.kind != tokString {
		p.fail("a text in single quotes is expected %s", where)
		return ""
	}
	p.advance()
	return s
}

func (p *parser) search(n node, negated bool) node {
	word := p.tok.text
	p.advance()
	if c, ok := n.(constant); isTruth(n) || ok && c.v.kind != text {
		p.reject("%s is for texts alone", word)
	}
	within := map[string]func(string, string) bool{"CONTAINS": strings.Contains, "STARTSWITH": strings.HasPrefix, "ENDSWITH": strings.HasSuffix}[word]
	return search{of: n, what: p.str("after " + word), not: negated, within: within}
}

func (p *parser) unary() node {
	defer func() { p.depth-- }()
	if !p.deeper() {
		return constant{}
	}
	switch {
	case p.symbol("+"):
		return p.signed("+", p.unary())
	case p.symbol("-"):
		if p.tok.kind == tokInteger && p.tok.text == "9223372036854775808" { // has no positive counterpart
			p.advance()
			return constant{value{kind: integer, i: math.MinInt64}}
		}
		return negate{p.signed("-", p.unary())}
	}
	return p.primary()
}

func (p *parser) signed(sign string, n node) node {
	c, ok := n.(constant)
	if ok && c.v.kind != integer && c.v.kind != floating || isTruth(n) {
		p.reject("%q is for numbers alone", sign)
	}
	return n
}

func (p *parser) primary() node {
	t := p.tok
	switch t.kind {
	case tokName:
		p.advance()
		return property{t.text}
	case tokString:
		p.advance()
		return constant{value{kind: text, s: t.text}}
	case tokInteger:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			p.reject("the number %.40s is too large", t.text)
		}
		p.advance()
		return constant{value{kind: integer, i: n}}
	case tokFloat:
		f, ok := parseFloat(t.text)
		if !ok {
			p.reject("the number %.40s is too large", t.text)
		}
		p.advance()
		return constant{value{kind: floating, f: f}}
	case tokKeyword:
		switch t.text {
		case "TRUE", "FALSE":
			p.advance()
			return constant{truth(t.text == "TRUE")}
		case "NULL":
			p.advance()
			return constant{}
		}
	case tokSymbol:
		if p.symbol("(") {
			n := p.or()
			if !p.symbol(")") {
				p.fail(`")" is expected`)
			}
			return n
		}
	}
	p.fail("a property, a value or a condition is expected")
	return constant{}
}
