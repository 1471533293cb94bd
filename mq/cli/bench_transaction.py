"""The work of `mq bench transaction`: whole transactions, many at the same time, and plain sending
beside them for comparison.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

from mq.cli import loop
from mq.cli.bench_load import Load, Measured, Show, produce

if TYPE_CHECKING:
    from mq.client import HalfMessage

_PLAIN_MESSAGES = 50_000


def measure_transactions(load: Load, parallel: int, show: Show) -> tuple[Measured, Measured]:
    """Half message, local transaction that does nothing, commit; and plain sending."""
    whole = loop.run(_transact(load, parallel, show))
    plain = load.plain(_PLAIN_MESSAGES, load.seconds)
    return whole, produce(plain, 1, lambda _count, _done: None)


async def _transact(load: Load, parallel: int, show: Show) -> Measured:
    from mq.client import aio  # noqa: PLC0415

    async def execute(_message: HalfMessage, _arg: Any) -> str:
        return "COMMIT"

    async def check(_message: HalfMessage) -> str:
        return "UNKNOWN"

    # Random, or compression would make it a measurement of zeros.
    body, measured = os.urandom(load.size_bytes), Measured()
    async with aio.TransactionProducer(
        load.servers,
        f"bench-{uuid.uuid4().hex[:12]}",
        execute,
        check,
        timeout_s=load.timeout_s,
        in_flight_max=min(parallel, 64),
        **load.security,
    ) as producer:
        await producer.send_in_transaction(load.topic, body)  # connected, code loaded
        began_s = time.perf_counter()
        started = 0

        async def run() -> None:
            nonlocal started
            while not load.is_over(started, time.perf_counter() - began_s):
                started += 1
                sent_s = time.perf_counter()
                await producer.send_in_transaction(load.topic, body)
                now_s = time.perf_counter()
                measured.latencies_ms.append((now_s - sent_s) * 1000)
                measured.messages += 1
                show(measured.messages, load.thousandths(measured.messages, now_s - began_s))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(parallel):
                tasks.create_task(run())
        measured.seconds = time.perf_counter() - began_s
    measured.body_bytes = measured.messages * len(body)
    return measured
