import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.common.producer.RecallMessageHandle;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.body.CheckClientRequestBody;
import org.apache.rocketmq.remoting.protocol.body.CreateTopicListRequestBody;
import org.apache.rocketmq.remoting.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.body.QueryAssignmentRequestBody;
import org.apache.rocketmq.remoting.protocol.body.SetMessageRequestModeRequestBody;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupList;
import org.apache.rocketmq.remoting.protocol.body.UnlockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.ProducerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/**
 * Writes a frame of each request that clients, tools and other brokers make of a broker, with the release's own classes of headers and bodies, in both serializations.
 * What does not depend on a live broker is as in real ones; offsets and ids are made up.
 *
 * <p>Standard output: a line for each, {@code NAME FRAME}, with a tab between; the frame in hexadecimal. The last requests are those that take something away.
 */
public final class Requests {
    static final String TOPIC = "TopicTest";
    static final String GROUP = "GroupTest";
    static final String PRODUCER = "ProducerTest";
    static final String CLIENT = "127.0.0.1@consumer"; // who consumes
    static final String BROKER = "broker-a";
    static final long BORN = 1700000000000L;
    static final long RECALLED = 946684860000L; // due a minute after the virtual time of the tests begins, or it would be refused
    static final String UNIQUE = "7F0000010001C387AF7A000000000001";

    static int opaque = 1000;

    static void add(int code, CommandCustomHeader header, byte[] body) throws Exception {
        String name = null;
        for (java.lang.reflect.Field f : RequestCode.class.getFields()) {
            if (f.getInt(null) == code) {
                name = f.getName();
            }
        }
        for (SerializeType type : new SerializeType[] {SerializeType.JSON, SerializeType.ROCKETMQ}) {
            RemotingCommand c = RemotingCommand.createRequestCommand(code, header);
            c.setOpaque(opaque++);
            c.setVersion(MQVersion.Version.V5_3_3.ordinal());
            c.setSerializeTypeCurrentRPC(type);
            c.setBody(body);
            StringBuilder hex = new StringBuilder();
            for (ByteBuffer b = c.encode(); b.hasRemaining(); ) {
                hex.append(String.format("%02x", b.get()));
            }
            System.out.println(name + "\t" + hex);
        }
    }

    static byte[] bytes(String s) {
        return s.getBytes(StandardCharsets.UTF_8);
    }

    /** With a queue of TOPIC, where a header has one. */
    static <H extends org.apache.rocketmq.remoting.rpc.TopicQueueRequestHeader> H at(H h, int queue) {
        h.setTopic(TOPIC);
        h.setQueueId(queue);
        return h;
    }

    static SendMessageRequestHeader send(String topic, String properties) {
        SendMessageRequestHeader h = new SendMessageRequestHeader();
        h.setProducerGroup(PRODUCER);
        h.setTopic(topic);
        h.setDefaultTopic("TBW102");
        h.setDefaultTopicQueueNums(4);
        h.setQueueId(0);
        h.setSysFlag(0);
        h.setBornTimestamp(BORN);
        h.setFlag(0);
        h.setProperties(properties);
        h.setReconsumeTimes(0);
        h.setUnitMode(false);
        h.setBatch(false);
        return h;
    }

    static PullMessageRequestHeader pull() {
        PullMessageRequestHeader h = at(new PullMessageRequestHeader(), 0);
        h.setConsumerGroup(GROUP);
        h.setQueueOffset(0L);
        h.setMaxMsgNums(32);
        h.setSysFlag(4); // with a subscription, and without waiting
        h.setCommitOffset(0L);
        h.setSuspendTimeoutMillis(15000L);
        h.setSubscription("*");
        h.setSubVersion(BORN);
        h.setExpressionType("TAG");
        return h;
    }

    static SubscriptionData subscription() {
        SubscriptionData s = new SubscriptionData(TOPIC, "*");
        s.setSubVersion(BORN);
        return s;
    }

