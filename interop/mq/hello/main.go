// Command hello sends one message with the stock RocketMQ client for Go and receives it with another: the first thing to try with `dledger up`.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	names := flag.String("n", "127.0.0.1:9876", "name servers, joined by ';'")
	topic := flag.String("t", "hello", "topic")
	flag.Parse()
	rlog.SetLogLevel("error")
	if err := run(strings.Split(*names, ";"), *topic); err != nil {
		log.Fatal(err)
	}
}

func run(names []string, topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p, err := rocketmq.NewProducer(producer.WithNameServer(names), producer.WithGroupName("hello-producer"), producer.WithRetry(2))
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	defer p.Shutdown()
	text := fmt.Sprintf("hello at %s", time.Now().Format(time.TimeOnly))
	sent, err := p.SendSync(ctx, primitive.NewMessage(topic, []byte(text)))
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	fmt.Printf("sent      %q to %s, queue %d, offset %d\n", text, sent.MessageQueue.BrokerName, sent.MessageQueue.QueueId, sent.QueueOffset)

	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(names), consumer.WithGroupName(fmt.Sprintf("hello-%d", time.Now().UnixNano())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	got := make(chan struct{}, 1)
	if err := c.Subscribe(topic, consumer.MessageSelector{}, listen(text, got)); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start the consumer: %w", err)
	}
	defer c.Shutdown()
	select {
	case <-got:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("receive: %w", ctx.Err())
	}
}

// listen prints what comes, and tells got of the message with this text, also if it comes twice.
func listen(text string, got chan<- struct{}) func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range msgs {
			fmt.Printf("received  %q, after %v\n", m.Body, time.Since(time.UnixMilli(m.BornTimestamp)).Round(time.Millisecond))
			if string(m.Body) != text {
				continue
			}
			select {
			case got <- struct{}{}:
			default: // it has been told
			}
		}
		return consumer.ConsumeSuccess, nil
	}
}
