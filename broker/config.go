package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"dledger"
	"dledger/internal/mq"
	"dledger/security"
)

// Permissions of a broker, bits of Config.Permission.
const (
	PermRead  = mq.PermRead
	PermWrite = mq.PermWrite
)

// Config describes one replica of one broker group. NewConfig gives it with the defaults that stand at the fields, which are the original's unless that stands there too; the fields
// without one are empty, zero or false. Log.ID and Log.Peers are needed beside it, and Name or Log.Group. Behind a field is the key that sets it in a broker.conf, see Set; where it has a
// unit there that is part of its name, or milliseconds.
type Config struct {
	Cluster     string   // brokerClusterName; default "DefaultCluster"
	Name        string   // brokerName: alike on all replicas of the group; default Log.Group
	IP          string   // brokerIP1: the address that clients are given, or a name for it; default the host's first one
	Port        int      // listenPort; the port 2 below is served too; default 10911
	Bind        string   // bindAddress: the address to listen on, or a name for it; default all
	HAIP        string   // brokerIP2: told to name servers, which want it, as is HAPort; nobody listens there; default IP
	HAPort      int      // haListenPort; default Port + 1
	NameServers []string // namesrvAddr: host:port each

	// Log is the replicated log: dLegerGroup (default Name), dLegerSelfId, dLegerPeers, storePathRootDir (Dir; default ~/store). The log's files are in dledger-ID in
	// Dir, what the broker keeps beside them in other directories in it.
	Log dledger.Config

	Permission         int32         // brokerPermission: PermRead, PermWrite; default both
	AutoCreateTopic    bool          // autoCreateTopicEnable: sending to a topic makes it; default true
	AutoCreateGroup    bool          // autoCreateSubscriptionGroup; default true
	MixedTypes         bool          // enableMixedMessageType: topics may be made for messages of every type, attribute message.type=MIXED
	DefaultQueues      int32         // defaultTopicQueueNums: of a topic made by sending to it, at most; default 8
	MessageSizeMax     int           // maxMessageSize: bytes of a body; default 4 MiB
	RegionID           string        // regionId; default "DefaultRegion"
	TraceOn            bool          // traceOn: tells clients to send their traces; default true
	TraceTopic         bool          // traceTopicEnable: the topic for them exists
	TraceTopicName     string        // msgTraceTopicName; default "RMQ_SYS_TRACE_TOPIC"
	RejectTransaction  bool          // rejectTransactionMessage
	PropertyFilter     bool          // enablePropertyFilter: SQL92; default true (original: false)
	LongPolling        bool          // longPollingEnable; default true
	ShortPolling       time.Duration // shortPollingTimeMills: the wait at a queue's end without LongPolling; default 1 s
	StoreReplies       bool          // storeReplyMessageEnable; default true
	ServerReset        bool          // useServerSideResetOffset; default true
	AcceptSendsFrom    time.Time     // startAcceptSendRequestTimeStamp: sends before it are refused; default none
	RegisterEvery      time.Duration // registerNameServerPeriod; 1 s to 60 s; default 30 s
	HeartbeatEvery     time.Duration // brokerHeartbeatInterval, to name servers; at least 100 ms, at most half of NotActive; default 1 s
	NotActive          time.Duration // brokerNotActiveTimeoutMillis: a name server that understands it forgets us after it; at least 2 s; default 10 s
	ForwardWait        time.Duration // forwardWaitMs, ours: how long a request is held while no leader is there; default 2 s
	OffsetEvery        time.Duration // consumerOffsetPeriodMs, ours: consumer offsets go into the log this often; at least 1 ms; default 200 ms
	SnapshotEvery      time.Duration // no key: the files under config/ are written this often, if anything changed; at least 100 ms; default 5 s
	DrainMax           time.Duration // drainMaxMs, ours: a replica that is stopped while others live goes on forwarding at most this long; default 60 s
	PullHeldMax        int           // heldPullsMax, ours: long polls held at once; default 100,000
	ConnsMax           int           // connectionsMax, ours; default 50,000
	DelayLevels        string        // messageDelayLevel; default "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
	QueueFileUnits     int           // mappedFileSizeConsumeQueue, in units of 20 bytes: a Java broker that takes over the directory does not start on files of another size; default 300,000
	TransactionTimeout time.Duration // transactionTimeOut; default 6 s
	TransactionChecks  int           // transactionCheckMax; default 15
	TransactionEvery   time.Duration // transactionCheckInterval; at least 100 ms; default 30 s
	TimerEnabled       bool          // timerWheelEnable; default true
	TimerMax           time.Duration // timerMaxDelaySec; default 3 days
	Recall             bool          // recallMessageEnable: timer messages may be taken back
	RecallReadOnly     bool          // allowRecallWhenBrokerNotWriteable; default true
	ServerBalance      bool          // serverLoadBalancerEnable: who asks what to consume gets a share, not everything; default true

	TLS TLS // of clients, other replicas and name servers; the log's own port has none; default both kinds served, test mode

	Logger *slog.Logger // default: nothing is logged

	// For tests of programs: the network between clients, replicas and name servers.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Listen func(address string) (net.Listener, error)

	ledger *dledger.Ledger   // for tests: the log, opened and closed by somebody else
	given  map[string]string // every key that was set, as it was written
	idle   []string          // those of them without effect
	mode   bool              // enableDLegerCommitLog
	bent   []bent            // values that are not used as they stand
	loaded bool              // from a file, where the mode has to be said
	host   netip.Addr        // that of IP
}

