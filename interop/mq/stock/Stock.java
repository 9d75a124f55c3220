import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * An unmodified Java client at work. Arguments: name server, prefix of topics and groups, scripts. Scripts run side by side; topic
 * PREFIX + script exists already. Each line of output is `script TAB what was seen`, the last of a script `script TAB #end`.
 */
public class Stock {
    interface Script {
        void run(Scene s) throws Exception;
    }

    static String nameServer;

    /** What a script has to work with; close ends what it started. */
    static class Scene implements AutoCloseable {
        final String script;
        final String topic;
        final List<Runnable> ends = new CopyOnWriteArrayList<>();
        int consumers;

        Scene(String prefix, String script) {
            this.script = script;
            this.topic = prefix + script;
        }

        void say(String format, Object... args) {
            String line = script + "\t" + String.format(format, args).replace('\n', ' ');
            synchronized (System.out) {
                System.out.println(line);
            }
        }

        DefaultMQProducer producer() throws Exception {
            DefaultMQProducer p = new DefaultMQProducer(topic + "_producer");
            return start(p);
        }

        <P extends DefaultMQProducer> P start(P p) throws Exception {
            p.setNamesrvAddr(nameServer);
            p.setInstanceName(topic + "_p");
            p.setSendMsgTimeout(10000);
            p.start();
            ends.add(p::shutdown);
            return p;
        }

        DefaultMQPushConsumer consumer(String group) {
            DefaultMQPushConsumer c = new DefaultMQPushConsumer(topic + group);
            c.setNamesrvAddr(nameServer);
            c.setInstanceName(topic + group + consumers++);
            c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            c.setConsumeThreadMin(2);
            c.setConsumeThreadMax(2);
            ends.add(c::shutdown);
            return c;
        }

        void await(String what, long seconds, BooleanSupplier ok) throws Exception {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            while (!ok.getAsBoolean()) {
                if (System.nanoTime() > end) {
                    say("not within %d s: %s", seconds, what);
                    return;
                }
                Thread.sleep(20);
            }
        }

        @Override public void close() {
            Collections.reverse(ends);
            ends.forEach(Runnable::run);
        }
    }

    static byte[] bytes(String s) {
        return s.getBytes(java.nio.charset.StandardCharsets.UTF_8);
    }

    static String body(MessageExt m) {
        return new String(m.getBody(), java.nio.charset.StandardCharsets.UTF_8);
    }

