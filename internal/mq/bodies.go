package mq

import (
	"cmp"
)

// The bodies of requests and answers. Each is read with Unmarshal and written with Marshal; names and forms are those of the classes
// of the same or a similar name in the original's protocol package. A field that we do not need is not here and is skipped in reading.

// MessageQueue names one queue. As key of a map it is written as a bare object, which is what Java tools read.
type MessageQueue struct {
	BrokerName string `json:"brokerName"`
	QueueID    int32  `json:"queueId"`
	Topic      string `json:"topic"`
}

// Compare orders queues by topic, broker and number, as the original does where it assigns them.
func (q MessageQueue) Compare(o MessageQueue) int {
	return cmp.Or(cmp.Compare(q.Topic, o.Topic), cmp.Compare(q.BrokerName, o.BrokerName), cmp.Compare(q.QueueID, o.QueueID))
}

// DataVersion tells states of a table apart. Ours carry the Raft term as StateVersion, so that a name server refuses a leader of an
// earlier term; the original sends 0 in DLedger mode.
type DataVersion struct {
	Counter      int64 `json:"counter"`
	StateVersion int64 `json:"stateVersion"`
	Timestamp    int64 `json:"timestamp"` // ms
}

// TopicConfig is a topic as its broker keeps it.
type TopicConfig struct {
	TopicName       string            `json:"topicName"`
	ReadQueueNums   int32             `json:"readQueueNums"`
	WriteQueueNums  int32             `json:"writeQueueNums"`
	Perm            int32             `json:"perm"`
	TopicFilterType string            `json:"topicFilterType"` // SINGLE_TAG, MULTI_TAG
	TopicSysFlag    int32             `json:"topicSysFlag"`
	Order           bool              `json:"order"`
	Attributes      map[string]string `json:"attributes"`
}

// FilterSingleTag is the only filter type in use.
const FilterSingleTag = "SINGLE_TAG"

// NewTopicConfig gives a topic with as many queues to read as to write.
func NewTopicConfig(name string, queues, perm int32) TopicConfig {
	return TopicConfig{TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: perm, TopicFilterType: FilterSingleTag, Attributes: map[string]string{}}
}

// TopicConfigTable is the body of GET_ALL_TOPIC_CONFIG and part of a registration (TopicConfigAndMappingSerializeWrapper).
type TopicConfigTable struct {
	DataVersion DataVersion            `json:"dataVersion"`
	Mapping     DataVersion            `json:"mappingDataVersion"`
	Topics      map[string]TopicConfig `json:"topicConfigTable"`
	MappingBody map[string]string      `json:"topicQueueMappingDetailMap"` // static topics, which we do not have: always empty
	MappingInfo map[string]string      `json:"topicQueueMappingInfoMap"`
}

// TopicConfigList is the body of UPDATE_AND_CREATE_TOPIC_LIST.
type TopicConfigList struct {
	Topics []TopicConfig `json:"topicConfigList"`
}

// SubscriptionGroupConfig is a consumer group as its broker keeps it. DefaultGroup gives the values that absent fields have.
type SubscriptionGroupConfig struct {
	GroupName                      string            `json:"groupName"`
	ConsumeEnable                  bool              `json:"consumeEnable"`
	ConsumeFromMinEnable           bool              `json:"consumeFromMinEnable"`
	ConsumeBroadcastEnable         bool              `json:"consumeBroadcastEnable"`
	ConsumeMessageOrderly          bool              `json:"consumeMessageOrderly"`
	RetryQueueNums                 int32             `json:"retryQueueNums"`
	RetryMaxTimes                  int32             `json:"retryMaxTimes"`
	GroupRetryPolicy               *GroupRetryPolicy `json:"groupRetryPolicy"`
	BrokerID                       int64             `json:"brokerId"`
	WhichBrokerWhenConsumeSlowly   int64             `json:"whichBrokerWhenConsumeSlowly"`
	NotifyConsumerIDsChangedEnable bool              `json:"notifyConsumerIdsChangedEnable"`
	GroupSysFlag                   int32             `json:"groupSysFlag"`
	ConsumeTimeoutMinute           int32             `json:"consumeTimeoutMinute"`
	Attributes                     map[string]string `json:"attributes"`
}

