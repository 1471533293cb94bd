"""A queue that the client reads from another node: what is sent, what is held back, and how it
comes home.
"""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.consumer import subscriber as module
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.subscriber import (
    Assigned,
    CacheLimits,
    Delivered,
    Position,
    Redirected,
    Subscriber,
)
from mq.broker.contracts import Peer
from mq.broker.queue import Queue
from mq.errors import IllegalOffset, StorageFailed
from mq.store.reading import Found, ReadResult
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, on_loop, soon, turns

A, B = Queue("t", 0), Queue("t", 1)
BACKLOG = 4000
COUNT = 100


class Stream:
    """A stream of a node with a follower `b`; queue A has 100 messages and two backlogs of log
    behind its start, queue B has none.
    """

    def __init__(
        self, node: Node, limits: CacheLimits, zone: str, *, takes_redirects: bool
    ) -> None:
        self.node = node
        self.one = Subscriber(
            "g",
            "m",
            {"t": compile_filter(Filter())},
            limits,
            node.broker.puller,
            node.broker.arrivals,
        )
        if takes_redirects:
            self.one.allow_redirects(node.broker.replicas, zone)

    async def next(self) -> Assigned | Delivered | Redirected:
        out = await soon(self.one.next())
        assert isinstance(out, Assigned | Delivered | Redirected)
        return out

    async def redirected(self, queue_offset: int, epoch: int = 0) -> None:
        out = await self.next()
        assert isinstance(out, Redirected), out
        assert out[:3] == (A, epoch, queue_offset)
        assert (out.to.node_id, out.to.address) == ("b", "b:8081")

    async def offsets(self, queue: Queue = A) -> list[int]:
        """The offsets of the next delivery."""
        out = await self.next()
        assert isinstance(out, Delivered), out
        assert out.queue == queue
        runs = out.result.runs
        return [run.queue_offset + at for run in runs for at in range(run.message_count)]

    async def nothing(self) -> None:
        waiting = asyncio.create_task(self.one.next())
        await turns(50)
        assert not waiting.done(), waiting.result()
        waiting.cancel()
        await turns()

    def done(self, queue_offset: int, epoch: int = 0) -> dict[Queue, int]:
        return self.one.progress([Position(A, queue_offset, epoch)])

    def resume(self, queue_offset: int, epoch: int = 0) -> None:
        self.one.resume([Position(A, queue_offset, epoch)])

    def sees(self, *others: Peer) -> None:
        self.node.consensus.seen = [Peer("node-0", "here:8081", "east"), *others]
        self.node.broker.tick()


async def stream(
    limits: CacheLimits | None = None, zone: str = "", *, takes_redirects: bool = True
) -> Stream:
    node = Node(backlog_bytes=BACKLOG)
    await node.topic("t")
    for _ in range(0, COUNT, 10):
        await node.send("t", *[bytes(90)] * 10)
    found = Stream(node, limits or CacheLimits(), zone, takes_redirects=takes_redirects)
    found.sees(Peer("b", "b:8081", "north", "", node.store.log.last_index))
    node.vfs.is_cold = True
    return found


async def redirected(limits: CacheLimits | None = None, at: int = 0) -> Stream:
    found = await stream(limits)
    found.one.assign(1, {A: at})
    assert isinstance(await found.next(), Assigned)
    await found.redirected(at)
    return found


@on_loop
async def test_a_queue_far_behind_is_redirected_once_and_not_delivered() -> None:
    found = await redirected(at=3)
    await found.nothing()
    await found.node.send("t", b"news")
    await found.nothing()
    assert found.one.queues == {A}, "it is the member's all the same"


@on_loop
async def test_a_client_that_does_not_know_of_it_is_served_here() -> None:
    found = await stream(takes_redirects=False)
    found.one.assign(1, {A: 0})
    assert isinstance(await found.next(), Assigned)
    assert await found.offsets() == list(range(COUNT))


@on_loop
async def test_near_the_end_and_without_a_follower_the_stream_delivers() -> None:
    found = await stream()
    found.one.assign(1, {A: 90})
    assert isinstance(await found.next(), Assigned)
    assert await found.offsets() == list(range(90, COUNT))
    found.sees()
    found.one.move({A: 0})
    assert isinstance(await found.next(), Assigned)
    assert await found.offsets() == list(range(COUNT))


