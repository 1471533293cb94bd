"""What open tabs of the console cost the producers: sends one by one to three nodes, each on the
disks of a majority, while no tab is open and while many are.

A tab follows a topic that moves, and asks for its page and plot every five seconds, as browsers do.
The tabs are HTTP connections, not browsers. Brokers and sender have one processor, console and tabs
another, as if they were on machines of their own: it is the cost for brokers that is measured.
`--shared` lets all of them have all processors; console and tabs are nice then.
Rounds alternate; the spread of the rounds without a tab is the noise. The last line is one JSON
object: latencies in milliseconds, and the brokers' CPU in seconds a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from bench.broker_set import BrokerSet
from mq.client import Admin, Message, Producer
from tests.support.console import ConsoleProcess

_TOPIC, _QUEUES = "orders", 8
_REFRESH_S = 5.0
_NICE = 10
_PATHS = (f"/topics/{_TOPIC}", f"/topics/{_TOPIC}/series.json")
progress = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="of each kind")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one round")
    parser.add_argument("--tabs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=100.0, help="messages a second")
    parser.add_argument("--shared", action="store_true", help="processors are shared by all")
    parser.add_argument("--open", metavar="URL", help="be the tabs, of the console there")
    arguments = parser.parse_args()
    if arguments.open:
        asyncio.run(open_tabs(arguments.open, arguments.tabs))
        return
    found: dict[str, list[tuple[float, ...]]] = {"alone": [], "tabs": []}
    ours, theirs = _processors(is_shared=arguments.shared)
    # Of this thread, and of all processes and threads that it starts.
    os.sched_setaffinity(0, ours)
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerSet(Path(directory) / "set", 3, "sync") as brokers,
        _console(brokers.address, theirs) as console,
        Producer(brokers.address) as producer,
    ):
        with Admin(brokers.address) as admin:
            admin.create_topic(_TOPIC, _QUEUES)
        os.setpriority(os.PRIO_PROCESS, console.pid, _NICE)
        measure(producer, 3.0, arguments.rate)
        for number in range(2 * arguments.rounds):
            kind = ("alone", "tabs")[number % 2]
            with tabs(console.url, arguments.tabs if kind == "tabs" else 0, theirs):
                before_s = brokers.cpu_s()
                p50, p99 = measure(producer, arguments.seconds, arguments.rate)
                cpu = (brokers.cpu_s() - before_s) / arguments.seconds
            found[kind].append((p50, p99, cpu))
            progress.print(f"{kind:6} p50 {p50:.2f} ms, p99 {p99:.2f} ms, CPU of brokers {cpu:.0%}")
    print(json.dumps(_figures(found)))


def _processors(*, is_shared: bool) -> tuple[set[int], set[int]]:
    """Those of brokers and sender, and those of console and tabs."""
    usable = os.sched_getaffinity(0)
    if is_shared or len(usable) < 2:
        return usable, usable
    first, *others = sorted(usable)
    return {first}, set(others)


@contextmanager
def _console(servers: str, processors: set[int]) -> Iterator[ConsoleProcess]:
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    with ConsoleProcess(servers) as console:
        os.sched_setaffinity(0, ours)
        yield console


def _figures(found: dict[str, list[tuple[float, ...]]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for kind, rounds in found.items():
        columns = zip(("p50_ms", "p99_ms", "cpu"), zip(*rounds, strict=True), strict=True)
        for name, values in columns:
            figures[f"{kind}_{name}"] = round(statistics.median(values), 2)
            figures[f"{kind}_{name}_min"] = round(min(values), 2)
            figures[f"{kind}_{name}_max"] = round(max(values), 2)
    return figures


def measure(producer: Producer, seconds: float, rate: float) -> tuple[float, float]:
    """p50 and p99 of sends at this rate, in milliseconds."""
    taken = []
    next_s = time.perf_counter()
    end_s = next_s + seconds
    while next_s < end_s:
        time.sleep(max(0.0, next_s - time.perf_counter()))
        began_s = time.perf_counter()
        producer.send(_TOPIC, Message(b"x" * 256, tag="paid", keys=["order-7"]))
        taken.append(1000 * (time.perf_counter() - began_s))
        next_s += 1 / rate
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


@contextmanager
def tabs(url: str, count: int, processors: set[int]) -> Iterator[None]:
    """So many, in a process of their own: it would hold up the sends of this one."""
    command = [sys.executable, "-m", "bench.console", "--open", url, "--tabs", str(count)]
    process = subprocess.Popen(command) if count else None
    if process is not None:
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        os.sched_setaffinity(process.pid, processors)
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


async def open_tabs(url: str, count: int) -> None:
    await asyncio.gather(*(_tab(url, _REFRESH_S * at / count) for at in range(count)))


async def _tab(url: str, begin_s: float) -> None:
    """Follows the topic, and refreshes."""

    async def refresh() -> None:
        await asyncio.sleep(begin_s)
        while True:
            for path in _PATHS:
                await _get(url, path)
            await asyncio.sleep(_REFRESH_S)

    await asyncio.gather(_get(url, f"/messages/tail?topic={_TOPIC}"), refresh())


async def _get(url: str, path: str) -> None:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


if __name__ == "__main__":
    main()
