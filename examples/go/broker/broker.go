// Package broker reaches the broker: any node tells who leads, and errors have the broker's names.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"mq-example/mqv1"
)

// Server is the node that is asked first.
var Server = cmp.Or(os.Getenv("MQ_SERVER"), "127.0.0.1:8081")

// Dial makes a connection; the calls on it fail with an *Error when the broker says why.
func Dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(
		address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// A message may have 4 MiB, which is the default for a whole answer.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithUnaryInterceptor(withStatus),
	)
}

// Part of a topic: a broker set that has queues of it, and the address of who leads that one.
type Part struct {
	BrokerSet string
	Address   string
}

// Route tells where the topic is: in one broker set or more, none when it does not exist. Every node
// knows; the leaders serve.
func Route(ctx context.Context, topic string, create bool) ([]Part, error) {
	connection, err := Dial(Server)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	answer, err := mqv1.NewClusterServiceClient(connection).Route(
		ctx, &mqv1.RouteRequest{Topics: []string{topic}, CreateMissing: create})
	if err != nil {
		return nil, err
	}
	leaders := map[string]string{}
	for _, set := range answer.BrokerSets {
		for _, node := range set.Nodes {
			if node.NodeId == set.LeaderId {
				leaders[set.Name] = node.Address
			}
		}
	}
	// Not created: the broker is not allowed to. Whoever sends there is told so.
	if create && len(answer.Topics) == 0 {
		return []Part{{"", Server}}, nil
	}
	var parts []Part
	for _, each := range answer.Topics {
		parts = append(parts, Part{each.BrokerSet, cmp.Or(leaders[each.BrokerSet], Server)})
	}
	return parts, nil
}

// Error is what the broker says of a call that failed, see proto/mq/v1/status.proto.
type Error struct {
	*mqv1.Status
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Text) }

func withStatus(
	ctx context.Context, method string, request, answer any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	var trailer metadata.MD
	err := invoke(ctx, method, request, answer, connection, append(options, grpc.Trailer(&trailer))...)
	if packed := trailer.Get("mq-status-bin"); err != nil && len(packed) == 1 {
		said := &mqv1.Status{}
		if proto.Unmarshal([]byte(packed[0]), said) == nil {
			return &Error{said}
		}
	}
	return err
}

// IsRetryable tells whether the same request may succeed later, or at another node.
func IsRetryable(err error) bool {
	var said *Error
	if !errors.As(err, &said) {
		return status.Code(err) == codes.Unavailable
	}
	switch said.Code {
	case mqv1.Code_NOT_LEADER, mqv1.Code_NODE_STOPPED, mqv1.Code_FLOW_CONTROL:
		return true
	}
	return false
}
