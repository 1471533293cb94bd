// A client of any gRPC server, driven over stdin and stdout: see ../__init__.py for the frames.
//
//	client HOST:PORT [CA-FILE]
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	bytesMax = 1 << 30
	// Messages of a stream that wait for its window. The loop over stdin must never wait for one.
	unsentMax = 1 << 14
)

type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(value any) ([]byte, error) { return value.([]byte), nil }

func (bytesCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// A call that is open. Closing `writes` half-closes its stream.
type call struct {
	cancel context.CancelFunc
	writes chan []byte
	reads  chan struct{}
}

var (
	connection *grpc.ClientConn
	output     sync.Mutex
)

func main() {
	security := insecure.NewCredentials()
	if len(os.Args) > 2 {
		var err error
		if security, err = credentials.NewClientTLSFromFile(os.Args[2], ""); err != nil {
			log.Fatal(err)
		}
	}
	var err error
	connection, err = grpc.NewClient(os.Args[1],
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}),
			grpc.MaxCallRecvMsgSize(bytesMax), grpc.MaxCallSendMsgSize(bytesMax)))
	if err != nil {
		log.Fatal(err)
	}
	calls := map[uint32]*call{}
	input := bufio.NewReader(os.Stdin)
	for {
		id, kind, payload, err := readFrame(input)
		if err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		one := calls[id]
		switch {
		case kind == 'O':
			calls[id] = open(id, split(payload))
		case one == nil: // cancelled
		case kind == 'W':
			one.writes <- payload
		case kind == 'H':
			close(one.writes)
		case kind == 'R':
			one.reads <- struct{}{}
		case kind == 'C':
			one.cancel()
			delete(calls, id)
		}
	}
}

// Parts: the shape of the call, path, deadline in milliseconds or 0, request, metadata.
func open(id uint32, parts []string) *call {
	ctx := metadata.AppendToOutgoingContext(context.Background(), parts[4:]...)
	ctx, cancel := context.WithCancel(ctx)
	if ms, _ := strconv.Atoi(parts[2]); ms > 0 {
		var limited context.CancelFunc
		ctx, limited = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		context.AfterFunc(ctx, limited)
	}
	one := &call{cancel, make(chan []byte, unsentMax), make(chan struct{}, unsentMax)}
	if parts[0] == "unary" {
		go unary(ctx, id, parts[1], []byte(parts[3]))
	} else {
		go stream(ctx, id, parts[1], one)
	}
	return one
}

func unary(ctx context.Context, id uint32, path string, request []byte) {
	var answer []byte
	var trailer metadata.MD
	err := connection.Invoke(ctx, path, request, &answer, grpc.Trailer(&trailer))
	if err == nil {
		writeFrame(id, 'M', answer)
	}
	end(id, err, trailer)
}

func stream(ctx context.Context, id uint32, path string, one *call) {
	opened, err := connection.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, path)
	if err != nil {
		end(id, err, nil)
		return
	}
	go func() {
		for message := range one.writes {
			// The reason of a failure comes to the reader.
			if opened.SendMsg(message) != nil {
				return
			}
		}
		_ = opened.CloseSend()
	}()
	for range one.reads {
		var answer []byte
		if err := opened.RecvMsg(&answer); err != nil {
			if err == io.EOF {
				err = nil
			}
			end(id, err, opened.Trailer())
			return
		}
		writeFrame(id, 'M', answer)
	}
}

func end(id uint32, err error, trailer metadata.MD) {
	found := status.Convert(err)
	parts := []string{strconv.Itoa(int(found.Code())), found.Message()}
	for key, values := range trailer {
		for _, value := range values {
			parts = append(parts, key, value)
		}
	}
	writeFrame(id, 'S', join(parts))
}

// -- frames ---------------------------------------------------------------------------------------

func readFrame(input io.Reader) (id uint32, kind byte, payload []byte, err error) {
	var head [9]byte
	if _, err = io.ReadFull(input, head[:]); err != nil {
		return
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err = io.ReadFull(input, payload)
	return binary.BigEndian.Uint32(head[4:]), head[8], payload, err
}

func writeFrame(id uint32, kind byte, payload []byte) {
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	frame = append(binary.BigEndian.AppendUint32(frame, id), kind)
	output.Lock()
	defer output.Unlock()
	if _, err := os.Stdout.Write(append(frame, payload...)); err != nil {
		log.Fatal(err)
	}
}

func join(parts []string) (joined []byte) {
	for _, one := range parts {
		joined = append(binary.BigEndian.AppendUint32(joined, uint32(len(one))), one...)
	}
	return joined
}

func split(joined []byte) (parts []string) {
	for len(joined) > 0 {
		end := 4 + binary.BigEndian.Uint32(joined)
		parts = append(parts, string(joined[4:end]))
		joined = joined[end:]
	}
	return parts
}
