"""Receiving with our own client: the parts of bench.client, and the process that receives.

`python -m bench.client_receive poll --address ...` receives for so long from a topic that is full,
and prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from bench.broker import ceiling, create_topic, generate, progress, run_program
from mq.client.aio import Consumer, PushConsumer, SimpleConsumer
from mq.memory import keep_freed_memory

if TYPE_CHECKING:
    from bench.client import Bench
    from mq.client import ReceivedMessage

GOALS = {
    "poll_128_per_s": (400_000.0, "at least"),
    "poll_128_vs_bytes": (0.25, "at least"),
    "poll_1k_vs_bytes": (0.5, "at least"),
    "poll_batch_128_vs_bytes": (0.25, "at least"),
    "poll_batch_1k_vs_bytes": (0.5, "at least"),
    "handler_128_per_s": (200_000.0, "at least"),
    "receive_ack_batch_per_s": (200_000.0, "at least"),
}
# Messages of one delivery of a megabyte.
_DELIVERED = {128: 7_000, 1024: 1_000}
_STORED_BYTES = {128: 1_500_000_000, 1024: 1_500_000_000}
_QUEUES = 8
_AT_ONCE, _RECEIVERS = 256, 4


# Parts


def poll(bench: Bench) -> None:
    for size, name in ((128, "128"), (1024, "1k")):
        with ceiling() as bare, bench.broker() as broker:
            _fill(broker.address, size)
            rates: dict[str, list[float]] = {"bytes": [], "poll": [], "poll_batch": []}
            for at in range(bench.rounds):
                for what, found in rates.items():
                    address, group = broker.address, f"{what}-{at}"
                    if what == "bytes":
                        address, group = bare, str(size)
                    found.append(_receive(what, address, bench.seconds, group))
                    progress.print(f"{what} {size} B: {found[-1]:,.0f} messages/s")
        bytes_rate = statistics.median(rates.pop("bytes"))
        bench.figures[f"bytes_{name}_per_s"] = bytes_rate
        for what, found in rates.items():
            bench.figures[f"{what}_{name}_per_s"] = statistics.median(found)
            bench.figures[f"{what}_{name}_vs_bytes"] = statistics.median(found) / bytes_rate


def handler(bench: Bench) -> None:
    _rate(bench, "handler", "handler_128_per_s")


def receive(bench: Bench) -> None:
    _rate(bench, "receive", "receive_ack_batch_per_s")


def receive_batch(bench: Bench) -> None:
    _rate(bench, "receive_batch", "receive_batch_ack_per_s")


PARTS: dict[str, Callable[[Bench], None]] = {
    "poll": poll,
    "handler": handler,
    "receive": receive,
    "receive_batch": receive_batch,
}


def _rate(bench: Bench, what: str, figure: str) -> None:
    with bench.broker() as broker:
        _fill(broker.address, 128)
        rates = []
        for at in range(bench.rounds):
            rates.append(_receive(what, broker.address, bench.seconds, f"{what}-{at}"))
            progress.print(f"{figure}: {rates[-1]:,.0f}")
    bench.figures[figure] = statistics.median(rates)


def _fill(address: str, size: int) -> None:
    create_topic(address, "bench", _QUEUES)
    stored = {"batch": 1_000, "seconds": 60, "bytes_max": _STORED_BYTES[size]}
    generate("produce", address, size=size, **stored)


def _receive(what: str, address: str, seconds: float, group: str) -> float:
    flags = {"seconds": seconds, "group": group}
    return run_program("bench.client_receive", what, address, flags)["messages_per_s"]


# The process that receives


class Meter:
    """Counts messages from the first ones on: joining the group is not measured."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        self._began_s = self._last_s = 0.0

    def add(self, count: int) -> bool:
        """Returns False when the time is over, or nothing more comes: the wait is not measured."""
        if not count:
            return False
        now_s = time.perf_counter()
        if not self._began_s:
            self._began_s = now_s
            return True
        self._count, self._last_s = self._count + count, now_s
        return now_s - self._began_s < self._seconds

    @property
    def per_s(self) -> float:
        return self._count / (self._last_s - self._began_s)


