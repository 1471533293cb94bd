"""Reads of old messages: on a thread, one at a time, gently, and safe from retention."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mq.broker.consumer import cold_reads
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.pulling import Query
from mq.broker.queue import Queue
from mq.errors import QueueDamaged
from mq.store.logreader import LogApart
from mq.store.reading import Found, ReadResult, Status
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, eventually, on_loop, soon, turns
from tests.support.stores import messages_in, small_config

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Queue("t", 0)
EVERYTHING = compile_filter(Filter())
COUNT = 400


async def filled() -> Node:
    """Some segments of messages that have their queue offsets in their bodies."""
    node = Node(store=small_config(segment_bytes=8 << 10), backlog_bytes=2000)
    await node.topic("t")
    for at in range(0, COUNT, 20):
        await node.send("t", *(b"%d" % n + bytes(100) for n in range(at, at + 20)))
    assert len(node.store.log.segments()) > 3
    node.vfs.is_cold = True
    return node


def query(queue_offset: int = 0, **limits: int) -> Query:
    return Query(HERE, queue_offset, EVERYTHING, **limits)


def numbers(result: ReadResult) -> list[int]:
    return [int(one.body.rstrip(b"\0")) for one in messages_in(result)]


class Gate:
    """Threads that are about to read wait here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.at_work = self.at_work_max = 0
        self.is_open = threading.Event()
        monkeypatch.setattr(cold_reads, "_read_apart", self._wrapped(cold_reads._read_apart))

    def _wrapped(self, read: Callable[..., ReadResult]) -> Callable[..., ReadResult]:
        def waits(*arguments: Any) -> ReadResult:
            self.threads.append(threading.get_ident())
            self.at_work += 1
            self.at_work_max = max(self.at_work_max, self.at_work)
            try:
                assert self.is_open.wait(60)
                return read(*arguments)
            finally:
                self.at_work -= 1

        return waits


@on_loop
async def test_a_distant_backlog_is_read_on_a_thread_and_recent_messages_at_once() -> None:
    node = await filled()
    puller = node.broker.puller
    cold = puller._cold
    assert numbers(await soon(puller.pull(query(messages_max=5), 0))) == [0, 1, 2, 3, 4]
    assert cold.disk_reads_total == 1
    assert numbers(await soon(puller.pull(query(COUNT - 5), 0))) == list(range(COUNT - 5, COUNT))
    assert cold.disk_reads_total == 1
    found: list[int] = []
    while len(found) < COUNT:
        found += numbers(await soon(puller.pull(query(len(found), bytes_max=1 << 14), 0)))
    assert found == list(range(COUNT)), "over the borders of segments too"
    reads = cold.disk_reads_total
    node.vfs.is_cold = False
    assert numbers(await soon(puller.pull(query(messages_max=5), 0))) == [0, 1, 2, 3, 4]
    assert cold.disk_reads_total == reads, "what is in memory is read at once"


@on_loop
async def test_readers_of_old_messages_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await filled()
    gate = Gate(monkeypatch)
    pulls = [
        asyncio.create_task(node.broker.puller.pull(query(at, messages_max=1), 0))
        for at in range(5)
    ]
    await eventually(lambda: gate.at_work)
    # Near the end, a read does not wait for them.
    near = await soon(node.broker.puller.pull(query(COUNT - 1), 0))
    assert numbers(near) == [COUNT - 1]
    gate.is_open.set()
    assert [numbers(one) for one in await soon(asyncio.gather(*pulls))] == [[n] for n in range(5)]
    assert gate.at_work_max == 1
    assert threading.get_ident() not in gate.threads


@on_loop
async def test_when_many_wait_each_gets_less_and_all_get_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await filled()
    monkeypatch.setattr(cold_reads, "_READ_BYTES_MAX", 5_000)
    monkeypatch.setattr(cold_reads, "_READ_BYTES_MIN", 1_000)
    gate = Gate(monkeypatch)
    pulls = [asyncio.create_task(node.broker.puller.pull(query(), 0)) for _ in range(8)]
    await eventually(lambda: gate.at_work)
    await turns()
    gate.is_open.set()
    counts = [len(numbers(one)) for one in await soon(asyncio.gather(*pulls))]
    assert counts[0] > 40, "nobody waited yet"
    assert 0 < counts[1] < 10
    assert counts[-1] > 40
    assert node.broker.puller._cold._waiting == 0