// bent is a value, of a broker.conf or a program, that another one is used for.
type bent struct{ key, value, used, why string }

// misfit is the error of a key of the original's whose value cannot be used as it stands, while there is another one that does for it: the nearest, or the default,
// as the original would use it. The key has that value by then.
type misfit struct{ why, used string }

func (m *misfit) Error() string { return m.why }

// theDefault is what is used where that is no number that the reader would know.
const theDefault = "the default"

// TLS are the settings of TLS connections; see there.
type TLS = security.TLS

// NewConfig gives a Config with its defaults.
func NewConfig() Config {
	return Config{
		Cluster: "DefaultCluster", Port: 10911,
		Permission: mq.PermRead | mq.PermWrite, AutoCreateTopic: true, AutoCreateGroup: true, DefaultQueues: 8, MessageSizeMax: 4 << 20,
		RegionID: "DefaultRegion", TraceOn: true, TraceTopicName: mq.TopicTrace, PropertyFilter: true, LongPolling: true,
		ShortPolling: time.Second, StoreReplies: true, ServerReset: true,
		RegisterEvery: 30 * time.Second, HeartbeatEvery: time.Second, NotActive: 10 * time.Second,
		ForwardWait: 2 * time.Second, OffsetEvery: 200 * time.Millisecond, SnapshotEvery: 5 * time.Second, DrainMax: 60 * time.Second,
		PullHeldMax: 100000, ConnsMax: 50000,
		DelayLevels:        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
		TransactionTimeout: 6 * time.Second, TransactionChecks: 15, TransactionEvery: 30 * time.Second,
		TimerEnabled: true, TimerMax: 3 * 24 * time.Hour, RecallReadOnly: true, ServerBalance: true,
		TLS: security.Default(),
	}
}

// loader takes references to other keys, ${x}, as they stand, as the original does.
var loader = properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}

