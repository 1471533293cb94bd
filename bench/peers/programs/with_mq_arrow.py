"""Our client with Arrow tables, as a program: see bench/peers/clients.py."""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from mq.client import Producer, PullConsumer

_ROWS = 50_000


def send(address: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    table = pa.table({"body": pa.array([bytes(size)] * _ROWS, pa.binary())})
    sent = 0
    with Producer(address) as producer:
        producer.send(topic, bytes(size))
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            producer.send_arrow(topic, table)
            sent += _ROWS
        return sent, time.perf_counter() - began


def receive(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    """Without a group: nothing is committed."""
    received = received_bytes = 0
    with PullConsumer(address, f"bench-{time.time_ns()}") as consumer:
        consumer.find_offsets(topic, "earliest")
        began = time.perf_counter()
        for batch in consumer.read_arrow(topic):
            received += batch.num_rows
            received_bytes += batch.column("body").nbytes
            if received >= count or time.perf_counter() - began >= seconds:
                break
        return received, time.perf_counter() - began


if __name__ == "__main__":
    what, address, topic, amount, seconds = sys.argv[1:]
    run = send if what == "send" else receive
    print(*run(address, topic, int(amount), float(seconds)))
