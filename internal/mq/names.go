package mq

import (
	"fmt"
	"strings"
)

// Prefixes of topics that belong to a group.
const (
	RetryPrefix = "%RETRY%" // messages to be consumed again
	DLQPrefix   = "%DLQ%"   // messages given up
	// SystemPrefix opens names of topics and groups that only brokers write to.
	SystemPrefix = "rmq_sys_"
)

// Topics with a job (TopicValidator, MixAll).
const (
	TopicDefault         = "TBW102" // the template of topics made by sending to them
	TopicSchedule        = "SCHEDULE_TOPIC_XXXX"
	TopicHalf            = "RMQ_SYS_TRANS_HALF_TOPIC"
	TopicOpHalf          = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
	TopicTransCheckMax   = "TRANS_CHECK_MAX_TIME_TOPIC"
	TopicTrace           = "RMQ_SYS_TRACE_TOPIC"
	TopicSelfTest        = "SELF_TEST_TOPIC"
	TopicBenchmark       = "BenchmarkTest"
	TopicOffsetMoved     = "OFFSET_MOVED_EVENT"
	TopicCheckpoint      = "CHECKPOINT_TOPIC"
	TopicTimer           = "rmq_sys_wheel_timer"
	TopicSyncMembersStem = "rmq_sys_SYNC_BROKER_MEMBER_" // + broker name
	TopicReviveStem      = "rmq_sys_REVIVE_LOG_"         // + cluster name
	TopicMetadataStem    = "rmq_sys_metadata_"           // + broker name; ours
)

// Groups with a job.
const (
	GroupTools         = "TOOLS_CONSUMER"
	GroupFilterServer  = "FILTERSRV_CONSUMER"
	GroupSelfTest      = "SELF_TEST_C_GROUP"
	GroupONSHTTPProxy  = "CID_ONS-HTTP-PROXY"
	GroupONSPull       = "CID_ONSAPI_PULL"
	GroupONSPermission = "CID_ONSAPI_PERMISSION"
	GroupONSOwner      = "CID_ONSAPI_OWNER"
	GroupTransaction   = "CID_RMQ_SYS_TRANS"
)

// SystemGroups are the groups that every broker has from the start.
var SystemGroups = []string{GroupTools, GroupFilterServer, GroupSelfTest, GroupONSHTTPProxy, GroupONSPull, GroupONSPermission, GroupONSOwner, GroupTransaction}

// Bounds of names in bytes.
const (
	TopicLenMax = 127
	GroupLenMax = 255
)

func RetryTopic(group string) string { return RetryPrefix + group }
func DLQTopic(group string) string   { return DLQPrefix + group }

// ReplyTopic is the topic that answers to requests travel through in a cluster.
func ReplyTopic(cluster string) string { return cluster + "_REPLY_TOPIC" }

// IsSystemTopic tells topics that users may neither make nor delete, whatever the cluster and broker are called.
func IsSystemTopic(topic string) bool {
	switch topic {
	case TopicDefault, TopicSchedule, TopicHalf, TopicOpHalf, TopicTransCheckMax, TopicTrace, TopicSelfTest, TopicBenchmark, TopicOffsetMoved, TopicCheckpoint:
		return true
	}
	return strings.HasPrefix(topic, SystemPrefix)
}

// IsNoSendTopic tells topics that clients may not send to. That of timers is one here: what lies there is delivered to where it says.
func IsNoSendTopic(topic string) bool {
	switch topic {
	case TopicSchedule, TopicHalf, TopicOpHalf, TopicTransCheckMax, TopicSelfTest, TopicOffsetMoved, TopicTimer:
		return true
	}
	return strings.HasPrefix(topic, TopicMetadataStem)
}

// IsSystemGroup tells groups that no user owns.
func IsSystemGroup(group string) bool {
	for _, g := range SystemGroups {
		if g == group {
			return true
		}
	}
	return strings.HasPrefix(group, "CID_RMQ_SYS_")
}

// CheckTopic says what is wrong with a topic's name, in words for a client. It is answered with InvalidParameter.
func CheckTopic(topic string) error { return checkName("topic", topic, TopicLenMax) }

// CheckGroup says what is wrong with a group's name.
func CheckGroup(group string) error { return checkName("group", group, GroupLenMax) }

func checkName(what, name string, lenMax int) error {
	if strings.TrimSpace(name) == "" {
		return fmt.Errorf("the name of the %s is blank", what)
	}
	for i := 0; i < len(name); i++ {
		if !nameByte(name[i]) {
			return nameError("The specified " + what + " contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$") // as tools show it
		}
	}
	if len(name) > lenMax {
		return fmt.Errorf("the name of the %s is longer than the maximum length of %d", what, lenMax)
	}
	return nil
}

type nameError string

func (e nameError) Error() string { return string(e) }

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '%' || c == '|'
}