    /** Names of properties, but for the notes that a broker makes for itself. */
    static Set<String> names(MessageExt m) {
        Set<String> names = new TreeSet<>(m.getProperties().keySet());
        names.removeAll(java.util.Arrays.asList("REAL_TOPIC", "REAL_QID", "TRAN_MSG", "TRANSACTION_CHECK_TIMES", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"));
        return names;
    }

    /** Offsets by queue, of results. */
    static String places(List<SendResult> results) {
        Map<Integer, TreeSet<Long>> m = new TreeMap<>();
        for (SendResult r : results) {
            m.computeIfAbsent(r.getMessageQueue().getQueueId(), k -> new TreeSet<>()).add(r.getQueueOffset());
        }
        return m.toString();
    }

    static void produce(Scene s) throws Exception {
        DefaultMQProducer p = s.producer();
        List<SendResult> all = new CopyOnWriteArrayList<>();
        Set<String> states = new ConcurrentSkipListSet<>();
        List<MessageQueue> queues = p.fetchPublishMessageQueues(s.topic);
        Collections.sort(queues);
        s.say("queues %d", queues.size());
        for (int i = 0; i < 8; i++) {
            Message m = new Message(s.topic, "tag", "key" + i, bytes("sync " + i));
            m.putUserProperty("colour", "red");
            SendResult r = p.send(m, queues.get(i % 4));
            states.add(r.getSendStatus().name());
            all.add(r);
        }
        s.say("sync %s %s", states, places(all));
        CountDownLatch done = new CountDownLatch(8);
        List<SendResult> some = new CopyOnWriteArrayList<>();
        for (int i = 0; i < 8; i++) {
            p.send(new Message(s.topic, "tag", "key" + i, bytes("async " + i)), queues.get(i % 4), new SendCallback() {
                @Override public void onSuccess(SendResult r) {
                    some.add(r);
                    done.countDown();
                }

                @Override public void onException(Throwable e) {
                    s.say("async %s", e);
                    done.countDown();
                }
            });
        }
        done.await(10, TimeUnit.SECONDS);
        s.say("async %d %s", some.size(), places(some));
        for (int i = 0; i < 4; i++) {
            p.sendOneway(new Message(s.topic, bytes("one-way " + i)), queues.get(i % 4));
        }
        s.await("one-way messages", 10, () -> {
            try {
                for (MessageQueue q : queues) {
                    if (p.maxOffset(q) != 5) {
                        return false;
                    }
                }
                return true;
            } catch (Exception e) {
                return false;
            }
        });
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(new Message(s.topic, "tag", "batch" + i, bytes("batch " + i)));
        }
        SendResult b = p.send(batch, queues.get(2));
        s.say("batch %s queue %d first %d, %d ids", b.getSendStatus(), b.getMessageQueue().getQueueId(), b.getQueueOffset(), b.getMsgId().split(",").length);
        some.clear();
        for (int i = 0; i < 6; i++) {
            some.add(p.send(new Message(s.topic, bytes("ordered " + i)), (list, m, arg) -> queues.get((Integer) arg), 1));
        }
        s.say("ordered %s", places(some));
        for (MessageQueue q : queues) {
            s.say("queue %d has [%d, %d)", q.getQueueId(), p.minOffset(q), p.maxOffset(q));
        }
        MessageExt seen = p.viewMessage(s.topic, all.get(3).getOffsetMsgId());
        s.say("by id: %s tags %s keys %s colour %s queue %d offset %d times %d", body(seen), seen.getTags(), seen.getKeys(), seen.getUserProperty("colour"),
            seen.getQueueId(), seen.getQueueOffset(), seen.getReconsumeTimes());
        s.say("properties %s", names(seen));
        Set<String> found = new TreeSet<>();
        s.await("key3 in the index", 10, () -> {
            try {
                for (MessageExt m : p.queryMessage(s.topic, "key3", 32, 0, Long.MAX_VALUE).getMessageList()) {
                    found.add(body(m));
                }
            } catch (Exception e) {
                return false; // no such key yet is an exception
            }
            return found.size() == 2;
        });
        s.say("by key: %s", found);
        MessageExt unique = p.viewMessage(s.topic, all.get(5).getMsgId());
        s.say("by unique id: %s", body(unique));
        try {
            p.queryMessage(s.topic, "nosuchkey", 32, 0, Long.MAX_VALUE);
            s.say("an unknown key is found");
        } catch (Exception e) {
            s.say("unknown key: %s", e.getClass().getSimpleName());
        }
    }

    /** Gives each queue of the topic n messages named queue-number. */
    static void fill(Scene s, DefaultMQProducer p, int n) throws Exception {
        List<MessageQueue> queues = p.fetchPublishMessageQueues(s.topic);
        for (MessageQueue q : queues) {
            for (int i = 0; i < n; i++) {
                p.send(new Message(s.topic, bytes(q.getQueueId() + "-" + i)), q);
            }
        }
    }

    static void push(Scene s) throws Exception {
        Set<String> got = new ConcurrentSkipListSet<>();
        AtomicInteger times = new AtomicInteger();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer c = s.consumer("_g");
            c.subscribe(s.topic, "*");
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt m : messages) {
                    got.add(body(m));
                    times.incrementAndGet();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
        }
        fill(s, s.producer(), 5);
        s.await("20 messages", 40, () -> got.size() == 20);
        s.say("got %s", got);
        s.say("repeats %s", times.get() - got.size() <= 10 ? "within the hand-over of queues" : times.get() - got.size());
    }

