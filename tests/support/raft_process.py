"""A real node as a process of its own, with a door for tests and benchmarks: commands on stdin,
answers on stdout, one JSON object a line.

    {"do": "propose", "id": 7, "size": 1024, "token": "..."}  entries of so many bytes
    {"do": "send", "id": 8, "token": "...", "queue": 3}       a message in a queue; token = key
    {"do": "load", "size": N, "in_flight": N, "seconds": S}   keeps so many proposals on their way
    {"do": "status"}, {"do": "transfer"}, {"do": "add", ...}, {"do": "remove", ...}
    {"do": "drop_front", "count": N}, {"do": "stop"}

It is `mq server`, housekeeping and SIGTERM included; only the door is added. `python -m
tests.support.raft_process --data DIR --raft-members ...` takes the flags of `mq server`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from mq import config, logging
from mq.broker.state.machine import ProposedEntry
from mq.clock import SystemClock
from mq.errors import MqError, NotLeader
from mq.server import Parts, Server
from mq.store.batch import accept, encode_payload
from mq.store.format import Kind
from mq.wire.v1.message_pb2 import Batch, Message

if TYPE_CHECKING:
    from mq.raft.contracts import Committed

TOPIC = "orders"
# Entries that mean nothing to the broker.
OPAQUE = Kind.MEMBERSHIP
# Several nodes share a machine; only the other nodes connect to them.
PORTS = {"broker.port": "0", "metrics.enabled": "no"}


def main() -> None:
    flags = _flags(sys.argv[1:])
    loaded = config.load(None, {}, PORTS | flags)
    logging.configure(loaded.log.level, loaded.log.format)
    asyncio.run(_run(loaded))


def _flags(arguments: list[str]) -> dict[str, str]:
    by_flag = {flag: option.name for option in config.options() for flag in option.flags}
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return {by_flag[flag]: value for flag, value in pairs}


async def _run(loaded: config.Config) -> None:
    server, stop = Server(loaded, SystemClock()), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        async with server.started() as parts:
            # Open to the end: a caller of a stopping node is told so.
            door = asyncio.create_task(Door(parts).run(stop))
            await server._serve(parts, stop)
        door.cancel()
    except MqError as error:
        say(event="failed", error=str(error), code=error.code.value)
        sys.exit(3)


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Door:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._raft = parts.raft
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Sets `stop` when told so, or when the parent is gone."""
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        say(event="started", port=self._raft.port, pid=os.getpid())
        while line := await reader.readline():
            command = json.loads(line)
            if command["do"] == "stop":
                stop.set()
                continue
            task = asyncio.create_task(self._do(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        stop.set()

    async def _do(self, command: dict[str, Any]) -> None:
        action = getattr(self, f"_do_{command.pop('do')}")
        number = command.pop("id", None)
        try:
            answer = await action(**command)
        except NotLeader as error:
            say(id=number, error=error.code.value, leader=error.leader, text=str(error))
        except MqError as error:
            say(id=number, error=error.code.value, text=str(error))
        else:
            say(id=number, **answer)

    async def _do_propose(self, token: str, size: int = 0) -> dict[str, Any]:
        payload = token.encode().ljust(size, b".")
        committed = await self._raft.propose(OPAQUE, [payload])
        return {"index": committed.raft_index, "term": committed.term, "token": token}

    async def _do_send(self, token: str, queue: int = 0, size: int = 0) -> dict[str, Any]:
        message = Message(body=token.ljust(size).encode(), tag=token[:2], keys=[token])
        wire = Batch(topic=TOPIC, queue_id=queue, messages=[message]).SerializeToString()
        batches = [accept(wire, 1 << 20)]
        payload = encode_payload(batches)
        committed = await self._raft.propose(Kind.MESSAGES, payload, ProposedEntry(batches))
        return {"index": committed.raft_index, "term": committed.term, "token": token}

    async def _do_load(
        self, size: int, in_flight: int, seconds: float = 0.0, count: int = 0
    ) -> dict[str, Any]:
        """The number of committed entries; by time or by number. Latencies of each in ms."""
        payload = os.urandom(size)
        latencies: list[float] = []
        start = time.perf_counter()

        async def produce() -> None:
            while (
                len(latencies) + in_flight <= count
                if count
                else time.perf_counter() - start < seconds
            ):
                began = time.perf_counter()
                await self._raft.propose(OPAQUE, [payload])
                latencies.append((time.perf_counter() - began) * 1000)

        await asyncio.gather(*(produce() for _ in range(in_flight)))
        spent = time.perf_counter() - start
        latencies.sort()
        return {
            "entries": len(latencies),
            "seconds": spent,
            "mb_per_s": len(latencies) * size / spent / 1e6,
            "p50_ms": latencies[len(latencies) // 2] if latencies else None,
            "p99_ms": latencies[int(len(latencies) * 0.99)] if latencies else None,
        }

    async def _do_status(self) -> dict[str, Any]:
        status = self._raft.status()
        role, term, leader = status.leadership
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "role": role.name.lower(),
            "term": term,
            "leader": leader,
            "ready": self._raft.is_ready,
            "members": status.members,
            "first": status.first_index,
            "last": status.last_index,
            "durable": status.durable_index,
            "commit": status.commit_index,
            "applied": status.applied_index,
            "must_catch_up": status.must_catch_up,
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }

    async def _do_transfer(self) -> dict[str, Any]:
        return {"asked": self._raft.transfer_leadership()}

    async def _do_add(self, node: str, address: str) -> dict[str, Any]:
        return _fact(await self._raft.add_member(node, address))

    async def _do_remove(self, node: str) -> dict[str, Any]:
        return _fact(await self._raft.remove_member(node))

    async def _do_drop_front(self, count: int) -> dict[str, Any]:
        return {"dropped": self._parts.store.drop_front(count).segments}


def _fact(committed: Committed) -> dict[str, Any]:
    return {"index": committed.raft_index, "term": committed.term}


if __name__ == "__main__":
    main()
