"""A tail shows every message once, over elections and reconnects, and counts what it skips."""

from __future__ import annotations

import asyncio

import pytest

from mq.client.aio import QueueRef
from mq.console import positions, tailing
from mq.console.scanning import contains
from mq.console.shared_reads import SharedReads
from mq.console.tailing import Tail, TailEvent
from mq.errors import TopicNotFound
from tests.unit.console.queues import MemoryQueues

REFS = [QueueRef("t", 0, "a"), QueueRef("t", 1, "a"), QueueRef("t", 0, "b")]


def reads_of(queues: MemoryQueues, tick_s: float = 0.0) -> SharedReads:
    return SharedReads(lambda: queues.client, tick_s)


async def take(tail: Tail, count: int) -> list[TailEvent]:
    """Events until so many messages have come."""
    found: list[TailEvent] = []
    async for event in tail.events():
        found.append(event)
        if sum(len(one.messages) for one in found) >= count:
            break
    return found


def bodies(events: list[TailEvent]) -> list[bytes]:
    return [one.body for event in events for one in event.messages]


def test_it_begins_with_what_comes_and_goes_on_where_an_event_ended() -> None:
    queues = MemoryQueues(*REFS)
    queues.put(REFS[0], 0, b"before")

    async def follow() -> None:
        first = Tail(reads_of(queues), "t")
        events = first.events()
        begun = await anext(events)
        assert begun.messages == []
        for at in range(6):
            queues.put(REFS[at % 3], at, b"%d" % at)
        event = await anext(events)
        assert sorted(one.body for one in event.messages) == [b"%d" % at for at in range(6)]
        text = positions.encode(event.positions)
        queues.put(REFS[1], 10, b"while nobody looked")
        again = Tail(reads_of(queues), "t", after=positions.decode("t", text))
        assert bodies(await take(again, 1)) == [b"while nobody looked"]

    asyncio.run(follow())


def test_an_election_in_the_middle_of_a_tick_loses_nothing_and_repeats_nothing() -> None:
    queues = MemoryQueues(*REFS)
    calls = iter(range(1_000_000))
    queues.is_away = lambda: next(calls) % 7 in (1, 3)

    async def follow() -> list[TailEvent]:
        tail = Tail(reads_of(queues), "t", after=dict.fromkeys(REFS, 0))
        for at in range(30):
            queues.put(REFS[at % 3], at, b"%d" % at)
        return await take(tail, 30)

    events = asyncio.run(follow())
    assert sorted(bodies(events), key=int) == [b"%d" % at for at in range(30)]
    assert sum(event.skipped for event in events) == 0


def test_what_is_too_fast_is_skipped_and_counted_exactly() -> None:
    queues = MemoryQueues(*REFS)
    count = tailing.LOOKED_AT_MAX * 3
    for at in range(count):
        queues.put(REFS[at % 3], at, b"%d" % at)

    async def follow() -> TailEvent:
        tail = Tail(reads_of(queues), "t", after=dict.fromkeys(REFS, 0))
        async for event in tail.events():
            return event
        raise AssertionError

    event = asyncio.run(follow())
    assert len(event.messages) == tailing.ROWS_MAX
    assert event.skipped == count - tailing.ROWS_MAX
    # The newest are those that are shown.
    assert event.messages[-1].body == b"%d" % (count - 1)


def test_filters_hold_and_a_single_queue_is_followed_alone() -> None:
    queues = MemoryQueues(*REFS)

    async def follow() -> None:
        tail = Tail(
            reads_of(queues),
            "t",
            queue=REFS[1],
            wanted="paid",
            predicate=contains("gold"),
            after={REFS[1]: 0},
        )
        for ref in REFS:
            queues.put(ref, 1, b"gold", tag="paid")
            queues.put(ref, 2, b"gold", tag="open")
            queues.put(ref, 3, b"iron", tag="paid")
        [event] = await take(tail, 1)
        assert [(one.queue, one.body, one.tag) for one in event.messages] == [
            (REFS[1], b"gold", "paid")
        ]
        assert event.positions == {REFS[1]: 3}

    asyncio.run(follow())


def test_trouble_is_told_once_and_what_cannot_be_mended_ends_it() -> None:
    queues = MemoryQueues(*REFS)
    is_away = True
    queues.is_away = lambda: is_away

    async def follow() -> None:
        nonlocal is_away
        events = Tail(reads_of(queues), "t").events()
        assert "nobody leads" in (await anext(events)).trouble
        is_away = False
        assert (await anext(events)).trouble == ""

        async def gone(*_: object) -> None:
            raise TopicNotFound("it is gone")

        queues.find_offsets = gone  # type: ignore[method-assign, assignment]
        with pytest.raises(TopicNotFound):
            await anext(events)

    asyncio.run(follow())


def test_tabs_that_follow_the_same_topic_ask_once() -> None:
    queues = MemoryQueues(*REFS)
    asked = 0

    def is_away() -> bool:
        nonlocal asked
        asked += 1
        return False

    queues.is_away = is_away

    async def follow(tabs: int) -> int:
        nonlocal asked
        reads = reads_of(queues, tick_s=0.05)
        start = dict.fromkeys(REFS, len(queues.stored[REFS[0]]))
        for ref in REFS:
            queues.put(ref, 1, b"x")
        asked = 0
        await reads.next_tick()
        tails = [Tail(reads, "t", after=start) for _ in range(tabs)]
        found = await asyncio.gather(*(take(tail, 3) for tail in tails))
        assert all(sorted(bodies(events)) == [b"x"] * 3 for events in found)
        return asked

    one, twenty = asyncio.run(follow(1)), asyncio.run(follow(20))
    assert one == 4
    # A busy machine may spread them over more ticks than one.
    assert twenty < 5 * one
