"""RocketMQ 5's protocol (apache.rocketmq.v2) on this broker, for its official clients.

Thin: requests are decoded, the broker is called as our own services call it, and the answer is
encoded. Every node serves: `forwarding` passes on what only the leader can do.
"""
