"""Our client, as a program: see bench/peers/clients.py."""

from __future__ import annotations

import sys
import time

from mq.client import Consumer, Producer

_POLL = 500


def send(address: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    body = bytes(size)
    sent = 0
    with Producer(address) as producer:
        producer.send(topic, body)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(1000):
                last = producer.send_async(topic, body)
            sent += 1000
        producer.flush()
        last.result()
        return sent, time.perf_counter() - began


def receive(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    received = received_bytes = 0
    with Consumer(address, f"bench-{time.time_ns()}", topic, start="earliest") as consumer:
        consumer.poll(1, timeout_s=30)
        began = time.perf_counter()
        while received < count - 1 and time.perf_counter() - began < seconds:
            for message in consumer.poll(_POLL, timeout_s=5):
                received += 1
                received_bytes += len(message.body)
        return received, time.perf_counter() - began


if __name__ == "__main__":
    what, address, topic, amount, seconds = sys.argv[1:]
    run = send if what == "send" else receive
    print(*run(address, topic, int(amount), float(seconds)))
