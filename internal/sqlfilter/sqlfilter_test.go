package sqlfilter

import (
	"strings"
	"testing"
)

// props are those of the one message that the tables below look at. There is no property "none".
var props = map[string]string{
	"a": "5", "neg": "-5", "f": "5.5", "s": "text", "q": "it's", "big": "9223372036854775807", "t": "TRUE", "no": "false", "TAGS": "tagA",
	"_x$1": "1", "blank": " ", "exp": "1e3", "Case": "x",
}

func match(t *testing.T, expr string) bool {
	t.Helper()
	e, err := Parse(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	if e.String() != expr {
		t.Errorf("%s: is said to be %s", expr, e)
	}
	return e.Match(Properties(props))
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		name string
		yes  []string
		no   []string
	}{
		{"numbers", []string{
			"a = 5", "a=5", "a <> 6", "a > 4", "a >= 5", "a < 6", "a <= 5", "5 = a", "4 < a", "neg = -5", "neg < 0", "-5 = neg", "a = +5", "a = 5L", "a = 5l",
			"f > 5.4", "f < 6.", "f = 5.5E0", "f > .5", "a > 4.5", "a = 5.0", "big = 9223372036854775807", "neg > -9223372036854775808", "exp = 1000.0", "exp > 1E2",
			"1 = 1", "1 < 2.5", "--5 = 1\na = 5", "a = 5 -- comment", "a /* x */ = 5",
		}, []string{"a = 6", "a <> 5", "a > 5", "a < 5", "neg > 0", "f > 5.5", "1 > 2", "big < 0"}},
		{"texts", []string{"s = 'text'", "s <> 'other'", "q = 'it''s'", "TAGS = 'tagA'", "Case = 'x'", "blank = ' '", "'x' = 'x'", "s = s", "_x$1 = '1'", "a = '5'"},
			[]string{"s = 'Text'", "s <> 'text'", "s = ''", "s = 'text '", "a = '5.0'"}},
		{"two properties", []string{"f > a", "a > neg", "f = f", "f <> a"}, []string{"a > f", "s > a", "s < a", "s = a", "s >= s"}},
		{"truth", []string{"TRUE", "true OR FALSE", "t = TRUE", "t = true", "no = FALSE", "t <> FALSE", "s = FALSE", "(a = 5) = TRUE", "NOT FALSE", "NOT a", "(a > 4) <> (a > 5)"},
			[]string{"FALSE", "t = FALSE", "no = TRUE", "s = TRUE", "t", "a", "TRUE AND FALSE", "NOT TRUE"}},
		{"logic", []string{
			"a = 5 AND s = 'text'", "a = 6 OR s = 'text'", "a = 6 AND a = 6 OR a = 5", "a = 5 OR a = 6 AND a = 6", "NOT a = 6", "NOT (a = 6)", "NOT NOT a = 5", "not a > 5 and a > 4",
			"(((a = 5)))", "a = 5 and not (s = 'x' or s = 'y')",
		}, []string{"a = 5 AND s = 'x'", "NOT a = 5", "(a = 5 OR a = 6) AND a = 6", "NOT (a = 5 OR a = 6)"}},
		{"ranges", []string{"a BETWEEN 5 AND 5", "a between 1 and 9", "a BETWEEN neg AND f", "a NOT BETWEEN 6 AND 9", "a BETWEEN 1 AND 9 AND s = 'text'", "5 BETWEEN a AND a", "f BETWEEN 5.0 AND 6.0", "neg BETWEEN -6 AND -4"},
			[]string{"a BETWEEN 6 AND 9", "a NOT BETWEEN 5 AND 5", "s BETWEEN 1 AND 2", "s NOT BETWEEN 1 AND 2", "NOT (a BETWEEN 1 AND 9)"}},
		{"lists", []string{"s IN ('x', 'text')", "s in ('text')", "s NOT IN ('x', 'y')", "a IN ('5')", "q IN ('it''s')"},
			[]string{"s IN ('x')", "s NOT IN ('text')", "s IN ('')"}},
		{"search", []string{
			"s CONTAINS 'ex'", "s STARTSWITH 'te'", "s ENDSWITH 'xt'", "s NOT CONTAINS 'y'", "s NOT STARTSWITH 'x'", "s NOT ENDSWITH 'te'", "s contains 'text'", "q CONTAINS ''''",
			"'abc' CONTAINS 'b'", "a STARTSWITH '5'",
		}, []string{"s CONTAINS 'EX'", "s STARTSWITH 'ex'", "s ENDSWITH 'ex'", "s NOT CONTAINS 'ex'", "s CONTAINS ''", "s NOT CONTAINS ''", "s STARTSWITH ''", "s NOT ENDSWITH ''"}},
		{"null", []string{"none IS NULL", "s IS NOT NULL", "NOT s IS NULL", "none is null and s is not null", "NULL IS NULL"}, []string{"s IS NULL", "none IS NOT NULL"}},
		{"names have cases", nil, []string{"case = 'x'", "TEXT = 'text'"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, expr := range c.yes {
				if !match(t, expr) {
					t.Errorf("%s: does not match", expr)
				}
			}
			for _, expr := range c.no {
				if match(t, expr) {
					t.Errorf("%s: matches", expr)
				}
			}
		})
	}
}

