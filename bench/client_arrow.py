"""Columns with our own client: the parts of bench.client, and the process that reads or writes.

    arrow_read     Consumer.poll_arrow, with commits, against a bare gRPC stream of the same bytes
    arrow_write    Producer.send_arrow of a table of bodies, against send_async of each body

`python -m bench.client_arrow read --address ...` prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.broker import ceiling, create_topic, generate, progress, run_program
from bench.client_receive import Meter, bytes_only
from mq.client import Producer
from mq.client.aio import Consumer
from mq.memory import keep_freed_memory

if TYPE_CHECKING:
    from bench.client import Bench

GOALS = {
    "arrow_read_128_per_s": (1_000_000.0, "at least"),
    "arrow_read_128_vs_bytes": (0.5, "at least"),
    "arrow_write_vs_send": (4.0, "at least"),
}
_SIZE = 128
_STORED_BYTES = 1_500_000_000
_QUEUES = 8
_TABLE_ROWS = 200_000
_POLLS_A_COMMIT = 20


# Parts


def arrow_read(bench: Bench) -> None:
    with ceiling() as bare, bench.broker() as broker:
        create_topic(broker.address, "bench", _QUEUES)
        stored = {"batch": 1_000, "seconds": 60, "bytes_max": _STORED_BYTES}
        generate("produce", broker.address, size=_SIZE, **stored)
        ours, theirs = [], []
        for at in range(bench.rounds):
            theirs.append(_measure(bench, "bytes", bare, str(_SIZE)))
            ours.append(_measure(bench, "read", broker.address, f"arrow-{at}"))
            progress.print(f"arrow_read: {ours[-1]:,.0f} of {theirs[-1]:,.0f} rows/s")
    rate = statistics.median(ours)
    bench.figures["arrow_read_128_per_s"] = rate
    bench.figures["arrow_read_128_vs_bytes"] = rate / statistics.median(theirs)


def arrow_write(bench: Bench) -> None:
    ours, theirs = [], []
    with bench.broker() as broker:
        create_topic(broker.address, "bench", _QUEUES)
        for _ in range(bench.rounds):
            theirs.append(_measure(bench, "send", broker.address))
            ours.append(_measure(bench, "write", broker.address))
            progress.print(f"arrow_write: {ours[-1]:,.0f}, send_async {theirs[-1]:,.0f} rows/s")
    bench.figures["arrow_write_128_per_s"] = statistics.median(ours)
    bench.figures["arrow_write_vs_send"] = statistics.median(ours) / statistics.median(theirs)


PARTS: dict[str, Callable[[Bench], None]] = {"arrow_read": arrow_read, "arrow_write": arrow_write}


def _measure(bench: Bench, what: str, address: str, group: str = "bench") -> float:
    flags = {"seconds": bench.seconds, "group": group}
    return run_program("bench.client_arrow", what, address, flags)["messages_per_s"]


# The process


async def reading(address: str, group: str, meter: Meter) -> float:
    async with Consumer(
        address, group, "bench", start="earliest", cache_messages=100_000
    ) as consumer:
        is_on, polls = True, 0
        while is_on:
            batch = await consumer.poll_arrow(timeout_s=10.0)
            polls += 1
            if polls % _POLLS_A_COMMIT == 0:
                await consumer.commit()
            is_on = meter.add(batch.num_rows)
        return meter.per_s


def writing(address: str, seconds: float, *, as_table: bool) -> float:
    bodies = [os.urandom(_SIZE) for _ in range(_TABLE_ROWS)]
    table = pa.table({"body": bodies})
    with Producer(address, timeout_s=20.0) as producer:
        producer.send("bench", bodies[0])  # connected before the clock starts
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() < began_s + seconds:
            if as_table:
                producer.send_arrow("bench", table)
            else:
                for body in bodies:
                    producer.send_async("bench", body)
                producer.flush()
            count += len(bodies)
        return count / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["bytes", "read", "send", "write"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--group", default="bench")
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments: Any = parser.parse_args()
    keep_freed_memory()
    if arguments.what in ("send", "write"):
        as_table = arguments.what == "write"
        rate = writing(arguments.address, arguments.seconds, as_table=as_table)
    else:
        work = reading if arguments.what == "read" else bytes_only

        async def measured() -> float:
            return await work(arguments.address, arguments.group, Meter(arguments.seconds))

        rate = asyncio.run(measured())
    print(json.dumps({"messages_per_s": rate}))


if __name__ == "__main__":
    main()
