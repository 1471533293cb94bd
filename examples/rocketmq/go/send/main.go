// go run ./send TOPIC TEXT...     sends each text as a message
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	rmq "github.com/apache/rocketmq-clients/golang/v5"

	"rocketmq-example/broker"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: go run ./send TOPIC TEXT...")
	}
	topic := os.Args[1]
	producer, err := rmq.NewProducer(broker.Config(""), rmq.WithTopics(topic))
	if err == nil {
		err = producer.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range os.Args[2:] {
		message := &rmq.Message{Topic: topic, Body: []byte(text)}
		message.SetTag("example")
		receipts, err := producer.Send(context.Background(), message)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("sent", receipts[0].MessageID)
	}
	if err := producer.GracefulStop(); err != nil {
		log.Fatal(err)
	}
}
