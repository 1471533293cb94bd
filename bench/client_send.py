"""Sending with our own client: the parts of bench.client, and the process that sends.

`python -m bench.client_send async --address ...` sends for so long, waits for all answers, and
prints one JSON object. Bodies are of random bytes; results are asked for now and then, as by a
program that wants to know of errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.broker import Figures, create_topic, progress, run_program
from mq.client import Message, Producer, aio
from mq.memory import keep_freed_memory

if TYPE_CHECKING:
    from bench.client import Bench

GOALS = {
    "send_128_per_s": (250_000.0, "at least"),
    "send_1k_per_s": (130_000.0, "at least"),
    "send_many_128_vs_send": (3.0, "at least"),
    "send_message_128_per_s": (0.0, "printed"),
    "send_asyncio_128_per_s": (0.0, "printed"),
}
_QUEUES = 8
_BODIES = 1_000
# Messages of one `send_many`: those of some requests, so that the wait for the last is short.
_MANY = 100_000
_TIMEOUT_S = 20.0


# Parts


def send(bench: Bench) -> None:
    """All ways to send 128 B take turns."""
    names = {
        "async": "send_128_per_s",
        "many": "send_many_128_per_s",
        "message": "send_message_128_per_s",
        "asyncio": "send_asyncio_128_per_s",
    }
    rates: dict[str, list[float]] = {name: [] for name in names}
    with bench.broker() as broker:
        create_topic(broker.address, "bench", _QUEUES)
        for _ in range(bench.rounds):
            for name, found in rates.items():
                found.append(_send(name, broker.address, bench.seconds, 128))
    for name, found in rates.items():
        bench.figures[names[name]] = statistics.median(found)
    ratio = bench.figures["send_many_128_per_s"] / bench.figures["send_128_per_s"]
    bench.figures["send_many_128_vs_send"] = ratio


def send_1k(bench: Bench) -> None:
    with bench.broker() as broker:
        create_topic(broker.address, "bench", _QUEUES)
        rates = [_send("async", broker.address, bench.seconds, 1024) for _ in range(bench.rounds)]
    bench.figures["send_1k_per_s"] = statistics.median(rates)


PARTS: dict[str, Callable[[Bench], None]] = {"send": send, "send_1k": send_1k}


def _send(what: str, address: str, seconds: float, size: int) -> float:
    figures = run_program("bench.client_send", what, address, {"seconds": seconds, "size": size})
    rate, cpu_us = figures["messages_per_s"], figures["cpu_us"]
    progress.print(f"{what}, {size} B: {rate:,.0f} messages/s, {cpu_us:.1f} µs of CPU each")
    return rate


# The process that sends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["async", "message", "many", "asyncio"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--size", type=int, required=True)
    arguments = parser.parse_args()
    keep_freed_memory()
    bodies = [os.urandom(arguments.size) for _ in range(_BODIES)]
    if arguments.what == "asyncio":
        figures = asyncio.run(_with_asyncio(arguments.address, bodies, arguments.seconds))
    else:
        with Producer(arguments.address, timeout_s=_TIMEOUT_S) as producer:
            producer.send("bench", bodies[0])  # connected before the clock starts
            if arguments.what == "many":
                figures = _send_many(producer, bodies, arguments.seconds)
            else:
                wraps = arguments.what == "message"
                figures = _send_async(producer, bodies, arguments.seconds, wraps=wraps)
    print(json.dumps(figures))


class _Clock:
    def __init__(self, seconds: float) -> None:
        self._end_s = time.perf_counter() + seconds
        self._began_s, self._cpu_s = time.perf_counter(), time.process_time()

    def is_over(self) -> bool:
        return time.perf_counter() > self._end_s

    def figures(self, count: int) -> Figures:
        seconds = time.perf_counter() - self._began_s
        cpu_us = (time.process_time() - self._cpu_s) / count * 1e6
        return {"messages_per_s": count / seconds, "cpu_us": cpu_us}


def _send_async(producer: Producer, bodies: list[bytes], seconds: float, *, wraps: bool) -> Figures:
    clock, last = _Clock(seconds), []
    while not clock.is_over():
        if wraps:
            for body in bodies:
                future = producer.send_async("bench", Message(body))
        else:
            for body in bodies:
                future = producer.send_async("bench", body)
        last.append(future)
    producer.flush()
    figures = clock.figures(len(last) * len(bodies))
    for future in last:
        future.result(_TIMEOUT_S)
    return figures


def _send_many(producer: Producer, bodies: list[bytes], seconds: float) -> Figures:
    many = bodies * (_MANY // len(bodies))
    clock, count = _Clock(seconds), 0
    while not clock.is_over():
        count += len(producer.send_many("bench", many))
    return clock.figures(count)


async def _with_asyncio(address: str, bodies: list[bytes], seconds: float) -> Figures:
    async with aio.Producer(address, timeout_s=_TIMEOUT_S) as producer:
        await producer.send("bench", bodies[0])
        clock, last = _Clock(seconds), []
        while not clock.is_over():
            for body in bodies:
                future = await producer.send_async("bench", body)
            last.append(future)
            # Until the buffer is full sending never waits, and answers could not come in.
            await asyncio.sleep(0)
        await producer.flush()
        figures = clock.figures(len(last) * len(bodies))
        await asyncio.gather(*last)
    return figures


if __name__ == "__main__":
    main()
