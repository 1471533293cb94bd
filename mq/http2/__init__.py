"""A gRPC server over HTTP/2 of our own; see docs/adr/0020. Knows nothing of brokers."""
