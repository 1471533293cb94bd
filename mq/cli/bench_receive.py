"""The work of `mq bench receive`: several consumers receive and acknowledge what was just sent.

A round is a receive and the acknowledgement of all that it gave. Plain sending is measured in the
same run: the messages that are received are those that were sent for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING

from mq.cli import loop
from mq.cli.bench_load import Load, Measured, Show, produce
from mq.errors import Unreachable

if TYPE_CHECKING:
    from mq.client import aio

_SILENCE_S = 30.0


def measure_receive(
    load: Load, group: str, consumers: int, show: Show
) -> tuple[Measured, Measured]:
    """Measures receiving and acknowledging, with the latency of rounds; and plain sending."""
    loop.run(_begin(load, group))
    plain = produce(dataclasses.replace(load, batch=0), 1, show)
    return loop.run(_receive(load, group, consumers, plain.messages, show)), plain


async def _begin(load: Load, group: str) -> None:
    """The group starts behind what is there: it gets what is sent from now on."""
    from mq.client import aio  # noqa: PLC0415

    async with aio.SimpleConsumer(load.servers, group, load.topic, **load.security) as consumer:
        await consumer.receive(1, wait_s=0)


async def _receive(load: Load, group: str, consumers: int, expected: int, show: Show) -> Measured:
    from mq.client import aio  # noqa: PLC0415

    measured = Measured()

    async def work(consumer: aio.SimpleConsumer, began_s: float) -> None:
        while measured.messages < expected and not load.stopped:
            asked_s = time.perf_counter()
            messages = await consumer.receive(load.batch, wait_s=1.0)
            if messages:
                await consumer.ack(messages)
                now_s = time.perf_counter()
                measured.latencies_ms.append((now_s - asked_s) * 1000)
                measured.seconds = now_s - began_s
                measured.messages += len(messages)
                measured.body_bytes += sum(len(message.body) for message in messages)
                show(measured.messages, min(1000, 1000 * measured.messages // expected))
            elif time.perf_counter() - began_s - measured.seconds > _SILENCE_S:
                left = expected - measured.messages
                raise Unreachable(f"{left} messages did not come within {_SILENCE_S:g} s")

    members = [
        aio.SimpleConsumer(load.servers, group, load.topic, **load.security)
        for _ in range(consumers)
    ]
    try:
        # Connected, and their code loaded, before the clock starts; what comes here counts as well.
        await asyncio.gather(*(_warm_up(one, measured) for one in members))
        began_s = time.perf_counter()
        await asyncio.gather(*(work(one, began_s) for one in members))
    finally:
        await asyncio.gather(*(one.close() for one in members))
    return measured


async def _warm_up(consumer: aio.SimpleConsumer, measured: Measured) -> None:
    messages = await consumer.receive(1, wait_s=1.0)
    await consumer.ack(messages)
    measured.messages += len(messages)
    measured.body_bytes += sum(len(message.body) for message in messages)
