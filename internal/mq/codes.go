package mq

// Version is the release that we announce in every header: V5_3_3 in the original's list (MQVersion). Clients go by it: from 232 on
// they allow SQL92 subscriptions.
const (
	Version     int32 = 479
	VersionDesc       = "V5_3_3"
)

// Releases that change what is said, as ordinals of the same list.
const (
	VersionRegisterBody   int32 = 37  // V3_0_11: REGISTER_BROKER carries a RegisterBrokerBody
	VersionClientRelay    int32 = 62  // V3_1_8_SNAPSHOT: clients that can be asked for their state
	VersionMaxReconsume   int32 = 121 // V3_4_9: the client's maxReconsumeTimes counts
	VersionStandardJSON   int32 = 401 // V4_9_4: wants quoted keys
	VersionTopicMappings  int32 = 413 // V5_0_0: the compressed registration ends with static-topic mappings
	VersionUniqKeySigning int32 = 399 // V4_9_3: up to it _UNIQUE_KEY_QUERY is not part of the signed content
)

// Request codes (RequestCode in the Java original). Those of the broker.
const (
	CodeSend                   int32 = 10
	CodePull                   int32 = 11
	CodeQueryMessage           int32 = 12
	CodeQueryConsumerOffset    int32 = 14
	CodeUpdateConsumerOffset   int32 = 15
	CodeCreateTopic            int32 = 17 // UPDATE_AND_CREATE_TOPIC
	CodeCreateTopics           int32 = 18
	CodeAllTopicConfig         int32 = 21
	CodeUpdateBrokerConfig     int32 = 25
	CodeGetBrokerConfig        int32 = 26
	CodeRuntimeInfo            int32 = 28
	CodeSearchOffset           int32 = 29 // by timestamp
	CodeMaxOffset              int32 = 30
	CodeMinOffset              int32 = 31
	CodeEarliestStoreTime      int32 = 32
	CodeViewMessage            int32 = 33
	CodeHeartbeat              int32 = 34
	CodeUnregisterClient       int32 = 35
	CodeSendBack               int32 = 36
	CodeEndTransaction         int32 = 37
	CodeConsumerList           int32 = 38
	CodeCheckTransaction       int32 = 39 // broker → producer
	CodeNotifyConsumersChanged int32 = 40 // broker → consumer
	CodeLockQueues             int32 = 41
	CodeUnlockQueues           int32 = 42
	CodeAllConsumerOffset      int32 = 43
	CodeAllDelayOffset         int32 = 45
	CodeCheckClientConfig      int32 = 46
	CodeTimerCheckPoint        int32 = 60
	CodeTimerMetrics           int32 = 61
	CodeCreateGroup            int32 = 200 // UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
	CodeAllGroupConfig         int32 = 201
	CodeTopicStats             int32 = 202
	CodeConsumerConnections    int32 = 203
	CodeProducerConnections    int32 = 204
	CodeDeleteGroup            int32 = 207
	CodeConsumeStats           int32 = 208
	CodeDeleteTopic            int32 = 215 // in a broker
	CodeResetConsumerOffset    int32 = 220 // broker → consumer
	CodeConsumerStatus         int32 = 221 // broker → consumer: GET_CONSUMER_STATUS_FROM_CLIENT
	CodeResetOffset            int32 = 222 // INVOKE_BROKER_TO_RESET_OFFSET
	CodeGetConsumerStatus      int32 = 223 // INVOKE_BROKER_TO_GET_CONSUMER_STATUS
	CodeCreateGroups           int32 = 225
	CodeTopicConsumedBy        int32 = 300 // QUERY_TOPIC_CONSUME_BY_WHO
	CodeConsumeTimeSpan        int32 = 303
	CodeBrokerSystemTopics     int32 = 305
	CodeCleanExpiredQueues     int32 = 306
	CodeConsumerRunningInfo    int32 = 307
	CodeConsumeDirectly        int32 = 309
	CodeSendV2                 int32 = 310
	CodeCloneGroupOffset       int32 = 314
	CodeViewStats              int32 = 315
	CodeCleanUnusedTopic       int32 = 316
	CodeBrokerConsumeStats     int32 = 317
	CodeSendBatch              int32 = 320
	CodeQueryConsumeQueue      int32 = 321
	CodeResumeCheckHalf        int32 = 323
	CodeSendReply              int32 = 324
	CodeSendReplyV2            int32 = 325
	CodePushReply              int32 = 326 // broker → producer
	CodeAllProducers           int32 = 328
	CodeDeleteExpiredLog       int32 = 329
	CodeTopicsByConsumer       int32 = 343
	CodeSubscriptionByConsumer int32 = 345
	CodeTopicConfig            int32 = 351
	CodeGroupConfig            int32 = 352
	CodeLitePull               int32 = 361
	CodeRecallMessage          int32 = 370
	CodeQueryAssignment        int32 = 400
	CodeSetRequestMode         int32 = 401
	CodeAllRequestMode         int32 = 402
	CodeHAStatus               int32 = 907
	CodePop                    int32 = 200050
	CodeAck                    int32 = 200051
	CodeChangeInvisible        int32 = 200053
	CodeBatchAck               int32 = 200151
)