@on_loop
async def test_a_client_of_another_zone_is_sent_home_with_the_next_message() -> None:
    found = await stream(zone="north")
    found.one.assign(1, {A: COUNT})
    assert isinstance(await found.next(), Assigned)
    await found.nothing()
    await found.node.send("t", b"news")
    await found.redirected(COUNT)


@on_loop
async def test_queues_with_priorities_are_not_redirected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await stream()
    monkeypatch.setattr(found.node.broker.puller, "rank", lambda queue: queue.queue_id)
    found.one.assign(1, {A: 0, B: 0})
    assert isinstance(await found.next(), Assigned)
    assert await found.offsets() == list(range(COUNT))


@on_loop
async def test_progress_up_to_the_end_is_legal_while_redirected_and_no_further() -> None:
    found = await redirected()
    assert found.done(70) == {A: 70}
    assert found.done(70) == {}
    await found.node.send("t", b"news")
    assert found.done(COUNT + 1) == {A: COUNT + 1}
    with pytest.raises(IllegalOffset, match="only messages before 101"):
        found.done(COUNT + 2)
    await found.nothing()


@on_loop
async def test_progress_that_is_ahead_of_this_node_is_waited_for() -> None:
    found = await redirected()
    found.node.consensus.is_held = True
    sending = asyncio.create_task(found.node.send("t", b"committed, and not applied here"))
    await turns()
    reported = [Position(A, COUNT + 1, 0)]
    waiting = asyncio.create_task(found.one.until_applied(reported))
    await turns()
    assert not waiting.done()
    found.node.consensus.commit()
    await soon(waiting)
    assert found.one.progress(reported) == {A: COUNT + 1}
    await sending
    # What is wrong stays wrong.
    wrong = [Position(A, 5000, 0)]
    await soon(found.one.until_applied(wrong))
    with pytest.raises(IllegalOffset):
        found.one.progress(wrong)


@on_loop
async def test_after_a_resume_the_stream_goes_on_from_there() -> None:
    found = await redirected()
    found.done(60)
    found.resume(97)
    assert await found.offsets() == [97, 98, 99]
    assert found.one.cached_messages == 40, "what it has from elsewhere, and what it got here"
    assert found.done(100) == {A: 100}
    assert found.one.cached_messages == 0
    await found.node.send("t", b"news")
    assert await found.offsets() == [100]


@on_loop
async def test_messages_from_a_follower_count_against_the_clients_cache() -> None:
    found = await redirected(CacheLimits(messages=50))
    found.resume(90)
    await found.nothing()
    found.done(30)
    await found.nothing()
    found.done(45)
    assert await found.offsets() == [90, 91, 92, 93, 94], "50 less the 45 in hand"


@on_loop
async def test_messages_from_before_a_redirect_are_not_counted_twice() -> None:
    found = await stream(CacheLimits(messages=20))
    follower = found.node.consensus.seen[1:]
    found.sees()
    found.one.assign(1, {A: 0})
    assert isinstance(await found.next(), Assigned)
    assert await found.offsets() == list(range(20))
    found.sees(*follower)
    found.done(10)
    await found.redirected(20)
    found.resume(25)
    assert found.one.cached_messages == 15
    assert await found.offsets() == list(range(25, 30))