    public static void main(String[] args) throws Exception {
        String properties = MessageDecoder.messageProperties2String(Collections.singletonMap("UNIQ_KEY", UNIQUE));

        CreateTopicRequestHeader topic = new CreateTopicRequestHeader();
        topic.setTopic(TOPIC);
        topic.setDefaultTopic("TBW102");
        topic.setReadQueueNums(4);
        topic.setWriteQueueNums(4);
        topic.setPerm(6);
        topic.setTopicFilterType("SINGLE_TAG");
        topic.setTopicSysFlag(0);
        topic.setOrder(false);
        topic.setAttributes("+message.type=NORMAL");
        add(RequestCode.UPDATE_AND_CREATE_TOPIC, topic, null);
        add(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, new CreateTopicListRequestHeader(),
            new CreateTopicListRequestBody(new ArrayList<>(Arrays.asList(new TopicConfig("TopicTest1", 2, 2), new TopicConfig("TopicTest2", 3, 3)))).encode());
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(GROUP);
        add(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, null, RemotingSerializable.encode(group));
        SubscriptionGroupConfig another = new SubscriptionGroupConfig();
        another.setGroupName("GroupTest2");
        add(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, null, new SubscriptionGroupList(new ArrayList<>(Collections.singletonList(another))).encode());

        ProducerData producer = new ProducerData();
        producer.setGroupName(PRODUCER);
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName(GROUP);
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.getSubscriptionDataSet().add(subscription());
        HeartbeatData heart = new HeartbeatData();
        heart.setClientID("127.0.0.1@client");
        heart.getProducerDataSet().add(producer);
        heart.getConsumerDataSet().add(consumer);
        add(RequestCode.HEART_BEAT, new HeartbeatRequestHeader(), heart.encode());
        CheckClientRequestBody check = new CheckClientRequestBody();
        check.setClientId("127.0.0.1@client");
        check.setGroup(GROUP);
        check.setSubscriptionData(subscription());
        add(RequestCode.CHECK_CLIENT_CONFIG, null, check.encode());

        add(RequestCode.SEND_MESSAGE, send(TOPIC, properties), bytes("one"));
        add(RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send(TOPIC, properties)), bytes("two"));
        SendMessageRequestHeader batch = send(TOPIC, properties);
        batch.setBatch(true);
        List<Message> some = new ArrayList<>();
        for (String body : new String[] {"three", "four"}) {
            some.add(new Message(TOPIC, "tag", "key", bytes(body)));
        }
        add(RequestCode.SEND_BATCH_MESSAGE, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(batch), MessageDecoder.encodeMessages(some));
        String reply = MessageDecoder.messageProperties2String(new java.util.TreeMap<String, String>() {
            private static final long serialVersionUID = 1L;

            {
                put("CORRELATION_ID", "c-1");
                put("MSG_TYPE", "reply");
                put("REPLY_TO_CLIENT", CLIENT);
                put("UNIQ_KEY", UNIQUE);
            }
        });
        add(RequestCode.SEND_REPLY_MESSAGE, send("DefaultCluster_REPLY_TOPIC", reply), bytes("answer"));
        add(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send("DefaultCluster_REPLY_TOPIC", reply)), bytes("answer"));
        ConsumerSendMsgBackRequestHeader back = new ConsumerSendMsgBackRequestHeader();
        back.setOffset(100L);
        back.setGroup(GROUP);
        back.setDelayLevel(0);
        back.setOriginMsgId(UNIQUE);
        back.setOriginTopic(TOPIC);
        back.setUnitMode(false);
        back.setMaxReconsumeTimes(16);
        add(RequestCode.CONSUMER_SEND_MSG_BACK, back, null);
        EndTransactionRequestHeader end = new EndTransactionRequestHeader();
        end.setTopic(TOPIC);
        end.setProducerGroup(PRODUCER);
        end.setTranStateTableOffset(0L);
        end.setCommitLogOffset(100L);
        end.setCommitOrRollback(8);
        end.setFromTransactionCheck(false);
        end.setMsgId(UNIQUE);
        end.setTransactionId(UNIQUE);
        add(RequestCode.END_TRANSACTION, end, null);
        RecallMessageRequestHeader recall = new RecallMessageRequestHeader();
        recall.setProducerGroup(PRODUCER);
        recall.setTopic(TOPIC);
        recall.setRecallHandle(RecallMessageHandle.HandleV1.buildHandle(TOPIC, BROKER, "" + RECALLED, UNIQUE));
        add(RequestCode.RECALL_MESSAGE, recall, null);

        add(RequestCode.PULL_MESSAGE, pull(), null);
        add(RequestCode.LITE_PULL_MESSAGE, pull(), null);
        UpdateConsumerOffsetRequestHeader update = at(new UpdateConsumerOffsetRequestHeader(), 0);
        update.setConsumerGroup(GROUP);
        update.setCommitOffset(1L);
        add(RequestCode.UPDATE_CONSUMER_OFFSET, update, null);
        QueryConsumerOffsetRequestHeader query = at(new QueryConsumerOffsetRequestHeader(), 0);
        query.setConsumerGroup(GROUP);
        add(RequestCode.QUERY_CONSUMER_OFFSET, query, null);
        add(RequestCode.GET_MAX_OFFSET, at(new GetMaxOffsetRequestHeader(), 0), null);
        add(RequestCode.GET_MIN_OFFSET, at(new GetMinOffsetRequestHeader(), 0), null);
        SearchOffsetRequestHeader search = at(new SearchOffsetRequestHeader(), 0);
        search.setTimestamp(BORN);
        add(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search, null);
        add(RequestCode.GET_EARLIEST_MSG_STORETIME, at(new GetEarliestMsgStoretimeRequestHeader(), 0), null);
        GetConsumerListByGroupRequestHeader list = new GetConsumerListByGroupRequestHeader();
        list.setConsumerGroup(GROUP);
        add(RequestCode.GET_CONSUMER_LIST_BY_GROUP, list, null);
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setConsumerGroup(GROUP);
        lock.setClientId("127.0.0.1@client");
        lock.getMqSet().add(new MessageQueue(TOPIC, BROKER, 0));
        add(RequestCode.LOCK_BATCH_MQ, new LockBatchMqRequestHeader(), lock.encode());
        UnlockBatchRequestBody unlock = new UnlockBatchRequestBody();
        unlock.setConsumerGroup(GROUP);
        unlock.setClientId("127.0.0.1@client");
        unlock.getMqSet().add(new MessageQueue(TOPIC, BROKER, 0));
        add(RequestCode.UNLOCK_BATCH_MQ, new UnlockBatchMqRequestHeader(), unlock.encode());
        QueryMessageRequestHeader key = new QueryMessageRequestHeader();
        key.setTopic(TOPIC);
        key.setKey("key");
        key.setMaxNum(32);
        key.setBeginTimestamp(0L);
        key.setEndTimestamp(Long.MAX_VALUE);
        add(RequestCode.QUERY_MESSAGE, key, null);
        ViewMessageRequestHeader view = new ViewMessageRequestHeader();
        view.setTopic(TOPIC);
        view.setOffset(100L);
        add(RequestCode.VIEW_MESSAGE_BY_ID, view, null);
        QueryAssignmentRequestBody assignment = new QueryAssignmentRequestBody();
        assignment.setTopic(TOPIC);
        assignment.setConsumerGroup(GROUP);
        assignment.setClientId(CLIENT);
        assignment.setStrategyName("AVG");
        assignment.setMessageModel(MessageModel.CLUSTERING);
        add(RequestCode.QUERY_ASSIGNMENT, null, assignment.encode());
        SetMessageRequestModeRequestBody mode = new SetMessageRequestModeRequestBody();
        mode.setTopic(TOPIC);
        mode.setConsumerGroup(GROUP);
        mode.setMode(MessageRequestMode.PULL);
        add(RequestCode.SET_MESSAGE_REQUEST_MODE, null, mode.encode());

        add(RequestCode.GET_ALL_TOPIC_CONFIG, null, null);
        GetTopicConfigRequestHeader config = new GetTopicConfigRequestHeader();
        config.setTopic(TOPIC);
        add(RequestCode.GET_TOPIC_CONFIG, config, null);
        add(RequestCode.GET_BROKER_CONFIG, null, null);
        add(RequestCode.GET_BROKER_RUNTIME_INFO, null, null);
        add(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, null, null);
        GetSubscriptionGroupConfigRequestHeader groupConfig = new GetSubscriptionGroupConfigRequestHeader();
        groupConfig.setGroup(GROUP);
        add(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, groupConfig, null);
        GetTopicStatsInfoRequestHeader stats = new GetTopicStatsInfoRequestHeader();
        stats.setTopic(TOPIC);
        add(RequestCode.GET_TOPIC_STATS_INFO, stats, null);
        GetConsumerConnectionListRequestHeader consumers = new GetConsumerConnectionListRequestHeader();
        consumers.setConsumerGroup(GROUP);
        add(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumers, null);
        GetProducerConnectionListRequestHeader producers = new GetProducerConnectionListRequestHeader();
        producers.setProducerGroup(PRODUCER);
        add(RequestCode.GET_PRODUCER_CONNECTION_LIST, producers, null);
        add(RequestCode.GET_ALL_PRODUCER_INFO, new GetAllProducerInfoRequestHeader(), null);
        GetConsumeStatsRequestHeader progress = new GetConsumeStatsRequestHeader();
        progress.setConsumerGroup(GROUP);
        progress.setTopic(TOPIC);
        add(RequestCode.GET_CONSUME_STATS, progress, null);
        GetConsumeStatsInBrokerHeader all = new GetConsumeStatsInBrokerHeader();
        all.setIsOrder(false);
        add(RequestCode.GET_BROKER_CONSUME_STATS, all, null);
        GetConsumerStatusRequestHeader status = new GetConsumerStatusRequestHeader();
        status.setTopic(TOPIC);
        status.setGroup(GROUP);
        status.setClientAddr("");
        add(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status, null);
        QueryTopicConsumeByWhoRequestHeader who = new QueryTopicConsumeByWhoRequestHeader();
        who.setTopic(TOPIC);
        add(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, who, null);
        QueryTopicsByConsumerRequestHeader what = new QueryTopicsByConsumerRequestHeader();
        what.setGroup(GROUP);
        add(RequestCode.QUERY_TOPICS_BY_CONSUMER, what, null);
        QuerySubscriptionByConsumerRequestHeader how = new QuerySubscriptionByConsumerRequestHeader();
        how.setGroup(GROUP);
        how.setTopic(TOPIC);
        add(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, how, null);
        QueryConsumeTimeSpanRequestHeader span = new QueryConsumeTimeSpanRequestHeader();
        span.setTopic(TOPIC);
        span.setGroup(GROUP);
        add(RequestCode.QUERY_CONSUME_TIME_SPAN, span, null);
        add(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, null, null);
        GetConsumerRunningInfoRequestHeader running = new GetConsumerRunningInfoRequestHeader();
        running.setConsumerGroup(GROUP);
        running.setClientId(CLIENT);
        running.setJstackEnable(false);
        add(RequestCode.GET_CONSUMER_RUNNING_INFO, running, null);
        ConsumeMessageDirectlyResultRequestHeader direct = new ConsumeMessageDirectlyResultRequestHeader();
        direct.setConsumerGroup(GROUP);
        direct.setClientId(CLIENT);
        direct.setMsgId("7F00000100002A9F0000000000000064");
        direct.setBrokerName(BROKER);
        direct.setTopic(TOPIC);
        add(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct, null);
        ViewBrokerStatsDataRequestHeader figures = new ViewBrokerStatsDataRequestHeader();
        figures.setStatsName("TOPIC_PUT_NUMS");
        figures.setStatsKey(TOPIC);
        add(RequestCode.VIEW_BROKER_STATS_DATA, figures, null);
        QueryConsumeQueueRequestHeader queue = new QueryConsumeQueueRequestHeader();
        queue.setTopic(TOPIC);
        queue.setQueueId(0);
        queue.setIndex(0);
        queue.setCount(10);
        queue.setConsumerGroup(GROUP);
        add(RequestCode.QUERY_CONSUME_QUEUE, queue, null);
        ResumeCheckHalfMessageRequestHeader half = new ResumeCheckHalfMessageRequestHeader();
        half.setTopic(TOPIC);
        half.setMsgId("7F00000100002A9F0000000000000064");
        add(RequestCode.RESUME_CHECK_HALF_MESSAGE, half, null);
        add(RequestCode.GET_ALL_CONSUMER_OFFSET, null, null);
        add(RequestCode.GET_ALL_DELAY_OFFSET, null, null);
        add(RequestCode.GET_TIMER_CHECK_POINT, null, null);
        add(RequestCode.GET_TIMER_METRICS, null, null);
        add(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, null, null);
        add(RequestCode.GET_BROKER_HA_STATUS, null, null);

        CloneGroupOffsetRequestHeader clone = new CloneGroupOffsetRequestHeader();
        clone.setSrcGroup(GROUP);
        clone.setDestGroup("GroupTest2");
        clone.setTopic(TOPIC);
        clone.setOffline(false);
        add(RequestCode.CLONE_GROUP_OFFSET, clone, null);
        ResetOffsetRequestHeader reset = new ResetOffsetRequestHeader();
        reset.setTopic(TOPIC);
        reset.setGroup(GROUP);
        reset.setTimestamp(0);
        reset.setForce(true);
        reset.setOffset(-1L);
        add(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, null);
        add(RequestCode.UPDATE_BROKER_CONFIG, null, bytes("maxMessageSize=1048576\n"));
        UnregisterClientRequestHeader gone = new UnregisterClientRequestHeader();
        gone.setClientID("127.0.0.1@client");
        gone.setProducerGroup(PRODUCER);
        gone.setConsumerGroup(GROUP);
        add(RequestCode.UNREGISTER_CLIENT, gone, null);
        add(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, null, null);
        add(RequestCode.CLEAN_UNUSED_TOPIC, null, null);
        add(RequestCode.DELETE_EXPIRED_COMMITLOG, null, null);
        DeleteSubscriptionGroupRequestHeader noGroup = new DeleteSubscriptionGroupRequestHeader();
        noGroup.setGroupName(GROUP);
        noGroup.setCleanOffset(true);
        add(RequestCode.DELETE_SUBSCRIPTIONGROUP, noGroup, null);
        DeleteTopicRequestHeader noTopic = new DeleteTopicRequestHeader();
        noTopic.setTopic(TOPIC);
        add(RequestCode.DELETE_TOPIC_IN_BROKER, noTopic, null);
    }
}