// What cannot be known is neither true nor false, however it is turned.
func TestUnknownDoesNotMatchEitherWay(t *testing.T) {
	for _, expr := range []string{
		"none = 1", "none <> 1", "1 = none", "none = 'x'", "none <> 'x'", "none > 1", "none = none", "none = a", "a <> none", "none BETWEEN 1 AND 2", "a BETWEEN none AND 9",
		"none IN ('x')", "none CONTAINS 'x'", "none STARTSWITH 'x'", "none ENDSWITH 'x'", "none = TRUE", "none", "none AND TRUE", "none OR FALSE", "-none = 5",
		"s > 1", "s = 1", "s <> 1", "s = 1.5", "f = 5", "f > 5", "blank = 0", "s BETWEEN 1 AND 2", "a = (b = 1)", "-a = -5", "t > 1", "TRUE = (none = 1)",
		"s > a", "exp = 1000", "(a = 5) = s AND FALSE OR none = 1", "a > 4 AND none = 1", "a > 5 OR none = 1", "s = 1 OR a = 6",
	} {
		if match(t, expr) {
			t.Errorf("%s: matches", expr)
		}
		if match(t, "NOT ("+expr+")") {
			t.Errorf("NOT (%s): matches", expr)
		}
	}
	// The other side may decide.
	for _, expr := range []string{"none = 1 OR a = 5", "a = 5 OR none = 1", "NOT (none = 1 AND a = 6)", "NOT (a = 6 AND none = 1)", "s = 1 OR a = 5", "(none = 1) IS NULL"} {
		if !match(t, expr) {
			t.Errorf("%s: does not match", expr)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"", "expected"},
		{"   ", "the end"},
		{"a =", "the end"},
		{"= 5", `"=" at byte 0`},
		{"a = 5 5", "nothing more"},
		{"a = 5)", "nothing more"},
		{"(a = 5", `")"`},
		{"a == 5", "expected"},
		{"a != 5", `"!" at byte 2`},
		{"a LIKE 'x'", "nothing more"},
		{"a = 'x", "no end"},
		{"a = 5 /* x", "no end"},
		{"a > 'x'", "only numbers"},
		{"'x' < a", "only numbers"},
		{"a > TRUE", "only numbers"},
		{"a > NULL", "only numbers"},
		{"(a = 1) > 2", "only numbers"},
		{"a = NULL", "IS NULL"},
		{"NULL <> a", "IS NULL"},
		{"TRUE = 'x'", "TRUE and FALSE"},
		{"TRUE = 1", "TRUE and FALSE"},
		{"5", "condition"},
		{"'x'", "condition"},
		{"NULL", "condition"},
		{"a + 1 = 2", "nothing more"},
		{"-a", "condition"},
		{"a AND 5", "condition"},
		{"NOT 5", "condition"},
		{"a = -'x'", "numbers alone"},
		{"a = -(b = 1)", "numbers alone"},
		{"a BETWEEN 9 AND 1", "wrong way"},
		{"a BETWEEN -1 AND -9", "wrong way"},
		{"a BETWEEN 'a' AND 'b'", "only numbers"},
		{"a BETWEEN 1", "AND"},
		{"a IN ()", "single quotes"},
		{"a IN ('x'", `")"`},
		{"a IN ('x',)", "single quotes"},
		{"a IN (1, 2)", "single quotes"},
		{"a IN 'x'", `"("`},
		{"5 IN ('x')", "properties alone"},
		{"a CONTAINS 5", "single quotes"},
		{"a CONTAINS b", "single quotes"},
		{"5 CONTAINS 'x'", "texts alone"},
		{"(a = 1) STARTSWITH 'x'", "texts alone"},
		{"a NOT = 5", "after NOT"},
		{"a IS 5", "NULL"},
		{"a IS NOT", "NULL"},
		{"a = 9223372036854775808", "too large"},
		{"a = 1e999", "too large"},
		{"a = .", "digits"},
		{"a = 1e", "exponent"},
		{"a = 1.2.3", "no number"},
		{"a = 5x", "no number"},
		{"a = \"x\"", "means nothing"},
		{"ä = 1", "means nothing"},
		{"a = 1; b", "means nothing"},
		{"and", "expected"},
		{"a = select", ""}, // a name like any other
		{strings.Repeat("(", 5000) + "a = 1" + strings.Repeat(")", 5000), "nested"},
		{strings.Repeat("NOT ", 3000) + "a = 1", "nested"},
		{"a = " + strings.Repeat("- ", 3000) + "1", "nested"},
		{strings.Repeat("a = 1 OR ", 3000) + "a = 1", "bytes"},
	} {
		_, err := Parse(c.expr)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.expr, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%.60s: got %v, want an error with %q", c.expr, err, c.want)
		}
	}
}

