package broker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dledger/internal/mq"
)

// raw is a connection on which each answer is counted, also one that nobody waits for. What the broker asks is answered with anything, or not at all.
type raw struct {
	nc      net.Conn
	rand    *rand.Rand // of read
	asked   atomic.Int64
	writing sync.Mutex
	mu      sync.Mutex
	answers map[int]int // by opaque
	remarks map[int]string
	ended   error
}

func (c *cluster) raw(from, to string, chance *rand.Rand) *raw {
	c.T.Helper()
	nc, err := c.net.dial(from, to)
	if err != nil {
		c.T.Fatal(err)
	}
	r := &raw{nc: nc, rand: chance, answers: map[int]int{}, remarks: map[int]string{}}
	go r.read()
	return r
}

func (r *raw) read() {
	for {
		var head [8]byte
		_, err := io.ReadFull(r.nc, head[:])
		var rest []byte
		if err == nil {
			rest = make([]byte, binary.BigEndian.Uint32(head[:])-4)
			_, err = io.ReadFull(r.nc, rest)
		}
		if err != nil {
			r.mu.Lock()
			r.ended = err
			r.mu.Unlock()
			return
		}
		var h struct {
			Opaque int    `json:"opaque"`
			Flag   int    `json:"flag"`
			Remark string `json:"remark"`
		}
		if json.Unmarshal(rest[:binary.BigEndian.Uint32(head[4:])&0xffffff], &h) != nil {
			continue
		}
		if h.Flag&1 == 0 { // a request of the broker's
			r.asked.Add(1)
			if r.rand.IntN(4) > 0 {
				_, ext, body := randomRequest(r.rand, []int32{0})
				_ = r.write(h.Opaque, r.rand.Int32N(3), ext, body, 1) // the connection may be at its end
			}
			continue
		}
		r.mu.Lock()
		r.answers[h.Opaque]++
		r.remarks[h.Opaque] = h.Remark
		r.mu.Unlock()
	}
}

func (r *raw) send(opaque int, code int32, ext map[string]string, body []byte, oneWay bool) error {
	flag := 0
	if oneWay {
		flag = 2
	}
	return r.write(opaque, code, ext, body, flag)
}

func (r *raw) write(opaque int, code int32, ext map[string]string, body []byte, flag int) error {
	h, err := json.Marshal(map[string]any{"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 479, "extFields": ext})
	if err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(h)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h)))
	r.writing.Lock()
	defer r.writing.Unlock()
	_, err = r.nc.Write(append(append(b, h...), body...))
	return err
}

// randomFields are the names of all fields that requests have.
var randomFields = strings.Fields(`a b c d e f g h i j k l m n producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties reconsumeTimes
	maxReconsumeTimes batch consumerGroup queueOffset maxMsgNums commitOffset suspendTimeoutMillis subscription subVersion expressionType maxMsgBytes setZeroIfNotFound timestamp
	boundaryType offset group delayLevel originMsgId originTopic tranStateTableOffset commitLogOffset commitOrRollback fromTransactionCheck msgId transactionId clientID key maxNum
	beginTimestamp endTimestamp readQueueNums writeQueueNums perm topicFilterType topicSysFlag order attributes groupName cleanOffset srcGroup destGroup offline isForce clientId
	clientAddr statsName statsKey index count topicList isOrder jstackEnable namespace value cluster brokerName brokerAddr clusterName haServerAddr brokerId compressed bodyCrc32
	heartbeatTimeoutMillis enableActingMaster __dledgerFrom __dledgerSettle __dledgerLate __dledgerCode __dledgerGroup __dledgerClient _UNIQUE_KEY_QUERY acceptStandardJsonOnly`)