    /** Two consumers that let the broker share the queues, with heartbeats of the second form; both need a client of 5.x, which is why setters go by name. */
    static void assigned(Scene s) throws Exception {
        Set<String> got = new ConcurrentSkipListSet<>();
        List<DefaultMQPushConsumer> all = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer c = s.consumer("_g");
            c.getClass().getMethod("setClientRebalance", boolean.class).invoke(c, false);
            c.getClass().getMethod("setUseHeartbeatV2", boolean.class).invoke(c, true);
            c.setHeartbeatBrokerInterval(1000);
            c.subscribe(s.topic, "*");
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt m : messages) {
                    got.add(body(m));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
            all.add(c);
        }
        s.await("two queues for each", 60, () -> all.stream().allMatch(c -> queuesOf(c, s.topic) == 2));
        fill(s, s.producer(), 3);
        s.await("12 messages", 40, () -> got.size() == 12);
        s.say("queues [%d, %d]", queuesOf(all.get(0), s.topic), queuesOf(all.get(1), s.topic));
        s.say("got %s", got);
    }

    static long queuesOf(DefaultMQPushConsumer c, String topic) {
        return c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream().filter(q -> q.getTopic().equals(topic)).count();
    }

    static void orderly(Scene s) throws Exception {
        Map<Integer, List<String>> got = new ConcurrentHashMap<>();
        AtomicInteger n = new AtomicInteger();
        AtomicInteger refused = new AtomicInteger();
        fill(s, s.producer(), 6);
        DefaultMQPushConsumer c = s.consumer("_g");
        c.subscribe(s.topic, "*");
        c.setSuspendCurrentQueueTimeMillis(50);
        c.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt m : messages) {
                if (body(m).equals("1-3") && refused.getAndIncrement() < 2) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                got.computeIfAbsent(m.getQueueId(), k -> new CopyOnWriteArrayList<>()).add(body(m));
                n.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        s.await("24 messages", 40, () -> n.get() >= 24);
        s.say("refused %d times", Math.min(refused.get(), 2));
        new TreeMap<>(got).forEach((q, list) -> s.say("queue %d: %s", q, list));
    }

    static void broadcast(Scene s) throws Exception {
        List<Set<String>> got = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Set<String> mine = new ConcurrentSkipListSet<>();
            got.add(mine);
            DefaultMQPushConsumer c = s.consumer("_g");
            c.setMessageModel(Enum.valueOf(c.getMessageModel().getDeclaringClass(), "BROADCASTING")); // its package differs between releases
            c.subscribe(s.topic, "*");
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> mine.add(body(m)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
        }
        fill(s, s.producer(), 3);
        s.await("12 messages each", 40, () -> got.get(0).size() == 12 && got.get(1).size() == 12);
        got.forEach(g -> s.say("got %s", g));
    }

    static void filter(Scene s) throws Exception {
        DefaultMQProducer p = s.producer();
        for (int i = 0; i < 12; i++) {
            Message m = new Message(s.topic, "" + (char) ('A' + i % 4), bytes("m" + i));
            m.putUserProperty("n", "" + i);
            m.putUserProperty("colour", i % 3 == 0 ? "red" : "blue");
            p.send(m);
        }
        Map<String, MessageSelector> selectors = new TreeMap<>();
        selectors.put("tag", MessageSelector.byTag("A || C"));
        selectors.put("between", MessageSelector.bySql("n BETWEEN 3 AND 8 AND colour = 'red'"));
        selectors.put("in", MessageSelector.bySql("TAGS IN ('B', 'D') AND n > 4"));
        selectors.put("null", MessageSelector.bySql("nosuch IS NULL AND colour <> 'red' AND NOT (n >= 5)"));
        Map<String, Set<String>> got = new TreeMap<>();
        for (Map.Entry<String, MessageSelector> e : selectors.entrySet()) {
            Set<String> mine = new ConcurrentSkipListSet<>();
            got.put(e.getKey(), mine);
            DefaultMQPushConsumer c = s.consumer("_" + e.getKey());
            c.subscribe(s.topic, e.getValue());
            c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> mine.add(body(m)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
        }
        s.await("filtered messages", 40, () -> got.get("tag").size() == 6 && got.get("between").size() == 2 && got.get("in").size() == 4 && got.get("null").size() == 3);
        Thread.sleep(300); // for what should not come
        got.forEach((k, v) -> s.say("%s: %s", k, v));
        DefaultMQPushConsumer bad = s.consumer("_bad");
        bad.subscribe(s.topic, MessageSelector.bySql("n >"));
        bad.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            bad.start();
            s.say("a bad expression is taken");
        } catch (Exception e) {
            s.say("bad expression: %s", code(e));
        }
    }

    static void retry(Scene s) throws Exception {
        DefaultMQProducer p = s.producer();
        SendResult sent = p.send(new Message(s.topic, "tag", "key", bytes("poison")));
        Set<Integer> times = new ConcurrentSkipListSet<>();
        Set<String> seen = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer c = s.consumer("_g");
        c.setMaxReconsumeTimes(2);
        c.subscribe(s.topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            for (MessageExt m : messages) {
                times.add(m.getReconsumeTimes());
                seen.add(m.getTopic().equals(s.topic) + " " + m.getMsgId().equals(sent.getMsgId()) + " " + m.getTags() + " " + m.getKeys());
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        c.start();
        DefaultMQPullConsumer q = grave(s);
        s.await("the dead letter", 40, () -> !letters(q, c).isEmpty());
        s.say("consumed at reconsume times %s as %s", times, seen);
        for (MessageExt m : letters(q, c)) {
            s.say("dead letter %s times %d queue %d offset %d retry topic %s origin %s", body(m), m.getReconsumeTimes(), m.getQueueId(), m.getQueueOffset(),
                s.topic.equals(m.getProperty("RETRY_TOPIC")), sent.getOffsetMsgId().equals(m.getProperty("ORIGIN_MESSAGE_ID")));
            s.say("properties %s", names(m));
        }
    }

    /** Reads dead letters. */
    static DefaultMQPullConsumer grave(Scene s) throws Exception {
        DefaultMQPullConsumer q = new DefaultMQPullConsumer(s.topic + "_dead");
        q.setNamesrvAddr(nameServer);
        q.setInstanceName(s.topic + "_dead");
        q.start();
        s.ends.add(q::shutdown);
        return q;
    }

    /** The first dead letters of a consumer's group; none while there is no topic for them. */
    static List<MessageExt> letters(DefaultMQPullConsumer q, DefaultMQPushConsumer c) {
        List<MessageExt> found = new ArrayList<>();
        try {
            for (MessageQueue mq : q.fetchSubscribeMessageQueues("%DLQ%" + c.getConsumerGroup())) {
                PullResult r = q.pull(mq, "*", 0, 8);
                if (r.getMsgFoundList() != null) {
                    found.addAll(r.getMsgFoundList());
                }
            }
        } catch (Exception e) {
            return Collections.emptyList();
        }
        return found;
    }

    /** A consumer in order that always refuses one message: it is a dead letter, once, after the last time, and what lies behind it in its queue is consumed. */
    static void orderlydead(Scene s) throws Exception {
        Map<Integer, List<String>> got = new ConcurrentHashMap<>();
        AtomicInteger n = new AtomicInteger();
        List<String> refused = new CopyOnWriteArrayList<>();
        DefaultMQProducer p = s.producer();
        fill(s, p, 4);
        DefaultMQPushConsumer c = s.consumer("_g");
        c.subscribe(s.topic, "*");
        c.setSuspendCurrentQueueTimeMillis(50);
        c.setMaxReconsumeTimes(2);
        c.setConsumeMessageBatchMaxSize(1);
        c.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt m : messages) {
                if (body(m).equals("1-1")) {
                    refused.add(m.getReconsumeTimes() + " " + m.getTopic().equals(s.topic));
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                got.computeIfAbsent(m.getQueueId(), k -> new CopyOnWriteArrayList<>()).add(body(m));
                n.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        DefaultMQPullConsumer q = grave(s);
        s.await("15 messages", 40, () -> n.get() >= 15);
        s.await("the dead letter", 40, () -> !letters(q, c).isEmpty());
        for (MessageQueue mq : p.fetchPublishMessageQueues(s.topic)) {
            p.send(new Message(s.topic, bytes(mq.getQueueId() + "-after")), mq);
        }
        s.await("19 messages", 40, () -> n.get() >= 19);
        s.say("refused at %s", refused);
        new TreeMap<>(got).forEach((queue, list) -> s.say("queue %d: %s", queue, list));
        List<MessageExt> found = letters(q, c);
        s.say("%d dead letters", found.size());
        for (MessageExt m : found) {
            s.say("dead letter %s queue %d offset %d retry topic %s", body(m), m.getQueueId(), m.getQueueOffset(), s.topic.equals(m.getProperty("RETRY_TOPIC")));
            s.say("properties %s", names(m));
        }
        s.say("left in the retry topic: %d", retries(q, c));
    }

    /** How many messages there are in the retry topic of a consumer's group. */
    static long retries(DefaultMQPullConsumer q, DefaultMQPushConsumer c) {
        long n = 0;
        try {
            for (MessageQueue mq : q.fetchSubscribeMessageQueues("%RETRY%" + c.getConsumerGroup())) {
                n += q.maxOffset(mq);
            }
        } catch (Exception e) {
            return -1;
        }
        return n;
    }

    static void delay(Scene s) throws Exception {
        CountDownLatch up = new CountDownLatch(1);
        Map<String, Long> got = new ConcurrentHashMap<>();
        Map<String, String> props = new ConcurrentHashMap<>();
        DefaultMQPushConsumer c = s.consumer("_g");
        c.subscribe(s.topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                if (body(m).equals("now")) {
                    up.countDown();
                    continue;
                }
                got.putIfAbsent(body(m), System.currentTimeMillis() - m.getBornTimestamp());
                props.put(body(m), names(m).toString());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        DefaultMQProducer p = s.producer();
        for (MessageQueue q : p.fetchPublishMessageQueues(s.topic)) { // a consumer on a busy machine may have its queues only after 20 s
            p.send(new Message(s.topic, bytes("now")), q);
        }
        up.await(60, TimeUnit.SECONDS);
        Map<String, Long> want = new TreeMap<>();
        for (int level = 1; level <= 2; level++) {
            Message m = new Message(s.topic, "tag", bytes("level " + level));
            m.setDelayTimeLevel(level);
            p.send(m);
            want.put("level " + level, level == 1 ? 1000L : 5000L);
        }
        String[] timers = {"TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"};
        String[] values = {"3000", "2", "" + (System.currentTimeMillis() + 4000)};
        for (int i = 0; i < 3; i++) {
            Message m = new Message(s.topic, "tag", bytes(timers[i]));
            MessageAccessor.putProperty(m, timers[i], values[i]);
            p.send(m);
        }
        want.put(timers[0], 3000L);
        want.put(timers[1], 2000L);
        want.put(timers[2], 4000L);
        s.await("delayed messages", 30, () -> got.size() == want.size());
        want.forEach((k, due) -> {
            Long late = got.get(k) == null ? null : got.get(k) - due;
            // The original's wheel counts seconds, so a message may come up to one early.
            s.say("%s: %s", k, late == null ? "never" : late < -1100 ? "early by " + -late : late > 5000 ? "late by " + late : "in time");
        });
        new TreeMap<>(props).forEach((k, v) -> s.say("%s has %s", k, v));
    }

    static void transaction(Scene s) throws Exception {
        Set<String> got = new ConcurrentSkipListSet<>();
        AtomicInteger times = new AtomicInteger();
        DefaultMQPushConsumer c = s.consumer("_g");
        c.subscribe(s.topic, "*");
        Map<String, String> props = new ConcurrentHashMap<>();
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                times.incrementAndGet();
                got.add(body(m));
                props.put(body(m).split(" ")[0], names(m).toString());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        Set<String> checked = new ConcurrentSkipListSet<>();
        TransactionMQProducer p = new TransactionMQProducer(s.topic + "_producer");
        p.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                switch ((Integer) arg % 4) {
                    case 0:
                    case 1:
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case 2:
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt m) {
                String b = body(m);
                checked.add(b + " " + m.getTopic().equals(s.topic));
                return b.endsWith("3") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        s.start(p);
        Set<String> states = new TreeSet<>();
        for (int i = 0; i < 12; i++) {
            String kind = i % 4 < 2 ? "commit" : i % 4 == 2 ? "rollback" : "unknown";
            states.add(kind + " " + p.sendMessageInTransaction(new Message(s.topic, "tag", "k" + i, bytes(kind + " " + i)), i).getLocalTransactionState());
        }
        s.say("states %s", states);
        s.await("checks and commits", 60, () -> checked.size() == 3 && got.size() == 7);
        Thread.sleep(300); // for what should not come
        s.say("checked %s", checked);
        s.say("got %s, repeats %s", got, times.get() - got.size() <= 3 ? "few" : times.get() - got.size()); // a check may meet the verdict on its way
        new TreeMap<>(props).forEach((k, v) -> s.say("%s has %s", k, v));
    }

    static void litepull(Scene s) throws Exception {
        fill(s, s.producer(), 5);
        Set<String> got = new TreeSet<>();
        DefaultLitePullConsumer c = new DefaultLitePullConsumer(s.topic + "_g");
        c.setNamesrvAddr(nameServer);
        c.setInstanceName(s.topic + "_g");
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setAutoCommit(false);
        c.subscribe(s.topic, "*");
        c.start();
        s.ends.add(c::shutdown);
        s.await("20 messages", 40, () -> {
            c.poll(200).forEach(m -> got.add(body(m)));
            return got.size() == 20;
        });
        c.commitSync();
        s.say("got %s", got);
        List<MessageQueue> queues = new ArrayList<>(c.fetchMessageQueues(s.topic));
        Collections.sort(queues);
        s.await("commits", 20, () -> { // commitSync leaves the sending to a thread
            try {
                for (MessageQueue q : queues) {
                    if (c.committed(q) != 5) {
                        return false;
                    }
                }
                return true;
            } catch (Exception e) {
                return false;
            }
        });
        for (MessageQueue q : queues) {
            s.say("queue %d committed %d, at time 0 offset %d, at the end of time %d", q.getQueueId(), c.committed(q), c.offsetForTimestamp(q, 0L),
                c.offsetForTimestamp(q, System.currentTimeMillis() + 3600000));
        }
    }

    static void pull(Scene s) throws Exception {
        fill(s, s.producer(), 5);
        DefaultMQPullConsumer c = new DefaultMQPullConsumer(s.topic + "_g");
        c.setNamesrvAddr(nameServer);
        c.setInstanceName(s.topic + "_g");
        c.start();
        s.ends.add(c::shutdown);
        List<MessageQueue> queues = new ArrayList<>(c.fetchSubscribeMessageQueues(s.topic));
        Collections.sort(queues);
        MessageQueue q = queues.get(1);
        for (long offset : new long[] {0, 3, 5, 6, 100}) {
            PullResult r = c.pull(q, "*", offset, 3);
            List<String> bodies = new ArrayList<>();
            if (r.getMsgFoundList() != null) {
                r.getMsgFoundList().forEach(m -> bodies.add(body(m)));
            }
            s.say("at %d: %s next %d of [%d, %d) %s", offset, r.getPullStatus(), r.getNextBeginOffset(), r.getMinOffset(), r.getMaxOffset(), bodies);
        }
        PullResult none = c.pull(q, "nosuchtag", 0, 3);
        s.say("no such tag: %s next %d", none.getPullStatus(), none.getNextBeginOffset());
        s.say("unknown group's offset %d", c.fetchConsumeOffset(q, true));
        c.updateConsumeOffset(q, 4);
        c.getDefaultMQPullConsumerImpl().updateConsumeOffsetToBroker(q, 4, false);
        s.say("stored offset %d", c.fetchConsumeOffset(q, true));
        try {
            c.pull(new MessageQueue(s.topic, q.getBrokerName(), 77), "*", 0, 3);
            s.say("queue 77 is taken");
        } catch (MQBrokerException e) {
            s.say("queue 77: code %d", e.getResponseCode());
        }
    }

    static void request(Scene s) throws Exception {
        DefaultMQProducer replier = new DefaultMQProducer(s.topic + "_replier");
        replier.setNamesrvAddr(nameServer);
        replier.setInstanceName(s.topic + "_r");
        replier.start();
        s.ends.add(replier::shutdown);
        DefaultMQPushConsumer c = s.consumer("_g");
        c.setPullTimeDelayMillsWhenException(200);
        c.subscribe(s.topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                if ("no answer".equals(m.getTags())) {
                    continue;
                }
                try {
                    replier.send(MessageUtil.createReplyMessage(m, bytes("re: " + body(m))));
                } catch (Exception e) {
                    s.say("reply: %s", e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        DefaultMQProducer p = s.producer();
        p.send(new Message(s.topic, "no answer", bytes("hello"))); // the original's broker must know the producer before it can pass on answers,
        Thread.sleep(1500); // and hears of it with its second heartbeat only
        Message re = p.request(new Message(s.topic, bytes("hello")), 30000);
        s.say("answer %s", new String(re.getBody(), java.nio.charset.StandardCharsets.UTF_8));
    }

    /**
     * Sends one message after the other, with default settings, until there is a file `stop` in user.home, and consumes them without order and in
     * order until the process is ended. Each line says what happened to one message: `acked BROKER QUEUE OFFSET BODY ID BROKERS-ID MS`, where the
     * send took MS milliseconds, `got` and `ordered` the same up to the body, `failed BODY REASON`.
     */
    static void load(Scene s) throws Exception {
        DefaultMQPushConsumer some = s.consumer("_alone");
        some.subscribe(s.topic, "*");
        some.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> s.say("got %s %d %d %s", context.getMessageQueue().getBrokerName(), m.getQueueId(), m.getQueueOffset(), body(m)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        some.start();
        DefaultMQPushConsumer ordered = s.consumer("_ordered");
        ordered.subscribe(s.topic, "*");
        ordered.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(m -> s.say("ordered %s %d %d %s", context.getMessageQueue().getBrokerName(), m.getQueueId(), m.getQueueOffset(), body(m)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        ordered.start();
        DefaultMQProducer p = new DefaultMQProducer(s.topic + "_producer");
        p.setNamesrvAddr(nameServer);
        p.setInstanceName(s.topic + "_p");
        p.start();
        java.io.File stop = new java.io.File(System.getProperty("user.home"), "stop");
        for (int i = 0; !stop.exists(); i++) {
            String body = "j-" + i;
            long began = System.nanoTime();
            try {
                SendResult r = p.send(new Message(s.topic, bytes(body)));
                long ms = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
                s.say("acked %s %d %d %s %s %s %d", r.getMessageQueue().getBrokerName(), r.getMessageQueue().getQueueId(), r.getQueueOffset(), body,
                    r.getMsgId(), r.getOffsetMsgId(), ms);
            } catch (Exception e) {
                s.say("failed %s %s", body, code(e));
            }
            Thread.sleep(10);
        }
        s.say("sent all");
        new CountDownLatch(1).await();
    }

    static String refusal(Script send, Scene s) {
        try {
            send.run(s);
            return "taken";
        } catch (Exception e) {
            return code(e);
        }
    }

    /** The broker's code that an exception carries, or the exception's class. */
    static String code(Throwable e) {
        for (Throwable t = e; t != null; t = t.getCause()) {
            if (t instanceof MQBrokerException) {
                return "code " + ((MQBrokerException) t).getResponseCode();
            }
            if (t instanceof MQClientException && ((MQClientException) t).getResponseCode() > 0) {
                return "code " + ((MQClientException) t).getResponseCode();
            }
        }
        return e.getClass().getSimpleName();
    }

    static void refusals(Scene s) throws Exception {
        DefaultMQProducer p = s.producer();
        p.setMaxMessageSize(16 << 20);
        p.setCompressMsgBodyOverHowmuch(32 << 20);
        p.setRetryTimesWhenSendFailed(0);
        MessageQueue q = p.fetchPublishMessageQueues(s.topic).get(0);
        s.say("body of 5 MiB: %s", refusal(x -> p.send(new Message(s.topic, new byte[5 << 20]), q), s));
        s.say("body of 4,000,000 bytes: %s", refusal(x -> p.send(new Message(s.topic, new byte[4000000]), q), s));
        s.say("properties of 40,000 bytes: %s", refusal(x -> {
            Message m = new Message(s.topic, bytes("x"));
            m.putUserProperty("long", new String(new char[40000]).replace('\0', 'x'));
            p.send(m, q);
        }, s));
        s.say("queue 99: %s", refusal(x -> p.send(new Message(s.topic, bytes("x")), new MessageQueue(s.topic, q.getBrokerName(), 99)), s));
        s.say("a new topic: %s", refusal(x -> {
            SendResult r = p.send(new Message(s.topic + "_new", bytes("x")));
            s.say("its queues: %d", p.fetchPublishMessageQueues(s.topic + "_new").size());
        }, s));
        s.say("a batch with a delay: %s", refusal(x -> {
            Message m = new Message(s.topic, bytes("x"));
            m.setDelayTimeLevel(3);
            p.send(Collections.singletonList(m), q);
        }, s));
        s.say("a timer of ten days: %s", refusal(x -> {
            Message m = new Message(s.topic, bytes("x"));
            MessageAccessor.putProperty(m, "TIMER_DELAY_SEC", "864000");
            p.send(m, q);
        }, s));
        s.say("the schedule topic: %s", refusal(x -> p.send(new Message("SCHEDULE_TOPIC_XXXX", bytes("x"))), s));
    }

    public static void main(String[] args) throws Exception {
        Map<String, Script> scripts = new TreeMap<>();
        scripts.put("produce", Stock::produce);
        scripts.put("push", Stock::push);
        scripts.put("assigned", Stock::assigned);
        scripts.put("orderly", Stock::orderly);
        scripts.put("orderlydead", Stock::orderlydead);
        scripts.put("broadcast", Stock::broadcast);
        scripts.put("filter", Stock::filter);
        scripts.put("retry", Stock::retry);
        scripts.put("delay", Stock::delay);
        scripts.put("transaction", Stock::transaction);
        scripts.put("litepull", Stock::litepull);
        scripts.put("pull", Stock::pull);
        scripts.put("request", Stock::request);
        scripts.put("refusals", Stock::refusals);
        scripts.put("load", Stock::load);
        nameServer = args[0];
        List<Thread> threads = new ArrayList<>();
        for (int i = 2; i < args.length; i++) {
            String name = args[i];
            Thread t = new Thread(() -> {
                Scene s = new Scene(args[1], name);
                try {
                    scripts.get(name).run(s);
                } catch (Throwable e) {
                    s.say("failed: %s", e);
                    e.printStackTrace();
                }
                s.say("#end"); // what was started is ended afterwards, in nobody's way
                s.close();
            }, name);
            t.start();
            threads.add(t);
        }
        for (Thread t : threads) {
            t.join();
        }
        System.exit(0);
    }
}
