"""aiokafka, as a program: see bench/peers/clients.py."""

from __future__ import annotations

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def send(address: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    body = bytes(size)
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        await producer.send_and_wait(topic, body)
        sent = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(1000):
                last = await producer.send(topic, body)
            sent += 1000
        await producer.flush()
        await last
        return sent, time.perf_counter() - began


async def receive(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    group = f"bench-{time.time_ns()}"
    settings = {"bootstrap_servers": address, "group_id": group, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(topic, **settings) as consumer:
        await consumer.getone()
        received = received_bytes = 0
        began = time.perf_counter()
        while received < count - 1 and time.perf_counter() - began < seconds:
            for messages in (await consumer.getmany(timeout_ms=5000)).values():
                for message in messages:
                    received += 1
                    received_bytes += len(message.value)
        return received, time.perf_counter() - began


if __name__ == "__main__":
    what, address, topic, amount, seconds = sys.argv[1:]
    run = send if what == "send" else receive
    print(*asyncio.run(run(address, topic, int(amount), float(seconds))))
