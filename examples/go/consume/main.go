// go run ./consume TOPIC [GROUP]     prints messages as they come, until Ctrl-C
//
// All queues of the topic are read by this one process. The group only keeps how far it came: the
// next run goes on from there. To share the queues among many processes, use Join or Subscribe.
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

const wait = 20 * time.Second

func main() {
	if err := consume(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func consume(arguments []string) error {
	if len(arguments) < 1 {
		return errors.New("usage: go run ./consume TOPIC [GROUP]")
	}
	topic, group := arguments[0], "example-go"
	if len(arguments) > 1 {
		group = arguments[1]
	}
	starts, err := positions(topic, group)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for _, position := range starts {
		go func() { failed <- follow(position, group) }()
	}
	return <-failed
}

// positions tells where to start in each queue: where the group came to, or at the oldest message.
func positions(topic, group string) (map[uint32]*mqv1.QueuePosition, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, address, err := broker.Route(ctx, topic, false)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("there is no topic %s: send something first", topic)
	}
	connection, err := broker.Dial(address)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	consumer := mqv1.NewConsumerServiceClient(connection)
	earliest, err := consumer.FindOffsets(
		ctx, &mqv1.FindOffsetsRequest{Topic: topic, Kind: mqv1.OffsetKind_OFFSET_EARLIEST})
	if err != nil {
		return nil, err
	}
	committed, err := consumer.QueryOffsets(ctx, &mqv1.QueryOffsetsRequest{Group: group})
	if err != nil {
		return nil, err
	}
	starts := map[uint32]*mqv1.QueuePosition{}
	for _, position := range append(earliest.Positions, committed.Positions...) {
		if position.Topic == topic {
			starts[position.QueueId] = position
		}
	}
	return starts, nil
}

// follow makes one long poll after the other. A lost leader is a reason to ask for the new one.
func follow(position *mqv1.QueuePosition, group string) error {
	for {
		err := followLeader(position, group)
		if !broker.IsRetryable(err) {
			return err
		}
		fmt.Fprintln(os.Stderr, err, "- trying again")
		time.Sleep(time.Second)
	}
}

func followLeader(position *mqv1.QueuePosition, group string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	_, address, err := broker.Route(ctx, position.Topic, false)
	cancel()
	if err != nil {
		return err
	}
	connection, err := broker.Dial(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	consumer := mqv1.NewConsumerServiceClient(connection)
	for {
		if err := pull(consumer, position, group); err != nil {
			return err
		}
	}
}

func pull(consumer mqv1.ConsumerServiceClient, position *mqv1.QueuePosition, group string) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait+5*time.Second)
	defer cancel()
	answer, err := consumer.Pull(ctx, &mqv1.PullRequest{
		Topic:       position.Topic,
		QueueId:     position.QueueId,
		QueueOffset: position.QueueOffset,
		BytesMax:    1 << 20,
		WaitMs:      uint32(wait.Milliseconds()),
	})
	if err != nil {
		return err
	}
	for _, run := range answer.Runs {
		show(position.QueueId, run)
	}
	position.QueueOffset = answer.NextOffset
	if len(answer.Runs) == 0 {
		return nil
	}
	_, err = consumer.CommitOffsets(ctx, &mqv1.CommitOffsetsRequest{
		Group: group, Positions: []*mqv1.QueuePosition{position},
	})
	return err
}

// show prints a run: messages that follow each other.
func show(queueID uint32, run *mqv1.Run) {
	for i, message := range run.Messages {
		body := string(message.Body)
		if message.Compression != mqv1.Compression_COMPRESSION_NONE {
			body = fmt.Sprintf("(%d bytes of LZ4)", len(message.Body))
		}
		fmt.Printf("received queue %d offset %d tag %s: %s\n",
			queueID, run.QueueOffset+uint64(i), message.Tag, body)
	}
}
