package broker

import (
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The example of the original's distribution, with keys of all kinds added.
const exampleConf = `
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
namesrvAddr=127.0.0.1:9876;127.0.0.1:9886
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
## must be unique
dLegerSelfId=n0
sendMessageThreadPoolNums=16
preferredLeaderId=n1
fileReservedTime=48
deleteWhen=04
diskMaxUsedSpaceRatio=80
mappedFileSizeCommitLog=4194304
durability=async
transactionTimeOut=5000
`

func TestBrokerConfOfTheOriginalIsUnderstood(t *testing.T) {
	c, err := ParseConfig(exampleConf)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.withDefaults(); err != nil {
		t.Fatal(err)
	}
	got := []any{c.Cluster, c.Name, c.Port, c.NameServers, c.Log.Group, c.Log.ID, c.Log.Dir, c.Log.PreferredIDs, c.Log.ReservedHours, c.Log.DeleteWhen,
		c.Log.DiskCheckRatio, c.Log.DataFileSize, c.Log.Durability.String(), c.TransactionTimeout, c.followerID()}
	want := []any{"RaftCluster", "RaftNode00", 30911, []string{"127.0.0.1:9876", "127.0.0.1:9886"}, "RaftNode00", "n0", "/tmp/rmqstore/node00", []string{"n1"}, 49, "04",
		0.8, int64(4194304), "async", 5 * time.Second, int64(1)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if want := []string{"storePathCommitLog", "sendMessageThreadPoolNums"}; !slices.Equal(c.Idle(), want) {
		t.Errorf("without effect are %v, want %v", c.Idle(), want)
	}
}

// What the original does not start with either, what tells who and where a broker is, and keys of ours.
func TestBadBrokerConfNamesTheKey(t *testing.T) {
	for _, c := range []struct{ name, line, want string }{
		{"port", "listenPort=70000", "listenPort"},
		{"name server", "namesrvAddr=127.0.0.1", "namesrvAddr"},
		{"durability", "durability=none", "durability"},
		{"our own number", "heldPullsMax=0", "heldPullsMax"},
		{"our own time", "forwardWaitMs=soon", "forwardWaitMs"},
		{"our own period", "consumerOffsetPeriodMs=0", "consumerOffsetPeriodMs"},
		{"address", "brokerIP1=no where", "brokerIP1"},
		{"mode", "enableDLegerCommitLog=false", "enableDLegerCommitLog"},
		{"mode that is no truth", "enableDLegerCommitLog=yes", "enableDLegerCommitLog"},
		{"member", "dLegerSelfId=", "dLegerSelfId"},
		{"name", "brokerName=a b", "brokerName"},
		{"name for which there is no topic", "brokerName=" + strings.Repeat("a", 239), "brokerName has 239 bytes, at most 238"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := ParseConfig(exampleConf + c.line + "\n")
			if err == nil {
				_, err = conf.withDefaults()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an error that names %s", err, c.want)
			}
		})
	}
}

// TestBrokerConfThatTheOriginalStartsWithIsNoError: a value that is not taken here gives way to another one, which is told; on the command line, and by request, it is refused.
func TestBrokerConfThatTheOriginalStartsWithIsNoError(t *testing.T) {
	for _, k := range []struct {
		key, value, used string
		got              func(c *Config) any
		want             any
	}{
		{"maxMessageSize", "67108864", "15728640", func(c *Config) any { return c.MessageSizeMax }, 15 << 20},
		{"maxMessageSize", "99999999999999999999", "15728640", func(c *Config) any { return c.MessageSizeMax }, 15 << 20},
		{"maxMessageSize", "1", "1024", func(c *Config) any { return c.MessageSizeMax }, 1024},
		{"maxMessageSize", "4M", "4194304", func(c *Config) any { return c.MessageSizeMax }, 4 << 20},
		{"diskMaxUsedSpaceRatio", "99", "95", func(c *Config) any { return c.Log.DiskCheckRatio }, 0.95},
		{"diskMaxUsedSpaceRatio", "5", "10", func(c *Config) any { return c.Log.DiskCheckRatio }, 0.1},
		{"diskMaxUsedSpaceRatio", "NaN", "the default", func(c *Config) any { return c.Log.DiskCheckRatio }, 0.0},
		{"defaultTopicQueueNums", "20000", "16384", func(c *Config) any { return c.DefaultQueues }, int32(16384)},
		{"defaultTopicQueueNums", "0", "1", func(c *Config) any { return c.DefaultQueues }, int32(1)},
		{"autoCreateTopicEnable", "perhaps", "false", func(c *Config) any { return c.AutoCreateTopic }, false},
		{"fileReservedTime", "-1", "72", func(c *Config) any { return c.Log.ReservedHours }, 73},
		{"fileReservedTime", "99999999", "1048576", func(c *Config) any { return c.Log.ReservedHours }, 1<<20 + 1},
		{"deleteWhen", "4h", "the default", func(c *Config) any { return c.Log.DeleteWhen }, ""},
		{"mappedFileSizeCommitLog", "3000000000", "the default", func(c *Config) any { return c.Log.DataFileSize }, int64(0)},
		{"mappedFileSizeConsumeQueue", "x", "6000000", func(c *Config) any { return c.QueueFileUnits }, 300000},
		{"brokerPermission", "15", "7", func(c *Config) any { return c.Permission }, int32(7)},
		{"brokerPermission", "-1", "7", func(c *Config) any { return c.Permission }, int32(7)},
		{"transactionTimeOut", "-5", "0", func(c *Config) any { return c.TransactionTimeout }, time.Duration(0)},
		{"transactionCheckInterval", "0", "100", func(c *Config) any { return c.TransactionEvery }, 100 * time.Millisecond},
		{"registerNameServerPeriod", "-1", "1000", func(c *Config) any { return c.RegisterEvery }, time.Second},
		{"registerNameServerPeriod", "86400000", "60000", func(c *Config) any { return c.RegisterEvery }, time.Minute},
		{"brokerHeartbeatInterval", "0", "100", func(c *Config) any { return c.HeartbeatEvery }, 100 * time.Millisecond},
		{"brokerNotActiveTimeoutMillis", "0", "2000", func(c *Config) any { return c.NotActive }, 2 * time.Second},
		{"mappedFileSizeConsumeQueue", "-1", "6000000", func(c *Config) any { return c.QueueFileUnits }, 300000},
		{"transactionCheckMax", "0", "1", func(c *Config) any { return c.TransactionChecks }, 1},
		{"listenPort", "1o911", "10911", func(c *Config) any { return c.Port }, 10911},
		{"startAcceptSendRequestTimeStamp", "now", "the default", func(c *Config) any { return c.AcceptSendsFrom.IsZero() }, true},
	} {
		t.Run(k.key+"="+k.value, func(t *testing.T) {
			c, err := ParseConfig(exampleConf + k.key + "=" + k.value + "\n")
			if err != nil {
				t.Fatal(err)
			}
			if got := k.got(&c); got != k.want {
				t.Errorf("came to %v, want %v", got, k.want)
			}
			if len(c.bent) != 1 || c.bent[0].key != k.key || c.bent[0].value != k.value || c.bent[0].used != k.used || c.bent[0].why == "" {
				t.Errorf("told %+v, want that %s is used", c.bent, k.used)
			}
			if shown := c.Properties(); strings.Contains(shown, k.key+"="+k.value+"\n") {
				t.Errorf("the configuration shows what is not used: %s", shown)
			}
			if err := c.Set(k.key, k.value); err == nil {
				t.Error("taken where the user can be told")
			}
		})
	}
}

// TestHeartbeatsComeBeforeABrokerIsForgotten: an interval that is too long for the time of silence is not used, nor shown.
func TestHeartbeatsComeBeforeABrokerIsForgotten(t *testing.T) {
	c, err := ParseConfig(exampleConf + "brokerHeartbeatInterval=60000\nbrokerNotActiveTimeoutMillis=8000\n")
	if err == nil {
		c, err = c.withDefaults()
	}
	if err != nil || c.HeartbeatEvery != 4*time.Second || len(c.bent) != 1 || c.bent[0].key != "brokerHeartbeatInterval" {
		t.Errorf("comes every %v, told %+v, %v; want 4s", c.HeartbeatEvery, c.bent, err)
	}
	if shown := c.Properties(); !strings.Contains(shown, "brokerHeartbeatInterval=4000\n") {
		t.Errorf("the configuration shows what is not used: %s", shown)
	}
}

// TestHostNameStandsForItsAddress: clients are told the name, messages hold the address.
func TestHostNameStandsForItsAddress(t *testing.T) {
	c, err := ParseConfig(exampleConf + "brokerIP1=localhost\n")
	if err == nil {
		c, err = c.withDefaults()
	}
	if err != nil || c.address() != "localhost:30911" || !c.host.IsLoopback() {
		t.Errorf("told %s, stored %v, %v", c.address(), c.host, err)
	}
}

// TestStartWarnsOfWhatIsNotAsTheFileSays, and of a broker that nobody can find.
func TestStartWarnsOfWhatIsNotAsTheFileSays(t *testing.T) {
	var log strings.Builder
	cfg, err := ParseConfig("brokerName=a\nenableDLegerCommitLog=true\nmaxMessageSize=67108864\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:1\nmessageDelayLevel=none\n" +
		"tls.server.authClient=true\ntls.server.need.client.auth=require\ntls.client.authServer=true\n")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if b, err := Open(cfg); err == nil { // the delay levels end it
		t.Error("opened", b.Close())
	}
	for _, want := range []string{"key=maxMessageSize value=67108864 used=15728640", "no name server is set",
		"not checked: set tls.test.mode.enable=false\" keys=\"[tls.server.authClient tls.server.need.client.auth tls.client.authServer]\""} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("nothing says %q: %s", want, log.String())
		}
	}
}

