"""The work of `mq bench`: sends and consumes as fast as it can, or at a rate, and measures.

Runs on an event loop, without the thread of the synchronous client, so that what is measured is
the library's core and the broker. Several producers are processes of their own, because Python uses
one core for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection as _Pipe
from multiprocessing.connection import wait as wait_for_any
from typing import TYPE_CHECKING, Any, cast

from mq.cli import loop
from mq.errors import Internal, MqError, Unreachable

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Barrier

    from mq.client import SendResult, aio

# Enough for a batch under way and one that grows for each of many queues; more would only wait.
_BUFFER_BYTES = 16 << 20
# The clock is read for one message of so many.
_SAMPLE_EVERY = 16
_YIELD_EVERY = 64
_BATCHES_UNDER_WAY = 16
_POLL_MESSAGES = 1_000
_START_S = 60.0
_SILENCE_S = 30.0
_SAY_EVERY_S = 0.1
# Which run, which message of it.
_NUMBER = struct.Struct("<QQ")

# How many messages there were, and how much of what was asked for is done, in thousandths.
Show = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The load to generate; ends by `messages` or by `seconds`, whichever comes first."""

    servers: str
    topic: str
    size_bytes: int
    messages: int | None
    seconds: float | None
    # 0: the producer makes batches by itself.
    batch: int = 0
    ack: Any = "quorum"
    timeout_s: float = 10.0
    # The arguments of clients about it.
    security: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    # Not empty: end now, and say what was measured until then.
    stopped: list[bool] = dataclasses.field(default_factory=list, repr=False)

    def plain(self, messages: int, seconds: float | None) -> Load:
        """As many messages of the same size, sent in the usual way."""
        return Load(
            self.servers,
            self.topic,
            self.size_bytes,
            messages,
            seconds,
            security=self.security,
            stopped=self.stopped,
        )

    def stop(self) -> None:
        self.stopped.append(True)

    def is_over(self, count: int, passed_s: float) -> bool:
        return (
            bool(self.stopped)
            or (self.messages is not None and count >= self.messages)
            or (self.seconds is not None and passed_s >= self.seconds)
        )

    def thousandths(self, count: int, passed_s: float) -> int:
        parts = [
            count / self.messages if self.messages else 0.0,
            passed_s / self.seconds if self.seconds else 0.0,
        ]
        return min(1000, int(1000 * max(parts)))