// GroupRetryPolicy is kept and given back; only its default is acted on.
type GroupRetryPolicy struct {
	Type string `json:"type"`
}

func (g *SubscriptionGroupConfig) defaults() { *g = DefaultGroup("") }

// DefaultGroup gives a group with the original's defaults: unmarshal into it, since absent fields then keep them.
func DefaultGroup(name string) SubscriptionGroupConfig {
	return SubscriptionGroupConfig{
		GroupName: name, ConsumeEnable: true, ConsumeFromMinEnable: true, ConsumeBroadcastEnable: true, RetryQueueNums: 1, RetryMaxTimes: 16,
		GroupRetryPolicy: &GroupRetryPolicy{"CUSTOMIZED"}, WhichBrokerWhenConsumeSlowly: 1, NotifyConsumerIDsChangedEnable: true,
		ConsumeTimeoutMinute: 15, Attributes: map[string]string{},
	}
}

// SubscriptionGroupTable is the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG (SubscriptionGroupWrapper).
type SubscriptionGroupTable struct {
	DataVersion DataVersion                        `json:"dataVersion"`
	Groups      map[string]SubscriptionGroupConfig `json:"subscriptionGroupTable"`
}

// SubscriptionGroupList is the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.
type SubscriptionGroupList struct {
	Groups []SubscriptionGroupConfig `json:"groupConfigList"`
}

// ConsumerOffsetTable is the body of GET_ALL_CONSUMER_OFFSET: "topic@group" → queue → offset.
type ConsumerOffsetTable struct {
	DataVersion DataVersion                `json:"dataVersion"`
	Offsets     map[string]map[int32]int64 `json:"offsetTable"`
}

// DelayOffsetTable is the body of GET_ALL_DELAY_OFFSET: level → offset.
type DelayOffsetTable struct {
	DataVersion DataVersion     `json:"dataVersion"`
	Offsets     map[int32]int64 `json:"offsetTable"`
}

// BrokerData is one broker name of a cluster: its replicas by id. 0 is the leader, the only one that producers use.
type BrokerData struct {
	BrokerAddrs        map[int64]string `json:"brokerAddrs"`
	BrokerName         string           `json:"brokerName"`
	Cluster            string           `json:"cluster"`
	EnableActingMaster bool             `json:"enableActingMaster"`
	ZoneName           string           `json:"zoneName,omitempty"`
}

// QueueData is what one broker name has of a topic.
type QueueData struct {
	BrokerName     string `json:"brokerName"`
	Perm           int32  `json:"perm"`
	ReadQueueNums  int32  `json:"readQueueNums"`
	TopicSysFlag   int32  `json:"topicSysFlag"`
	WriteQueueNums int32  `json:"writeQueueNums"`
}

// TopicRouteData is the answer to GET_ROUTEINFO_BY_TOPIC. The Go client finds brokerAddrs by splitting the text at commas, so
// addresses are host:port and nothing in there nests deeper.
type TopicRouteData struct {
	BrokerDatas       []BrokerData        `json:"brokerDatas"`
	FilterServerTable map[string][]string `json:"filterServerTable"`
	OrderTopicConf    string              `json:"orderTopicConf,omitempty"`
	QueueDatas        []QueueData         `json:"queueDatas"`
}

// ClusterInfo is the answer to GET_BROKER_CLUSTER_INFO.
type ClusterInfo struct {
	Brokers  map[string]BrokerData `json:"brokerAddrTable"`
	Clusters map[string][]string   `json:"clusterAddrTable"`
}

// BrokerMembers is the answer to GET_BROKER_MEMBER_GROUP.
type BrokerMembers struct {
	Group struct {
		BrokerAddrs map[int64]string `json:"brokerAddrs"`
		BrokerName  string           `json:"brokerName"`
		Cluster     string           `json:"cluster"`
	} `json:"brokerMemberGroup"`
}

