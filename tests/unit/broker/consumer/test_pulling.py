"""Reading a queue: limits, filters, and the wait for what is not there yet."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.consumer import pulling
from mq.broker.consumer.filters import CompiledFilter, compile_filter
from mq.broker.consumer.pulling import Query
from mq.broker.consumer.unsent import SMALL_BYTES
from mq.broker.queue import Queue
from mq.errors import PermissionDenied, QueueNotFound, TopicNotFound
from mq.store.reading import ReadResult, Status
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, on_loop, soon, turns
from tests.support.stores import messages_in

HERE = Queue("t", 0)
EVERYTHING = compile_filter(Filter())
LONG_S = 60.0


def query(queue_offset: int = 0, wanted: CompiledFilter = EVERYTHING, **limits: int) -> Query:
    return Query(HERE, queue_offset, wanted, **limits)


def bodies(result: ReadResult) -> list[int]:
    return [int(message.body) for message in messages_in(result)]


async def filled(count: int = 10) -> Node:
    """Even numbers are tagged `even`; each has its number as a property."""
    node = Node()
    await node.topic("t")
    messages = [
        Message(body=b"%d" % n, tag="odd" if n % 2 else "even", properties={"n": str(n)})
        for n in range(count)
    ]
    await node.send("t", messages=messages[: count // 2])
    await node.send("t", messages=messages[count // 2 :])
    return node


@on_loop
async def test_limits_bound_what_is_read() -> None:
    node = await filled()
    read = node.broker.puller.read
    assert bodies(read(query())) == list(range(10))
    assert bodies(read(query(7))) == [7, 8, 9]
    assert bodies(read(query(messages_max=3))) == [0, 1, 2]
    assert bodies(read(query(bytes_max=1))) == [0]
    assert bodies(read(query(messages_max=0, bytes_max=0))) == list(range(10)), "0: no limit"
    huge = read(query(messages_max=1 << 40, bytes_max=1 << 40))
    assert bodies(huge) == list(range(10))
    puller = node.broker.puller
    assert puller.messages_total == 10 + 3 + 3 + 1 + 10 + 10
    assert puller.bytes_total > 10 * puller.messages_total


@on_loop
async def test_less_is_read_at_once_while_clients_have_not_taken_what_others_read() -> None:
    node = Node()
    await node.topic("t")
    await node.send("t", *[bytes(10_000)] * 50)
    puller = node.broker.puller
    assert len(messages_in(puller.read(query()))) == 50
    puller.unsent.hold(1 << 30)
    assert len(messages_in(puller.read(query()))) == SMALL_BYTES // 10_000
    puller.unsent.release(1 << 30)
    assert len(messages_in(puller.read(query()))) == 50


@on_loop
async def test_offsets_outside_say_where_there_is_something() -> None:
    node = await filled()
    read = node.broker.puller.read
    assert read(query(10)).status == Status.END
    assert read(query(11)).status == Status.TOO_LARGE
    await node.broker.catalog.delete("t")
    await node.topic("t")
    assert read(query(5))[:1] == (Status.TOO_SMALL,)
    assert read(query(5)).start == 10
    unwritten = Query(Queue("t", 3), 0, EVERYTHING)
    assert read(unwritten) == ReadResult(Status.END, [], 0, 0, 0)
    assert read(unwritten._replace(queue_offset=1)).status == Status.TOO_LARGE


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(tags="even"), [0, 2, 4, 6, 8]),
        (Filter(sql="n > 3 AND n < 8 AND n <> 5"), [4, 6, 7]),
        (Filter(sql="TAGS = 'odd'"), [1, 3, 5, 7, 9]),
    ],
)
@on_loop
async def test_a_filter_chooses_and_the_offsets_stay(wanted: Filter, expected: list[int]) -> None:
    node = await filled()
    result = node.broker.puller.read(query(wanted=compile_filter(wanted)))
    assert bodies(result) == expected
    assert result.next_offset == 10
    places = [run.queue_offset + at for run in result.runs for at in range(run.message_count)]
    assert places == expected


@on_loop
async def test_a_filter_that_lets_nothing_through_says_how_far_it_has_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulling, "_PARSED_MAX", 4)
    node = await filled()
    wanted = compile_filter(Filter(sql="n > 5"))
    first = node.broker.puller.read(query(wanted=wanted))
    assert (first.status, first.next_offset) == (Status.NOTHING_MATCHED, 4)
    # A pull goes on by itself.
    assert bodies(await soon(node.broker.puller.pull(query(wanted=wanted), LONG_S))) == [6, 7]
    none = compile_filter(Filter(sql="n > 100"))
    result = await soon(node.broker.puller.pull(query(wanted=none), 0.0))
    assert (result.status, result.next_offset) == (Status.END, 4), "one step, then its time is over"


@on_loop
async def test_a_pull_waits_until_something_comes() -> None:
    node = await filled(2)
    pull = node.broker.puller.pull
    waiting = [asyncio.create_task(pull(query(2), LONG_S)) for _ in range(3)]
    await turns()
    await node.send("t", b"5", queue_id=1)
    await turns()
    assert not any(one.done() for one in waiting)
    await node.send("t", b"7")
    assert [bodies(one) for one in await soon(asyncio.gather(*waiting))] == [[7]] * 3
    assert len(node.broker.arrivals) == 0


@on_loop
async def test_a_pull_waits_for_what_its_filter_lets_through() -> None:
    node = await filled(2)
    wanted = compile_filter(Filter(tags="wanted"))
    waiting = asyncio.create_task(node.broker.puller.pull(query(0, wanted), LONG_S))
    await turns()
    await node.send("t", messages=[Message(body=b"1", tag="other")])
    await turns()
    assert not waiting.done()
    await node.send("t", messages=[Message(body=b"2", tag="wanted")])
    result = await soon(waiting)
    assert (bodies(result), result.next_offset) == ([2], 4)


@on_loop
async def test_a_pull_that_waited_in_vain_says_so() -> None:
    node = await filled(2)
    result = await soon(node.broker.puller.pull(query(2), 0.01))
    assert (result.status, result.next_offset) == (Status.END, 2)


@on_loop
async def test_no_pull_waits_longer_than_the_broker_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pulling._WAIT_S_MAX == 60
    monkeypatch.setattr(pulling, "_WAIT_S_MAX", 0.01)
    node = await filled(2)
    assert (await soon(node.broker.puller.pull(query(2), 4e6))).status == Status.END


@on_loop
async def test_a_pull_of_what_may_not_be_read_is_refused() -> None:
    node = await filled()
    pull = node.broker.puller.pull
    for queue, error in (
        (Queue("gone", 0), TopicNotFound),
        (Queue("t", 4), QueueNotFound),
    ):
        with pytest.raises(error):
            await soon(pull(Query(queue, 0, EVERYTHING), LONG_S))
    waiting = asyncio.create_task(pull(query(10), LONG_S))
    await turns()
    await node.broker.catalog.alter("t", is_readable=False)
    with pytest.raises(PermissionDenied):
        await soon(pull(query(), LONG_S))
    # A waiting reader hears of it with the next message.
    await node.send("t", b"1")
    with pytest.raises(PermissionDenied):
        await soon(waiting)


@on_loop
async def test_a_cancelled_pull_is_forgotten() -> None:
    node = await filled(2)
    waiting = asyncio.create_task(node.broker.puller.pull(query(2), LONG_S))
    await turns()
    assert len(node.broker.arrivals) == 1
    waiting.cancel()
    await turns()
    assert len(node.broker.arrivals) == 0
