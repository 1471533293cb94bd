// go run ./send TOPIC TEXT...     sends each text as a message
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"mq-example/broker"
	"mq-example/mqv1"
)

func main() {
	if err := send(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func send(arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("usage: go run ./send TOPIC TEXT...")
	}
	topic, texts := arguments[0], arguments[1:]
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	parts, err := broker.Route(ctx, topic, true)
	if err != nil {
		return err
	}
	connection, err := broker.Dial(parts[0].Address)
	if err != nil {
		return err
	}
	defer connection.Close()
	producer := mqv1.NewProducerServiceClient(connection)
	for _, text := range texts {
		// No QueueId: the broker chooses one. Answered when a majority of the nodes has it on disk.
		answer, err := producer.Send(ctx, &mqv1.SendRequest{
			Topic: topic,
			Messages: []*mqv1.Message{{
				Body:       []byte(text),
				Tag:        "example",
				Properties: map[string]string{"language": "go"},
				BornAtMs:   time.Now().UnixMilli(),
			}},
		})
		if err != nil {
			return err
		}
		fmt.Printf("sent %s queue %d offset %d\n", answer.MessageIds[0], answer.QueueId, answer.QueueOffset)
	}
	return nil
}
