"""The way through a range of a queue: all of it, whatever the brokers say in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.client.cluster.connection import Connection
from mq.client.consumer.pull import QueuePulls
from mq.client.decode import Page
from mq.client.lowlevel import QueueScanner, RangeRead
from mq.client.messages import QueueRef, Tags
from mq.errors import NotLeader, TopicNotFound, Unreachable
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.message_pb2 import Message
from tests.unit.client.fake_channels import FakeChannels
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable

REF = QueueRef("t", 1, "a")


def page_of(queue_offset: int, count: int, read_from: str = "") -> wire.PullResponse:
    messages = [Message(body=b"%d" % (queue_offset + at)) for at in range(count)]
    sizes = [len(one.SerializeToString()) + 2 for one in messages]
    found = wire.Run(queue_offset=queue_offset, frame_sizes=sizes, messages=messages)
    return wire.PullResponse(next_offset=queue_offset + count, runs=[found], read_from=read_from)


def nothing(status: wire.PullStatus, next_offset: int) -> wire.PullResponse:
    return wire.PullResponse(status=status, next_offset=next_offset)


def range_read(
    answer: Callable[[str, str, Any], Any], start: int, end: int, chosen: Any = None
) -> tuple[RangeRead, FakeChannels]:
    brokers = FakeChannels(answer, "a")
    brokers.have("t", "a")
    connection = Connection("a:1", "east")
    brokers.replace_those_of(connection)
    reads = QueuePulls(connection)
    return RangeRead(connection, reads, REF, start, end, chosen), brokers


async def all_pages(read: RangeRead) -> list[Page]:
    pages = []
    while (page := await read.next()) is not None:
        pages.append(page)
    assert await read.next() is None
    return pages


def requests(brokers: FakeChannels) -> list[Any]:
    return [request for _, request in brokers.asked("Pull")]


def test_a_range_is_read_page_by_page_and_no_further() -> None:
    async def scenario() -> None:
        def answer(_: str, __: str, request: Any) -> Any:
            return page_of(request.queue_offset, min(4, request.messages_max))

        read, brokers = range_read(answer, 3, 13, Tags("x"))
        pages = await all_pages(read)
        assert [page.next_offset for page in pages] == [7, 11, 13]
        asked = requests(brokers)
        assert [one.queue_offset for one in asked] == [3, 7, 11]
        assert asked[-1].messages_max == 2
        assert {(one.queue_id, one.zone, one.any_replica) for one in asked} == {(1, "east", True)}
        assert {one.filter.tags for one in asked} == {"x"}

    run(scenario())


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5)])
def test_an_empty_range_sends_no_request(start: int, end: int) -> None:
    async def scenario() -> None:
        read, brokers = range_read(lambda *_: None, start, end)
        assert await all_pages(read) == []
        assert brokers.calls == []

    run(scenario())


@pytest.mark.parametrize("broker_set", ["b", "c"])
def test_only_brokers_of_the_set_are_asked_for_its_queues(broker_set: str) -> None:
    """Others would take a queue for one of their own, and may have one of the same name."""

    async def scenario() -> None:
        brokers = FakeChannels(lambda *_: page_of(0, 5), "a", "b")
        brokers.have("t", "a", "b")
        connection = Connection("a:1")
        brokers.replace_those_of(connection)
        reads = QueuePulls(connection)
        read = RangeRead(connection, reads, QueueRef("t", 1, broker_set), 0, 5)
        if broker_set == "c":
            with pytest.raises(Unreachable, match="no broker knows broker set c"):
                await read.next()
            assert brokers.calls == []
        else:
            assert len(await all_pages(read)) == 1
            assert [name for name, _ in brokers.asked("Pull")] == ["b"]

    run(scenario())


def test_pages_without_messages_lead_on() -> None:
    async def scenario() -> None:
        read, _ = range_read(
            lambda *given: nothing(wire.PULL_END, given[2].queue_offset + 5), 0, 12
        )
        pages = await all_pages(read)
        assert [page.has_messages for page in pages] == [False] * 3

    run(scenario())


def test_deleted_messages_end_a_scan() -> None:
    async def scenario() -> None:
        read, _ = range_read(lambda *_: nothing(wire.PULL_TOO_SMALL, 50), 0, 100)
        assert [page.status for page in await all_pages(read)] == [wire.PULL_TOO_SMALL]

    run(scenario())


def test_a_leader_that_is_behind_for_a_moment_is_asked_again() -> None:
    async def scenario() -> None:
        answers = [page_of(0, 5), *[nothing(wire.PULL_TOO_LARGE, 3)] * 5, page_of(5, 5)]
        read, _ = range_read(lambda *_: answers.pop(0), 0, 10)
        assert [page.status for page in await all_pages(read)] == [wire.PULL_FOUND] * 2

    run(scenario())


def test_a_leader_that_stays_behind_is_believed() -> None:
    async def scenario() -> None:
        read, brokers = range_read(lambda *_: nothing(wire.PULL_TOO_LARGE, 3), 5, 10)
        assert [page.status for page in await all_pages(read)] == [wire.PULL_TOO_LARGE]
        assert len(requests(brokers)) > 10

    run(scenario())


def test_a_scan_waits_a_minute_for_missing_messages() -> None:
    async def scenario() -> None:
        async def answer(*given: Any) -> Any:
            if given[2].queue_offset < 5:
                return page_of(0, 5)
            await asyncio.sleep(given[2].wait_ms / 1000)
            return nothing(wire.PULL_END, 5)

        read, _ = range_read(answer, 0, 10)
        await read.next()
        # The reader is busy with the page: that is nobody's delay.
        await asyncio.sleep(300)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(
            Unreachable, match=r"queue 1 of topic t in broker set a .* none at 5, for 60 s"
        ):
            await all_pages(read)
        assert 60 < asyncio.get_running_loop().time() - began_s < 62

    run(scenario())


def test_a_range_is_read_where_the_leader_says_and_goes_on_when_that_one_dies() -> None:
    async def scenario() -> None:
        def answer(name: str, _: str, request: Any) -> Any:
            if name == "f" and request.queue_offset >= 4:
                return Unreachable("reset")
            return page_of(request.queue_offset, 2, "" if request.queue_offset else "f:1")

        read, brokers = range_read(answer, 0, 8)
        assert [page.next_offset for page in await all_pages(read)] == [2, 4, 6, 8]
        assert [name for name, _ in brokers.asked("Pull")] == ["a", "f", "f", "a", "a"]

    run(scenario())


def test_elections_are_waited_for_and_refusals_are_raised() -> None:
    async def scenario() -> None:
        answers: list[Any] = [NotLeader(None, None), NotLeader(None, None), page_of(0, 5)]
        read, _ = range_read(lambda *_: answers.pop(0), 0, 5)
        assert len(await all_pages(read)) == 1
        read, _ = range_read(lambda *_: TopicNotFound("t"), 0, 5)
        with pytest.raises(TopicNotFound):
            await read.next()

    run(scenario())


class _Counting:
    """A broker with one message a page."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _: str, __: str, request: Any) -> Any:
        self.asked += 1
        return page_of(request.queue_offset, 1)


def scanner_of(answer: Callable[[str, str, Any], Any]) -> QueueScanner:
    made = QueueScanner("a:1")
    brokers = FakeChannels(answer, "a")
    brokers.have("t", "a")
    brokers.replace_those_of(made._client._connection)
    return made


def settle(scanner: QueueScanner) -> None:
    """Whatever can happen on the loop without anybody's doing has happened."""

    async def many_turns() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    scanner._background.run(many_turns())


def test_one_page_is_on_its_way_while_another_one_is_worked_on_and_no_more() -> None:
    broker = _Counting()
    with scanner_of(broker) as scanner:
        pages = scanner.scan(REF, 0, 10)
        assert next(pages).next_offset == 1
        settle(scanner)
        assert broker.asked == 2
        assert [page.next_offset for page in pages] == list(range(2, 11))
        assert broker.asked == 10


def test_an_abandoned_scan_sends_no_more_requests() -> None:
    broker = _Counting()
    with scanner_of(broker) as scanner:
        pages = scanner.scan(REF, 0, 1000)
        next(pages)
        del pages
        settle(scanner)
        assert broker.asked <= 2
        assert len(list(scanner.scan(REF, 0, 3))) == 3
