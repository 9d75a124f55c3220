package mq

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"dledger/internal/golden"
)

// bodies reads the golden bodies, written by the Java classes.
func bodies(t testing.TB) map[string]json.RawMessage {
	t.Helper()
	b, err := golden.Read("rocketmq-bodies.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Bodies map[string]json.RawMessage }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	return file.Bodies
}

func body(t testing.TB, name string) string {
	t.Helper()
	var s string
	if err := json.Unmarshal(bodies(t)[name], &s); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

// bareKey finds the integer keys that Java writes without quotes; we write them with.
var bareKey = regexp.MustCompile(`([{,])(\d+):`)

// Every body of the original is read, and written again to the same bytes but for quotes around integer keys.
func TestBodiesAreThoseOfTheOriginal(t *testing.T) {
	for _, c := range []struct {
		name string
		into any
	}{
		{"topicRouteData_default", &TopicRouteData{}},
		{"topicRouteData_standardJson", &TopicRouteData{}},
		{"clusterInfo", &ClusterInfo{}},
		{"topicList", &TopicList{}},
		{"kvTable", &KVTable{}},
		{"heartbeatData", &Heartbeat{}},
		{"consumeStats", &ConsumeStats{}},
		{"topicStatsTable", &TopicStats{}},
		{"lockBatchRequest", &LockRequest{}},
		{"lockBatchResponse", &LockAnswer{}},
		{"resetOffsetBody", &QueueOffsets{}},
		{"consumerConnection", &ConsumerConnection{}},
		{"topicConfigWrapper", &TopicConfigTable{}},
		{"dataVersion", &DataVersion{}},
		{"registerBrokerBody_plain", &RegisterBody{}},
		{"subscriptionGroupWrapper", &SubscriptionGroupTable{}},
		{"consumerOffsetWrapper", &ConsumerOffsetTable{}},
		{"consumerList", &ConsumerList{}},
		{"brokerMemberGroup", &BrokerMembers{}},
		{"producerConnection", &ProducerConnection{}},
		{"groupList", &GroupList{}},
		{"setMessageRequestMode", &RequestMode{}},
		{"queryAssignmentRequest", &QueryAssignment{}},
		{"queryAssignmentResponse", &Assignments{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			java := body(t, c.name)
			if err := Unmarshal([]byte(java), c.into); err != nil {
				t.Fatal(err)
			}
			want := bareKey.ReplaceAllString(java, `$1"$2":`)
			if got := string(Marshal(c.into)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestBackReferencesAreFollowed(t *testing.T) {
	var s BrokerStats
	if err := Unmarshal([]byte(body(t, "brokerStatsData")), &s); err != nil {
		t.Fatal(err)
	}
	want := StatsItem{AvgPT: 1, Sum: 6, TPS: 0.1}
	if s.Day != want || s.Hour != want || s.Minute != want {
		t.Errorf("got %+v, want three times %+v", s, want)
	}
	var l struct {
		A []StatsItem `json:"a"`
		B []StatsItem `json:"b"`
	}
	if err := Unmarshal([]byte(`{"a":[{"sum":1},{"sum":2}],"b":[{"$ref":"$.a[1]"},{"$ref":"$.a[0]"}]}`), &l); err != nil {
		t.Fatal(err)
	}
	if len(l.B) != 2 || l.B[0].Sum != 2 || l.B[1].Sum != 1 {
		t.Errorf("references into an array: got %+v", l.B)
	}
}

// A small body whose references multiply, or lead to themselves, must neither hang nor fill the memory.
func TestBackReferencesAreBounded(t *testing.T) {
	type node struct {
		Next []node `json:"n"`
	}
	many := strings.Repeat(`,{"$ref":"$.n[1]"}`, 1000)
	for _, in := range []string{
		`{"n":[{"n":[{}` + strings.ReplaceAll(many, "1]", "2]") + `]},{"n":[{}` + strings.ReplaceAll(many, "n[1]", "n[0]") + `]},{"n":[{}` + strings.Repeat(",{}", 1000) + `]}]}`,
		`{"n":[{"$ref":"$"}]}`,
		`{"n":[{"$ref":"$"},{"$ref":"$"}]}`,
		`{"n":[{"$ref":"$.n[0]"}]}`,
		`{"n":[{"$ref":"$.n[1]"}]}`,
		`{"n":[{"$ref":"$.x.y"}]}`,
		`{"n":[{"$ref":".."}]}`,
		`{"n":[{"$ref":"$[0"}]}`,
	} {
		var n node
		if err := Unmarshal([]byte(in), &n); err == nil {
			t.Errorf("%s: no error", in)
		}
	}
}

func TestUnmarshalTakesWhatClientsOfOtherLanguagesSend(t *testing.T) {
	in := ` { "clientID" : 'c' , "consumerDataSet":[{"consumeType":1,"messageModel":"1","consumeFromWhere":4,"groupName":null,
		"subscriptionDataSet":[{"subVersion":"17","topic":"\u0054\t\ud83d\ude00","codeSet":["5",6.0],"classFilterMode":"TRUE","surplus":{"a":[1,{2:3}]},},]}],"producerdataset":[] } `
	var h Heartbeat
	if err := Unmarshal([]byte(in), &h); err != nil {
		t.Fatal(err)
	}
	want := Heartbeat{ClientID: "c", Producers: []ProducerData{}, Consumers: []ConsumerData{{
		ConsumeType: ConsumePush, MessageModel: "1", ConsumeFromWhere: FromFirstOffset,
		Subscriptions: []SubscriptionData{{SubVersion: 17, Topic: "T\t\U0001f600", CodeSet: []int32{5, 6}, ClassFilterMode: true}},
	}}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got  %+v\nwant %+v", h, want)
	}
	var m ConsumeStats // the key once more as a string
	if err := Unmarshal([]byte(`{"offsetTable":{"{\"queueId\":1,\"topic\":\"t\"}":{"brokerOffset":7}}}`), &m); err != nil {
		t.Fatal(err)
	}
	if got := m.Offsets[MessageQueue{QueueID: 1, Topic: "t"}].BrokerOffset; got != 7 {
		t.Errorf("queue as a string key: got %d, want 7", got)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for _, in := range []string{
		"", " ", "{", "}", "[", "{]", "[}", `{"a"}`, `{"a":}`, `{"a":1 "b":2}`, `{"a":1}x`, `{"clientID":{}}`, `{"clientID":[1]}`, `{"withoutSub":{}}`,
		`{"heartbeatFingerprint":"x"}`, `{"heartbeatFingerprint":3000000000}`, `{"heartbeatFingerprint":1.5}`, `{"consumerDataSet":{}}`, `{"consumerDataSet":[1]}`,
		`{"consumerDataSet":[{"consumeType":7}]}`, `"abc`, `"\u12`, `"\`, `{"clientID":"\uzzzz"}`, `nul`, `{"clientID":tru}`,
		string(bytes.Repeat([]byte("["), 100000)), string(bytes.Repeat([]byte(`{"a":`), 100000)), string(bytes.Repeat([]byte(`{`), 100000)),
	} {
		var h Heartbeat
		if err := Unmarshal([]byte(in), &h); err == nil {
			t.Errorf("%.60q: no error", in)
		}
	}
}

func TestDefaultGroupIsTheOriginals(t *testing.T) {
	var w SubscriptionGroupTable
	if err := Unmarshal([]byte(body(t, "subscriptionGroupWrapper")), &w); err != nil {
		t.Fatal(err)
	}
	if got, want := DefaultGroup("cg"), w.Groups["cg"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestGroupsInTablesHaveTheirDefaults(t *testing.T) {
	var w SubscriptionGroupTable
	var l SubscriptionGroupList
	if err := Unmarshal([]byte(`{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3}}}`), &w); err != nil {
		t.Fatal(err)
	}
	if err := Unmarshal([]byte(`{"groupConfigList":[{"groupName":"g","retryMaxTimes":3}]}`), &l); err != nil {
		t.Fatal(err)
	}
	want := DefaultGroup("g")
	want.RetryMaxTimes = 3
	if !reflect.DeepEqual(w.Groups["g"], want) || !reflect.DeepEqual(l.Groups, []SubscriptionGroupConfig{want}) {
		t.Errorf("got  %+v\nand  %+v\nwant %+v", w.Groups["g"], l.Groups, want)
	}
}

func TestRegistrationsAreThoseOfTheOriginal(t *testing.T) {
	var crc struct {
		Plain      int32 `json:"registerBrokerBody_plainCrc32"`
		Compressed int32 `json:"registerBrokerBody_compressedCrc32"`
	}
	all, err := golden.Read("rocketmq-bodies.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(all, &struct{ Bodies any }{&crc}); err != nil {
		t.Fatal(err)
	}
	plain := []byte(body(t, "registerBrokerBody_plain"))
	packed, err := hex.DecodeString(body(t, "registerBrokerBody_compressedHex"))
	if err != nil {
		t.Fatal(err)
	}
	if got := BodyCRC(plain); got != crc.Plain {
		t.Errorf("checksum of the plain body: got %d, want %d", got, crc.Plain)
	}
	if got := BodyCRC(packed); got != crc.Compressed {
		t.Errorf("checksum of the compressed body: got %d, want %d", got, crc.Compressed)
	}
	a, err := DecodeRegister(plain, false, Version)
	if err != nil {
		t.Fatal(err)
	}
	b, err := DecodeRegister(packed, true, Version)
	if err != nil {
		t.Fatal(err)
	}
	if a.Config.DataVersion != b.Config.DataVersion || !reflect.DeepEqual(a.Config.Topics, b.Config.Topics) {
		t.Errorf("plain      %+v\ncompressed %+v", a.Config, b.Config)
	}
	again, err := DecodeRegister(a.EncodeCompressed(), true, Version)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, b) {
		t.Errorf("after our compression: got %+v, want %+v", again, b)
	}
	for n := range packed {
		if _, err := DecodeRegister(packed[:n], true, Version); err == nil && n > 0 {
			t.Errorf("cut after %d bytes: no error", n)
		}
	}
	old, err := DecodeRegister([]byte(body(t, "topicConfigWrapper")), false, VersionRegisterBody-1)
	if err != nil || len(old.Config.Topics) != 1 {
		t.Errorf("body of an old broker: %v, %+v", err, old)
	}
}

func TestTopicsInOneLine(t *testing.T) {
	for _, name := range []string{"topicConfig_compactEncode", "topicConfig_withAttributes"} {
		java := body(t, name)
		var c TopicConfig
		if err := c.ParseCompact(java); err != nil {
			t.Fatal(err)
		}
		if got := c.Compact(); got != java {
			t.Errorf("got %q, want %q", got, java)
		}
	}
	for _, bad := range []string{"", "t 1 2", "t x 2 6 SINGLE_TAG {}", "t 1 2 99999999999 SINGLE_TAG {}", "t 1 2 6 SINGLE_TAG {"} {
		if err := new(TopicConfig).ParseCompact(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// The golden frames of requests and answers, in both serializations, carry fields that the getters read.
func TestFieldsOfTheOriginalsFrames(t *testing.T) {
	b, err := golden.Read("rocketmq-remoting.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		CurrentVersion int32
		Frames         []struct {
			Name      string
			Code      int32
			ExtFields map[string]string
		}
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if file.CurrentVersion != Version {
		t.Errorf("version: got %d, want %d", Version, file.CurrentVersion)
	}
	codes := map[string]int32{"GET_ROUTEINFO_BY_TOPIC request": CodeRoute, "SEND_MESSAGE_V2 request": CodeSendV2, "PULL_MESSAGE request": CodePull, "POP_MESSAGE request": CodePop}
	seen := 0
	for _, f := range file.Frames {
		want, ok := codes[f.Name]
		if !ok {
			continue
		}
		seen++
		if f.Code != want {
			t.Errorf("%s: got code %d, want %d", f.Name, want, f.Code)
		}
		fields := FieldsOf(f.ExtFields)
		switch want {
		case CodeSendV2:
			if got := fields.Str("b"); got != "TopicTest" {
				t.Errorf("topic: got %q", got)
			}
			if got := fields.Int64("g"); got != 1700000000000 {
				t.Errorf("born: got %d", got)
			}
			if fields.BoolOr("m", true) {
				t.Error("batch: got true")
			}
		case CodePull:
			if fields.Int32("queueId") != 0 || fields.Int64("queueOffset") != 5 || fields.Int32("sysFlag") != 7 || fields.StrOr("expressionType", "") != ExprTag {
				t.Errorf("pull: %v", f.ExtFields)
			}
		}
		if err := fields.Err(); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	if seen < 6 {
		t.Errorf("only %d frames had a code to compare", seen)
	}
}

func TestFieldsNameTheFirstFault(t *testing.T) {
	ext := map[string]string{"n": "x", "big": "99999999999", "neg": "-3", "yes": "1", "no": "2", "true": "TRUE", "blank": ""}
	for _, c := range []struct {
		want string
		read func(*Fields)
	}{
		{"topic: missing", func(f *Fields) { f.Str("topic"); f.Int32("n") }},
		{"queueId: missing", func(f *Fields) { f.Int32("queueId"); f.Str("topic") }},
		{`n: "x" is no number`, func(f *Fields) { f.Int32Or("n", 1) }},
		{`blank: "" is no number`, func(f *Fields) { f.Int64Or("blank", 1) }},
		{`big: "99999999999" is out of range`, func(f *Fields) { f.Int32("big") }},
		{"", func(f *Fields) {
			if f.Int64("big") != 99999999999 || f.Int32("neg") != -3 || f.Int32Or("none", 4) != 4 || f.StrOr("none", "d") != "d" || !f.BoolOr("yes", false) ||
				f.BoolOr("no", true) || !f.BoolOr("true", false) || !f.BoolOr("none", true) || f.Str("blank") != "" {
				t.Error("a good field reads wrong")
			}
		}},
	} {
		f := FieldsOf(ext)
		c.read(f)
		got := ""
		if f.Err() != nil {
			got = f.Err().Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	long := string(bytes.Repeat([]byte("a"), 128))
	for _, ok := range []string{"TopicTest", "%RETRY%g", "a|b", "A-b_9", long[:127]} {
		if err := CheckTopic(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "  ", "a b", "a.b", "ä", "a\x00", "a/b", "../a", long} {
		if err := CheckTopic(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if err := CheckGroup(long); err != nil {
		t.Errorf("group of 128 bytes: %v", err)
	}
	if !IsSystemTopic("rmq_sys_x") || !IsSystemTopic(TopicDefault) || IsSystemTopic("TopicTest") || !IsNoSendTopic(TopicSchedule) || IsNoSendTopic(TopicTrace) {
		t.Error("system topics are mixed up")
	}
}

// A body from the network may be anything. Whatever is read can be written, and reads the same again.
func FuzzUnmarshal(f *testing.F) {
	for name, b := range bodies(f) {
		var s string
		if json.Unmarshal(b, &s) == nil {
			f.Add([]byte(s))
		} else {
			f.Log("no string: ", name)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, v := range []any{&Heartbeat{}, &ConsumeStats{}, &TopicRouteData{}, &RegisterBody{}, &ConsumerOffsetTable{}} {
			if Unmarshal(in, v) != nil {
				continue
			}
			again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			if err := Unmarshal(Marshal(v), again); err != nil {
				t.Fatalf("%s\nas written: %v", Marshal(v), err)
			}
			if a, b := Marshal(v), Marshal(again); !bytes.Equal(a, b) {
				t.Fatalf("first  %s\nsecond %s", a, b)
			}
		}
	})
}

func FuzzDecodeRegister(f *testing.F) {
	packed, err := hex.DecodeString(body(f, "registerBrokerBody_compressedHex"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed, true)
	f.Add([]byte(body(f, "registerBrokerBody_plain")), false)
	f.Fuzz(func(t *testing.T, in []byte, compressed bool) {
		b, err := DecodeRegister(in, compressed, Version)
		if err == nil {
			b.EncodeCompressed()
		}
	})
}
