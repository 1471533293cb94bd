// go run ./consume TOPIC [GROUP]     prints messages as they come, until Ctrl-C
//
// All queues of the topic, in every broker set, are read by this one process. The group only keeps how far it came: the
// next run goes on from there. To share the queues among many processes, use Join or Subscribe.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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
	for queue, position := range starts {
		go func() { failed <- follow(position, group, queue.brokerSet) }()
	}
	return <-failed
}

// Each set counts its own queues, and keeps the offsets of the group in them.
type queue struct {
	brokerSet string
	id        uint32
}

// positions tells where to start in each queue: where the group came to, or at the oldest message.
func positions(topic, group string) (map[queue]*mqv1.QueuePosition, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	parts, err := broker.Route(ctx, topic, false)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("there is no topic %s: send something first", topic)
	}
	starts := map[queue]*mqv1.QueuePosition{}
	for _, part := range parts {
		found, err := partPositions(ctx, part.Address, topic, group)
		if err != nil {
			return nil, err
		}
		for _, position := range found {
			starts[queue{part.BrokerSet, position.QueueId}] = position
		}
	}
	return starts, nil
}

// partPositions has the oldest messages first, then where the group came to.
func partPositions(
	ctx context.Context, address, topic, group string,
) ([]*mqv1.QueuePosition, error) {
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
	var found []*mqv1.QueuePosition
	for _, position := range append(earliest.Positions, committed.Positions...) {
		if position.Topic == topic {
			found = append(found, position)
		}
	}
	return found, nil
}

// follow makes one long poll after the other. A lost leader is a reason to ask for the new one.
func follow(position *mqv1.QueuePosition, group, brokerSet string) error {
	for {
		err := followLeader(position, group, brokerSet)
		if !broker.IsRetryable(err) {
			return err
		}
		fmt.Fprintln(os.Stderr, err, "- trying again")
		time.Sleep(time.Second)
	}
}

func followLeader(position *mqv1.QueuePosition, group, brokerSet string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	parts, err := broker.Route(ctx, position.Topic, false)
	cancel()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(parts, func(part broker.Part) bool { return part.BrokerSet == brokerSet })
	if at < 0 {
		return fmt.Errorf("broker set %s does not have topic %s any more", brokerSet, position.Topic)
	}
	connection, err := broker.Dial(parts[at].Address)
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
