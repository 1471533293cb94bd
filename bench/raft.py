"""Three replicas as real processes on loopback, every entry synced: ratios, because machines are
shared and noisy.

    throughput   256 KiB entries, eight in flight, against PySyncObj with its own transport and
                 journal on the same work (which syncs nothing)
    latency      one entry of 1 KiB at a time, against a bare loopback round trip plus one
                 fdatasync: another asyncio process that writes what it gets, syncs and answers
    failover     kill -9 of the leader under load, to the first newly committed entry
    rss          of the largest node, after all that

Ours and the baseline take turns; a ratio is of the medians over the rounds. `--json` prints one
object; `--full` takes longer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.raft_cluster import Cluster, Gone, Process, free_port

ENTRY_BYTES = 256 << 10
IN_FLIGHT = 8
SMALL_BYTES = 1024
FLOOR_ROUNDS = 1000
GOALS = {
    "throughput_vs_stock": (15.0, "at least"),
    "latency_vs_floor": (3.0, "at most"),
    "failover_s_median": (1.0, "at most"),
    "failover_s_max": (2.0, "at most"),
    "rss_mb": (150.0, "below"),
}
progress = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument(
        "--directory", help="where to write (default: the system's temporary directory)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.directory) as directory:
        figures = run(Path(directory), rounds=9 if arguments.full else 3)
    print(json.dumps(figures)) if arguments.json else show(figures)


def run(directory: Path, *, rounds: int) -> dict[str, float]:
    with Cluster(directory, 3, {"--log-level": "warning"}) as cluster:
        figures = bench_latency(cluster, directory, rounds)
        figures |= bench_throughput(cluster, directory, rounds)
        figures |= bench_failover(cluster, kills=10)
        figures["rss_mb"] = max(node.rss_mb() for node in cluster.running())
    return figures


# -- throughput ------------------------------------------------------------------------------------


def bench_throughput(cluster: Cluster, directory: Path, rounds: int) -> dict[str, float]:
    ours, stock = [], []
    for number in range(rounds):
        answer = cluster.leader().call(
            "load", size=ENTRY_BYTES, in_flight=IN_FLIGHT, seconds=2.0, timeout_s=60
        )
        ours.append(answer["mb_per_s"])
        stock.append(
            max(
                measure_stock(directory / f"stock-{number}-{batching}", batching)
                for batching in ("yes", "no")
            )
        )
        progress.print(
            f"throughput: {ours[-1]:.0f} MB/s, PySyncObj alone {stock[-1]:.1f} MB/s",
            highlight=False,
        )
    mine, theirs = statistics.median(ours), statistics.median(stock)
    return {
        "throughput_mb_per_s": mine,
        "stock_mb_per_s": theirs,
        "throughput_vs_stock": mine / theirs,
    }


def measure_stock(directory: Path, batching: str) -> float:
    """MB/s of the better of its two modes."""
    directory.mkdir()
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.raft_stock", address),
                ",".join(other for other in addresses if other != address),
                str(directory / f"{number}.journal"),
                *(str(ENTRY_BYTES), str(IN_FLIGHT), "2.0", batching),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for number, address in enumerate(addresses)
    ]
    try:
        outputs = [process.stdout for process in processes if process.stdout is not None]
        ready, _, _ = select.select(outputs, [], [], 60)
        return float(json.loads(ready[0].readline())["mb_per_s"])
    finally:
        for process in processes:
            process.kill()
            process.wait()


# -- latency ---------------------------------------------------------------------------------------


def bench_latency(cluster: Cluster, directory: Path, rounds: int) -> dict[str, float]:
    ours, floors = [], []
    leader = cluster.leader()
    leader.call("load", size=SMALL_BYTES, in_flight=1, seconds=0.5)
    for _ in range(rounds):
        answer = leader.call("load", size=SMALL_BYTES, in_flight=1, seconds=1.5)
        ours.append(answer["p50_ms"])
        floors.append(floor_ms(directory / "floor"))
        progress.print(
            f"latency: {ours[-1]:.2f} ms, round trip and sync alone {floors[-1]:.2f} ms",
            highlight=False,
        )
    mine, floor = statistics.median(ours), statistics.median(floors)
    return {"latency_ms": mine, "floor_ms": floor, "latency_vs_floor": mine / floor}


async def echo(path: Path, tell: Connection) -> None:
    """The least that a replica can do: write what comes, sync it, answer."""
    closed = asyncio.Event()
    with path.open("wb") as file:
        file.write(bytes(SMALL_BYTES * FLOOR_ROUNDS))
        file.flush()
        os.fsync(file.fileno())

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for number in range(FLOOR_ROUNDS):
                data = await reader.readexactly(SMALL_BYTES)
                os.pwrite(file.fileno(), data, number * SMALL_BYTES)
                os.fdatasync(file.fileno())
                writer.write(b"+")
            closed.set()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        tell.send(server.sockets[0].getsockname()[1])
        await closed.wait()


def run_echo(path: Path, tell: Connection) -> None:
    asyncio.run(echo(path, tell))


def floor_ms(path: Path) -> float:
    """A bare loopback round trip of 1 KiB between two asyncio processes, plus one fdatasync; the
    median.
    """
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=run_echo, args=(path, tell))
    process.start()
    port = told.recv()

    async def measure() -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times, message = [], os.urandom(SMALL_BYTES)
        for _ in range(FLOOR_ROUNDS):
            start = time.perf_counter()
            writer.write(message)
            await reader.readexactly(1)
            times.append(time.perf_counter() - start)
        writer.close()
        return times

    times = asyncio.run(measure())
    process.join()
    path.unlink()
    return statistics.median(times) * 1000


# -- fail-over -------------------------------------------------------------------------------------


def bench_failover(cluster: Cluster, kills: int) -> dict[str, float]:
    pauses = []
    for _ in range(kills):
        pause, killed = kill_leader(cluster)
        pauses.append(pause)
        killed.start()
        cluster.wait_same()
        progress.print(f"fail-over: {pause:.2f} s", highlight=False)
    return {"failover_s_median": statistics.median(pauses), "failover_s_max": max(pauses)}


def kill_leader(cluster: Cluster) -> tuple[float, Process]:
    """Seconds from the kill to the first entry that was proposed and committed after it."""
    leader = cluster.leader()
    others = [node for node in cluster.nodes.values() if node is not leader]
    load = leader.begin("load", size=SMALL_BYTES, in_flight=16, seconds=30.0)
    committed: queue.SimpleQueue[float] = queue.SimpleQueue()
    is_over = threading.Event()

    def try_one(node: Process) -> None:
        while not is_over.is_set():
            try:
                answer: dict[str, Any] = node.call(
                    "propose",
                    token="first",  # noqa: S106 - a mark in the log
                    timeout_s=10,
                )
            except (Gone, queue.Empty):
                return
            if "index" in answer:
                committed.put(time.perf_counter())
                return
            time.sleep(0.002)  # asks both nodes again, without taking their processor

    time.sleep(0.5)  # the load is under way when the leader dies
    threads = [threading.Thread(target=try_one, args=(node,)) for node in others]
    start = time.perf_counter()
    leader.kill()
    for thread in threads:
        thread.start()
    end = committed.get(timeout=30)
    is_over.set()
    for thread in threads:
        thread.join()
    load.get(timeout=1)
    return end - start, leader


# -- what people see -------------------------------------------------------------------------------


def show(figures: dict[str, float]) -> None:
    table = Table(title="Replication: three processes on one machine, sync flush")
    for column in ("figure", "measured", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        limit, word = GOALS.get(name, (None, ""))
        goal = f"{word} {limit:g}" if limit is not None else ""
        table.add_row(name, f"{value:,.2f}", goal)
    Console().print(table)


if __name__ == "__main__":
    main()