func TestLongChainsAreRead(t *testing.T) {
	if !match(t, strings.Repeat("a = 1 OR ", 1000)+"a = 5") || match(t, strings.Repeat("a = 5 AND ", 1000)+"a = 1") {
		t.Error("a long chain is read wrong")
	}
	if !match(t, strings.Repeat("(", DepthMax-1)+"a = 5"+strings.Repeat(")", DepthMax-1)) {
		t.Error("nesting within the bound is read wrong")
	}
}

func BenchmarkMatch(b *testing.B) {
	e, err := Parse("a BETWEEN 1 AND 9 AND s IN ('x', 'text') AND (TAGS = 'tagA' OR TAGS = 'tagB')")
	if err != nil {
		b.Fatal(err)
	}
	get := Properties(props)
	b.ReportAllocs()
	for b.Loop() {
		if !e.Match(get) {
			b.Fatal("does not match")
		}
	}
}

// Whatever a client writes, reading it ends, with a condition or an error; a condition and its opposite never both hold.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"a = 5 AND NOT (s IN ('x', 'it''s') OR f BETWEEN -1.5 AND 2e3)", "none IS NOT NULL OR s NOT CONTAINS 'y'", "t = TRUE <> (a >= 5L)", "-- x\n/* y */ a<>+.5", "a NOT BETWEEN b AND c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		e, err := Parse(in)
		if err != nil {
			return
		}
		yes := e.Match(Properties(props))
		opposite, err := Parse("NOT (" + in + "\n)")
		if err != nil {
			if len(in)+7 > LenMax || strings.Contains(err.Error(), "nested") {
				return
			}
			t.Fatalf("%q can be read, but not its opposite: %v", in, err)
		}
		if yes && opposite.Match(Properties(props)) {
			t.Fatalf("%q and its opposite both hold", in)
		}
	})
}