// Every key of the original does something here or is named in the warning, and those of testdata that have a value are the ones that do.
func TestEveryKeyOfTheOriginalWorksOrIsNamed(t *testing.T) {
	text, err := os.ReadFile("testdata/brokerconf.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, works := strings.Cut(line, "=")
		listed[key] = true
		for _, v := range []string{value, "true", "1"} { // what has no effect takes everything
			c, plain := NewConfig(), NewConfig()
			if err := c.Set(key, v); err != nil {
				t.Errorf("%s=%s: %v", key, v, err)
			}
			named := slices.Contains(c.Idle(), key)
			c.given, c.idle = nil, nil
			if changed := !reflect.DeepEqual(c, plain); named == works || changed != works {
				t.Errorf("%s=%s: changes the configuration %v, is named as without effect %v; want %v and %v", key, v, changed, named, works, !works)
			}
			if works {
				break
			}
		}
	}
	for key := range keys {
		if !listed[key] && !slices.Contains(oursInBrokerConf, key) {
			t.Errorf("%s is neither a key of the original nor of ours", key)
		}
	}
}

// Keys that the original does not have.
var oursInBrokerConf = []string{"connectionsMax", "consumerOffsetPeriodMs", "drainMaxMs", "forwardWaitMs", "heldPullsMax"}