var randomTexts = []string{"", " ", "0", "1", "-1", "2", "4", "16", "100000", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808", "99999999999999999999",
	"1e3", "true", "false", "TRUE", "x", "t", "g", "p", "a b", "../x", "\x00", "%RETRY%g", "%RETRY%", "%RETRY%../x", "%DLQ%g", "TBW102", "SCHEDULE_TOPIC_XXXX",
	"RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_metadata_a", "rmq_sys_wheel_timer", "DefaultCluster_REPLY_TOPIC", "*", "a || b", "SQL92", "TAG", "a > 1 and", "upper", "10.0.0.1:1",
	"KEYS\x01k\x02TAGS\x01x\x02", "DELAY\x01999\x02", "DELAY\x01-1\x02", "TIMER_DELAY_SEC\x01-99999999999\x02", "TIMER_DELIVER_MS\x019223372036854775807\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02",
	"TIMER_DELAY_MS\x01500\x02TIMER_DEL_UNIQKEY\x01t_k\x02", "TIMER_OUT_MS\x01x\x02", "REAL_TOPIC\x01rmq_sys_metadata_a\x02REAL_QID\x010\x02TIMER_OUT_MS\x011\x02", "\x01\x02\x01\x02", "\x02\x02", "KEYS\x01",
	"REPLY_TO_CLIENT\x01c\x02", "UNIQ_KEY\x01same\x02", "+message.type=FIFO", "TOPIC_PUT_NUMS", "t@g", "0A0000010000000000000000000000FF", "0A00000A00002A9F0000000000000000"}

var randomBodies = []string{"", "x", "{", "[]", "null", "{}", `"x"`, "{0:1}", `{"$ref":"$"}`, `{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
	"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":1}]}],"producerDataSet":[{"groupName":"p"}]}`,
	`{"clientID":"c","consumerDataSet":[{}],"producerDataSet":[{}]}`, `{"clientID":"c","consumerDataSet":[{"groupName":"a b","subscriptionDataSet":[{"expressionType":"SQL92","subString":"a >"},{}]}]}`,
	`{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"a","queueId":0,"topic":"t"},{"brokerName":"b","queueId":-1,"topic":""},{}]}`, `{"clientId":"c","consumerGroup":"g"}`,
	`{"topicConfigList":[{"topicName":"t2","readQueueNums":1,"writeQueueNums":1,"perm":6}]}`, `{"topicConfigList":[{}]}`, `{"topicConfigList":null}`, `{"groupName":"g2","retryQueueNums":-5}`, `{"groupName":"g","retryQueueNums":0,"consumeEnable":false}`,
	`{"groupConfigList":[{"groupName":"g3"},{"groupName":"g","retryMaxTimes":0,"consumeEnable":true,"retryQueueNums":1}]}`, `{"address":"10.0.0.77:10911","consumers":{"g":{"members":[{"id":"c","address":"x"}]}},"producers":{"p":[{}]}}`,
	"brokerPermission=6\n", "maxMessageSize=x", "deleteWhen=04\nlistenPort=1", `{"clientId":"c","group":"g","subscriptionData":{"expressionType":"SQL92","subString":"a = 'b"}}`,
	`{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":9,"timestamp":1},"topicConfigTable":{"t":{"topicName":"t","perm":6,"readQueueNums":1,"writeQueueNums":1}}},"filterServerList":[]}`}