async def bytes_only(address: str, group: str, meter: Meter) -> float:
    """What a bare server streams; `group` is the size of a message."""
    size = int(group)
    options = [("grpc.max_receive_message_length", 64 << 20)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = channel.stream_stream("/bench.Ceiling/Subscribe")()
        await call.write(f"{size} {_DELIVERED[size]}".encode())
        while meter.add(_DELIVERED[size]):
            await call.read()
        call.cancel()
        return meter.per_s


async def polling(address: str, group: str, meter: Meter) -> float:
    async with Consumer(
        address, group, "bench", start="earliest", cache_messages=50_000
    ) as consumer:
        is_on, polls = True, 0
        while is_on:
            messages = await consumer.poll(1_000, 10.0)
            for one in messages:
                one.body  # noqa: B018 # reading it is what is measured
            polls += 1
            if polls % 100 == 0:
                await consumer.commit()
            is_on = meter.add(len(messages))
        return meter.per_s


async def polling_batches(address: str, group: str, meter: Meter) -> float:
    async with Consumer(
        address, group, "bench", start="earliest", cache_messages=50_000
    ) as consumer:
        is_on, polls = True, 0
        while is_on:
            batch = await consumer.poll_batch(10_000, 10.0)
            bodies = [] if batch is None else batch.bodies  # reading them is what is measured
            polls += 1
            if polls % 100 == 0:
                await consumer.commit()
            is_on = meter.add(len(bodies))
        return meter.per_s


async def handling(address: str, group: str, meter: Meter) -> float:
    is_over = asyncio.Event()
    count = 0

    async def handle(_: ReceivedMessage) -> None:
        nonlocal count
        count += 1
        if count % 1_000 == 0 and not meter.add(1_000):
            is_over.set()

    async with PushConsumer(
        address, group, "bench", handle, start="earliest", cache_messages=50_000
    ):
        await is_over.wait()
        return meter.per_s


async def receiving(address: str, group: str, meter: Meter) -> float:
    async def cycle(consumer: SimpleConsumer) -> int:
        messages = await consumer.receive(_AT_ONCE, 10.0)
        await consumer.ack(messages)
        return len(messages)

    return await _cycling(cycle, address, group, meter)


async def receiving_batches(address: str, group: str, meter: Meter) -> float:
    async def cycle(consumer: SimpleConsumer) -> int:
        batch = await consumer.receive_batch(_AT_ONCE, 10.0)
        batch.bodies  # noqa: B018 # reading them is a part of it
        await batch.ack()
        return len(batch)

    return await _cycling(cycle, address, group, meter)


async def _cycling(
    cycle: Callable[[SimpleConsumer], Awaitable[int]], address: str, group: str, meter: Meter
) -> float:
    async def work(consumer: SimpleConsumer) -> None:
        while meter.add(await cycle(consumer)):
            pass

    async with SimpleConsumer(address, group, "bench", start="earliest") as consumer:
        await asyncio.gather(*(work(consumer) for _ in range(_RECEIVERS)))
        return meter.per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    work: dict[str, Callable[[str, str, Meter], Awaitable[float]]] = {
        "bytes": bytes_only,
        "poll": polling,
        "poll_batch": polling_batches,
        "handler": handling,
        "receive": receiving,
        "receive_batch": receiving_batches,
    }
    parser.add_argument("what", choices=work)
    parser.add_argument("--address", required=True)
    parser.add_argument("--group", default="bench")
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments: Any = parser.parse_args()
    keep_freed_memory()

    async def measured() -> float:
        meter = Meter(arguments.seconds)
        return await work[arguments.what](arguments.address, arguments.group, meter)

    print(json.dumps({"messages_per_s": asyncio.run(measured())}))


if __name__ == "__main__":
    main()