func TestAccessControlThatIsAskedForIsNamed(t *testing.T) {
	for conf, want := range map[string]string{"aclEnable=false\n": "", "aclEnable=true\n": "aclEnable", "authorizationEnabled=TRUE\n": "authorizationEnabled"} {
		if c, err := ParseConfig(conf); err != nil || c.unguarded() != want {
			t.Errorf("%s: %q, %v; want %q", conf, c.unguarded(), err, want)
		}
	}
}

func TestBindAddressIsHonoured(t *testing.T) {
	for v, want := range map[string]string{"0.0.0.0": "", "::": "", "127.0.0.1": "127.0.0.1", "node1.example": "node1.example"} {
		c := NewConfig()
		if err := c.Set("bindAddress", v); err != nil || c.Bind != want {
			t.Errorf("bindAddress=%s: listens on %q, %v; want %q", v, c.Bind, err, want)
		}
	}
	c := NewConfig()
	if err := c.Set("bindAddress", ""); err == nil {
		t.Error("bindAddress without an address was taken")
	}
}

func TestManualListsEveryKey(t *testing.T) {
	text, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(text)
	start := strings.Index(manual, "## Settings of a broker")
	manual = manual[start:]
	for key := range keys {
		if !strings.Contains(manual, "`"+key+"`") {
			t.Errorf("docs/operating.md does not list the key %s", key)
		}
		if starred := strings.Contains(manual, "`"+key+"` *"); starred != settable[key] {
			t.Errorf("docs/operating.md says of %s that it can be changed while the broker runs: %v, so it is: %v", key, starred, settable[key])
		}
	}
}