func randomRequest(r *rand.Rand, codes []int32) (code int32, ext map[string]string, body []byte) {
	code = codes[r.IntN(len(codes))]
	pick := func() string {
		switch r.IntN(12) {
		case 0:
			return strconv.FormatInt(int64(r.Uint64()), 10)
		case 1:
			return strings.Repeat("z", r.IntN(70000))
		case 2:
			b := make([]byte, r.IntN(30))
			for i := range b {
				b[i] = byte(r.Uint32N(128))
			}
			return string(b)
		default:
			return randomTexts[r.IntN(len(randomTexts))]
		}
	}
	likely := map[string][]string{"topic": {"t", "t2", "%RETRY%g"}, "b": {"t", "%RETRY%g"}, "consumerGroup": {"g"}, "group": {"g"}, "groupName": {"g", "g2"}, "producerGroup": {"p"}, "a": {"p"}, "c": {"TBW102"}, "defaultTopic": {"TBW102"}, "d": {"4"},
		"defaultTopicQueueNums": {"4"}, "e": {"0", "1"}, "queueId": {"0", "1"}, "f": {"0", "4", "8", "12"}, "sysFlag": {"0", "2", "4", "6", "7", "8", "12"}, "g": {"1"}, "bornTimestamp": {"1"}, "h": {"0"}, "flag": {"0"},
		"m": {"false", "true"}, "batch": {"false", "true"}, "offset": {"0", "48"}, "commitLogOffset": {"48"}, "commitOrRollback": {"0", "8", "12"}, "maxMsgNums": {"32"}, "queueOffset": {"0", "1"}, "clientID": {"c"}, "clientId": {"c"},
		"commitOffset": {"1"}, "subscription": {"*"}, "suspendTimeoutMillis": {"15000"}, "subVersion": {"0"}, "maxReconsumeTimes": {"16"}, "perm": {"6"}, "readQueueNums": {"4"}, "writeQueueNums": {"4"}}
	ext = map[string]string{}
	all := r.IntN(3) > 0 // all fields, most of them sensible, so that the request gets far
	for _, name := range randomFields {
		switch {
		case strings.HasPrefix(name, "__dledger"):
			if r.IntN(20) == 0 {
				ext[name] = pick()
			}
		case all && likely[name] != nil && r.IntN(12) > 0:
			ext[name] = likely[name][r.IntN(len(likely[name]))]
		case all && r.IntN(3) > 0 || r.IntN(20) == 0:
			ext[name] = pick()
		}
	}
	body = []byte(randomBodies[r.IntN(len(randomBodies))])
	switch r.IntN(6) {
	case 0:
		if len(body) > 0 {
			body[r.IntN(len(body))] = byte(r.Uint32())
		}
	case 1:
		body = nil
		for i := range r.IntN(4) {
			body = mq.AppendBatchItem(body, mq.BatchItem{Body: fmt.Appendf(nil, "%d", i), Properties: pick()[:0] + "KEYS\x01k\x02"})
		}
		if len(body) > 0 && r.IntN(2) == 0 {
			body[r.IntN(len(body))] ^= byte(1 << r.IntN(8))
		}
	}
	return code, ext, body
}

// bugs notes what brokers tell the operator that no request may lead to.
type bugs struct {
	slog.Handler
	mu   sync.Mutex
	seen []string
}

func (b *bugs) Enabled(context.Context, slog.Level) bool { return true }
func (b *bugs) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *bugs) WithGroup(string) slog.Handler            { return b }
func (b *bugs) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "stopped until") || strings.Contains(r.Message, "leaves its group") || strings.Contains(r.Message, "given twice") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		b.mu.Lock()
		b.seen = append(b.seen, text)
		b.mu.Unlock()
	}
	return nil
}