@dataclasses.dataclass(slots=True)
class Measured:
    messages: int = 0
    body_bytes: int = 0
    seconds: float = 0.0
    latencies_ms: list[float] = dataclasses.field(default_factory=list)

    @property
    def per_s(self) -> float:
        """0 if it was stopped before the clock started."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    def percentile_ms(self, share: float) -> float:
        return percentile(self.latencies_ms, share)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so many of them do not exceed."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# -- producing -------------------------------------------------------------------------------------


def produce(load: Load, producers: int, show: Show) -> Measured:
    if producers == 1:
        return loop.run(_produce(load, show, lambda: None))
    return _produce_in_processes(load, producers, show)


async def _produce(load: Load, show: Show, begin: Callable[[], object]) -> Measured:
    from mq.client import aio  # noqa: PLC0415

    # Random, or compression would make it a measurement of zeros.
    body = os.urandom(load.size_bytes)
    async with aio.Producer(
        load.servers,
        ack=load.ack,
        timeout_s=load.timeout_s,
        buffer_bytes=max(_BUFFER_BYTES, 4 * load.size_bytes),
        **load.security,
    ) as producer:
        # Connected, and its code loaded, before the clock starts.
        await producer.send(load.topic, body)
        begin()
        began_s = time.perf_counter()
        if load.batch > 1:
            measured = await _send_batches(producer, load, body, began_s, show)
        else:
            measured = await _send_single(producer, load, body, began_s, show)
        measured.seconds = time.perf_counter() - began_s
    return measured


async def _send_single(
    producer: aio.Producer, load: Load, body: bytes, began_s: float, show: Show
) -> Measured:
    measured = Measured()
    unanswered: deque[asyncio.Future[SendResult]] = deque()
    count, passed_s = 0, 0.0
    try:
        while not load.is_over(count, passed_s):
            future = await producer.send_async(load.topic, body)
            unanswered.append(future)
            if count % _SAMPLE_EVERY == 0:
                sent_s = time.perf_counter()
                future.add_done_callback(_timer(measured.latencies_ms, sent_s))
                passed_s = sent_s - began_s
                show(count, load.thousandths(count, passed_s))
            if count % _YIELD_EVERY == 0:
                # Until the buffer is full sending never waits, and answers could not come in.
                await asyncio.sleep(0)
                while unanswered and unanswered[0].done():
                    unanswered.popleft().result()
            count += 1
        await asyncio.gather(*unanswered)
    finally:
        # Retrieve all outcomes: asyncio would warn of each failure that was not.
        await producer.flush()
        for future in unanswered:
            future.exception()
    measured.messages, measured.body_bytes = count, count * len(body)
    return measured


def _timer(latencies_ms: list[float], sent_s: float) -> Callable[[object], None]:
    return lambda _: latencies_ms.append((time.perf_counter() - sent_s) * 1000)


async def _send_batches(
    producer: aio.Producer, load: Load, body: bytes, began_s: float, show: Show
) -> Measured:
    """Some senders, each with one batch under way at a time."""
    measured = Measured()
    started = 0

    async def send() -> None:
        nonlocal started
        while not load.is_over(started, time.perf_counter() - began_s):
            count = load.batch
            if load.messages is not None:
                count = min(count, load.messages - started)
            started += count
            sent_s = time.perf_counter()
            await producer.send_batch(load.topic, [body] * count)
            now_s = time.perf_counter()
            measured.latencies_ms.append((now_s - sent_s) * 1000)
            measured.messages += count
            show(measured.messages, load.thousandths(measured.messages, now_s - began_s))

    await asyncio.gather(*(send() for _ in range(_BATCHES_UNDER_WAY)))
    measured.body_bytes = measured.messages * len(body)
    return measured


# -- several producers -----------------------------------------------------------------------------


def _produce_in_processes(load: Load, producers: int, show: Show) -> Measured:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(producers + 1)
    processes, pipes = [], []
    for number in range(producers):
        ours, theirs = context.Pipe(duplex=False)
        share = load
        if load.messages is not None:
            part = load.messages // producers + (number < load.messages % producers)
            share = dataclasses.replace(load, messages=part)
        arguments = share, barrier, theirs
        processes.append(context.Process(target=_producer_process, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        # Broken by one that has failed: its own words come below.
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(_START_S)
        began_s = time.perf_counter()
        with _stopping_all(load, processes):
            parts = _gather(pipes, load, began_s, show)
        seconds = time.perf_counter() - began_s
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join(_START_S)
    return Measured(
        messages=sum(part.messages for part in parts),
        body_bytes=sum(part.body_bytes for part in parts),
        seconds=seconds,
        latencies_ms=[each for part in parts for each in part.latencies_ms],
    )


def _producer_process(load: Load, barrier: Barrier, pipe: _Pipe) -> None:
    """Says how many it has sent, from time to time, and what it measured, or its error, at last."""
    # Ctrl-C reaches all processes of a terminal, and the parent hands on what reached it alone.
    signal.signal(signal.SIGINT, lambda _signal, _frame: load.stop())
    said_s = 0.0

    def show(count: int, _: int) -> None:
        nonlocal said_s
        now_s = time.perf_counter()
        if now_s - said_s > _SAY_EVERY_S:
            said_s = now_s
            pipe.send(count)

    try:
        pipe.send(asyncio.run(_produce(load, show, lambda: barrier.wait(_START_S))))
    except MqError as error:
        barrier.abort()
        pipe.send((type(error), str(error)))


@contextlib.contextmanager
def _stopping_all(load: Load, processes: Sequence[BaseProcess]) -> Iterator[None]:
    """While the context lasts, a stop of the load stops the processes as well."""

    def watch() -> None:
        while not is_over.wait(_SAY_EVERY_S):
            if load.stopped:
                for process in processes:
                    if process.pid is not None and process.is_alive():
                        os.kill(process.pid, signal.SIGINT)
                return

    is_over = threading.Event()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _gather(pipes: Sequence[_Pipe], load: Load, began_s: float, show: Show) -> list[Measured]:
    """The measurements of each process. Raises the error of the first one that failed."""
    counts: dict[Any, int] = dict.fromkeys(pipes, 0)
    parts: list[Measured] = []
    failures: list[MqError] = []
    while counts:
        for pipe in wait_for_any(list(counts)):
            try:
                said = cast("_Pipe", pipe).recv()
            except EOFError:
                said = Internal, "a producer process ended without a result"
            if isinstance(said, int):
                counts[pipe] = said
                total = sum(counts.values()) + sum(part.messages for part in parts)
                show(total, load.thousandths(total, time.perf_counter() - began_s))
                continue
            del counts[pipe]
            if isinstance(said, Measured):
                parts.append(said)
            else:
                kind, text = said
                # Some classes make their text of parts that are not here.
                error = kind.__new__(kind)
                error.args = (text,)
                failures.append(error)
    if failures:
        raise failures[0]
    return parts


# -- consuming -------------------------------------------------------------------------------------


def consume(load: Load, group: str, show: Show) -> Measured:
    """From the start of the topic; a latency is how long one poll takes."""
    return loop.run(_consume(load, group, show))


async def _consume(load: Load, group: str, show: Show) -> Measured:
    from mq.client import aio  # noqa: PLC0415

    measured = Measured()
    async with aio.Consumer(
        load.servers, group, load.topic, start="earliest", **load.security
    ) as consumer:
        # The clock starts with the first messages: joining the group is not measured.
        first = await consumer.poll(1, timeout_s=_START_S)
        if not first:
            raise Unreachable(f"no message of {load.topic} came within {_START_S:g} s")
        began_s = now_s = time.perf_counter()
        while not load.is_over(measured.messages, now_s - began_s):
            left = _POLL_MESSAGES
            if load.messages is not None:
                left = min(left, load.messages - measured.messages)
            messages = await consumer.poll(left, timeout_s=_SILENCE_S if load.messages else 1.0)
            polled_s, now_s = now_s, time.perf_counter()
            if not messages:
                if load.messages is None:
                    break
                raise Unreachable(f"no message of {load.topic} came within {_SILENCE_S:g} s")
            measured.latencies_ms.append((now_s - polled_s) * 1000)
            measured.messages += len(messages)
            measured.body_bytes += sum(len(message.body) for message in messages)
            show(measured.messages, load.thousandths(measured.messages, now_s - began_s))
        measured.seconds = now_s - began_s
    return measured


# -- latency ---------------------------------------------------------------------------------------


def measure_latency(
    load: Load, group: str, rate_per_s: float, show: Show
) -> tuple[Measured, Measured]:
    """End to end, and until the send is answered. Both count from the moment at which a message was
    to be sent, so that a stall counts for all that had to wait for it.
    """
    return loop.run(_measure_latency(load, group, rate_per_s, show))


async def _measure_latency(
    load: Load, group: str, rate_per_s: float, show: Show
) -> tuple[Measured, Measured]:
    from mq.client import aio  # noqa: PLC0415

    async with (
        aio.Producer(
            load.servers, ack=load.ack, timeout_s=load.timeout_s, **load.security
        ) as producer,
        aio.Consumer(load.servers, group, load.topic, start="latest", **load.security) as consumer,
    ):
        trip = _RoundTrip(load, producer, consumer)
        await trip.warm_up()
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(trip.receive())
            await trip.send_at(rate_per_s, began_s, tasks, show)
            await receiving
        trip.received.seconds = time.perf_counter() - began_s
    return trip.received, trip.answered


class _RoundTrip:
    """Messages that one process sends and receives, told apart by a number in the body."""

    def __init__(self, load: Load, producer: aio.Producer, consumer: aio.Consumer) -> None:
        self._load = load
        self._producer = producer
        self._consumer = consumer
        # Others may use the topic at the same time, and former runs have.
        self._run_id = int.from_bytes(os.urandom(8), "little")
        self._padding = os.urandom(max(0, load.size_bytes - _NUMBER.size))
        self._due_s: dict[int, float] = {}
        self._sent = 0
        self._is_all_sent = False
        self.received = Measured()
        self.answered = Measured()

    async def warm_up(self) -> None:
        """Returns when a message has made its way: connected, joined, code loaded."""
        deadline_s = time.monotonic() + _START_S
        while True:
            await self._consumer.poll(1, timeout_s=0.05)
            if self._consumer.assignment:
                await self._producer.send(self._load.topic, b"warm-up")
                if await self._consumer.poll(1, timeout_s=1.0):
                    return
            if time.monotonic() > deadline_s:
                raise Unreachable(f"no message came through within {_START_S:g} s")

    async def send_at(
        self, rate_per_s: float, began_s: float, tasks: asyncio.TaskGroup, show: Show
    ) -> None:
        """At this rate, whether or not those before were answered; 0: one after the other."""
        passed_s = 0.0
        while not self._load.is_over(self._sent, passed_s):
            due_s = time.perf_counter()
            if rate_per_s:
                due_s = began_s + self._sent / rate_per_s
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            sending = tasks.create_task(self._send(self._sent, due_s))
            self._sent += 1
            if not rate_per_s:
                await sending
            passed_s = time.perf_counter() - began_s
            show(self._sent, self._load.thousandths(self._sent, passed_s))
        self._is_all_sent = True

    async def _send(self, number: int, due_s: float) -> None:
        self._due_s[number] = due_s
        body = _NUMBER.pack(self._run_id, number) + self._padding
        await self._producer.send(self._load.topic, body)
        self.answered.messages += 1
        self.answered.latencies_ms.append((time.perf_counter() - due_s) * 1000)

    async def receive(self) -> None:
        """Until everything has come."""
        received = self.received
        last_s = time.perf_counter()
        while not self._is_all_sent or received.messages < self._sent:
            messages = await self._consumer.poll(_POLL_MESSAGES, timeout_s=0.05)
            now_s = time.perf_counter()
            for message in messages:
                due_s = self._due_of(message.body)
                if due_s is not None:
                    received.latencies_ms.append((now_s - due_s) * 1000)
                    received.body_bytes += len(message.body)
                    received.messages += 1
                    last_s = now_s
            if now_s - last_s > _SILENCE_S:
                missing = self._sent - received.messages
                raise Unreachable(f"{missing} messages did not come within {_SILENCE_S:g} s")

    def _due_of(self, body: bytes) -> float | None:
        """None when it is no message of this run, or came before."""
        if len(body) < _NUMBER.size:
            return None
        run_id, number = _NUMBER.unpack_from(body)
        return self._due_s.pop(number, None) if run_id == self._run_id else None
