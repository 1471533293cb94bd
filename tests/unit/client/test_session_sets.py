"""A consumer in several broker sets: which ones it joins and leaves, and that they are apart."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import attendance as attendance_module
from mq.client import session as session_module
from mq.client.model import QueueRef
from mq.client.retries import Failure
from mq.errors import (
    IllegalRequest,
    MqError,
    NotAssigned,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import consumer_pb2 as wire
from tests.unit.client.deliveries import SET, TOPIC, assignment, delivery, ref
from tests.unit.client.scene import Scene, run, shorten_waits, until
from tests.unit.client.scripted_broker import DEADLINE_S, ScriptedCall, ScriptedSet

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)
    monkeypatch.setattr(session_module, "LOOK_S", 0.005)


class Pair(Scene):
    """Two sets that have the topic."""

    def __init__(self, *, topics: tuple[str, ...] = (SET, "b"), **options: Any) -> None:
        super().__init__("b", **options)
        for name in topics:
            self.connection.of(name).topics[TOPIC] = 2

    @property
    def b(self) -> ScriptedSet:
        return self.connection.of("b")

    async def join_both(self) -> tuple[ScriptedCall, ScriptedCall]:
        await self.session.start()
        calls = [await self.answer(name) for name in (SET, "b")]
        await self.session.joined(DEADLINE_S)
        return calls[0], calls[1]

    async def answer(self, name: str) -> ScriptedCall:
        call = await self.connection.of(name).next_call()
        await call.started()
        call.send(assignment((0, 0), (1, 0)))
        return call

    def assigned_sets(self) -> set[str]:
        return {one.broker_set for one in self.holdings.assignment}


def refuse_with(error: MqError) -> Any:
    def refuse(_: object) -> None:
        raise error

    return refuse


# Joining


def test_it_joins_all_sets_that_have_the_topic_and_no_other() -> None:
    async def story() -> None:
        scene = Pair(topics=("b",))
        await scene.session.start()
        call = await scene.answer("b")
        await scene.session.joined(DEADLINE_S)
        call.send(delivery(1, range(2)))
        assert {one.message.queue for one in await scene.take(2)} == {ref(1, "b")}
        assert scene.connection.opened.empty()
        await scene.session.close()

    run(story())


def test_it_has_joined_when_all_sets_have_answered() -> None:
    async def story() -> None:
        scene = Pair()
        joining = asyncio.create_task(scene.session.joined(DEADLINE_S))
        await scene.answer(SET)
        await until(lambda: scene.assigned_sets() == {SET})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not joining.done()
        await scene.answer("b")
        await joining
        await scene.session.close()

    run(story())


def test_one_set_is_enough_when_the_time_is_over_and_nobody_waits_for_the_other_again() -> None:
    async def story() -> None:
        scene = Pair()
        await scene.session.start()
        await scene.answer(SET)
        await scene.session.joined(0.05)
        await asyncio.wait_for(scene.session.joined(DEADLINE_S), 1.0)
        await scene.answer("b")
        await until(lambda: scene.assigned_sets() == {SET, "b"})
        await scene.session.close()

    run(story())


def test_a_set_that_gets_the_topic_is_joined_and_read_from_where_the_consumer_began() -> None:
    async def story() -> None:
        scene = Pair(topics=(SET,))
        await scene.session.start()
        first = await scene.connection.next_call()
        assert (await first.started()).start_position == wire.START_LATEST
        first.send(assignment((0, 0)))
        await scene.session.joined(DEADLINE_S)
        assert scene.b.opened.empty()
        scene.b.topics[TOPIC] = 1
        start = await (await scene.b.next_call()).started()
        assert start.start_position == wire.START_TIMESTAMP
        await scene.session.close()

    run(story())


@pytest.mark.parametrize("start", ["earliest", 77])
def test_a_start_that_was_asked_for_holds_in_every_set(start: Any) -> None:
    async def story() -> None:
        scene = Pair(topics=(SET,), start=start)
        await scene.session.start()
        await scene.answer(SET)
        scene.b.topics[TOPIC] = 1
        begun = await (await scene.b.next_call()).started()
        expected = wire.START_EARLIEST if start == "earliest" else wire.START_TIMESTAMP
        assert begun.start_position == expected
        assert begun.start_at_ms in (0, 77)
        await scene.session.close()

    run(story())


@pytest.mark.parametrize("is_known", [False, True])
def test_a_group_that_knows_the_topic_elsewhere_misses_nothing(is_known: bool) -> None:
    async def story() -> None:
        scene = Pair()
        place = wire.QueuePosition(topic=TOPIC, queue_id=0, queue_offset=5)
        known = wire.QueryOffsetsResponse(positions=[place] if is_known else [])
        scene.connection.answers["QueryOffsets"] = lambda _: known
        scene.b.answers["QueryOffsets"] = refuse_with(Unreachable("down"))
        await scene.session.start()
        starts = [await (await scene.connection.of(at).next_call()).started() for at in (SET, "b")]
        expected = wire.START_EARLIEST if is_known else wire.START_LATEST
        assert [one.start_position for one in starts] == [wire.START_LATEST, expected]
        await scene.session.close()

    run(story())


# Leaving


def test_a_set_that_says_that_it_lost_the_topic_is_left() -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        second.send(delivery(0, range(3)))
        taken = await scene.take(3)
        scene.holdings.done(taken[:2])
        del scene.b.topics[TOPIC]
        await until(lambda: second.is_half_closed)
        await until(lambda: scene.assigned_sets() == {SET})
        # What was in hand there is nobody's business any more.
        scene.holdings.done(taken[2:])
        first.send(delivery(1, [0]))
        assert (await scene.take(1))[0].message.broker_set == SET
        # And joined again when it has it again.
        scene.b.topics[TOPIC] = 2
        again = await scene.answer("b")
        again.send(delivery(0, [0]))
        assert (await scene.take(1))[0].message.broker_set == "b"
        await scene.session.close()

    run(story())


def test_nobody_else_says_that_a_set_lost_its_topic() -> None:
    """A broker that has just started has not heard of other sets."""

    async def story() -> None:
        scene = Pair()
        _, second = await scene.join_both()
        scene.connection.unheard.add("b")
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        second.send(delivery(0, [0]))
        await scene.take(1)
        # Nor when it cannot be asked.
        scene.b.answers["Route"] = refuse_with(Unreachable("down"))
        del scene.b.topics[TOPIC]
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        await scene.session.close()

    run(story())


def test_a_set_that_nobody_knows_any_more_is_left_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "FORGOTTEN_S", 0.05)

    async def story() -> None:
        scene = Pair()
        _, second = await scene.join_both()
        scene.connection.unheard.add("b")
        scene.b.answers["Route"] = refuse_with(Unreachable("down"))
        second.end()
        await until(lambda: scene.assigned_sets() == {SET})
        assert list(scene.session._attendances) == [SET]
        await scene.session.close()

    run(story())


def test_a_set_is_attended_while_failed_messages_wait_there() -> None:
    async def story() -> None:
        scene = Pair(topics=(SET,))
        scene.b.topics["%RETRY%g"] = 1
        _, second = await scene.join_both()
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        del scene.b.topics["%RETRY%g"]
        await until(lambda: second.is_half_closed)
        await scene.session.close()

    run(story())


@pytest.mark.parametrize("error", [TopicNotFound("orders"), PermissionDenied("not to be read")])
def test_what_one_set_refuses_because_it_lost_the_topic_ends_nothing(error: MqError) -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        del scene.b.topics[TOPIC]
        second.end(error)
        await until(lambda: scene.assigned_sets() == {SET})
        first.send(delivery(0, [0]))
        await scene.take(1)
        await scene.session.close()

    run(story())


def test_a_set_that_has_not_heard_of_a_topic_yet_is_asked_again() -> None:
    async def story() -> None:
        scene = Pair()
        await scene.session.start()
        (await scene.b.next_call()).end(TopicNotFound("orders"))
        await scene.answer("b")
        await scene.answer(SET)
        await scene.session.joined(DEADLINE_S)
        await scene.session.close()

    run(story())


def test_a_topic_that_is_deleted_everywhere_keeps_the_streams() -> None:
    """It may come back; who comes back to a set without it hears so, and ends."""

    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        scene.connection.topics.clear()
        scene.b.topics.clear()
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not first.is_half_closed
        second.end(TopicNotFound("orders"))
        with pytest.raises(TopicNotFound):
            await scene.session.take(1, DEADLINE_S)
        await scene.session.close()

    run(story())


def test_what_does_not_pass_in_one_set_ends_the_consumer_in_all() -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        second.end(SubscriptionMismatch("a and b"))
        with pytest.raises(SubscriptionMismatch):
            await scene.session.take(1, DEADLINE_S)
        # Others get its queues at once.
        await until(lambda: first.is_half_closed)
        await scene.session.close()

    run(story())


# Apart from each other


def test_a_broken_stream_is_opened_again_with_the_positions_of_its_set() -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        first.send(delivery(0, range(5)))
        second.send(delivery(1, range(3)))
        await scene.take(8)
        second.end()
        start = await (await scene.b.next_call()).started()
        assert {one.queue_id: one.queue_offset for one in start.positions} == {0: 0, 1: 3}
        assert not first.is_cancelled
        assert (scene.connection.failures, scene.b.failures) == ([], ["b:1"])
        await scene.session.close()

    run(story())


def test_alone_for_too_long_it_gives_out_nothing_of_that_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attendance_module, "ALONE_S_MAX", 0.01)

    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        second.send(delivery(0, range(3)))
        await scene.take(1)
        second.end()
        again = await scene.b.next_call()
        await asyncio.sleep(0.05)
        first.send(delivery(0, range(2)))
        assert {one.message.broker_set for one in await scene.take(2)} == {SET}
        assert await scene.session.take(5, 0.0) == []
        again.send(assignment((0, 3), (1, 0)))
        assert len(await scene.take(2)) == 2
        await scene.session.close()

    run(story())


def test_progress_goes_to_the_set_of_the_queue() -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        second.send(delivery(1, range(3)))
        scene.holdings.done(await scene.take(3))
        assert await second.progress() == {1: 3}
        assert first.requests.empty()
        await scene.session.seek({ref(0, "b"): 9})
        assert (await second.heard("seek")).seek.positions[0].queue_offset == 9
        assert first.requests.empty()
        await scene.session.close()

    run(story())


# Offsets


def test_a_commit_is_durable_in_all_sets() -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        first.send(delivery(0, range(2)))
        second.send(delivery(0, range(3)))
        scene.holdings.done(await scene.take(5))
        await scene.session.commit()
        assert scene.connection.committed() == [{ref(0): 2, ref(1): 0}]
        assert scene.b.committed() == [{ref(0, "b"): 3, ref(1, "b"): 0}]
        # A set where nothing is new is not asked: it may be down.
        scene.b.answers["CommitOffsets"] = refuse_with(Unreachable("down"))
        first.send(delivery(0, [2]))
        scene.holdings.done(await scene.take(1))
        await scene.session.commit()
        assert scene.connection.committed()[1:] == [{ref(0): 3}]
        await scene.session.close()

    run(story())


def test_a_commit_that_fails_names_the_set_and_is_durable_in_the_others() -> None:
    async def story() -> None:
        scene = Pair()
        await scene.join_both()
        scene.b.answers["CommitOffsets"] = refuse_with(NotAssigned("queue 1 is another's"))
        with pytest.raises(NotAssigned, match=r"^broker set b: queue 1 is another's"):
            await scene.session.commit()
        assert scene.connection.committed() == [{ref(0): 0, ref(1): 0}]
        await scene.session.close()

    run(story())


def test_failed_messages_go_back_to_their_set_and_one_that_is_down_holds_up_no_other() -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        first.send(delivery(0, [0]))
        second.send(delivery(0, [0]))
        scene.b.answers["Retry"] = refuse_with(Unreachable("down"))
        for one in sorted(await scene.take(2), key=lambda one: one.message.broker_set):
            scene.session.retries.add(Failure(one, None, "no"))
        await until(lambda: len(scene.connection.retry_requests()) == 1)
        await until(lambda: len(scene.b.retry_requests()) > 1)
        assert scene.holdings.done_offsets()[ref(0)] == 1
        assert scene.holdings.done_offsets()[ref(0, "b")] == 0
        scene.b.answers["Retry"] = scene.connection.answers["Retry"]
        await until(lambda: scene.holdings.done_offsets()[ref(0, "b")] == 1)
        await scene.session.close()

    run(story())


def test_a_queue_needs_its_set_when_several_have_the_topic() -> None:
    async def story() -> None:
        scene = Pair()
        await scene.join_both()
        with pytest.raises(IllegalRequest, match="queue 0 of topic orders is in b, set-0"):
            scene.session.resolve(TOPIC, 0)
        assert scene.session.resolve(TOPIC, 0, "b") == ref(0, "b")
        with pytest.raises(IllegalRequest, match="%RETRY%g is in b, set-0"):
            scene.session.resolve("%RETRY%g", 0)
        await scene.session.close()

    run(story())


def test_an_old_file_of_broadcast_offsets_is_used_in_the_set_of_its_topic(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"version": 1, "group": "g", "offsets": {"orders": {"0": 5}}}')

    async def story() -> None:
        scene = Pair(topics=("b",), mode="broadcast", offsets_file=path)
        await scene.session.start()
        call = await scene.b.next_call()
        (place,) = (await call.started()).positions
        assert (place.queue_id, place.queue_offset) == (0, 5)
        call.send(assignment((0, 5)))
        await scene.session.joined(DEADLINE_S)
        await scene.session.close()
        assert scene.session._offsets.offsets == {QueueRef(TOPIC, 0, "b"): 5}

    run(story())


# Ending


def test_it_leaves_all_sets_and_one_that_is_down_keeps_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        scene = Pair()
        first, second = await scene.join_both()
        second.send(delivery(0, [0]))
        scene.holdings.done(await scene.take(1))
        second.end()
        scene.b.answers["CommitOffsets"] = refuse_with(Unreachable("no broker answered"))
        await scene.session.close()
        assert first.is_half_closed
        assert scene.connection.committed() == [{ref(0): 0, ref(1): 0}]
        assert [method for method, _ in scene.b.calls] == ["CommitOffsets", "Leave"]
        assert scene.connection.is_closed

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "could not commit at its end: broker set b: no broker answered" in caplog.text
