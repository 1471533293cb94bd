"""nats.py with JetStream, as a program: see bench/peers/clients.py."""

from __future__ import annotations

import asyncio
import sys
import time

import nats
from nats.js.api import AckPolicy, ConsumerConfig

_FETCH = 500


async def send(address: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    body = bytes(size)
    async with await nats.connect(address) as connection:
        stream = connection.jetstream()
        await stream.add_stream(name=topic, subjects=[topic])
        sent = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(1000):
                last = await stream.publish_async(topic, body)
            sent += 1000
        await stream.publish_async_completed()
        await last
        return sent, time.perf_counter() - began


async def receive(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    """One acknowledgement a fetch: it stands for all before it."""
    async with await nats.connect(address) as connection:
        stream = connection.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=2 * _FETCH)
        group = f"bench-{time.time_ns()}"
        subscription = await stream.pull_subscribe(topic, durable=group, config=config)
        await (await subscription.fetch(1))[-1].ack()
        received = received_bytes = 0
        began = time.perf_counter()
        while received < count - 1 and time.perf_counter() - began < seconds:
            messages = await subscription.fetch(min(_FETCH, count - 1 - received))
            for message in messages:
                received += 1
                received_bytes += len(message.data)
            await messages[-1].ack()
        return received, time.perf_counter() - began


if __name__ == "__main__":
    what, address, topic, amount, seconds = sys.argv[1:]
    run = send if what == "send" else receive
    print(*asyncio.run(run(address, topic, int(amount), float(seconds))))
