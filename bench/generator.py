"""The load generator, a process of its own: sends what was encoded before, counts what comes.

    produce     batches over some Publish streams, so many in flight on each, for so long
    client      our own client, which encodes each message, for so long
    consume     everything a Subscribe stream delivers, for so long, reporting progress
    roundtrip   small unary calls, one at a time
    e2e         one message at a time: published, and awaited by a long poll on another connection

Prints one JSON object, with its own CPU seconds: a generator that needs a whole core is a limit of
its own.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from bench.payloads import batch, publish_request
from mq.client import Message, Producer
from mq.memory import keep_freed_memory
from mq.wire import varint
from mq.wire.v1 import consumer_pb2, message_pb2, producer_pb2

_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]
_SUBSCRIBED = 1 << 20  # messages that the broker may send ahead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["produce", "client", "consume", "roundtrip", "e2e"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--service", choices=["broker", "ceiling"], default="broker")
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-bytes", type=int, default=1_500_000_000)
    parser.add_argument("--bytes-max", type=int, default=1 << 60)
    parser.add_argument("--group", default="bench")
    parser.add_argument(
        "--bytes-per-s", type=float, default=0.0, help="produce no faster; 0: as can"
    )
    parser.add_argument("--key-file", help="of an API key; without it, none is shown")
    parser.add_argument("--ca", help="authority of a broker with TLS")
    arguments = parser.parse_args()
    keep_freed_memory()
    work: dict[str, Callable[[grpc.Channel, Any], dict[str, float]]] = {
        "produce": produce,
        "client": client,
        "consume": consume,
        "roundtrip": roundtrip,
        "e2e": e2e,
    }
    with _channel(arguments) as channel:
        figures = work[arguments.what](channel, arguments)
    print(json.dumps(figures))


def _channel(arguments: Any) -> grpc.Channel:
    if arguments.ca is None:
        return grpc.insecure_channel(arguments.address, options=_OPTIONS)
    trusted = grpc.ssl_channel_credentials(Path(arguments.ca).read_bytes())
    return grpc.secure_channel(arguments.address, trusted, options=_OPTIONS)


def _metadata(arguments: Any) -> list[tuple[str, str]]:
    if arguments.key_file is None:
        return []
    return [("authorization", f"Bearer {Path(arguments.key_file).read_text().strip()}")]


def _method(arguments: Any, service: str, method: str) -> str:
    if arguments.service == "ceiling":
        return f"/bench.Ceiling/{method}"
    return f"/mq.v1.{service}/{method}"


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def produce(channel: grpc.Channel, arguments: Any) -> dict[str, float]:
    blobs = _batches(arguments)
    warm_memory(arguments.warm_bytes)
    began, cpu_s = time.perf_counter(), _cpu_s()
    with ThreadPoolExecutor(arguments.streams) as pool:
        ends = [
            pool.submit(_publish, channel, arguments, blobs[at :: arguments.streams], began)
            for at in range(arguments.streams)
        ]
    answered = sum(end.result() for end in ends)
    seconds = time.perf_counter() - began
    return _rates(answered * arguments.batch, arguments.size, seconds, _cpu_s() - cpu_s)


def _publish(channel: grpc.Channel, arguments: Any, blobs: list[bytes], began: float) -> int:
    """One stream; how many requests were answered."""
    free = threading.Semaphore(arguments.in_flight)
    bytes_max = arguments.bytes_max // arguments.streams

    def requests() -> Iterator[bytes]:
        at = sent_bytes = 0
        while time.perf_counter() - began < arguments.seconds and sent_bytes < bytes_max:
            free.acquire()
            if arguments.bytes_per_s:
                due_s = began + sent_bytes * arguments.streams / arguments.bytes_per_s
                time.sleep(max(0.0, due_s - time.perf_counter()))
            blob = blobs[at % len(blobs)]
            at += 1
            sent_bytes += len(blob)
            yield publish_request(at, blob)

    open_stream = channel.stream_stream(_method(arguments, "ProducerService", "Publish"))
    call = open_stream(requests(), metadata=_metadata(arguments))
    answered = 0
    for data in call:
        free.release()
        answered += 1
        if arguments.service == "broker":
            _check(data)
    return answered


def warm_memory(size_bytes: int) -> None:
    """On virtual machines the first touch of memory that the host has not given yet, or has taken
    back, costs many times what a later write does, and would be measured instead of the store. So
    the pages that the next files will get are touched right before.
    """
    chunk = bytes(4 << 20)
    with tempfile.TemporaryFile() as scratch:
        for _ in range(size_bytes // len(chunk)):
            scratch.write(chunk)


def _batches(arguments: Any) -> list[bytes]:
    """The same batch for each queue."""
    raw = message_pb2.RawBatch.FromString(
        batch(arguments.topic, 0, arguments.size, arguments.batch)
    )
    blobs = []
    for queue_id in range(arguments.queues):
        raw.queue_id = queue_id
        blobs.append(raw.SerializeToString())
    return blobs


def _check(data: bytes) -> None:
    response = producer_pb2.PublishResponse.FromString(data)
    for result in response.results:
        if result.code:
            raise SystemExit(f"a batch was refused: {result.text}")


def client(_: grpc.Channel, arguments: Any) -> dict[str, float]:
    """With a window of messages whose results are not known yet."""
    message = Message(bytes(arguments.size))
    cpu_s, began = _cpu_s(), time.perf_counter()
    sent = 0
    with Producer(arguments.address) as producer:
        while time.perf_counter() - began < arguments.seconds:
            for _ in range(1000):
                last = producer.send_async(arguments.topic, message)
            sent += 1000
        producer.flush()
        last.result()
        seconds = time.perf_counter() - began
    return _rates(sent, arguments.size, seconds, _cpu_s() - cpu_s)


def consume(channel: grpc.Channel, arguments: Any) -> dict[str, float]:
    out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    if arguments.service == "ceiling":
        out.put(f"{arguments.size} {arguments.batch}".encode())
    else:
        out.put(_start(arguments))
    open_stream = channel.stream_stream(_method(arguments, "ConsumerService", "Subscribe"))
    call = open_stream(iter(out.get, None), metadata=_metadata(arguments))
    messages = 0
    cpu_s, began = 0.0, 0.0
    for data in call:
        if arguments.service == "ceiling":
            messages += arguments.batch
        else:
            messages += _took(data, out)
        if not began and messages:
            # The first delivery is not counted: the stream has just opened.
            began, cpu_s, messages = time.perf_counter(), _cpu_s(), 0
        if began and time.perf_counter() - began > arguments.seconds:
            break
        if messages * arguments.size >= arguments.bytes_max:
            break
    seconds = time.perf_counter() - began
    figures = _rates(messages, arguments.size, seconds, _cpu_s() - cpu_s)
    call.cancel()
    out.put(None)
    return figures


def _start(arguments: Any) -> bytes:
    start = consumer_pb2.SubscribeStart(
        group=arguments.group,
        member_id="generator",
        start_position=consumer_pb2.START_EARLIEST,
        subscriptions=[consumer_pb2.Subscription(topic=arguments.topic)],
        cache_messages=_SUBSCRIBED,
        cache_bytes=1 << 30,
    )
    return consumer_pb2.SubscribeRequest(start=start).SerializeToString()


def _took(data: bytes, out: queue.SimpleQueue[bytes | None]) -> int:
    """Messages in a delivery, whose progress is reported; they are not opened: it is the broker
    that is measured.
    """
    if data[0] != 0x12:
        return 0
    # The runs are the end of it: what stands before the first one is small.
    head = consumer_pb2.Delivery()
    _, at = varint.decode(data, 1)
    fields = data[at : at + 64]
    end = fields_end(fields)
    head.ParseFromString(fields[:end])
    position = consumer_pb2.QueuePosition(
        topic=head.topic, queue_id=head.queue_id, queue_offset=head.next_offset, epoch=head.epoch
    )
    progress = consumer_pb2.Progress(positions=[position])
    out.put(consumer_pb2.SubscribeRequest(progress=progress).SerializeToString())
    return head.next_offset - _first_offset(data[at + end : at + end + 64])


def fields_end(fields: bytes) -> int:
    """The position of the runs, field 15."""
    position = 0
    while position < len(fields) and fields[position] != 0x7A:
        if fields[position] & 7 == 2:
            length, position = varint.decode(fields, position + 1)
            position += length
        else:
            _, position = varint.decode(fields, position + 1)
    return position


def _first_offset(run: bytes) -> int:
    """Queue offset of the first run: its first field, left out when it is 0."""
    if not run:
        return 0
    _, at = varint.decode(run, 1)
    return varint.decode(run, at + 1)[0] if run[at] == 0x08 else 0


def roundtrip(channel: grpc.Channel, arguments: Any) -> dict[str, float]:
    call = channel.unary_unary("/bench.Ceiling/Echo")
    return _timed(lambda _: call(bytes(64)), arguments.seconds)


def e2e(channel: grpc.Channel, arguments: Any) -> dict[str, float]:
    """Send by the unary method on one connection; a long poll waits on another."""
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()
    is_over = threading.Event()
    with grpc.insecure_channel(
        arguments.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as other:
        puller = threading.Thread(target=_poll, args=(other, arguments.topic, arrived, is_over))
        puller.start()
        send = channel.unary_unary("/mq.v1.ProducerService/Send")
        request = producer_pb2.SendRequest(
            topic=arguments.topic,
            queue_id=0,
            messages=[message_pb2.Message(body=bytes(arguments.size))],
        ).SerializeToString()
        arrived.get(timeout=10)

        def once(began: float) -> float:
            pending = send.future(request)
            seconds = arrived.get(timeout=10) - began
            pending.result(timeout=10)
            return seconds

        figures = _timed(once, arguments.seconds)
        is_over.set()
        send(request)
        puller.join()
    return figures


def _poll(
    channel: grpc.Channel,
    topic: str,
    arrived: queue.SimpleQueue[float],
    is_over: threading.Event,
) -> None:
    pull = channel.unary_unary("/mq.v1.ConsumerService/Pull")
    find = channel.unary_unary("/mq.v1.ConsumerService/FindOffsets")
    latest = consumer_pb2.FindOffsetsRequest(
        topic=topic, queue_ids=[0], kind=consumer_pb2.OFFSET_LATEST
    )
    found = consumer_pb2.FindOffsetsResponse.FromString(find(latest.SerializeToString()))
    queue_offset = found.positions[0].queue_offset
    arrived.put(0.0)
    while not is_over.is_set():
        request = consumer_pb2.PullRequest(
            topic=topic, queue_id=0, queue_offset=queue_offset, wait_ms=5_000
        )
        data = pull(request.SerializeToString())
        now = time.perf_counter()
        response = consumer_pb2.PullResponse.FromString(data)
        queue_offset = response.next_offset
        if response.runs:
            arrived.put(now)


def _timed(once: Callable[[float], Any], seconds: float) -> dict[str, float]:
    for _ in range(50):
        once(time.perf_counter())
    times = []
    cpu_s, began = _cpu_s(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        result = once(before)
        times.append(result if isinstance(result, float) else time.perf_counter() - before)
    cuts = statistics.quantiles(times, n=100)
    return {
        "p50_ms": statistics.median(times) * 1000,
        "p99_ms": cuts[98] * 1000,
        "count": len(times),
        "cpu_s": _cpu_s() - cpu_s,
    }


def _rates(messages: int, size: int, seconds: float, cpu_s: float) -> dict[str, float]:
    return {
        "messages_per_s": messages / seconds,
        "mb_per_s": messages * size / seconds / 1e6,
        "seconds": seconds,
        "generator_cpu_s": cpu_s,
    }


if __name__ == "__main__":
    main()
