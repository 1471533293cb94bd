"""A consumer in several broker sets: which ones it joins, and which ones it leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.client.consumer import session as session_module
from mq.errors import (
    MqError,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import consumer_pb2 as wire
from tests.unit.client.deliveries import SET, TOPIC, assignment, delivery, ref
from tests.unit.client.pair import Pair, refuse_with
from tests.unit.client.scene import run, shorten_waits, until
from tests.unit.client.scripted_broker import DEADLINE_S

if TYPE_CHECKING:
    pass


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)
    monkeypatch.setattr(session_module, "LOOK_S", 0.005)


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


def test_a_broker_of_the_set_that_lags_behind_does_not_say_so_either() -> None:
    """One that was just started has not read its log, and another may not have all of it."""

    async def story() -> None:
        scene = Pair()
        _, second = await scene.join_both()
        second.send(delivery(0, range(3)))
        taken = await scene.take(3)
        place = wire.QueuePosition(topic=TOPIC, queue_id=0)
        scene.b.answers["FindOffsets"] = lambda _: wire.FindOffsetsResponse(positions=[place])
        del scene.b.topics[TOPIC]
        for _ in range(20):
            await asyncio.sleep(0.005)
        scene.b.answers["FindOffsets"] = refuse_with(Unreachable("nobody leads"))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        assert not any(one.is_void for one in taken)
        # The leader does.
        scene.b.answers["FindOffsets"] = refuse_with(TopicNotFound(TOPIC))
        await until(lambda: second.is_half_closed)
        await until(lambda: scene.assigned_sets() == {SET})
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
