"""One member's stream: what goes out, what is held back, and what a report counts for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mq.broker.consumer.cursor import claimed
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.subscriber import Assigned, CacheLimits, Delivered, Position, Subscriber
from mq.broker.queue import Queue
from mq.errors import IllegalOffset, UnknownMember
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, batch, on_loop, soon, turns
from tests.support.stores import messages_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

A, B = Queue("t", 0), Queue("t", 1)


class Stream:
    """A subscriber of a node with messages `0`, `1`, ... in each queue."""

    def __init__(self, node: Node, wanted: Filter, limits: CacheLimits) -> None:
        self.node = node
        self.subscriber = Subscriber(
            "g",
            "m",
            {"t": compile_filter(wanted)},
            limits,
            node.broker.puller,
            node.broker.arrivals,
        )

    async def assigned(self) -> Assigned:
        out = await soon(self.subscriber.next())
        assert isinstance(out, Assigned), out
        return out

    async def delivered(self) -> Delivered:
        out = await soon(self.subscriber.next())
        assert isinstance(out, Delivered), out
        return out

    async def offsets(self) -> list[int]:
        """The offsets of the next delivery."""
        _, _, result = await self.delivered()
        return [run.queue_offset + at for run in result.runs for at in range(run.message_count)]

    async def nothing(self) -> None:
        """It has nothing to send."""
        waiting = asyncio.create_task(self.subscriber.next())
        await turns(50)
        assert not waiting.done(), waiting.result()
        waiting.cancel()
        await turns()

    def done(self, queue_offset: int, queue: Queue = A, epoch: int = 0) -> dict[Queue, int]:
        return self.subscriber.progress([Position(queue, queue_offset, epoch)])


async def stream(
    counts: Mapping[Queue, int],
    limits: CacheLimits | None = None,
    wanted: Filter | None = None,
    tags: str = "-",
) -> Stream:
    node = Node()
    await node.topic("t")
    for queue, count in counts.items():
        messages = [Message(body=b"%d" % n, tag=tags[n % len(tags)]) for n in range(count)]
        if messages:
            await node.send("t", messages=messages, queue_id=queue.queue_id)
    return Stream(node, wanted or Filter(), limits or CacheLimits())


@on_loop
async def test_an_assignment_comes_before_what_it_is_about() -> None:
    one = await stream({A: 3, B: 2})
    await one.nothing()
    one.subscriber.assign(7, {A: 1, B: 0})
    assert await one.assigned() == Assigned(7, [Position(A, 1, 0), Position(B, 0, 0)])
    found = {out.queue: out.result for out in (await one.delivered(), await one.delivered())}
    assert [m.body for m in messages_in(found[A])] == [b"1", b"2"]
    assert [m.body for m in messages_in(found[B])] == [b"0", b"1"]
    await one.nothing()


@on_loop
async def test_arriving_messages_are_delivered_at_once() -> None:
    one = await stream({})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    waiting = asyncio.create_task(one.delivered())
    await turns()
    await one.node.send("t", b"new")
    await one.node.send("t", b"not assigned", queue_id=1)
    assert [m.body for m in messages_in((await soon(waiting)).result)] == [b"new"]
    await one.nothing()


@on_loop
async def test_a_waiting_stream_is_woken_by_every_event() -> None:
    one = await stream({A: 10}, CacheLimits(messages=5))

    async def woken(cause: Callable[[], object]) -> Assigned | Delivered:
        waiting = asyncio.create_task(one.subscriber.next())
        await turns()
        assert not waiting.done()
        cause()
        out: Assigned | Delivered = await soon(waiting)
        return out

    assert isinstance(await woken(lambda: one.subscriber.assign(1, {A: 0})), Assigned)
    await one.delivered()
    assert isinstance(await woken(lambda: one.done(2)), Delivered)
    assert isinstance(await woken(lambda: one.subscriber.move({A: 0})), Assigned)


@on_loop
async def test_queues_take_turns() -> None:
    one = await stream({A: 30, B: 30}, CacheLimits(messages=5))
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    assert [(await one.delivered()).queue for _ in range(2)] == [A, B]
    one.done(5, A)
    one.done(5, B)
    one.done(0, A)
    assert [(await one.delivered()).queue for _ in range(2)] == [A, B]


# -- the client's cache ----------------------------------------------------------------------------


@on_loop
async def test_no_more_goes_out_than_the_cache_has_room_for() -> None:
    one = await stream({A: 100}, CacheLimits(messages=10))
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    assert await one.offsets() == list(range(10))
    assert one.subscriber.cached_messages == 10
    await one.nothing()
    assert one.done(4) == {A: 4}
    assert one.subscriber.cached_messages == 6
    assert await one.offsets() == [10, 11, 12, 13]
    await one.nothing()
    # New messages do not make room.
    await one.node.send("t", b"more")
    await one.nothing()
    one.done(14)
    assert await one.offsets() == list(range(14, 24))


@on_loop
async def test_bytes_count_too() -> None:
    node = Node()
    await node.topic("t")
    await node.send("t", *[bytes(1_000)] * 10)
    one = Stream(node, Filter(), CacheLimits(messages=100, size_bytes=3_500, delivery_bytes=1_500))
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    assert [await one.offsets() for _ in range(4)] == [[0], [1], [2], [3]]
    await one.nothing()
    one.done(1)
    assert await one.offsets() == [4]
    await one.nothing()


@on_loop
async def test_a_cache_that_is_full_to_the_byte_is_full() -> None:
    one = await stream({A: 9})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    frame_bytes = int((await one.delivered()).result.runs[0].sizes[0])
    exact = Stream(one.node, Filter(), CacheLimits(size_bytes=3 * frame_bytes))
    exact.subscriber.assign(1, {A: 0})
    await exact.assigned()
    assert await exact.offsets() == [0, 1, 2]
    await exact.nothing()


@on_loop
async def test_filtered_messages_take_no_room_in_the_cache() -> None:
    one = await stream({A: 40}, CacheLimits(messages=5), Filter(tags="a"), tags="abcd")
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    first = await one.delivered()
    assert sum(run.message_count for run in first.result.runs) == 5
    assert one.subscriber.cached_messages <= 5
    await one.nothing()
    one.done(first.result.next_offset)
    assert await one.offsets() == [20, 24, 28, 32, 36]


# -- progress --------------------------------------------------------------------------------------


@on_loop
async def test_progress_is_news_when_it_goes_on_and_an_error_beyond_what_was_sent() -> None:
    one = await stream({A: 10}, CacheLimits(messages=5))
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    assert await one.offsets() == [0, 1, 2, 3, 4]
    assert one.done(3) == {A: 3}
    assert one.done(3) == {}
    assert one.done(2) == {}
    assert one.done(1, B) == {}
    assert one.done(5, epoch=1) == {}
    with pytest.raises(IllegalOffset, match="up to 6 in queue 0 of t"):
        one.done(6)
    assert one.done(5) == {A: 5}
    await one.delivered()
    assert one.done(10) == {A: 10}
    await one.nothing()


@on_loop
async def test_a_gap_at_the_end_is_delivered_so_that_it_can_be_committed() -> None:
    one = await stream({A: 10}, wanted=Filter(sql="n = 1"))
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    told = (await one.delivered()).result
    assert (told.runs, told.next_offset) == ([], 10)
    await one.nothing()
    assert one.done(10) == {A: 10}
    await one.nothing()
    await one.node.send("t", b"more", b"more")
    assert (await one.delivered()).result.next_offset == 12


@on_loop
async def test_a_queue_whose_front_is_gone_goes_on_at_its_start() -> None:
    one = await stream({A: 10})
    await one.node.broker.catalog.delete("t")
    await one.node.topic("t")
    await one.node.send("t", b"new")
    one.subscriber.assign(1, {A: 3})
    await one.assigned()
    assert await one.offsets() == [10]
    assert one.done(11) == {A: 11}


@on_loop
async def test_a_queue_that_is_shorter_than_thought_goes_on_at_its_end() -> None:
    one = await stream({A: 3})
    one.subscriber.assign(1, {A: 9})
    await one.assigned()
    assert (await one.delivered()).result.next_offset == 3
    await one.node.send("t", b"new")
    assert await one.offsets() == [3]


# -- moves -----------------------------------------------------------------------------------------


@on_loop
async def test_a_move_makes_what_was_sent_void() -> None:
    one = await stream({A: 10, B: 3}, CacheLimits(messages=5))
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    await one.delivered()
    await one.delivered()
    one.subscriber.move({A: 8})
    assert (await one.assigned()).positions == [Position(A, 8, 1), Position(B, 3, 0)]
    out = await one.delivered()
    assert (out.queue, out.epoch) == (A, 1)
    assert one.done(5, epoch=0) == {}
    assert one.done(9, epoch=1) == {A: 9}
    assert one.done(2, B) == {B: 2}


@on_loop
async def test_a_queue_that_leaves_can_be_finished_and_released() -> None:
    one = await stream({A: 10, B: 10})
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    await one.delivered()
    await one.delivered()
    one.subscriber.assign(2, {B: 0})
    assert (await one.assigned()).positions == [Position(B, 10, 0)]
    await one.node.send("t", b"more")
    await one.nothing()
    assert one.done(7) == {A: 7}
    assert one.subscriber.released({A: 0, B: 0, Queue("t", 9): 0}) == [A]
    assert one.done(8) == {}, "it is not its own any more"
    assert one.subscriber.released({A: 0}) == []


@on_loop
async def test_a_move_of_a_queue_that_leaves_makes_its_last_reports_void() -> None:
    one = await stream({A: 10})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    await one.delivered()
    one.subscriber.assign(2, {})
    one.subscriber.move({A: 3, B: 0})
    assert one.done(7) == {}
    assert one.subscriber.released({A: 0}) == [A]


@on_loop
async def test_the_release_of_an_earlier_epoch_does_not_release_a_queue_that_came_back() -> None:
    one = await stream({A: 10})
    for generation, epoch in ((1, 0), (3, 1)):
        one.subscriber.assign(generation, {A: 0})
        assert (await one.assigned()).positions == [Position(A, 0, epoch)]
        await one.delivered()
        one.subscriber.assign(generation + 1, {})
        await one.assigned()
    assert one.subscriber.released({A: 0}) == [], "it was on its way when the queue came back"
    assert one.done(7, epoch=1) == {A: 7}
    assert one.subscriber.released({A: 1}) == [A]


@on_loop
async def test_a_queue_that_came_and_left_untold_is_released_under_the_epoch_last_told() -> None:
    one = await stream({A: 10})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    one.subscriber.assign(2, {})
    await one.assigned()
    one.subscriber.assign(3, {A: 0})
    one.subscriber.move({A: 5})
    one.subscriber.assign(4, {})
    assert one.subscriber.released({A: 1}) == []
    assert one.subscriber.released({A: 0}) == [A]


@on_loop
async def test_a_release_without_an_epoch_counts_for_any() -> None:
    """As clients send it that do not know of epochs there."""
    one = await stream({A: 10})
    for generation in (1, 3):
        one.subscriber.assign(generation, {A: 0})
        await one.assigned()
        one.subscriber.assign(generation + 1, {})
        await one.assigned()
    assert one.subscriber.released({A: None}) == [A]


@on_loop
async def test_a_queue_that_comes_back_before_it_was_released_has_a_new_epoch() -> None:
    one = await stream({A: 10, B: 0}, CacheLimits(messages=4))
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    await one.delivered()
    one.done(2)
    one.subscriber.assign(2, {})
    await one.assigned()
    # From where its progress was: what it has of it is void.
    one.subscriber.assign(3, {A: 2})
    assert (await one.assigned()).positions == [Position(A, 2, 1)]
    assert await one.offsets() == [2, 3, 4, 5]
    assert one.done(3, epoch=0) == {}
    assert one.done(3, epoch=1) == {A: 3}


@on_loop
async def test_a_queue_that_comes_back_before_the_client_knew_was_never_gone() -> None:
    """It goes on with what it has: the place that is committed lies behind that."""
    one = await stream({A: 10, B: 0}, CacheLimits(messages=4))
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    assert await one.offsets() == [0, 1, 2, 3]
    one.done(2)
    one.subscriber.assign(2, {})
    one.subscriber.assign(3, {A: 2})
    assert (await one.assigned()).positions == [Position(A, 4, 0)]
    assert await one.offsets() == [4, 5]
    # Unless another member has come further, or an operator has moved it.
    one.subscriber.assign(4, {})
    one.subscriber.assign(5, {A: 8})
    assert (await one.assigned()).positions == [Position(A, 8, 1)]
    one.subscriber.assign(6, {})
    one.subscriber.move({A: 1})
    one.subscriber.assign(7, {A: 1})
    assert (await one.assigned()).positions == [Position(A, 1, 3)]


@on_loop
async def test_an_epoch_unknown_to_the_client_is_not_used_up() -> None:
    """It takes a queue that comes back under the next epoch for the same, and only that."""
    one = await stream({A: 10})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    await one.delivered()
    one.subscriber.assign(2, {})
    await one.assigned()
    for generation in (3, 5, 7):
        one.subscriber.assign(generation, {A: 0})
        one.subscriber.assign(generation + 1, {})
    one.subscriber.assign(9, {A: 0})
    assert (await one.assigned()).positions == [Position(A, 0, 1)]
    # A move is one more: messages in flight are void.
    one.subscriber.assign(10, {})
    await one.assigned()
    one.subscriber.move({A: 3})
    one.subscriber.assign(11, {A: 3})
    assert (await one.assigned()).positions == [Position(A, 3, 3)]


@on_loop
async def test_a_claim_holds_until_the_first_assignment() -> None:
    one = await stream({A: 10})
    one.subscriber.claim({A: claimed(5, 2, 10, 1.0)})
    one.subscriber.assign(1, {})
    one.subscriber.assign(2, {A: 2})
    (position,) = (await one.assigned()).positions
    assert (position.queue, position.queue_offset) == (A, 5)
    # Not one of messages that are lost, or of a topic that was made anew, which is shorter: two
    # epochs ahead the client drops what it has, also when it has to wait for the assignment.
    for first in ({A: 2}, {}):
        other = await stream({A: 10})
        other.subscriber.claim({A: claimed(15, 2, 10, 1.0)})
        other.subscriber.assign(1, first)
        if not first:
            await other.assigned()
            other.subscriber.assign(2, {A: 2})
        assert (await other.assigned()).positions == [Position(A, 2, 2)]
    late = await stream({A: 10})
    late.subscriber.claim({A: claimed(5, 2, 10, 1.0)})
    late.subscriber.assign(1, {})
    await late.assigned()
    late.subscriber.assign(2, {A: 2})
    assert (await late.assigned()).positions == [Position(A, 2, 1)]


@on_loop
async def test_a_claim_counts_against_the_cache_and_can_be_finished() -> None:
    one = await stream({A: 10}, CacheLimits(messages=6))
    one.subscriber.claim({A: claimed(5, 2, 10, 1.0)})
    assert one.done(4) == {A: 4}
    one.subscriber.assign(1, {A: 5})
    assert (await one.assigned()).positions == [Position(A, 5, 1)]
    assert await one.offsets() == [5, 6, 7, 8, 9]
    await one.node.send("t", b"more")
    await one.nothing()  # one that was in flight before, and five
    one.done(5, epoch=1)
    assert await one.offsets() == [10]


# -- the end ---------------------------------------------------------------------------------------


@on_loop
async def test_nothing_follows_the_end() -> None:
    one = await stream({A: 3})
    one.subscriber.assign(1, {A: 0})
    one.subscriber.end(UnknownMember("gone"))
    one.subscriber.end(UnknownMember("later"))
    with pytest.raises(UnknownMember, match="gone"):
        await soon(one.subscriber.next())


@on_loop
async def test_a_waiting_stream_hears_of_the_end() -> None:
    one = await stream({})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    waiting = asyncio.create_task(one.subscriber.next())
    await turns()
    one.subscriber.end(UnknownMember("gone"))
    with pytest.raises(UnknownMember):
        await soon(waiting)


@on_loop
async def test_the_end_is_heard_of_also_while_a_filter_looks_for_something() -> None:
    one = await stream({A: 2_000, B: 2_000}, wanted=Filter(sql="n = 1"))
    one.subscriber.assign(1, {A: 0, B: 0})
    await one.assigned()
    waiting = asyncio.create_task(one.subscriber.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    one.subscriber.end(UnknownMember("gone"))
    one.subscriber.detach()
    with pytest.raises(UnknownMember):
        await soon(waiting)


@on_loop
async def test_a_stream_that_is_gone_watches_nothing() -> None:
    one = await stream({A: 3, B: 3})
    one.subscriber.assign(1, {A: 0, B: 0})
    assert len(one.node.broker.arrivals) == 2
    one.subscriber.assign(2, {B: 0})
    assert len(one.node.broker.arrivals) == 1
    one.subscriber.detach()
    assert len(one.node.broker.arrivals) == 0
    assert one.subscriber.queues == frozenset()


@on_loop
async def test_a_delivery_is_read_when_it_is_sent() -> None:
    """Nothing is kept for a client that is slow."""
    one = await stream({A: 1})
    one.subscriber.assign(1, {A: 0})
    await one.assigned()
    slots = [one.node.broker.publisher.submit(batch("t", b"%d" % n)) for n in range(5)]
    await soon(asyncio.gather(*(slot.outcome for slot in slots)))
    assert await one.offsets() == [0, 1, 2, 3, 4, 5]