@on_loop
async def test_a_queue_that_came_back_stays_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower may be one that does not answer."""
    found = await redirected(CacheLimits(messages=10))
    found.resume(0)
    assert await found.offsets() == list(range(10))
    found.done(10)
    assert await found.offsets() == list(range(10, 20))
    monkeypatch.setattr(module, "_STAYS_S", 0.0)
    found.one._cursors[A].is_redirected = True
    found.resume(20)
    found.done(20)
    await found.redirected(20)


@pytest.mark.parametrize("queue_offset", [59, COUNT + 1, 1 << 60])
@on_loop
async def test_a_resume_from_nowhere_is_refused(queue_offset: int) -> None:
    found = await redirected()
    found.done(60)
    with pytest.raises(IllegalOffset, match="done up to 60 and ends at 100"):
        found.resume(queue_offset)
    await found.nothing()


@on_loop
async def test_a_resume_that_comes_late_changes_nothing() -> None:
    found = await redirected()
    found.resume(50, epoch=1)
    found.one.resume([Position(B, 5, 0)])
    await found.nothing()
    found.resume(95)
    assert await found.offsets() == list(range(95, COUNT))
    found.resume(0)
    await found.nothing()


@on_loop
async def test_a_seek_or_reset_ends_the_redirect_with_a_new_epoch() -> None:
    found = await redirected()
    found.one.move({A: 95})
    out = await found.next()
    assert isinstance(out, Assigned)
    assert out.positions == [Position(A, 95, 1)]
    assert await found.offsets() == list(range(95, COUNT))
    assert found.done(50, epoch=0) == {}, "of the time before"
    # Back to the start: that is far again.
    found.one.move({A: 0})
    assert isinstance(await found.next(), Assigned)
    await found.redirected(0, epoch=2)
    found.resume(70, epoch=0)
    await found.nothing()


@on_loop
async def test_a_redirected_queue_may_leave_and_come_back() -> None:
    found = await redirected()
    found.one.assign(2, {})
    assert isinstance(await found.next(), Assigned)
    assert found.done(80) == {A: 80}, "the last report, of what came from elsewhere"
    found.resume(80)
    await found.nothing()
    # Back before it was released, where the group is: under a new epoch.
    found.one.assign(3, {A: 80})
    out = await found.next()
    assert isinstance(out, Assigned)
    assert out.positions == [Position(A, 80, 1)]
    assert await found.offsets() == list(range(80, COUNT))
    found.one.assign(4, {})
    assert found.one.released({A: None}) == [A]


@on_loop
async def test_a_redirected_queue_that_comes_back_as_it_left_is_redirected_anew() -> None:
    found = await redirected()
    found.one.assign(2, {})
    assert isinstance(await found.next(), Assigned)
    found.one.assign(3, {A: 0})
    assert isinstance(await found.next(), Assigned)
    await found.redirected(0, epoch=1)


@on_loop
async def test_the_other_queues_go_on_and_so_does_a_new_assignment() -> None:
    found = await redirected()
    found.one.assign(2, {A: 0, B: 0})
    out = await found.next()
    assert isinstance(out, Assigned)
    assert sorted(out.positions) == [Position(A, 0, 0), Position(B, 0, 0)]
    await found.node.send("t", b"x", queue_id=1)
    assert await found.offsets(B) == [0]
    await found.nothing()
    found.one.detach()
    assert len(found.node.broker.arrivals) == 0


# -- what the leader reads from far behind itself --------------------------------------------------


@on_loop
async def test_a_move_while_old_messages_are_read_makes_them_void() -> None:
    found = await stream(CacheLimits(messages=5), takes_redirects=False)
    found.one.assign(1, {A: 0})
    assert isinstance(await found.next(), Assigned)
    waiting = asyncio.create_task(found.one.next())
    await turns(3)
    assert found.one._fetching
    found.one.move({A: 20})
    out = await soon(waiting)
    assert isinstance(out, Assigned)
    assert await found.offsets() == [20, 21, 22, 23, 24]
    found.done(22, epoch=1)
    assert await found.offsets() == [25, 26]


@on_loop
async def test_other_queues_do_not_wait_for_old_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await stream(takes_redirects=False)
    gate = asyncio.Event()
    cold = found.node.broker.puller.load_cold

    async def slow(*arguments: object) -> ReadResult:
        await gate.wait()
        return await cold(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(found.node.broker.puller, "load_cold", slow)
    await found.node.send("t", b"x", queue_id=1)
    found.one.assign(1, {A: 0, B: 0})
    assert isinstance(await found.next(), Assigned)
    assert await found.offsets(B) == [0]
    await found.nothing()
    gate.set()
    assert await found.offsets() == list(range(COUNT))


@on_loop
async def test_a_stream_that_ends_stops_its_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await stream(takes_redirects=False)
    found.one.assign(1, {A: 0})
    assert isinstance(await found.next(), Assigned)
    waiting = asyncio.create_task(found.one.next())
    await turns(3)
    (reading,) = found.one._fetching.values()
    found.one.detach()
    await turns()
    assert reading.cancelled()
    assert not found.one._fetching
    waiting.cancel()

    def damaged(*_: object) -> ReadResult:
        raise StorageFailed("as it is")

    monkeypatch.setattr(Found, "read", damaged)
    other = await stream(takes_redirects=False)
    other.one.assign(1, {A: 0})
    assert isinstance(await other.next(), Assigned)
    with pytest.raises(StorageFailed):
        await soon(other.one.next())
