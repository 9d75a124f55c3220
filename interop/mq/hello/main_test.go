package main

import (
	"testing"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// A second hello within the second sends the same text and finds both messages; and a broker may deliver one twice.
func TestMessageThatComesTwiceIsReceived(t *testing.T) {
	got := make(chan struct{}, 1)
	m := &primitive.MessageExt{}
	m.Body = []byte("hello")
	for range 2 {
		if r, err := listen("hello", got)(t.Context(), m, m); r != consumer.ConsumeSuccess || err != nil {
			t.Errorf("%v, %v", r, err)
		}
	}
	<-got
}
