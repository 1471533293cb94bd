// Small calls from a client that is not the limit: grpc-go, with requests that are encoded once.
//
//	load -mode unary -address HOST:PORT -topic T -callers 64 -seconds 5
//
//	unary         one Send of one message a call
//	rocketmq      the same as SendMessage, with the header fields of RocketMQ's own clients
//	stream        Publish, one message a request, -in-flight of them on each of -callers streams
//	transactions  whole transactions on a Transact stream a caller: half message, commit
//	receive       Receive of one message and its Ack, two calls, counted as one
//
// Prints one JSON object: calls, seconds, its own CPU seconds, and latencies in milliseconds.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

var (
	mode        = flag.String("mode", "unary", "unary, rocketmq, stream, transactions or receive")
	address     = flag.String("address", "127.0.0.1:8081", "of the leader")
	topic       = flag.String("topic", "bench", "which has to exist")
	group       = flag.String("group", "bench", "of consumers or producers")
	callers     = flag.Int("callers", 64, "at the same time")
	connections = flag.Int("connections", 1, "that they share")
	inFlight    = flag.Int("in-flight", 4, "requests of a stream that wait for their answer")
	seconds     = flag.Float64("seconds", 5, "how long")
	size        = flag.Int("size", 128, "bytes of a body")
	ca          = flag.String("ca", "", "certificate of the authority: TLS")
)

// Requests are encoded by hand and answers are read by hand: the codec passes bytes through.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(value any) ([]byte, error) { return value.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append((*value.(*[]byte))[:0], data...)
	return nil
}

// A caller makes calls until the time is over, and gives how long each took.
type caller func(ctx context.Context, connection *grpc.ClientConn, until time.Time) ([]time.Duration, error)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	call, ok := map[string]caller{
		"unary": unary, "rocketmq": rocketmq, "stream": stream, "transactions": transactions,
		"receive": receive,
	}[*mode]
	if !ok {
		return fmt.Errorf("no mode %q", *mode)
	}
	dialed, err := dial()
	if err != nil {
		return err
	}
	began := time.Now()
	until := began.Add(time.Duration(*seconds * float64(time.Second)))
	ctx, cancel := context.WithDeadline(context.Background(), until.Add(30*time.Second))
	defer cancel()
	took := make([][]time.Duration, *callers)
	failed := make([]error, *callers)
	var group sync.WaitGroup
	for at := range *callers {
		group.Add(1)
		go func() {
			defer group.Done()
			took[at], failed[at] = call(ctx, dialed[at%len(dialed)], until)
		}()
	}
	group.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return report(took, time.Since(began))
}

func dial() ([]*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		security = credentials.NewTLS(&tls.Config{RootCAs: pool})
	}
	dialed := make([]*grpc.ClientConn, *connections)
	for at := range dialed {
		connection, err := grpc.NewClient(*address,
			grpc.WithTransportCredentials(security),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
		if err != nil {
			return nil, err
		}
		dialed[at] = connection
	}
	return dialed, nil
}

func report(took [][]time.Duration, elapsed time.Duration) error {
	var all []time.Duration
	for _, one := range took {
		all = append(all, one...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	at := func(share float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return float64(all[int(share*float64(len(all)-1))].Microseconds()) / 1000
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return err
	}
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"calls": float64(len(all)), "seconds": elapsed.Seconds(), "generator_cpu_s": cpu.Seconds(),
		"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1),
	})
}

// -- requests, see proto/mq/v1 --------------------------------------------------------------------

func text(to []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func blob(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func number(to []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), value)
}

// The first field of this number of a message, its bytes or its number.
func field(message []byte, wanted protowire.Number) ([]byte, uint64) {
	for len(message) > 0 {
		found, kind, used := protowire.ConsumeTag(message)
		if used < 0 {
			return nil, 0
		}
		message = message[used:]
		if found == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value, 0
		}
		if found == wanted && kind == protowire.VarintType {
			value, _ := protowire.ConsumeVarint(message)
			return nil, value
		}
		if used = protowire.ConsumeFieldValue(found, kind, message); used < 0 {
			return nil, 0
		}
		message = message[used:]
	}
	return nil, 0
}

func message() []byte {
	return blob(nil, 1, make([]byte, *size))
}

// -- the modes ------------------------------------------------------------------------------------

func unary(ctx context.Context, connection *grpc.ClientConn, until time.Time) ([]time.Duration, error) {
	request := blob(text(nil, 1, *topic), 15, message())
	same := func() context.Context { return ctx }
	never := func([]byte) error { return nil }
	return repeated(same, connection, "/mq.v1.ProducerService/Send", request, until, never)
}

