package broker

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/mq"
)

// largest gives the largest number that a key takes; false: it is not one of those that take numbers.
func largest(key string) (int64, bool) {
	takes := func(v string) bool { c := NewConfig(); return c.Set(key, v) == nil }
	if takes("soon") {
		return 0, false
	}
	for p := 62; p > 0; p-- {
		lo, hi := int64(1)<<p, int64(math.MaxInt64)
		if !takes(strconv.FormatInt(lo, 10)) {
			continue
		}
		for lo < hi {
			if mid := hi - (hi-lo)/2; takes(strconv.FormatInt(mid, 10)) {
				lo = mid
			} else {
				hi = mid - 1
			}
		}
		return lo, true
	}
	return 0, false
}

// TestEveryNumberOfABrokerConfLetsABrokerLead: with each key that takes a number at 0, at -1 and at the largest it takes a broker leads, its services run, and it does for clients
// and name servers what it is there for; only a key of ours is refused, by its name.
func TestEveryNumberOfABrokerConfLetsABrokerLead(t *testing.T) {
	numbers := 0
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		most, ok := largest(key)
		if !ok {
			continue
		}
		numbers++
		for _, n := range []int64{0, -1, most} {
			t.Run(fmt.Sprintf("%s=%d", key, n), func(t *testing.T) {
				c, err := ParseConfig(fmt.Sprintf("%s=%d\n", key, n))
				if err != nil {
					if own := slices.Contains(oursInBrokerConf, key); n == most || !own && key != "listenPort" || !strings.Contains(err.Error(), key) {
						t.Fatal(err)
					}
					return
				}
				if n < 0 && len(c.bent) == 0 && key != "startAcceptSendRequestTimeStamp" { // any time will do
					t.Error("nothing says that another number is used")
				}
				refused := time.Until(c.AcceptSendsFrom) > 0
				leads(t, func(cfg *Config) {
					if err := cfg.Set(key, fmt.Sprint(n)); err != nil && len(c.bent) == 0 {
						t.Error(err)
					}
				}, refused)
			})
		}
	}
	if numbers < 24 {
		t.Errorf("only %d keys take numbers", numbers)
	}
}

// TestNumbersOfAProgramDoNotEndALeader: a Config whose fields are not what NewConfig gives. What is 0 or below there may not be fit for clients.
func TestNumbersOfAProgramDoNotEndALeader(t *testing.T) {
	typ, numbers := reflect.TypeFor[Config](), 0
	for i := range typ.NumField() {
		f := typ.Field(i)
		if k := f.Type.Kind(); !f.IsExported() || k != reflect.Int && k != reflect.Int32 && k != reflect.Int64 {
			continue
		}
		numbers++
		for _, n := range []int64{0, -1} {
			t.Run(fmt.Sprintf("%s=%d", f.Name, n), func(t *testing.T) {
				var log strings.Builder
				inCluster(t, 1, func(cfg *Config) {
					reflect.ValueOf(cfg).Elem().Field(i).SetInt(n)
					cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
				}, func(c *cluster) {
					id := c.leader()
					time.Sleep(time.Minute)
					if b := c.brokers[id]; !b.Leads() || b.failures.Load() > 0 {
						c.T.Error("it does not lead any more, or a service of it has failed")
					}
				})
				if every := strings.HasSuffix(f.Name, "Every"); every && !strings.Contains(log.String(), "a setting is not used as it stands") {
					t.Error("nothing says that another period is used")
				}
			})
		}
	}
	if numbers < 16 {
		t.Errorf("only %d fields are numbers", numbers)
	}
}

// leads lets one broker lead for a minute, and tries what it is there for; refused: it takes no sends.
func leads(t *testing.T, setup func(*Config), refused bool) {
	logs := dledgertest.Setup{Config: func(_ string, c *dledger.Config) {
		cfg := Config{Log: *c}
		setup(&cfg)
		*c = cfg.Log
	}}
	inClusterOf(t, logs, 1, setup, func(c *cluster) {
		t := c.T
		p, id := c.client("10.1.0.1"), c.leader()
		b := c.brokers[id]
		half := "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
		p.must(id, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
		for _, properties := range []string{"KEYS\x01k\x02", "DELAY\x011\x02", "TIMER_DELAY_SEC\x011\x02", half} {
			flag := int32(0)
			if properties == half {
				flag = mq.SysPrepared
			}
			refused := refused || strings.HasPrefix(properties, "TIMER") && b.cfg.TimerMax == 0
			if f := p.call(id, mq.CodeSend, sendExt("t", 0, "sysFlag", flag, "properties", properties), []byte("x")); (f.Code != mq.Success) != refused {
				t.Errorf("send of %q: code %d, %s", properties, f.Code, f.Remark)
			}
		}
		p.call(id, mq.CodeUpdateConsumerOffset, commitExt(1), nil)
		time.Sleep(time.Minute)
		if f := p.call(id, mq.CodeMaxOffset, ext("topic", mq.TopicDefault, "queueId", 0), nil); f.Code != mq.Success {
			t.Errorf("the end of a queue: code %d, %s", f.Code, f.Remark)
		}
		if !b.Leads() || b.failures.Load() > 0 {
			t.Error("it does not lead any more, or a service of it has failed")
		}
		if _, ok := p.route("t"); !ok && !refused {
			t.Error("the name server does not know it")
		}
	})
}