// ReadConfig reads a broker.conf of the original.
func ReadConfig(name string) (Config, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(string(text))
	if err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// ParseConfig is ReadConfig for a text: a properties file. A file that the original starts with is no error because of values that are not taken here, but Open warns of them; wrong
// values of our own keys are.
func ParseConfig(text string) (Config, error) {
	c := NewConfig()
	c.loaded = true
	p, err := loader.LoadBytes([]byte(text))
	if err != nil {
		return c, err
	}
	for _, key := range p.Keys() {
		value, _ := p.Get(key)
		err := c.Set(key, value)
		if m, ok := errors.AsType[*misfit](err); ok {
			c.bent = append(c.bent, bent{key, value, m.used, m.why})
			if c.given[key] = m.used; m.used == theDefault {
				delete(c.given, key)
			}
		} else if err != nil {
			return c, err
		}
	}
	return c, nil
}

// Set sets one key of the original's broker.conf, or one of ours: durability, compat, and whatever dledger.Settings names. A key that has no
// effect is noted, see Idle.
func (c *Config) Set(key, value string) error {
	value = strings.TrimSpace(strings.ReplaceAll(value, "${user.home}", home()))
	if c.given == nil {
		c.given = map[string]string{}
	}
	c.given[key] = value
	if set, ok := keys[key]; ok {
		if err := set(c, value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	}
	if slices.ContainsFunc(dledger.Settings(), func(s dledger.Setting) bool { return s.Key == key }) {
		_, err := c.Log.Set(key, value)
		return err
	}
	if known, err := c.TLS.Set(key, value); known {
		return err
	}
	if key == "tls.config.file" { // keys of a file of their own, as the original has them
		return c.setFile(value)
	}
	c.noEffect(key)
	return nil
}

func (c *Config) noEffect(key string) {
	if !slices.Contains(c.idle, key) {
		c.idle = append(c.idle, key)
	}
}

func (c *Config) setFile(name string) error {
	p, err := loader.LoadFile(name)
	if err != nil {
		return fmt.Errorf("tls.config.file: %w", err)
	}
	for _, key := range p.Keys() {
		value, _ := p.Get(key)
		if known, err := c.TLS.Set(key, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		} else if !known {
			c.noEffect(key)
		}
	}
	return nil
}

// Idle gives the keys that were set and have no effect here.
func (c *Config) Idle() []string { return c.idle }

// logNames are keys that begin an error of the log, and what they are called in a broker.conf.
var logNames = [][2]string{{"id ", "dLegerSelfId "}, {"peers", "dLegerPeers"}, {"group", "dLegerGroup"}, {"mappedFileSizeForEntryData", "mappedFileSizeCommitLog"},
	{"fileReservedHours", "fileReservedTime"}, {"preferredLeaderIds", "preferredLeaderId"}, {"diskSpaceRatioToCheckExpired", "diskMaxUsedSpaceRatio"}}

// byBrokerKeys lets an error of the log name the key that the user has written.
func byBrokerKeys(err error) error {
	for _, n := range logNames {
		if rest, ok := strings.CutPrefix(err.Error(), n[0]); ok {
			return renamed{n[1] + rest, err}
		}
	}
	return err
}

type renamed struct {
	text string
	error
}

func (r renamed) Error() string { return r.text }
func (r renamed) Unwrap() error { return r.error }

// unguarded gives a key that asks for access control, which there is none of; "" if none does.
func (c *Config) unguarded() string {
	for _, key := range []string{"aclEnable", "authenticationEnabled", "authorizationEnabled"} {
		if on, err := strconv.ParseBool(strings.ToLower(c.given[key])); err == nil && on {
			return key
		}
	}
	return ""
}

func home() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return "."
	}
	return dir
}

// key is what setting one key does.
type key = func(c *Config, v string) error

func text(f func(*Config) *string) key {
	return func(c *Config, v string) error { *f(c) = v; return nil }
}

func whole[T int | int32 | int64](f func(*Config) *T, lo, hi int64) key {
	return func(c *Config, v string) error {
		n, err := fitting(v, lo, hi, int64(*f(c)), "a whole number")
		*f(c) = T(n)
		return err
	}
}

// fitting reads a number from lo to hi: one beyond stands for the nearest of these, and what is none for the number that the key has without it.
func fitting(v string, lo, hi, otherwise int64, what string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return otherwise, &misfit{fmt.Sprintf("%.40q is not %s from %d to %d", v, what, lo, hi), strconv.FormatInt(otherwise, 10)}
	}
	if near := min(max(n, lo), hi); near != n {
		return near, &misfit{fmt.Sprintf("%.40q is not %s from %d to %d", v, what, lo, hi), strconv.FormatInt(near, 10)}
	}
	return n, nil
}

// truth takes what is no truth for false, as the original does.
func truth(f func(*Config) *bool) key {
	return func(c *Config, v string) error {
		b, err := strconv.ParseBool(strings.ToLower(v))
		if *f(c) = b; err != nil {
			return &misfit{fmt.Sprintf("%.40q is neither true nor false", v), "false"}
		}
		return nil
	}
}

func lasting(f func(*Config) *time.Duration, unit time.Duration) key {
	return between(f, unit, 0, lastingMost)
}

// lastingMost: nobody means more.
const lastingMost = 1000 * 24 * time.Hour

