package broker

import (
	"fmt"
	"strings"

	"dledger/internal/mq"
	"dledger/internal/sqlfilter"
)

// filter chooses messages for a subscription (msgstore.Filter).
type filter interface {
	MatchCode(tagsCode int64) bool
	Match(stored []byte) bool
}

// tagFilter wants messages whose tag has one of these hashes. Others may have the same hash: clients compare the texts.
type tagFilter map[int64]bool

func (t tagFilter) MatchCode(code int64) bool { return t[code] }
func (t tagFilter) Match([]byte) bool         { return true }

// subscribe understands a subscription. Hashes in it are computed anew: not all clients know how.
func (b *Broker) subscribe(d mq.SubscriptionData) *subscription {
	s := &subscription{data: d}
	if d.ExpressionType == "" || d.ExpressionType == mq.ExprTag {
		s.filter, s.err = parseTags(d.SubString)
		return s
	}
	if d.ExpressionType == mq.ExprSQL {
		s.filter, s.err = parseSQL(d.SubString)
		return s
	}
	s.err = fmt.Errorf("expression type %.40q: only TAG and SQL92 are known", d.ExpressionType)
	return s
}

// parseTags reads "*" or "a || b".
func parseTags(expr string) (filter, error) {
	if expr = strings.TrimSpace(expr); expr == "" || expr == "*" {
		return nil, nil
	}
	t := tagFilter{}
	for tag := range strings.SplitSeq(expr, "||") {
		if tag = strings.TrimSpace(tag); tag != "" {
			t[mq.TagsCode(tag)] = true
		}
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("expression %.100q names no tag", expr)
	}
	return t, nil
}

// sqlFilter wants messages whose properties fulfil a condition. The code of the tag says nothing about it.
type sqlFilter struct{ expr *sqlfilter.Expr }

func (f sqlFilter) MatchCode(int64) bool { return true }

func (f sqlFilter) Match(stored []byte) bool {
	m, _, err := mq.ParseStored(stored)
	if err != nil {
		return true // what it is, the client may say
	}
	return f.expr.Match(func(name string) (string, bool) {
		v := mq.PropGet(m.Properties, name)
		return v, v != ""
	})
}

// parseSQL reads an SQL92 expression.
func parseSQL(expr string) (filter, error) {
	e, err := sqlfilter.Parse(expr)
	if err != nil {
		return nil, fmt.Errorf("expression %.100q: %w", expr, err)
	}
	return sqlFilter{e}, nil
}
