"""RocketMQ 5's protocol, apache.rocketmq.v2."""
