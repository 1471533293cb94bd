"""RocketMQ's protocol on a real broker, by raw stubs and by its official clients."""