// TopicList is the answer to all requests for names of topics.
type TopicList struct {
	Topics     []string `json:"topicList"`
	BrokerAddr string   `json:"brokerAddr,omitempty"`
}

// GroupList is the answer to QUERY_TOPIC_CONSUME_BY_WHO.
type GroupList struct {
	Groups []string `json:"groupList"`
}

// KVTable is a table of texts.
type KVTable struct {
	Table map[string]string `json:"table"`
}

// ConsumeType says how a group gets its messages; only tools look at it.
type ConsumeType string

const (
	ConsumePull ConsumeType = "CONSUME_ACTIVELY"
	ConsumePush ConsumeType = "CONSUME_PASSIVELY"
	ConsumePop  ConsumeType = "CONSUME_POP"
)

func (ConsumeType) ordinals() []string {
	return []string{string(ConsumePull), string(ConsumePush), string(ConsumePop)}
}

// MessageModel says whether members of a group share the messages or get all of them.
type MessageModel string

const (
	Broadcasting MessageModel = "BROADCASTING"
	Clustering   MessageModel = "CLUSTERING"
)

func (MessageModel) ordinals() []string { return []string{string(Broadcasting), string(Clustering)} }

// ConsumeFrom says where a new group begins.
type ConsumeFrom string

const (
	FromLastOffset  ConsumeFrom = "CONSUME_FROM_LAST_OFFSET"
	FromFirstOffset ConsumeFrom = "CONSUME_FROM_FIRST_OFFSET"
	FromTimestamp   ConsumeFrom = "CONSUME_FROM_TIMESTAMP"
)

func (ConsumeFrom) ordinals() []string {
	return []string{string(FromLastOffset), "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", string(FromFirstOffset), string(FromTimestamp)}
}

// Kinds of subscription expressions. Absent means TAG.
const (
	ExprTag = "TAG"
	ExprSQL = "SQL92"
)

// SubscriptionData is what a group wants of a topic. Codes are hashes of the tags: recompute them, clients have sent wrong ones.
type SubscriptionData struct {
	ClassFilterMode bool     `json:"classFilterMode"`
	CodeSet         []int32  `json:"codeSet"`
	ExpressionType  string   `json:"expressionType"`
	SubString       string   `json:"subString"`
	SubVersion      int64    `json:"subVersion"`
	TagsSet         []string `json:"tagsSet"`
	Topic           string   `json:"topic"`
}

// ConsumerData is one consumer group of a client.
type ConsumerData struct {
	ConsumeFromWhere ConsumeFrom        `json:"consumeFromWhere"`
	ConsumeType      ConsumeType        `json:"consumeType"`
	GroupName        string             `json:"groupName"`
	MessageModel     MessageModel       `json:"messageModel"`
	Subscriptions    []SubscriptionData `json:"subscriptionDataSet"`
	UnitMode         bool               `json:"unitMode"`
}

// ProducerData is one producer group of a client.
type ProducerData struct {
	GroupName string `json:"groupName"`
}

// Heartbeat is the body of HEART_BEAT. Sets that a client leaves out are empty.
type Heartbeat struct {
	ClientID    string         `json:"clientID"`
	Consumers   []ConsumerData `json:"consumerDataSet"`
	Fingerprint int32          `json:"heartbeatFingerprint"` // not 0: heartbeat V2
	Producers   []ProducerData `json:"producerDataSet"`
	WithoutSub  bool           `json:"withoutSub"` // V2: subscriptions are those that the fingerprint stands for
}

// CheckClientConfig is the body of CHECK_CLIENT_CONFIG.
type CheckClientConfig struct {
	ClientID     string           `json:"clientId"`
	Group        string           `json:"group"`
	Namespace    string           `json:"namespace,omitempty"`
	Subscription SubscriptionData `json:"subscriptionData"`
}

// ConsumerList is the answer to GET_CONSUMER_LIST_BY_GROUP.
type ConsumerList struct {
	ConsumerIDs []string `json:"consumerIdList"`
}