func rocketmq(ctx context.Context, connection *grpc.ClientConn, until time.Time) ([]time.Duration, error) {
	born := number(number(nil, 1, uint64(time.Now().Unix())), 2, 123_456_789)
	system := text(nil, 3, "012A71F6C797AF67470B0EBC8300000000")
	system = number(number(system, 5, 1), 6, 1)
	system = text(blob(system, 7, born), 8, "bench")
	sent := blob(blob(blob(nil, 1, text(nil, 2, *topic)), 3, system), 4, make([]byte, *size))
	numbered := func() context.Context {
		// As the client for Go writes them, in its order.
		id := fmt.Sprintf("%08x-%04x-4000-8000-%012x", rand.Uint32(), rand.Uint32N(1<<16), rand.Uint64N(1<<48))
		return metadata.AppendToOutgoingContext(ctx,
			"x-mq-language", "GO", "x-mq-protocol", "v2", "x-mq-request-id", id,
			"x-mq-client-version", "5.1.4", "x-mq-client-id", "bench@1@0@load", "x-mq-namespace", "",
			"x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"),
			"authorization", "MQv2-HMAC-SHA1 Credential=//Rocketmq, SignedHeaders=x-mq-date-time, Signature=c5d241732d1e414551b5c86e39be427f912830ea")
	}
	const method = "/apache.rocketmq.v2.MessagingService/SendMessage"
	refused := func(answer []byte) error {
		status, _ := field(answer, 1)
		if _, code := field(status, 1); code != 20_000 {
			text, _ := field(status, 2)
			return fmt.Errorf("SendMessage: %d %s", code, text)
		}
		return nil
	}
	return repeated(numbered, connection, method, blob(nil, 1, sent), until, refused)
}

func repeated(
	ctx func() context.Context, connection *grpc.ClientConn, method string, request []byte, until time.Time,
	refused func(answer []byte) error,
) ([]time.Duration, error) {
	var took []time.Duration
	var answer []byte
	for began := time.Now(); began.Before(until); {
		if err := connection.Invoke(ctx(), method, request, &answer); err != nil {
			return took, err
		}
		if err := refused(answer); err != nil {
			return took, err
		}
		ended := time.Now()
		took = append(took, ended.Sub(began))
		began = ended
	}
	return took, nil
}

func open(ctx context.Context, connection *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	description := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	return connection.NewStream(ctx, description, method)
}

func stream(ctx context.Context, connection *grpc.ClientConn, until time.Time) ([]time.Duration, error) {
	publish, err := open(ctx, connection, "/mq.v1.ProducerService/Publish")
	if err != nil {
		return nil, err
	}
	batch := blob(text(nil, 1, *topic), 15, message())
	request := blob(number(nil, 1, 1), 15, batch)
	sent := make([]time.Time, 0, *inFlight)
	var took []time.Duration
	var answer []byte
	for {
		now := time.Now()
		for len(sent) < *inFlight && now.Before(until) {
			if err := publish.SendMsg(request); err != nil {
				return took, err
			}
			sent = append(sent, now)
		}
		if len(sent) == 0 {
			return took, publish.CloseSend()
		}
		if err := publish.RecvMsg(&answer); err != nil {
			return took, err
		}
		if result, _ := field(answer, 2); result != nil {
			if _, code := field(result, 1); code != 0 {
				return took, fmt.Errorf("refused with code %d", code)
			}
		}
		took = append(took, time.Since(sent[0]))
		sent = sent[1:]
	}
}

func transactions(ctx context.Context, connection *grpc.ClientConn, until time.Time) ([]time.Duration, error) {
	transact, err := open(ctx, connection, "/mq.v1.TransactionService/Transact")
	if err != nil {
		return nil, err
	}
	var answer []byte
	ask := func(request []byte, wanted protowire.Number) ([]byte, error) {
		if err := transact.SendMsg(request); err != nil {
			return nil, err
		}
		if err := transact.RecvMsg(&answer); err != nil {
			return nil, err
		}
		found, _ := field(answer, wanted)
		if found == nil && wanted != 2 {
			return nil, fmt.Errorf("another answer than %d: %x", wanted, answer)
		}
		return found, nil
	}
	start := blob(number(nil, 1, 1), 2, text(text(nil, 1, *group), 2, "load"))
	if _, err := ask(start, 2); err != nil {
		return nil, err
	}
	batch := blob(blob(text(nil, 1, *topic), 11, text(nil, 1, *group)), 15, message())
	half := blob(number(nil, 1, 2), 3, batch)
	var took []time.Duration
	for began := time.Now(); began.Before(until); {
		stored, err := ask(half, 3)
		if err != nil {
			return took, err
		}
		id, _ := field(stored, 1)
		if _, err := ask(blob(number(nil, 1, 3), 4, number(blob(nil, 1, id), 2, 1)), 4); err != nil {
			return took, err
		}
		ended := time.Now()
		took = append(took, ended.Sub(began))
		began = ended
	}
	return took, transact.CloseSend()
}

func receive(ctx context.Context, connection *grpc.ClientConn, until time.Time) ([]time.Duration, error) {
	ask := number(text(text(nil, 1, *group), 2, *topic), 4, 1)
	// A group that is new begins with the oldest message.
	ask = number(number(ask, 7, 5000), 9, 1)
	var took []time.Duration
	var answer []byte
	for began := time.Now(); began.Before(until); {
		if err := connection.Invoke(ctx, "/mq.v1.ConsumerService/Receive", ask, &answer); err != nil {
			return took, err
		}
		received, _ := field(answer, 15)
		if received == nil {
			return took, errors.New("the backlog is too small: nothing was received in 5 s")
		}
		lease, _ := field(received, 3)
		run, _ := field(received, 15)
		_, offset := field(run, 1)
		handle := number(blob(nil, 1, lease), 2, offset)
		ack := blob(text(nil, 1, *group), 2, handle)
		if err := connection.Invoke(ctx, "/mq.v1.ConsumerService/Ack", ack, &answer); err != nil {
			return took, err
		}
		ended := time.Now()
		took = append(took, ended.Sub(began))
		began = ended
	}
	return took, nil
}
