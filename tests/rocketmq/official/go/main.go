// The official Go client, told what to do by lines of JSON: see ../client.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type request struct {
	ID           int               `json:"id"`
	Do           string            `json:"do"`
	Topic        string            `json:"topic"`
	Body         string            `json:"body"`
	Tag          *string           `json:"tag"`
	Keys         []string          `json:"keys"`
	Properties   map[string]string `json:"properties"`
	MessageGroup *string           `json:"message_group"`
	Priority     *int32            `json:"priority"`
	DeliverAtMs  int64             `json:"deliver_at_ms"`
	RecallHandle string            `json:"recall_handle"`
	End          string            `json:"end"`
	Group        string            `json:"group"`
	Tags         *string           `json:"tags"`
	SQL          *string           `json:"sql"`
	AwaitS       int               `json:"await_s"`
	Consumer     int               `json:"consumer"`
	Count        int32             `json:"count"`
	InvisibleS   int               `json:"invisible_s"`
	MessageID    string            `json:"message_id"`
	InFlight     int               `json:"in_flight"`
	Seconds      float64           `json:"seconds"`
	Size         int               `json:"size"`
}

type answer map[string]any

type stopper interface{ GracefulStop() error }

var (
	writeLock sync.Mutex
	out       = json.NewEncoder(os.Stdout)

	lock      sync.Mutex
	producers = map[string]rmq.Producer{}
	consumers = map[int]stopper{}
	// By consumer and message id.
	received = map[string]*rmq.MessageView{}

	resolutions = map[string]rmq.TransactionResolution{
		"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
	}
	deeds = map[string]func(request) (answer, error){
		"send": send, "half": half, "recall": recall, "simple": simple, "push": push,
		"receive": receive, "ack": ack, "change": change, "close": closeConsumer, "load": load,
	}
)

func write(line answer) {
	writeLock.Lock()
	defer writeLock.Unlock()
	_ = out.Encode(line)
}

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      os.Args[1],
		NameSpace:     os.Getenv("ROCKETMQ_NAMESPACE"),
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("ROCKETMQ_ACCESS_KEY"),
			AccessSecret: os.Getenv("ROCKETMQ_SECRET_KEY"),
		},
	}
}

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func milliseconds(value *time.Time) int64 {
	if value == nil {
		return 0
	}
	return value.UnixMilli()
}

func shown(view *rmq.MessageView) answer {
	keys := append([]string{}, view.GetKeys()...)
	slices.Sort(keys)
	properties := view.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return answer{
		"message_id": view.GetMessageId(), "topic": view.GetTopic(), "body": string(view.GetBody()),
		"tag": text(view.GetTag()), "keys": keys, "properties": properties,
		"message_group": text(view.GetMessageGroup()), "attempt": view.GetDeliveryAttempt(),
		"deliver_at_ms": milliseconds(view.GetDeliveryTimestamp()),
		"born_at_ms":    milliseconds(view.GetBornTimestamp()), "at_ms": time.Now().UnixMilli(),
	}
}

func check(view *rmq.MessageView) rmq.TransactionResolution {
	write(answer{"event": "check", "message": shown(view)})
	return resolutions[view.GetProperties()["check"]]
}

func producerOf(topic string) (rmq.Producer, error) {
	lock.Lock()
	defer lock.Unlock()
	if found, ok := producers[topic]; ok {
		return found, nil
	}
	checker := rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check})
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics(topic), checker)
	if err != nil {
		return nil, err
	}
	if err := producer.Start(); err != nil {
		return nil, err
	}
	producers[topic] = producer
	return producer, nil
}

func built(r request) *rmq.Message {
	message := &rmq.Message{Topic: r.Topic, Body: []byte(r.Body), Tag: r.Tag}
	message.SetKeys(r.Keys...)
	for name, value := range r.Properties {
		message.AddProperty(name, value)
	}
	if r.MessageGroup != nil {
		message.SetMessageGroup(*r.MessageGroup)
	}
	if r.Priority != nil {
		_ = message.SetPriority(*r.Priority)
	}
	if r.DeliverAtMs != 0 {
		message.SetDelayTimestamp(time.UnixMilli(r.DeliverAtMs))
	}
	return message
}

func send(r request) (answer, error) {
	producer, err := producerOf(r.Topic)
	if err != nil {
		return nil, err
	}
	receipts, err := producer.Send(context.Background(), built(r))
	if err != nil {
		return nil, err
	}
	return answer{"message_id": receipts[0].MessageID, "recall_handle": receipts[0].RecallHandle}, nil
}

func half(r request) (answer, error) {
	producer, err := producerOf(r.Topic)
	if err != nil {
		return nil, err
	}
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), built(r), transaction)
	if err != nil {
		return nil, err
	}
	switch r.End {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return answer{"message_id": receipts[0].MessageID}, err
}

func recall(r request) (answer, error) {
	producer, err := producerOf(r.Topic)
	if err != nil {
		return nil, err
	}
	id, err := producer.Recall(context.Background(), r.Topic, r.RecallHandle)
	return answer{"message_id": id}, err
}