// LockRequest is the body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.
type LockRequest struct {
	ClientID       string         `json:"clientId"`
	ConsumerGroup  string         `json:"consumerGroup"`
	Queues         []MessageQueue `json:"mqSet"`
	OnlyThisBroker bool           `json:"onlyThisBroker"`
}

// LockAnswer names the queues that the client holds now.
type LockAnswer struct {
	Queues []MessageQueue `json:"lockOKMQSet"`
}

// Connection is one client in a list of connections.
type Connection struct {
	ClientAddr string `json:"clientAddr"`
	ClientID   string `json:"clientId"`
	Language   string `json:"language"`
	Version    int32  `json:"version"`
}

// ConsumerConnection is the answer to GET_CONSUMER_CONNECTION_LIST.
type ConsumerConnection struct {
	Connections      []Connection                `json:"connectionSet"`
	ConsumeFromWhere ConsumeFrom                 `json:"consumeFromWhere"`
	ConsumeType      ConsumeType                 `json:"consumeType"`
	MessageModel     MessageModel                `json:"messageModel"`
	Subscriptions    map[string]SubscriptionData `json:"subscriptionTable"`
}

// ProducerConnection is the answer to GET_PRODUCER_CONNECTION_LIST.
type ProducerConnection struct {
	Connections []Connection `json:"connectionSet"`
}

// ProducerInfo is one producer in the table of all of them.
type ProducerInfo struct {
	ClientID            string `json:"clientId"`
	Language            string `json:"language"`
	LastUpdateTimestamp int64  `json:"lastUpdateTimestamp"`
	RemoteIP            string `json:"remoteIP"`
	Version             int32  `json:"version"`
}

// ProducerTable is the answer to GET_ALL_PRODUCER_INFO: group → producers.
type ProducerTable struct {
	Data map[string][]ProducerInfo `json:"data"`
}

// TopicOffset is what a queue holds.
type TopicOffset struct {
	LastUpdateTimestamp int64 `json:"lastUpdateTimestamp"`
	MaxOffset           int64 `json:"maxOffset"`
	MinOffset           int64 `json:"minOffset"`
}

// TopicStats is the answer to GET_TOPIC_STATS_INFO (TopicStatsTable).
type TopicStats struct {
	Offsets     map[MessageQueue]TopicOffset `json:"offsetTable"`
	TopicPutTPS float64                      `json:"topicPutTps"`
}

// OffsetWrapper is how far a group is in a queue.
type OffsetWrapper struct {
	BrokerOffset   int64 `json:"brokerOffset"`
	ConsumerOffset int64 `json:"consumerOffset"`
	LastTimestamp  int64 `json:"lastTimestamp"` // store time of the message at the consumer's offset
	PullOffset     int64 `json:"pullOffset"`
}

// ConsumeStats is the answer to GET_CONSUME_STATS.
type ConsumeStats struct {
	ConsumeTPS float64                        `json:"consumeTps"`
	Offsets    map[MessageQueue]OffsetWrapper `json:"offsetTable"`
}

// ConsumeStatsList is the answer to GET_BROKER_CONSUME_STATS: group → its stats, one for each topic.
type ConsumeStatsList struct {
	BrokerAddr string                      `json:"brokerAddr"`
	Stats      []map[string][]ConsumeStats `json:"consumeStatsList"`
	TotalDiff  int64                       `json:"totalDiff"`
}

// QueueOffsets is the body of RESET_CONSUMER_CLIENT_OFFSET and of the answer to INVOKE_BROKER_TO_RESET_OFFSET.
type QueueOffsets struct {
	Offsets map[MessageQueue]int64 `json:"offsetTable"`
}

// ConsumerStatus is the answer to INVOKE_BROKER_TO_GET_CONSUMER_STATUS and, of one client, to GET_CONSUMER_STATUS_FROM_CLIENT.
type ConsumerStatus struct {
	MessageQueues map[MessageQueue]int64            `json:"messageQueueTable,omitempty"`
	Consumers     map[string]map[MessageQueue]int64 `json:"consumerTable,omitempty"`
}

