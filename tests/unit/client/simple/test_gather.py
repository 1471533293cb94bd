"""Receiving from several sources at once, on a clock that a test turns: what is given out, what is
kept for the next time, and who is waited for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mq.client.cluster.retry import now_s
from mq.client.messages import ReceivedMessage
from mq.client.simple.gather import CALL_WAIT_S, Gatherer, Source
from mq.errors import IllegalFilter, MqError, TopicNotFound, Unreachable
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

A, B, C = Source("t", "a"), Source("t", "b"), Source("t", "c")
CALL_S = 5.0
# After so long no call is open that was left open.
GONE_S = CALL_S + CALL_WAIT_S + 0.1


def at(*sources: Source) -> Callable[[], list[Source]]:
    return lambda: list(sources)


BOTH = at(A, B)
# Messages of one batch that a receiver returns.
BATCH = 3


class Received(list[ReceivedMessage]):
    """Messages that were received together."""

    def part(self, start: int, end: int) -> Received:
        return Received(self[start:end])


class ScriptedReceiver:
    """The brokers of all sources: their messages, and the calls that they had."""

    def __init__(self) -> None:
        self.stock: dict[Source, list[ReceivedMessage]] = {}
        self.failures: dict[Source, MqError] = {}
        self.dead: set[Source] = set()
        self.latency_s: dict[Source, float] = {}
        self.asked: list[tuple[Source, int, float]] = []
        self.held: list[int] = []
        self.taken_by_others: set[int] = set()
        self.cancelled: list[Source] = []
        self.waiting = 0
        self._arrived = asyncio.Event()

    def put(self, source: Source, *numbers: int) -> None:
        self.stock.setdefault(source, []).extend(message(source, one) for one in numbers)
        self._arrived.set()

    async def receive(
        self, source: Source, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[Received]:
        assert invisible_s >= 10
        self.asked.append((source, messages_max, wait_s))
        deadline_s = now_s() + wait_s
        self.waiting += 1
        try:
            await asyncio.sleep(self.latency_s.get(source, 0.001))
            while not self.stock.get(source):
                if source in self.dead:
                    await asyncio.sleep(wait_s + CALL_S)
                    raise Unreachable(f"set {source.broker_set} is down")
                if source in self.failures:
                    raise self.failures[source]
                if now_s() >= deadline_s:
                    return []
                self._arrived.clear()
                waits = [asyncio.ensure_future(self._arrived.wait())]
                try:
                    await asyncio.wait(waits, timeout=deadline_s - now_s())
                finally:
                    waits[0].cancel()
        except asyncio.CancelledError:
            self.cancelled.append(source)
            raise
        finally:
            self.waiting -= 1
        stock = self.stock[source]
        self.stock[source] = stock[messages_max:]
        return batches(stock[:messages_max])

    async def hold(self, held: Sequence[Received], invisible_s: float) -> list[Received]:
        await asyncio.sleep(0.001)
        messages = [one for batch in held for one in batch]
        if any(Source("t", one.broker_set) in self.dead for one in messages):
            raise Unreachable("down")
        assert invisible_s >= 10
        self.held += [one.queue_offset for one in messages]
        return batches([one for one in messages if one.queue_offset not in self.taken_by_others])


def batches(messages: Sequence[ReceivedMessage]) -> list[Received]:
    return [Received(messages[start : start + BATCH]) for start in range(0, len(messages), BATCH)]


def message(source: Source, number: int) -> ReceivedMessage:
    name = f"{source.broker_set}:{number}"
    return ReceivedMessage(source.topic, 0, number, name, 0, 0, b"", "", (), {}, "")


def numbers(found: Sequence[Received]) -> list[int]:
    assert all(found)
    return sorted(one.queue_offset for batch in found for one in batch)


def test_present_messages_of_all_sources_fill_a_receive() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        receiver.put(A, *range(100))
        receiver.put(B, 200, 201)
        found = await gatherer.receive(BOTH, 32, 20, 60)
        # The share of each, and then the rest where there was more.
        assert numbers(found) == [*range(30), 200, 201]
        assert max(count for _, count, _ in receiver.asked) == 16
        assert len(numbers(await gatherer.receive(BOTH, 32, 20, 60))) == 32
        assert now_s() < 1000.1

    run(scenario())


def test_one_place_is_asked_once_with_the_wait() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        assert await gatherer.receive(at(A), 32, 20, 60) == []
        # The last one for what was left when the first had come back a little early.
        assert receiver.asked[:1] == [(A, 32, 20.0)]
        assert 1020 <= now_s() < 1020.1
        assert await gatherer.receive(at(A), 32, 0, 60) == []
        assert receiver.asked[-1:] == [(A, 32, 0.0)]
        assert 1020 <= now_s() < 1020.1

    run(scenario())


def test_the_first_that_brings_something_ends_the_wait_and_others_stay_open() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        waiting = asyncio.create_task(gatherer.receive(BOTH, 32, 20, 60))
        await asyncio.sleep(3)
        receiver.put(B, 1)
        assert numbers(await waiting) == [1]
        assert now_s() < 1003.1
        receiver.put(A, 7)
        await asyncio.sleep(0.1)
        assert receiver.waiting == 0
        # It came to the call that was still open.
        asked = len(receiver.asked)
        assert numbers(await gatherer.receive(BOTH, 32, 0, 60)) == [7]
        assert receiver.asked[asked:] == [(A, 15, 0), (B, 15, 0)]
        assert receiver.held == []

    run(scenario())


def test_an_abandoned_call_ends_soon() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        desk_waits = asyncio.create_task(gatherer.receive(BOTH, 32, 20, 60))
        await asyncio.sleep(0.1)
        receiver.put(B, 1)
        await desk_waits
        assert receiver.waiting == 1
        await asyncio.sleep(CALL_WAIT_S + 0.1)
        # By itself: what is on its way to a call that is cancelled nobody has.
        assert (receiver.waiting, receiver.cancelled) == (0, [])

    run(scenario())


def test_messages_that_were_kept_for_long_are_renewed_or_left_out() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        # Sources that are asked for one each at the same time: more comes than is wanted.
        waiting = asyncio.create_task(gatherer.receive(at(A, B, C), 1, 20, 60))
        await asyncio.sleep(1)
        for number, source in enumerate([A, B, C]):
            receiver.put(source, number)
        first = numbers(await waiting)
        await asyncio.sleep(30)
        receiver.taken_by_others = {2}
        found = numbers(await gatherer.receive(at(A, B, C), 10, 0, 60))
        assert sorted(receiver.held) == sorted({0, 1, 2} - set(first))
        assert sorted(first + found) == [0, 1] or first == [2]

    run(scenario())


def test_messages_of_another_invisible_time_are_renewed_for_the_wanted_one() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        waiting = asyncio.create_task(gatherer.receive(BOTH, 32, 20, 10))
        await asyncio.sleep(1)
        receiver.put(B, 1)
        await waiting
        receiver.put(A, 7)
        assert numbers(await gatherer.receive(BOTH, 32, 1, 600)) == [7]
        assert receiver.held == [7]

    run(scenario())


def test_a_dead_source_delays_no_other_and_is_used_again_when_it_recovers() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        receiver.dead = {A}
        receiver.put(B, *range(1_000))
        for _ in range(5):
            assert len(numbers(await gatherer.receive(BOTH, 10, 20, 60))) >= 5
        assert now_s() < 1001
        receiver.stock[B] = []
        for _ in range(10):
            assert await gatherer.receive(BOTH, 10, 1, 60) == []
        assert now_s() < 1013
        assert len([one for one in receiver.asked if one[0] == A]) < 10
        receiver.dead = set()
        receiver.put(A, 7)
        assert numbers(await gatherer.receive(BOTH, 10, 20, 60)) == [7]

    run(scenario())


def test_an_error_is_raised_after_the_wait_when_all_sources_are_dead() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        receiver.dead = {A, B}
        with pytest.raises(Unreachable, match="is down"):
            await gatherer.receive(BOTH, 10, 2, 60)
        assert 1002 <= now_s() < 1010

    run(scenario())


def test_a_refusal_is_raised_unless_other_sources_have_the_topic() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        receiver.failures[A] = IllegalFilter("no filter")
        with pytest.raises(IllegalFilter):
            await gatherer.receive(BOTH, 10, 20, 60)
        assert now_s() < 1000.1
        receiver.failures[A] = TopicNotFound("not here any more")
        assert await gatherer.receive(BOTH, 10, 20, 60) == []
        # Once when it was looked, and not again and again.
        assert len([one for one in receiver.asked if one[0] == A]) == 2
        other = Source("other", "a")
        receiver.failures[other] = TopicNotFound("nowhere")
        with pytest.raises(TopicNotFound, match="nowhere"):
            await gatherer.receive(at(B, other), 10, 20, 60)
        receiver.failures[B] = TopicNotFound("nowhere")
        began_s = now_s()
        with pytest.raises(TopicNotFound):
            await gatherer.receive(BOTH, 10, 20, 60)
        assert now_s() - began_s < 1

    run(scenario())


def test_no_source_starves_however_few_messages_are_wanted() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        sources = [A, B, C]
        for source in sources:
            receiver.put(source, *range(100))
        seen: Counter[str] = Counter()
        for turn in range(30):
            first = turn % 3
            found = await gatherer.receive(at(*sources[first:], *sources[:first]), 1, 20, 60)
            ((one,),) = found
            seen[one.broker_set] += 1
        assert dict(seen) == {"a": 10, "b": 10, "c": 10}
        # No more was taken than was wanted.
        assert sum(map(len, receiver.stock.values())) == 270

    run(scenario())


def test_a_message_from_any_source_wakes_a_waiting_call() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        waiting = asyncio.create_task(gatherer.receive(at(A, B, C), 1, 20, 60))
        await asyncio.sleep(5)
        receiver.put(C, 1)
        assert numbers(await waiting) == [1]
        assert now_s() < 1005.1

    run(scenario())


def test_a_cancelled_receive_leaves_no_call_open_and_loses_nothing() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        waiting = asyncio.create_task(gatherer.receive(BOTH, 10, 20, 60))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        assert waiting.cancelled()
        assert (receiver.waiting, sorted(receiver.cancelled)) == (0, [A, B])
        # In the midst of a look, of which a part has come.
        receiver.put(A, 1)
        receiver.dead = {B}
        looking = asyncio.create_task(gatherer.receive(BOTH, 10, 20, 60))
        await asyncio.sleep(0.01)
        looking.cancel()
        await asyncio.wait([looking])
        assert receiver.stock[A] == []
        assert numbers(await gatherer.receive(BOTH, 10, 20, 60)) == [1]

    run(scenario())


def test_receives_at_the_same_time_share_no_message() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        receives = [asyncio.create_task(gatherer.receive(BOTH, 4, 5, 60)) for _ in range(5)]
        await asyncio.sleep(1)
        receiver.put(A, *range(10))
        receiver.put(B, *range(10, 20))
        found = [one for receive in receives for one in await receive]
        while more := await gatherer.receive(BOTH, 4, 0, 60):
            found += more
        assert numbers(found) == list(range(20))

    run(scenario())


def test_closing_returns_messages_that_were_never_given_out() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        waiting = asyncio.create_task(gatherer.receive(at(A, B, C), 1, 20, 60))
        await asyncio.sleep(1)
        receiver.put(A, 0)
        receiver.put(B, 1)
        first = numbers(await waiting)
        rest = numbers(await gatherer.close())
        assert sorted(first + rest) == [0, 1]
        assert receiver.waiting == 0

    run(scenario())


def test_a_new_source_wakes_a_waiting_call() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        sources = [A]
        waiting = asyncio.create_task(gatherer.receive(lambda: list(sources), 10, 60, 60))
        await asyncio.sleep(1)
        sources.append(B)
        receiver.put(B, 1)
        assert numbers(await waiting) == [1]
        assert now_s() < 1010
        assert [source for source, _, _ in receiver.asked] == [A, B]

    run(scenario())


def test_an_answer_on_its_way_to_an_open_call_is_not_missed() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        waiting = asyncio.create_task(gatherer.receive(at(A, B, C), 32, 20, 60))
        await asyncio.sleep(1)
        receiver.put(C, 1)
        await waiting
        asyncio.get_running_loop().call_later(0.01, receiver.put, A, 7)
        assert numbers(await gatherer.receive(BOTH, 32, 0, 60)) == [7]

    run(scenario())


def test_a_place_that_was_late_once_is_not_waited_for_again() -> None:
    async def scenario() -> None:
        receiver = ScriptedReceiver()
        gatherer = Gatherer(receiver)
        receiver.dead = {A}
        assert await gatherer.receive(BOTH, 32, 0, 60) == []
        assert now_s() < 1002
        for _ in range(3):
            await asyncio.sleep(GONE_S)
            began_s = now_s()
            assert await gatherer.receive(BOTH, 32, 0, 60) == []
            assert now_s() - began_s < 0.1
        receiver.dead = set()
        await asyncio.sleep(GONE_S)
        await gatherer.receive(BOTH, 32, 1, 60)
        await asyncio.sleep(GONE_S)
        # It answers: what it has comes with what the others have.
        receiver.latency_s[A] = 0.03
        receiver.put(A, 1)
        receiver.put(B, 2)
        assert numbers(await gatherer.receive(BOTH, 32, 0, 60)) == [1, 2]

    run(scenario())
