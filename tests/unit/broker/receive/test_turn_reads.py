"""Receives of one turn share a read, and each gets what a read of its own would have given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.pulling import Query
from mq.broker.queue import Queue
from mq.broker.receive.turn_reads import TurnReads
from mq.hashing import text_hash
from mq.store.reading import Status
from tests.support.consensus import Node, on_loop

if TYPE_CHECKING:
    import pytest

    from mq.store.reading import ReadResult

ALL = CompiledFilter(frozenset(), None)
QUEUE = Queue("t", 0)


async def scene() -> Node:
    """Messages of different sizes, in runs of different lengths."""
    node = Node()
    await node.topic("t")
    for n in range(40):
        await node.send("t", *(bytes([n]) * (1 + 7 * n % 50) for _ in range(1 + n % 5)))
        await node.send("t", b"beside", queue_id=1)
    return node


def facts(result: ReadResult) -> tuple[object, ...]:
    runs = [
        (run.queue_offset, run.message_count, run.log_offset, run.stored_at_ms, bytes(run.frames))
        for run in result.runs
    ]
    sizes = [run.sizes.tolist() for run in result.runs]
    return result.status, result.next_offset, result.start, result.end, runs, sizes


@on_loop
async def test_a_shared_read_gives_what_a_read_of_its_own_gives() -> None:
    node = await scene()
    puller = node.broker.puller
    end = node.ends("t")[0]
    for count in (1, 2, 3, 8):
        for bytes_max in (1, 60, 150, 1 << 20):
            reads = TurnReads(puller)
            at = 0
            while at < end:
                query = Query(QUEUE, at, ALL, bytes_max, count)
                mine, alone = reads.read(query), puller.read(query)
                assert facts(mine) == facts(alone), (count, bytes_max, at)
                at = mine.next_offset


@on_loop
async def test_many_receives_of_a_turn_read_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await scene()
    puller = node.broker.puller
    located = []
    locate = puller.locate

    def counted(query: Query) -> object:
        located.append(query)
        return locate(query)

    monkeypatch.setattr(puller, "locate", counted)
    reads = TurnReads(puller)
    for at in range(60):
        reads.read(Query(QUEUE, at, ALL, 1 << 20, 1))
    assert len(located) == 1


@on_loop
async def test_messages_read_ahead_do_not_count_as_delivered() -> None:
    node = await scene()
    puller = node.broker.puller
    before = puller.messages_total
    TurnReads(puller).read(Query(QUEUE, 3, ALL, 1 << 20, 2))
    assert puller.messages_total - before == 2


@on_loop
async def test_ends_and_filters_are_as_without_it() -> None:
    node = await scene()
    puller = node.broker.puller
    end = node.ends("t")[0]
    reads = TurnReads(puller)
    assert reads.read(Query(QUEUE, end, ALL, 1 << 20, 1)).status == Status.END
    assert reads.read(Query(QUEUE, end + 1, ALL, 1 << 20, 1)).status == Status.TOO_LARGE
    assert reads.read(Query(Queue("t", 2), 0, ALL, 1 << 20, 1)).status == Status.END
    red = CompiledFilter(frozenset({text_hash("red")}), None)
    reads.read(Query(QUEUE, 0, ALL, 1 << 20, 1))
    assert reads.read(Query(QUEUE, 0, red, 1 << 20, 1)).status == Status.NOTHING_MATCHED