// between is a time from lo to hi.
func between(f func(*Config) *time.Duration, unit, lo, hi time.Duration) key {
	return func(c *Config, v string) error {
		n, err := fitting(v, int64(lo/unit), int64(hi/unit), int64(*f(c)/unit), fmt.Sprintf("a number of %v", unit))
		*f(c) = time.Duration(n) * unit
		return err
	}
}

// logKey passes a key on to the log, by the name it has there. What the log does not take stands for its default.
func logKey(name string) key {
	return func(c *Config, v string) error {
		if _, err := c.Log.Set(name, v); err != nil {
			return &misfit{strings.TrimPrefix(err.Error(), name+": "), theDefault}
		}
		return nil
	}
}

// ours makes a key that the original does not know: it takes no other value for a wrong one.
func ours(k key) key {
	return func(c *Config, v string) error {
		if err := k(c, v); err != nil {
			return errors.New(err.Error())
		}
		return nil
	}
}

// port is one to listen on. Others cannot be meant, in the original neither.
func port(f func(*Config) *int) key {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		switch {
		case errors.Is(err, strconv.ErrSyntax):
			return &misfit{fmt.Sprintf("%.40q is no port", v), strconv.Itoa(*f(c))}
		case err != nil || n < 1 || n > 65535:
			return fmt.Errorf("%.40q is not a port from 1 to 65535", v)
		}
		*f(c) = n
		return nil
	}
}

