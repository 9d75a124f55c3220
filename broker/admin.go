package broker

import "dledger/internal/mq"

// adminRoutes lists the requests of tools and dashboards; table has those of producers and consumers.
func adminRoutes() map[int32]route {
	return map[int32]route{
		mq.CodeCreateTopics:       {atLeader, true, (*Broker).createTopics},
		mq.CodeAllTopicConfig:     {anywhere, false, (*Broker).allTopicConfig},
		mq.CodeTopicConfig:        {anywhere, false, (*Broker).oneTopicConfig},
		mq.CodeTopicStats:         {atLeader, true, (*Broker).topicStats},
		mq.CodeDeleteTopic:        {atLeader, true, (*Broker).deleteTopic},
		mq.CodeTopicConsumedBy:    {atLeader, false, (*Broker).topicConsumedBy},
		mq.CodeConsumeTimeSpan:    {atLeader, true, (*Broker).consumeTimeSpan},
		mq.CodeBrokerSystemTopics: {anywhere, false, (*Broker).systemTopicList},
		mq.CodeQueryConsumeQueue:  {anywhere, true, (*Broker).queryConsumeQueue},

		mq.CodeCreateGroup:            {atLeader, true, (*Broker).createGroup},
		mq.CodeCreateGroups:           {atLeader, true, (*Broker).createGroups},
		mq.CodeAllGroupConfig:         {anywhere, false, (*Broker).allGroupConfig},
		mq.CodeGroupConfig:            {anywhere, false, (*Broker).oneGroupConfig},
		mq.CodeDeleteGroup:            {atLeader, true, (*Broker).deleteGroup},
		mq.CodeConsumeStats:           {atLeader, true, (*Broker).consumeStats},
		mq.CodeBrokerConsumeStats:     {atLeader, true, (*Broker).brokerConsumeStats},
		mq.CodeTopicsByConsumer:       {atLeader, false, (*Broker).topicsByConsumer},
		mq.CodeSubscriptionByConsumer: {anywhere, false, (*Broker).subscriptionByConsumer},
		mq.CodeCloneGroupOffset:       {atLeader, true, (*Broker).cloneOffsets},
		mq.CodeAllConsumerOffset:      {atLeader, false, (*Broker).allConsumerOffset},
		mq.CodeAllDelayOffset:         {atLeader, false, (*Broker).allDelayOffsets},
		mq.CodeResetOffset:            {atLeader, true, (*Broker).resetOffset},
		mq.CodeSetRequestMode:         {atLeader, false, (*Broker).setRequestMode},
		mq.CodeAllRequestMode:         {anywhere, false, (*Broker).allRequestModes},

		mq.CodeResumeCheckHalf: {atLeader, true, (*Broker).resumeHalf},
		mq.CodeTimerCheckPoint: {atLeader, false, (*Broker).timerCheckPoint},
		mq.CodeTimerMetrics:    {atLeader, false, (*Broker).timerMetrics},

		mq.CodeConsumerConnections: {anywhere, false, (*Broker).consumerConnections},
		mq.CodeProducerConnections: {anywhere, false, (*Broker).producerConnections},
		mq.CodeAllProducers:        {anywhere, false, (*Broker).allProducers},
		mq.CodeConsumerRunningInfo: {anywhere, false, (*Broker).consumerRunningInfo},
		mq.CodeConsumeDirectly:     {anywhere, true, (*Broker).consumeDirectly},
		mq.CodeGetConsumerStatus:   {anywhere, true, (*Broker).consumerStatus},

		mq.CodeRuntimeInfo:        {anywhere, true, (*Broker).runtimeInfo},
		mq.CodeGetBrokerConfig:    {anywhere, false, (*Broker).getConfig},
		mq.CodeUpdateBrokerConfig: {anywhere, false, (*Broker).updateConfig},
		mq.CodeViewStats:          {anywhere, false, (*Broker).viewStats},
		mq.CodeCleanExpiredQueues: {anywhere, true, (*Broker).cleanExpired},
		mq.CodeDeleteExpiredLog:   {anywhere, true, (*Broker).cleanExpired},
		mq.CodeCleanUnusedTopic:   {anywhere, true, (*Broker).cleanUnused},
		mq.CodeHAStatus:           {anywhere, true, (*Broker).haStatus},
	}
}
