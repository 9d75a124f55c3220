package broker

import (
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

func TestBadBrokerConfNamesTheKey(t *testing.T) {
	for _, c := range []struct{ name, line, want string }{
		{"port", "listenPort=x", "listenPort"},
		{"name server", "namesrvAddr=127.0.0.1", "namesrvAddr"},
		{"truth", "autoCreateTopicEnable=perhaps", "autoCreateTopicEnable"},
		{"hours", "fileReservedTime=-1", "fileReservedTime"},
		{"durability", "durability=none", "durability"},
		{"address", "brokerIP1=nowhere", "brokerIP1"},
		{"mode", "enableDLegerCommitLog=false", "enableDLegerCommitLog"},
		{"member", "dLegerSelfId=", "dLegerSelfId"},
		{"name", "brokerName=a b", "brokerName"},
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
	for v, want := range map[string]string{"0.0.0.0": "", "::": "", "127.0.0.1": "127.0.0.1"} {
		c := NewConfig()
		if err := c.Set("bindAddress", v); err != nil || c.Bind != want {
			t.Errorf("bindAddress=%s: listens on %q, %v; want %q", v, c.Bind, err, want)
		}
	}
	c := NewConfig()
	if err := c.Set("bindAddress", "everywhere"); err == nil {
		t.Error("bindAddress=everywhere was taken")
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