// keys are those of broker.conf that have an effect.
var keys = map[string]key{
	"brokerClusterName": text(func(c *Config) *string { return &c.Cluster }),
	"brokerName":        text(func(c *Config) *string { return &c.Name }),
	"brokerIP1":         text(func(c *Config) *string { return &c.IP }),
	"listenPort":        port(func(c *Config) *int { return &c.Port }),
	"bindAddress": func(c *Config, v string) error {
		if v == "" {
			return fmt.Errorf("%q is no address", v)
		}
		if a, err := netip.ParseAddr(v); err == nil && a.IsUnspecified() { // of both kinds then, as in the original
			v = ""
		}
		c.Bind = v
		return nil
	},
	"brokerIP2":    text(func(c *Config) *string { return &c.HAIP }),
	"haListenPort": whole(func(c *Config) *int { return &c.HAPort }, 0, 65535),
	"storeType": func(c *Config, v string) error { // not the log's key of this name: how the original keeps its queues
		if v != "default" {
			c.noEffect("storeType")
		}
		return nil
	},
	"namesrvAddr": func(c *Config, v string) error {
		servers, err := ParseNameServers(v)
		c.NameServers = servers
		return err
	},

	"enableDLegerCommitLog":     truth(func(c *Config) *bool { return &c.mode }),
	"dLegerGroup":               logKey("group"),
	"dLegerSelfId":              logKey("selfId"),
	"dLegerPeers":               logKey("peers"),
	"preferredLeaderId":         logKey("preferredLeaderIds"),
	"storePathRootDir":          logKey("storeBaseDir"),
	"storePathDLedgerCommitLog": logKey("dataStorePath"),
	"readOnlyCommitLogStorePaths": func(c *Config, v string) error {
		c.Log.ReadOnlyDataDirs = split(v, ",")
		return nil
	},
	"mappedFileSizeCommitLog": logKey("mappedFileSizeForEntryData"),
	"mappedFileSizeConsumeQueue": func(c *Config, v string) error {
		n, err := fitting(v, 20, 1<<30, queueFileSize, "a size of a file")
		if err != nil && n == 20 { // below: who knows what was meant, but not a file for each message
			n, err = queueFileSize, &misfit{err.Error(), strconv.Itoa(queueFileSize)}
		}
		c.QueueFileUnits = int(n+19) / 20
		return err
	},
	"deleteWhen": logKey("deleteWhen"),
	"fileReservedTime": func(c *Config, v string) error {
		otherwise := int64(cmp.Or(c.Log.ReservedHours, reservedHours+1) - 1)
		n, err := fitting(v, 0, 1<<20, otherwise, "a number of hours")
		if err != nil && n == 0 { // below: who knows what was meant, but not to keep nothing
			n, err = otherwise, &misfit{err.Error(), strconv.FormatInt(otherwise, 10)}
		}
		c.Log.ReservedHours = int(n) + 1 // as the original does
		return err
	},
	"diskMaxUsedSpaceRatio": func(c *Config, v string) error {
		n, err := strconv.ParseFloat(v, 64)
		used := min(max(n, 10), 95)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange) || n != n:
			return &misfit{fmt.Sprintf("%.40q is not a number from 10 to 95", v), theDefault}
		case used != n:
			err = &misfit{fmt.Sprintf("%.40q is not a number from 10 to 95", v), strconv.FormatFloat(used, 'f', -1, 64)}
		}
		c.Log.DiskCheckRatio = used / 100
		return err
	},
	"cleanFileForciblyEnable": truth(func(c *Config) *bool { return &c.Log.ForceClean }),

	"brokerPermission":                permission,
	"autoCreateTopicEnable":           truth(func(c *Config) *bool { return &c.AutoCreateTopic }),
	"autoCreateSubscriptionGroup":     truth(func(c *Config) *bool { return &c.AutoCreateGroup }),
	"enableMixedMessageType":          truth(func(c *Config) *bool { return &c.MixedTypes }),
	"defaultTopicQueueNums":           whole(func(c *Config) *int32 { return &c.DefaultQueues }, 1, 16384),
	"maxMessageSize":                  whole(func(c *Config) *int { return &c.MessageSizeMax }, 1024, 15<<20),
	"regionId":                        text(func(c *Config) *string { return &c.RegionID }),
	"traceOn":                         truth(func(c *Config) *bool { return &c.TraceOn }),
	"traceTopicEnable":                truth(func(c *Config) *bool { return &c.TraceTopic }),
	"msgTraceTopicName":               text(func(c *Config) *string { return &c.TraceTopicName }),
	"rejectTransactionMessage":        truth(func(c *Config) *bool { return &c.RejectTransaction }),
	"enablePropertyFilter":            truth(func(c *Config) *bool { return &c.PropertyFilter }),
	"longPollingEnable":               truth(func(c *Config) *bool { return &c.LongPolling }),
	"shortPollingTimeMills":           lasting(func(c *Config) *time.Duration { return &c.ShortPolling }, time.Millisecond),
	"storeReplyMessageEnable":         truth(func(c *Config) *bool { return &c.StoreReplies }),
	"useServerSideResetOffset":        truth(func(c *Config) *bool { return &c.ServerReset }),
	"startAcceptSendRequestTimeStamp": sendsFrom,
	"registerNameServerPeriod":        between(func(c *Config) *time.Duration { return &c.RegisterEvery }, time.Millisecond, registerLeast, registerMost),
	"brokerHeartbeatInterval":         between(func(c *Config) *time.Duration { return &c.HeartbeatEvery }, time.Millisecond, heartbeatLeast, lastingMost),
	"brokerNotActiveTimeoutMillis":    between(func(c *Config) *time.Duration { return &c.NotActive }, time.Millisecond, notActiveLeast, lastingMost),
	"messageDelayLevel":               text(func(c *Config) *string { return &c.DelayLevels }),
	"transactionTimeOut":              lasting(func(c *Config) *time.Duration { return &c.TransactionTimeout }, time.Millisecond),
	"transactionCheckMax":             whole(func(c *Config) *int { return &c.TransactionChecks }, 1, 1<<20),
	"transactionCheckInterval":        between(func(c *Config) *time.Duration { return &c.TransactionEvery }, time.Millisecond, transactionLeast, lastingMost),
	"timerWheelEnable":                truth(func(c *Config) *bool { return &c.TimerEnabled }),
	"timerMaxDelaySec":                lasting(func(c *Config) *time.Duration { return &c.TimerMax }, time.Second),

	"recallMessageEnable":               truth(func(c *Config) *bool { return &c.Recall }),
	"allowRecallWhenBrokerNotWriteable": truth(func(c *Config) *bool { return &c.RecallReadOnly }),
	"serverLoadBalancerEnable":          truth(func(c *Config) *bool { return &c.ServerBalance }),

	// Ours.
	"forwardWaitMs":          ours(lasting(func(c *Config) *time.Duration { return &c.ForwardWait }, time.Millisecond)),
	"drainMaxMs":             ours(lasting(func(c *Config) *time.Duration { return &c.DrainMax }, time.Millisecond)),
	"consumerOffsetPeriodMs": ours(between(func(c *Config) *time.Duration { return &c.OffsetEvery }, time.Millisecond, offsetLeast, lastingMost)),
	"heldPullsMax":           ours(whole(func(c *Config) *int { return &c.PullHeldMax }, 1, 1<<30)),
	"connectionsMax":         ours(whole(func(c *Config) *int { return &c.ConnsMax }, 1, 1<<30)),
}

