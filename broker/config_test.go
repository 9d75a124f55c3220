package broker

import (
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