// Request codes of the name server.
const (
	CodePutKV               int32 = 100
	CodeGetKV               int32 = 101
	CodeDeleteKV            int32 = 102
	CodeRegisterBroker      int32 = 103
	CodeUnregisterBroker    int32 = 104
	CodeRoute               int32 = 105 // GET_ROUTEINFO_BY_TOPIC
	CodeClusterInfo         int32 = 106
	CodeWipeWritePerm       int32 = 205
	CodeAllTopics           int32 = 206
	CodeDeleteTopicRoute    int32 = 216 // DELETE_TOPIC_IN_NAMESRV
	CodeRegisterTopicRoute  int32 = 217
	CodeListKV              int32 = 219
	CodeTopicsByCluster     int32 = 224
	CodeSystemTopics        int32 = 304 // GET_SYSTEM_TOPIC_LIST_FROM_NS
	CodeUnitTopics          int32 = 311
	CodeUnitSubTopics       int32 = 312 // HAS_UNIT_SUB_TOPIC_LIST
	CodeUnitSubOnlyTopics   int32 = 313 // HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
	CodeUpdateNamesrvConfig int32 = 318
	CodeGetNamesrvConfig    int32 = 319
	CodeQueryDataVersion    int32 = 322
	CodeAddWritePerm        int32 = 327
	CodeBrokerMembers       int32 = 901 // GET_BROKER_MEMBER_GROUP
	CodeBrokerHeartbeat     int32 = 904
)

// Outcomes (ResponseCode in the Java original).
const (
	Success                 int32 = 0
	SystemError             int32 = 1
	SystemBusy              int32 = 2 // stock clients do not retry it: never for reasons of leadership
	NotSupported            int32 = 3
	TransactionFailed       int32 = 4
	FlushDiskTimeout        int32 = 10
	SlaveNotAvailable       int32 = 11
	FlushSlaveTimeout       int32 = 12
	MessageIllegal          int32 = 13
	ServiceNotAvailable     int32 = 14 // every stock client retries it
	VersionNotSupported     int32 = 15
	NoPermission            int32 = 16
	TopicNotExist           int32 = 17
	TopicExistAlready       int32 = 18
	PullNotFound            int32 = 19
	PullRetryImmediately    int32 = 20
	PullOffsetMoved         int32 = 21
	QueryNotFound           int32 = 22
	SubscriptionParseFailed int32 = 23
	SubscriptionNotExist    int32 = 24
	SubscriptionNotLatest   int32 = 25
	GroupNotExist           int32 = 26
	FilterDataNotExist      int32 = 27
	FilterDataNotLatest     int32 = 28
	InvalidParameter        int32 = 29
	ConsumerNotOnline       int32 = 206
	ConsumeTimeout          int32 = 207
	NoMessage               int32 = 208
	PollingFull             int32 = 209
	PollingTimeout          int32 = 210
	BrokerNotExist          int32 = 211
	FlowControl             int32 = 215
	IllegalOperation        int32 = 604
	GoAway                  int32 = 1500 // only for clients newer than V5_3_1
)

// Bits of perm in topics and queues (PermName).
const (
	PermInherit int32 = 1 // other topics are made in its likeness
	PermWrite   int32 = 2
	PermRead    int32 = 4
)

// FieldProcess is a field of a registration that the original does not know, a text of chance that brokers in one process share. A broker of ours says with it that it passes on
// what it cannot do, and goes on doing so; name servers of ours tell by it which brokers end together, where hosts do not.
const FieldProcess = "__dledgerProcess"