// QueueTimeSpan is how old the messages of a queue are, and the oldest one that a group has not consumed.
type QueueTimeSpan struct {
	ConsumeTimestamp int64        `json:"consumeTimeStamp"`
	DelayTime        int64        `json:"delayTime"`
	MaxTimestamp     int64        `json:"maxTimeStamp"`
	Queue            MessageQueue `json:"messageQueue"`
	MinTimestamp     int64        `json:"minTimeStamp"`
}

// ConsumeTimeSpan is the answer to QUERY_CONSUME_TIME_SPAN.
type ConsumeTimeSpan struct {
	Spans []QueueTimeSpan `json:"consumeTimeSpanSet"`
}

// StatsItem is one window of a statistic.
type StatsItem struct {
	AvgPT float64 `json:"avgpt"`
	Sum   int64   `json:"sum"`
	TPS   float64 `json:"tps"`
}

// BrokerStats is the answer to VIEW_BROKER_STATS_DATA.
type BrokerStats struct {
	Day    StatsItem `json:"statsDay"`
	Hour   StatsItem `json:"statsHour"`
	Minute StatsItem `json:"statsMinute"`
}

// ConsumeQueueEntry is one entry in the answer to QUERY_CONSUME_QUEUE.
type ConsumeQueueEntry struct {
	BitMap         string `json:"bitMap,omitempty"`
	Eval           bool   `json:"eval"`
	ExtendDataJSON string `json:"extendDataJson,omitempty"`
	Msg            string `json:"msg,omitempty"`
	PhysicOffset   int64  `json:"physicOffset"`
	PhysicSize     int32  `json:"physicSize"`
	TagsCode       int64  `json:"tagsCode"`
}

// ConsumeQueuePage is the answer to QUERY_CONSUME_QUEUE.
type ConsumeQueuePage struct {
	FilterData    string              `json:"filterData,omitempty"`
	MaxQueueIndex int64               `json:"maxQueueIndex"`
	MinQueueIndex int64               `json:"minQueueIndex"`
	Queue         []ConsumeQueueEntry `json:"queueData"`
	Subscription  *SubscriptionData   `json:"subscriptionData"`
}

// HARuntimeInfo is the answer to GET_BROKER_HA_STATUS. With a replicated log there are no connections of the old kind to list.
type HARuntimeInfo struct {
	Connections     []string `json:"haConnectionInfo"`
	InSyncSlaveNums int32    `json:"inSyncSlaveNums"`
	Master          bool     `json:"master"`
	MaxOffset       int64    `json:"masterCommitLogMaxOffset"`
}

// QueryAssignment is the body of QUERY_ASSIGNMENT.
type QueryAssignment struct {
	ClientID string       `json:"clientId"`
	Group    string       `json:"consumerGroup"`
	Model    MessageModel `json:"messageModel"`
	Strategy string       `json:"strategyName"`
	Topic    string       `json:"topic"`
}

// Assignments is the answer to QUERY_ASSIGNMENT. Without a list the client keeps what it has, an empty one takes everything from it.
type Assignments struct {
	List *[]Assignment `json:"messageQueueAssignments,omitempty"`
}

// Assignment is a queue that a client is to consume, and how.
type Assignment struct {
	Queue MessageQueue `json:"messageQueue"`
	Mode  string       `json:"mode"` // PULL or POP
}

// RequestMode is the body of SET_MESSAGE_REQUEST_MODE: how a group consumes a topic.
type RequestMode struct {
	Group string `json:"consumerGroup"`
	Mode  string `json:"mode"`
	Share int32  `json:"popShareQueueNum"`
	Topic string `json:"topic"`
}

// RequestModes is the answer to GET_ALL_MESSAGE_REQUEST_MODE: topic → group → mode.
type RequestModes struct {
	Modes map[string]map[string]RequestMode `json:"messageRequestModeMap"`
}
