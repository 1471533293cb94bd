// go run ./consume TOPIC [GROUP]     prints messages as they come, until Ctrl-C
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	rmq "github.com/apache/rocketmq-clients/golang/v5"

	"rocketmq-example/broker"
)

func consume(message *rmq.MessageView) rmq.ConsumerResult {
	// FAILURE: it comes again later, and is a dead letter when it fails too often.
	fmt.Printf("received %s tag %s: %s\n", message.GetMessageId(), *message.GetTag(), message.GetBody())
	return rmq.SUCCESS
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 && len(os.Args) != 3 {
		log.Fatal("usage: go run ./consume TOPIC [GROUP]")
	}
	topic, group := os.Args[1], "example"
	if len(os.Args) == 3 {
		group = os.Args[2]
	}
	consumer, err := rmq.NewPushConsumer(broker.Config(group),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	if err == nil {
		err = consumer.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	// Waits for its long polls.
	if err := consumer.GracefulStop(); err != nil {
		log.Fatal(err)
	}
}
