"""Replication on the loop that serves gRPC, or on a loop in a thread of its own.

Three processes; the leader takes batches on a gRPC stream, proposes each as an entry and answers
when it is committed. The same work with both arrangements, in turns: acknowledged batches a second
and latency. Needs the development packages. docs/adr/0005 has the figures that decided.
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
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from mq import config, logging
from mq.clock import SystemClock
from mq.server import Parts, Server
from mq.store.format import Kind
from tests.support.raft_cluster import free_port

METHOD = "/bench/Publish"
OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.so_reuseport", 0)]
WORK = {"128 KiB x 8": (128 << 10, 8), "1 KiB x 1": (1024, 1), "1 KiB x 64": (1024, 64)}
Propose = Callable[[bytes], Awaitable[object]]


# -- a node ----------------------------------------------------------------------------------------


async def serve(arguments: argparse.Namespace) -> None:
    flags = {
        "node.data": arguments.data,
        "node.id": arguments.node,
        "raft.members": arguments.members,
        "log.level": "error",
    }
    logging.configure("error", "console")
    server = Server(config.load(None, {}, flags), SystemClock())
    if arguments.arrangement == "thread":
        parts, propose = await _start_in_thread(server)
    else:
        context = server.started()
        parts = await context.__aenter__()

        def propose(payload: bytes) -> Awaitable[object]:
            return parts.raft.propose(Kind.MEMBERSHIP, [payload])

    grpc_server = grpc.aio.server(options=OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(_publisher(propose))
    grpc_server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", {"Publish": handler}),)
    )
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    while not parts.raft.is_ready:  # noqa: ASYNC110 - the node may live on another loop
        await asyncio.sleep(0.01)
    print(json.dumps({"port": port, "role": parts.raft.leadership.role.name}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


async def _start_in_thread(server: Server) -> tuple[Parts, Propose]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    context = server.started()

    async def start() -> Parts:
        return await context.__aenter__()

    parts = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), loop))

    async def on_its_loop(payload: bytes) -> object:
        return await parts.raft.propose(Kind.MEMBERSHIP, [payload])

    def propose(payload: bytes) -> Awaitable[object]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(on_its_loop(payload), loop))

    # The context lives as long as its last user: it is never left.
    return parts, lambda payload, _=context: propose(payload)


def _publisher(propose: Propose) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
    async def publish(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        waiting: asyncio.Queue[Awaitable[object] | None] = asyncio.Queue(256)

        async def read() -> None:
            async for request in requests:
                await waiting.put(propose(request))
            await waiting.put(None)

        reading = asyncio.ensure_future(read())
        while (future := await waiting.get()) is not None:
            await future
            yield b"ok"
        await reading

    return publish


# -- the measurement -------------------------------------------------------------------------------


async def load(port: int, size: int, in_flight: int, seconds: float) -> tuple[float, float]:
    """Batches a second, and the median latency in ms."""
    payload = os.urandom(size)
    begun: list[float] = []
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        call = channel.stream_stream(METHOD)()
        start = time.perf_counter()
        for _ in range(in_flight):
            begun.append(time.perf_counter())
            await call.write(payload)
        while time.perf_counter() - start < seconds:
            await call.read()
            latencies.append(time.perf_counter() - begun[len(latencies)])
            begun.append(time.perf_counter())
            await call.write(payload)
        call.cancel()
    return len(latencies) / seconds, statistics.median(latencies) * 1000


def measure(arrangement: str, seconds: float) -> dict[str, tuple[float, float]]:
    with tempfile.TemporaryDirectory() as directory:
        names = ["n0", "n1", "n2"]
        members = ",".join(f"{name}=127.0.0.1:{free_port()}" for name in names)
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "bench.raft_loop", "--node", name),
                    *("--data", str(Path(directory) / name), "--members", members),
                    *("--arrangement", arrangement),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for name in names
        ]
        try:
            started = [
                json.loads(process.stdout.readline()) for process in processes if process.stdout
            ]
            port = next(each["port"] for each in started if each["role"] == "LEADER")
            return {name: asyncio.run(load(port, *work, seconds)) for name, work in WORK.items()}
        finally:
            for process in processes:
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    for hidden in ("--node", "--data", "--members", "--arrangement"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node:
        asyncio.run(serve(arguments))
        return
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for _ in range(arguments.rounds):
        for arrangement in ("one loop", "thread"):
            for name, figures in measure(arrangement, arguments.seconds).items():
                found.setdefault(name, {}).setdefault(arrangement, []).append(figures)
    table = Table("batches", "one loop /s", "thread /s", "one loop ms", "thread ms")
    for name, by_arrangement in found.items():
        one, thread = (
            [statistics.median(column) for column in zip(*by_arrangement[each], strict=True)]
            for each in ("one loop", "thread")
        )
        cells = (f"{one[0]:,.0f}", f"{thread[0]:,.0f}", f"{one[1]:.2f}", f"{thread[1]:.2f}")
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