// Defaults that a misfit is told of.
const (
	queueFileSize = 300000 * 20
	reservedHours = 72
)

// Bounds of times after which something is done again: a ticker of 0 ends the process, and with less than these a broker does hardly anything else.
const (
	registerLeast    = time.Second
	registerMost     = time.Minute // as in the original: a name server that was started anew hears of the broker by then
	heartbeatLeast   = 100 * time.Millisecond
	notActiveLeast   = 2 * time.Second // heartbeats come twice in it
	transactionLeast = 100 * time.Millisecond
	offsetLeast      = time.Millisecond
	snapshotLeast    = 100 * time.Millisecond
)

// bound keeps these times, and what else would end a broker, within their bounds, whoever has set them.
func (c *Config) bound() {
	keep := func(key string, d *time.Duration, lo, hi time.Duration) {
		if used := min(max(*d, lo), hi); used != *d {
			c.bent = append(c.bent, bent{key, d.String(), used.String(), fmt.Sprintf("it is not from %v to %v", lo, hi)})
			*d = used
			if _, shown := c.given[key]; shown {
				c.given = maps.Clone(c.given)
				c.given[key] = strconv.FormatInt(used.Milliseconds(), 10)
			}
		}
	}
	keep("registerNameServerPeriod", &c.RegisterEvery, registerLeast, registerMost)
	keep("brokerNotActiveTimeoutMillis", &c.NotActive, notActiveLeast, lastingMost)
	keep("brokerHeartbeatInterval", &c.HeartbeatEvery, heartbeatLeast, c.NotActive/2) // or name servers forget this broker in between
	keep("transactionCheckInterval", &c.TransactionEvery, transactionLeast, lastingMost)
	keep("consumerOffsetPeriodMs", &c.OffsetEvery, offsetLeast, lastingMost)
	keep("SnapshotEvery", &c.SnapshotEvery, snapshotLeast, lastingMost)
	if n := c.QueueFileUnits; n < 0 {
		c.QueueFileUnits = queueFileSize / 20
		c.bent = append(c.bent, bent{"QueueFileUnits", strconv.Itoa(n), strconv.Itoa(c.QueueFileUnits), "it is no size of a file"})
	}
}

// permission looks at the bits that there are, as the original does.
func permission(c *Config, v string) error {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return &misfit{fmt.Sprintf("%.40q is not a permission from 0 to 7", v), mq.Itoa(c.Permission)}
	}
	if c.Permission = int32(n) & 7; n != int64(c.Permission) {
		return &misfit{fmt.Sprintf("%.40q is not a permission from 0 to 7", v), mq.Itoa(c.Permission)}
	}
	return nil
}

func sendsFrom(c *Config, v string) error {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return &misfit{fmt.Sprintf("%.40q is no time in milliseconds", v), theDefault}
	}
	c.AcceptSendsFrom = time.UnixMilli(n)
	return nil
}

