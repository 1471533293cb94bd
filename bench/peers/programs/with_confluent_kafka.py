"""confluent-kafka, as a program: see bench/peers/clients.py."""

from __future__ import annotations

import sys
import time

from confluent_kafka import Consumer, Producer

_CONSUME = 1000


def send(address: str, topic: str, size: int, seconds: float) -> tuple[int, float]:
    body = bytes(size)
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce(topic, body)
    producer.flush()
    sent = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(1000):
            while True:
                try:
                    producer.produce(topic, body)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.01)
        producer.poll(0)
        sent += 1000
    if left := producer.flush():
        raise SystemExit(f"{left} messages were not acknowledged")
    return sent, time.perf_counter() - began


def receive(address: str, topic: str, count: int, seconds: float) -> tuple[int, float]:
    group = f"bench-{time.time_ns()}"
    settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    while not (first := consumer.poll(30.0)) or first.error():
        pass
    received = received_bytes = 0
    began = time.perf_counter()
    while received < count - 1 and time.perf_counter() - began < seconds:
        for message in consumer.consume(_CONSUME, timeout=5.0):
            received += 1
            received_bytes += len(message.value())
    took_s = time.perf_counter() - began
    consumer.close()
    return received, took_s


if __name__ == "__main__":
    what, address, topic, amount, seconds = sys.argv[1:]
    run = send if what == "send" else receive
    print(*run(address, topic, int(amount), float(seconds)))
