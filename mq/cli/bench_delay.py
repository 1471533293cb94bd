"""The work of `mq bench delay`: how fast messages come on their topic that are due at one moment,
and how late single ones are.

Times are compared by the clock of this machine: a broker elsewhere has to agree with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from mq.cli import loop
from mq.cli.bench_load import Load, Measured, Show, produce
from mq.errors import Unreachable

if TYPE_CHECKING:
    from mq.client import Admin, aio

# Between the last send and the moment at which everything is due.
_REST_S = 1.0
_LOOK_S = 0.005
_SILENCE_S = 60.0
# Messages that measure lateness: so many, so many a second, each delayed by so much.
_SINGLES, _SINGLES_PER_S, _SINGLE_DELAY_S = 300, 100.0, 0.5
_BUFFER_BYTES = 16 << 20
_YIELD_EVERY = 64


def measure_delay(load: Load, group: str, admin: Admin, show: Show) -> tuple[Measured, Measured]:
    """Measures delivery, with the lateness of single messages as latency; and plain sending."""
    plain = produce(load, 1, show)
    delivered = loop.run(_deliver(load, admin, plain.seconds, show))
    delivered.latencies_ms = loop.run(_lateness(load, group))
    return delivered, plain


async def _deliver(load: Load, admin: Admin, plain_s: float, show: Show) -> Measured:
    """Sends everything for one moment, and looks how fast it comes then."""
    from mq.client import aio  # noqa: PLC0415

    count, body = load.messages or 0, os.urandom(load.size_bytes)
    expected = await asyncio.to_thread(_end, admin, load.topic) + count
    due_s = time.time() + 2 * plain_s + _REST_S
    async with aio.Producer(
        load.servers, timeout_s=load.timeout_s, buffer_bytes=_BUFFER_BYTES, **load.security
    ) as producer:
        while not await _send_for(producer, load.topic, body, count, due_s, show):
            # They were due before all of them were sent: with more time, again.
            expected += count
            due_s = time.time() + 3 * (time.time() - due_s + 2 * plain_s) + _REST_S
    await asyncio.sleep(max(0.0, due_s - time.time()))
    last_s, found = time.time(), 0
    while found < expected:
        now_found = await asyncio.to_thread(_end, admin, load.topic)
        now_s = time.time()
        if now_found > found:
            last_s, found = now_s, now_found
        elif now_s - last_s > _SILENCE_S:
            raise Unreachable(f"{expected - found} messages were not delivered in time")
        await asyncio.sleep(_LOOK_S)
    return Measured(count, count * len(body), last_s - due_s)


async def _send_for(
    producer: aio.Producer, topic: str, body: bytes, count: int, due_s: float, show: Show
) -> bool:
    """Whether all of them were stored before they are due."""
    from mq.client import Message  # noqa: PLC0415

    message = Message(body, deliver_at_ms=int(due_s * 1000))
    futures = []
    for number in range(count):
        futures.append(await producer.send_async(topic, message))
        if number % _YIELD_EVERY == 0:
            show(number, 1000 * number // count)
            # Until the buffer is full sending never waits, and answers could not come in.
            await asyncio.sleep(0)
    await asyncio.gather(*futures)
    return time.time() < due_s


def _end(admin: Admin, topic: str) -> int:
    """The number of messages that the topic has had."""
    return sum(queue.end for queue in admin.describe_topic(topic).queues)


async def _lateness(load: Load, group: str) -> list[float]:
    """The lateness of single messages at a low rate, until a consumer has them, in milliseconds."""
    from mq.client import Message, aio  # noqa: PLC0415

    due_ms: dict[bytes, int] = {}
    late_ms: list[float] = []
    async with (
        aio.Producer(load.servers, timeout_s=load.timeout_s, **load.security) as producer,
        aio.Consumer(load.servers, group, load.topic, start="latest", **load.security) as consumer,
    ):
        await _until_ready(producer, consumer, load.topic)
        sending = asyncio.create_task(_send_singles(producer, load.topic, due_ms, Message))
        silent_s = time.monotonic()
        try:
            while len(late_ms) < _SINGLES:
                for message in await consumer.poll(1_000, timeout_s=0.05):
                    if message.body in due_ms:
                        late_ms.append(time.time() * 1000 - due_ms.pop(message.body))
                        silent_s = time.monotonic()
                if time.monotonic() - silent_s > _SILENCE_S:
                    raise Unreachable(f"{_SINGLES - len(late_ms)} messages were not delivered")
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
    return late_ms


async def _until_ready(producer: aio.Producer, consumer: aio.Consumer, topic: str) -> None:
    """Returns when a message has made its way: connected, joined, code loaded."""
    deadline_s = time.monotonic() + _SILENCE_S
    while time.monotonic() < deadline_s:
        await consumer.poll(1_000, timeout_s=0.05)
        if consumer.assignment:
            await producer.send(topic, b"warm-up")
            if await consumer.poll(1_000, timeout_s=1.0):
                return
    raise Unreachable(f"no message came through within {_SILENCE_S:g} s")


async def _send_singles(
    producer: aio.Producer, topic: str, due_ms: dict[bytes, int], message: Any
) -> None:
    began_s = time.monotonic()
    for number in range(_SINGLES):
        await asyncio.sleep(max(0.0, began_s + number / _SINGLES_PER_S - time.monotonic()))
        body = os.urandom(16)
        result = await producer.send(topic, message(body, delay_s=_SINGLE_DELAY_S))
        due_ms[body] = result.deliver_at_ms
