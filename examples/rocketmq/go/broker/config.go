// Package broker says where the broker is, by the environment.
package broker

import (
	"os"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// Config is that of a producer, or of a consumer of this group.
func Config(group string) *rmq.Config {
	server := os.Getenv("MQ_SERVER")
	if server == "" {
		server = "127.0.0.1:8081"
	}
	// Without it: TLS, and any certificate will do.
	rmq.EnableSsl = false
	return &rmq.Config{
		Endpoint:      server,
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("MQ_ACCESS_KEY"),
			AccessSecret: os.Getenv("MQ_SECRET_KEY"),
		},
	}
}
