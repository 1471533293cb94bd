"""Our client in bulk, as a program: see bench/peers/clients.py."""

from __future__ import annotations

import sys
import time

from mq.client import Consumer


def receive(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    received = received_bytes = 0
    with Consumer(address, f"bench-{time.time_ns()}", topic, start="earliest") as consumer:
        consumer.poll(1, timeout_s=30)
        began = time.perf_counter()
        while received < count - 1 and time.perf_counter() - began < seconds:
            batch = consumer.poll_batch(timeout_s=5)
            for body in batch.bodies if batch is not None else ():
                received += 1
                received_bytes += len(body)
        return received, time.perf_counter() - began


if __name__ == "__main__":
    _, address, topic, amount, seconds = sys.argv[1:]
    print(*receive(address, topic, int(amount), float(seconds)))