@on_loop
async def test_retention_may_drop_what_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await filled()
    gate = Gate(monkeypatch)
    reading = asyncio.create_task(node.broker.puller.pull(query(messages_max=5), 0))
    await eventually(lambda: gate.at_work)
    node.store.drop_front(2)
    gate.is_open.set()
    assert numbers(await soon(reading)) == [0, 1, 2, 3, 4]
    after = await soon(node.broker.puller.pull(query(), 0))
    assert after.status == Status.TOO_SMALL


@on_loop
async def test_a_cancelled_reader_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await filled()
    gate = Gate(monkeypatch)
    closed: list[LogApart] = []
    close = LogApart.close

    def counted(apart: LogApart) -> None:
        close(apart)
        closed.append(apart)

    monkeypatch.setattr(LogApart, "close", counted)
    pulls = [asyncio.create_task(node.broker.puller.pull(query(), 0)) for _ in range(3)]
    await eventually(lambda: gate.at_work)
    for one in pulls:
        one.cancel()
    await turns()
    assert all(one.cancelled() for one in pulls)
    gate.is_open.set()
    await eventually(lambda: closed)
    # The next one has its turn.
    assert numbers(await soon(node.broker.puller.pull(query(messages_max=1), 0))) == [0]
    assert len(closed) == 2


@on_loop
async def test_a_reader_cancelled_before_its_thread_has_begun_leaves_nothing_open() -> None:
    node = await filled()
    is_free = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        pool.submit(is_free.wait, 60)
        handles = len(node.vfs._handles)
        reading = asyncio.create_task(node.broker.puller.pull(query(), 0))
        await eventually(lambda: len(node.vfs._handles) > handles)
        reading.cancel()
        await turns()
        is_free.set()
        await eventually(lambda: len(node.vfs._handles) == handles)


@pytest.mark.parametrize("is_cold", [True, False])
@on_loop
async def test_on_a_follower_there_is_a_rest_after_each_read_while_much_is_written(
    monkeypatch: pytest.MonkeyPatch, *, is_cold: bool
) -> None:
    node = await filled()
    node.vfs.is_cold = is_cold
    monkeypatch.setattr(cold_reads, "_RESTS", 1e6)
    monkeypatch.setattr(cold_reads, "_BUSY_BYTES_PER_S", 10_000)
    monkeypatch.setattr(cold_reads, "_GROWTH_SEEN_OVER_S", 0.0)
    loop, puller = asyncio.get_running_loop(), node.broker.puller

    async def read() -> None:
        puller._cold._rests_until_s = min(puller._cold._rests_until_s, loop.time() + 0.2)
        pulled = puller.pull_anywhere(query(messages_max=20), 0, "")
        assert len(numbers((await soon(pulled)).result)) == 20

    async def timed() -> float:
        began_s = loop.time()
        await read()
        return loop.time() - began_s

    async def grown(size_bytes: int) -> None:
        node.consensus.is_leader = True
        await node.send("t", bytes(size_bytes))
        node.consensus.is_leader = is_leader

    for is_leader in (False, True):
        node.consensus.is_leader = is_leader
        await read()
        await read()
        assert puller._cold._rests_until_s <= loop.time(), "nobody writes: no rest"
        await grown(1_000_000)
        await read()
        if not is_leader:
            rests_s = puller._cold._rests_until_s - loop.time()
            assert rests_s > 1, "for longer the longer the read took"
        assert (await timed() > 0.1) is not is_leader, "the leader is as quick as ever"


@on_loop
async def test_damage_is_raised_to_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await filled()

    def damaged(*_: object) -> ReadResult:
        raise QueueDamaged("as it is")

    monkeypatch.setattr(Found, "read", damaged)
    with pytest.raises(QueueDamaged):
        await soon(node.broker.puller.pull(query(), 0))