func split(s, by string) []string {
	var out []string
	for part := range strings.SplitSeq(s, by) {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// ParseNameServers reads "host:port;host:port".
func ParseNameServers(s string) ([]string, error) {
	servers := split(s, ";")
	for _, address := range servers {
		if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
			return nil, fmt.Errorf("name server %q is not host:port", address)
		}
	}
	return servers, nil
}

// withDefaults fills in what depends on other fields.
func (c Config) withDefaults() (Config, error) {
	if c.Log.Group == "" {
		c.Log.Group = c.Name
	}
	if c.Name == "" {
		c.Name = c.Log.Group
	}
	if c.Log.Dir == "" {
		c.Log.Dir = filepath.Join(home(), "store")
	}
	if c.IP == "" {
		c.IP = hostIP().String()
	}
	c.HAIP, c.HAPort = cmp.Or(c.HAIP, c.IP), cmp.Or(c.HAPort, c.Port+1)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Log.Logger == nil {
		c.Log.Logger = c.Logger
	}
	c.bound()
	return c, c.check()
}

// check names the first field that cannot be meant.
func (c *Config) check() error {
	switch {
	case c.loaded && !c.mode:
		return errors.New("enableDLegerCommitLog is not true: only brokers in DLedger mode are served; for a single one give it one peer")
	case c.Name == "":
		return errors.New("brokerName is missing")
	case len(mq.TopicMetadataStem+c.Name) > mq.TopicMax:
		return fmt.Errorf("brokerName has %d bytes, at most %d: the group's own topic is called after it", len(c.Name), mq.TopicMax-len(mq.TopicMetadataStem))
	case c.Log.ID == "":
		return errors.New("dLegerSelfId is missing")
	case c.Log.Peers == "":
		return errors.New("dLegerPeers is missing")
	case strings.ContainsAny(c.Cluster+c.Name, ";,: \t\n"):
		return fmt.Errorf("brokerName %q, brokerClusterName %q: no blanks, commas, colons or semicolons", c.Name, c.Cluster)
	}
	return c.resolve()
}

// resolve finds the address of brokerIP1, which is told as it is written, but stands in messages and their ids as a number.
func (c *Config) resolve() error {
	var err error
	if c.host, err = netip.ParseAddr(c.IP); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveMax)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", c.IP)
	if err != nil {
		return fmt.Errorf("brokerIP1 %q is no address, and none is known by that name: %w", c.IP, err)
	}
	for i := range all {
		all[i] = all[i].Unmap().WithZone("")
	}
	if c.host = all[0]; !c.host.Is4() {
		if i := slices.IndexFunc(all, netip.Addr.Is4); i >= 0 {
			c.host = all[i]
		}
	}
	return nil
}

// resolveMax is how long the start waits for a name to be looked up.
const resolveMax = 10 * time.Second

// address is what clients and other replicas are told to connect to.
func (c *Config) address() string { return net.JoinHostPort(c.IP, strconv.Itoa(c.Port)) }

// haAddress is where the original copies its log from; here nobody listens on it, but name servers want one.
func (c *Config) haAddress() string { return net.JoinHostPort(c.HAIP, strconv.Itoa(c.HAPort)) }

// followerID is the broker id of this replica while it does not lead: the number in the log's id, from its second character on, plus one.
func (c *Config) followerID() int64 {
	if len(c.Log.ID) > 1 {
		if n, err := strconv.ParseInt(c.Log.ID[1:], 10, 32); err == nil && n >= 0 {
			return n + 1
		}
	}
	return 1
}

// hostIP is the address of this host that others reach it by, as far as it can be guessed: an IPv4 address of an interface that is up, the
// loopback one if there is no other.
func hostIP() netip.Addr {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return loopback
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return loopback
}

// Properties gives what the keys of broker.conf come to, one key=value a line, in order: those that were set, and those that tools ask for.
func (c *Config) Properties() string {
	all := map[string]string{
		"brokerClusterName": c.Cluster, "brokerName": c.Name, "brokerIP1": c.IP, "listenPort": strconv.Itoa(c.Port), "namesrvAddr": strings.Join(c.NameServers, ";"),
		"enableDLegerCommitLog": "true", "dLegerGroup": c.Log.Group, "dLegerSelfId": c.Log.ID, "dLegerPeers": c.Log.Peers, "storePathRootDir": c.Log.Dir,
		"brokerPermission": mq.Itoa(c.Permission), "autoCreateTopicEnable": boolText(c.AutoCreateTopic), "autoCreateSubscriptionGroup": boolText(c.AutoCreateGroup),
		"defaultTopicQueueNums": mq.Itoa(c.DefaultQueues), "maxMessageSize": mq.Itoa(c.MessageSizeMax), "regionId": c.RegionID, "traceOn": boolText(c.TraceOn),
		"enablePropertyFilter": boolText(c.PropertyFilter), "longPollingEnable": boolText(c.LongPolling), "messageDelayLevel": c.DelayLevels,
		"timerWheelEnable": boolText(c.TimerEnabled), "durability": c.Log.Durability.String(), "compat": c.Log.Compat.String(),
	}
	maps.Copy(all, c.given)
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s=%s\n", key, all[key])
	}
	return b.String()
}