func subscription(r request) map[string]*rmq.FilterExpression {
	expression := rmq.SUB_ALL
	if r.SQL != nil {
		expression = rmq.NewFilterExpressionWithType(*r.SQL, rmq.SQL92)
	} else if r.Tags != nil {
		expression = rmq.NewFilterExpression(*r.Tags)
	}
	return map[string]*rmq.FilterExpression{r.Topic: expression}
}

func opened(number int, consumer stopper) answer {
	lock.Lock()
	defer lock.Unlock()
	consumers[number] = consumer
	return answer{"consumer": number}
}

func simple(r request) (answer, error) {
	consumer, err := rmq.NewSimpleConsumer(config(r.Group),
		rmq.WithSimpleAwaitDuration(time.Duration(r.AwaitS)*time.Second),
		rmq.WithSimpleSubscriptionExpressions(subscription(r)))
	if err != nil {
		return nil, err
	}
	return opened(r.ID, consumer), consumer.Start()
}

func push(r request) (answer, error) {
	var callLock sync.Mutex
	calls := map[string]int{}
	listen := func(view *rmq.MessageView) rmq.ConsumerResult {
		callLock.Lock()
		calls[view.GetMessageId()]++
		call := calls[view.GetMessageId()]
		callLock.Unlock()
		write(answer{"event": "message", "consumer": r.ID, "call": call, "message": shown(view)})
		if failures, _ := strconv.Atoi(view.GetProperties()["failures"]); call <= failures {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(config(r.Group),
		rmq.WithPushSubscriptionExpressions(subscription(r)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listen}))
	if err != nil {
		return nil, err
	}
	return opened(r.ID, consumer), consumer.Start()
}

func place(consumer int, messageID string) string {
	return fmt.Sprintf("%d %s", consumer, messageID)
}

func taken(r request) (rmq.SimpleConsumer, *rmq.MessageView) {
	lock.Lock()
	defer lock.Unlock()
	return consumers[r.Consumer].(rmq.SimpleConsumer), received[place(r.Consumer, r.MessageID)]
}

func receive(r request) (answer, error) {
	consumer, _ := taken(r)
	invisible := time.Duration(r.InvisibleS) * time.Second
	views, err := consumer.Receive(context.Background(), r.Count, invisible)
	// "There is none" is an error to programs in Go.
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == 40401 {
		err = nil
	}
	messages := []answer{}
	for _, view := range views {
		lock.Lock()
		received[place(r.Consumer, view.GetMessageId())] = view
		lock.Unlock()
		messages = append(messages, shown(view))
	}
	return answer{"messages": messages}, err
}

func ack(r request) (answer, error) {
	consumer, view := taken(r)
	return answer{}, consumer.Ack(context.Background(), view)
}

func change(r request) (answer, error) {
	consumer, view := taken(r)
	return answer{}, consumer.ChangeInvisibleDuration(view, time.Duration(r.InvisibleS)*time.Second)
}

func closeConsumer(r request) (answer, error) {
	lock.Lock()
	consumer := consumers[r.Consumer]
	delete(consumers, r.Consumer)
	lock.Unlock()
	return answer{}, consumer.GracefulStop()
}

// Sends for so many seconds, so many at a time: "<caller> <number>", filled up to the size.
func load(r request) (answer, error) {
	producer, err := producerOf(r.Topic)
	if err != nil {
		return nil, err
	}
	var callers sync.WaitGroup
	var errorLock sync.Mutex
	var slowest atomic.Int64
	sent := make([]int, r.InFlight)
	errors := []string{}
	cpu := cpuSeconds()
	begin := time.Now()
	for caller := range r.InFlight {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for number := 0; time.Since(begin).Seconds() < r.Seconds; number++ {
				body := fmt.Sprintf("%d %d ", caller, number)
				body += strings.Repeat("x", max(0, r.Size-len(body)))
				start := time.Now()
				_, err := producer.Send(context.Background(), &rmq.Message{Topic: r.Topic, Body: []byte(body)})
				took := time.Since(start).Milliseconds()
				for old := slowest.Load(); took > old && !slowest.CompareAndSwap(old, took); {
					old = slowest.Load()
				}
				if err != nil {
					errorLock.Lock()
					errors = append(errors, err.Error())
					errorLock.Unlock()
					return
				}
				sent[caller]++
			}
		}()
	}
	callers.Wait()
	return answer{
		"sent": sent, "errors": errors, "slowest_ms": slowest.Load(),
		"seconds": time.Since(begin).Seconds(), "cpu_s": cpuSeconds() - cpu,
	}, nil
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func serve(r request) {
	found, err := deeds[r.Do](r)
	if status, ok := rmq.AsErrRpcStatus(err); ok {
		found = answer{"error": fmt.Sprintf("%d %s", status.GetCode(), status.GetMessage())}
	} else if err != nil {
		found = answer{"error": err.Error()}
	}
	found["id"] = r.ID
	write(found)
}

func main() {
	rmq.EnableSsl = os.Getenv("ROCKETMQ_TLS") == "1"
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			panic(err)
		}
		go serve(r)
	}
}