// sensible is what makes there be something behind the names that random requests use: a topic, groups with a member, messages of all kinds. The random ones delete it again.
func sensible() []struct {
	code int32
	ext  map[string]string
	body []byte
} {
	return []struct {
		code int32
		ext  map[string]string
		body []byte
	}{
		{mq.CodeCreateGroup, nil, []byte(`{"groupName":"g","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`)},
		{mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
			"subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":1},{"topic":"%RETRY%g","subString":"*","subVersion":1}]}],"producerDataSet":[{"groupName":"p"}]}`)},
		{mq.CodeSend, sendExt("t", 0, "properties", "KEYS\x01k\x02UNIQ_KEY\x01same\x02TAGS\x01x\x02"), []byte("one")},
		{mq.CodeSend, sendExt("t", 1), []byte("another")},
		{mq.CodeSend, sendExt("t", 0, "properties", "DELAY\x012\x02"), []byte("delayed")},
		{mq.CodeSend, sendExt("t", 0, "properties", "TIMER_DELAY_MS\x019000\x02"), []byte("timed")},
		{mq.CodeSend, sendExt("t", 0, "sysFlag", 4, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01half\x02"), []byte("half")},
		{mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", 1), nil},
		{mq.CodeLockQueues, nil, []byte(`{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"a","queueId":0,"topic":"t"}]}`)},
	}
}

// TestRandomRequestsGetOneAnswerEach: whatever is asked of a broker or a name server, and whatever clients answer, nothing panics, which would end the process; each request
// gets exactly one answer, and the connection lives; also while leadership moves. BROKER_RANDOM_ROUNDS makes it longer, DLEDGERTEST_SEED repeats one run.
func TestRandomRequestsGetOneAnswerEach(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	if v, err := strconv.Atoi(os.Getenv("BROKER_RANDOM_ROUNDS")); err == nil {
		rounds = v
	}
	seed := rand.Uint64()
	if v, err := strconv.ParseUint(os.Getenv("DLEDGERTEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	fmt.Fprintf(os.Stderr, "DLEDGERTEST_SEED=%d repeats this run\n", seed) // a panic leaves no time for the test's own log
	r := rand.New(rand.NewPCG(seed, 1))
	found := &bugs{}
	inCluster(t, 3, func(cfg *Config) { cfg.Logger = slog.New(found) }, func(c *cluster) {
		known := slices.Sorted(maps.Keys(table()))
		codes := map[string][]int32{testNames: nil}
		for code := range int32(1000) {
			codes[testNames] = append(codes[testNames], code)
		}
		for range 30 {
			codes[testNames] = append(codes[testNames], mq.CodePutKV, mq.CodeGetKV, mq.CodeDeleteKV, mq.CodeRegisterBroker, mq.CodeRegisterBroker, mq.CodeRegisterBroker, mq.CodeUnregisterBroker, mq.CodeRoute,
				mq.CodeQueryDataVersion, mq.CodeBrokerHeartbeat, mq.CodeBrokerMembers, mq.CodeRegisterTopicRoute, mq.CodeUpdateNamesrvConfig, mq.CodeDeleteTopicRoute)
		}
		addresses := []string{testNames}
		for _, id := range c.IDs() {
			addresses = append(addresses, c.address(id))
			codes[c.address(id)] = append(slices.Clone(known), 9999, -1, mq.CodeSend, mq.CodePull)
		}
		p := c.client("10.1.0.1")
		p.must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("x"))
		type asked struct {
			to   string
			code int32
			what string
		}
		conns := map[string]*raw{}
		requests := map[string]map[int]asked{}
		for _, a := range addresses {
			conns[a], requests[a] = c.raw("10.1.0.9:9", a, rand.New(rand.NewPCG(seed, uint64(len(conns))+2))), map[int]asked{}
		}
		opaque := 0
		ask := func(to string, code int32, ext map[string]string, body []byte, oneWay bool) {
			opaque++
			if err := conns[to].send(opaque, code, ext, body, oneWay); err != nil {
				c.T.Fatalf("request %d to %s %v: %v", code, to, ext, err)
			}
			if !oneWay {
				text := fmt.Sprintf("%v %q", ext, body)
				requests[to][opaque] = asked{to, code, fmt.Sprintf("request %d to %s: %.2000s", code, to, text)}
			}
		}
		for round := range rounds {
			for i := range 150 {
				if i%50 == 0 {
					for _, q := range sensible() {
						ask(addresses[1+r.IntN(3)], q.code, q.ext, q.body, false)
					}
					time.Sleep(100 * time.Millisecond) // of virtual time: it is there, mostly
				}
				to := addresses[r.IntN(len(addresses))]
				code, ext, body := randomRequest(r, codes[to])
				if to != testNames && r.IntN(10) == 0 { // a member sends nonsense
					ext[fieldMember] = c.secret()
				}
				ask(to, code, ext, body, r.IntN(10) == 0)
			}
			if round%4 == 2 {
				c.upset(0)
			}
			time.Sleep(70 * time.Second) // of virtual time: longer than anything is held
			for _, a := range addresses {
				k := conns[a]
				k.mu.Lock()
				if k.ended != nil {
					c.T.Errorf("connection to %s: %v", a, k.ended)
				}
				for o, q := range requests[a] {
					if n := k.answers[o]; n != 1 && (n > 0 || q.code != mq.CodeQueryConsumerOffset) { // which gets none while nobody knows
						c.T.Errorf("%d answers to %s", n, q.what)
					}
				}
				clear(requests[a])
				clear(k.answers)
				k.mu.Unlock()
			}
			found.mu.Lock()
			for _, text := range found.seen {
				c.T.Error(text)
			}
			found.seen = nil
			found.mu.Unlock()
			if c.T.Failed() {
				break
			}
		}
		for _, k := range conns {
			k.nc.Close()
		}
		if n := conns[addresses[1]].asked.Load() + conns[addresses[2]].asked.Load() + conns[addresses[3]].asked.Load(); n == 0 && rounds > 3 {
			c.T.Error("no broker ever asked a client anything")
		}
	})
}
