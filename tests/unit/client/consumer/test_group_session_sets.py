"""A consumer in several broker sets: which ones it joins, and which ones it leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.client.consumer import group_session as session_module
from mq.errors import (
    MqError,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import consumer_pb2 as wire
from tests.unit.client.consumer.deliveries import SET, TOPIC, assignment, delivery, ref
from tests.unit.client.consumer.scripted_broker import DEADLINE_S
from tests.unit.client.consumer.scripted_session import (
    TwoSetSession,
    refuse_with,
    run,
    shorten_waits,
    until,
)

if TYPE_CHECKING:
    pass


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)
    monkeypatch.setattr(session_module, "LOOK_S", 0.005)


# Joining


def test_a_session_joins_the_sets_that_have_the_topic() -> None:
    async def story() -> None:
        scripted = TwoSetSession(topics=("b",))
        await scripted.session.start()
        call = await scripted.answer("b")
        await scripted.session.joined(DEADLINE_S)
        call.send(delivery(1, range(2)))
        assert {one.message.queue for one in await scripted.take(2)} == {ref(1, "b")}
        assert scripted.connection.opened.empty()
        await scripted.session.close()

    run(story())


def test_a_session_has_joined_when_all_sets_have_answered() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        joining = asyncio.create_task(scripted.session.joined(DEADLINE_S))
        await scripted.answer(SET)
        await until(lambda: scripted.assigned_sets() == {SET})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not joining.done()
        await scripted.answer("b")
        await joining
        await scripted.session.close()

    run(story())


def test_one_set_is_enough_at_the_deadline_and_the_other_is_not_awaited_again() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        await scripted.session.start()
        await scripted.answer(SET)
        await scripted.session.joined(0.05)
        await asyncio.wait_for(scripted.session.joined(DEADLINE_S), 1.0)
        await scripted.answer("b")
        await until(lambda: scripted.assigned_sets() == {SET, "b"})
        await scripted.session.close()

    run(story())


def test_a_set_that_gets_the_topic_is_joined_and_read_from_where_the_consumer_began() -> None:
    async def story() -> None:
        scripted = TwoSetSession(topics=(SET,))
        await scripted.session.start()
        first = await scripted.connection.next_call()
        assert (await first.started()).start_position == wire.START_LATEST
        first.send(assignment((0, 0)))
        await scripted.session.joined(DEADLINE_S)
        assert scripted.b.opened.empty()
        scripted.b.topics[TOPIC] = 1
        start = await (await scripted.b.next_call()).started()
        assert start.start_position == wire.START_TIMESTAMP
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("start", ["earliest", 77])
def test_a_start_that_was_asked_for_holds_in_every_set(start: Any) -> None:
    async def story() -> None:
        scripted = TwoSetSession(topics=(SET,), start=start)
        await scripted.session.start()
        await scripted.answer(SET)
        scripted.b.topics[TOPIC] = 1
        begun = await (await scripted.b.next_call()).started()
        expected = wire.START_EARLIEST if start == "earliest" else wire.START_TIMESTAMP
        assert begun.start_position == expected
        assert begun.start_at_ms in (0, 77)
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("is_known", [False, True])
def test_a_group_that_knows_the_topic_elsewhere_misses_nothing(is_known: bool) -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        place = wire.QueuePosition(topic=TOPIC, queue_id=0, queue_offset=5)
        known = wire.QueryOffsetsResponse(positions=[place] if is_known else [])
        scripted.connection.answers["QueryOffsets"] = lambda _: known
        scripted.b.answers["QueryOffsets"] = refuse_with(Unreachable("down"))
        await scripted.session.start()
        starts = [
            await (await scripted.connection.of(at).next_call()).started() for at in (SET, "b")
        ]
        expected = wire.START_EARLIEST if is_known else wire.START_LATEST
        assert [one.start_position for one in starts] == [wire.START_LATEST, expected]
        await scripted.session.close()

    run(story())


# Leaving


def test_a_set_that_says_that_it_lost_the_topic_is_left() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        second.send(delivery(0, range(3)))
        taken = await scripted.take(3)
        scripted.buffer.done(taken[:2])
        del scripted.b.topics[TOPIC]
        await until(lambda: second.is_half_closed)
        await until(lambda: scripted.assigned_sets() == {SET})
        # What was in hand there is nobody's business any more.
        scripted.buffer.done(taken[2:])
        first.send(delivery(1, [0]))
        assert (await scripted.take(1))[0].message.broker_set == SET
        # And joined again when it has it again.
        scripted.b.topics[TOPIC] = 2
        again = await scripted.answer("b")
        again.send(delivery(0, [0]))
        assert (await scripted.take(1))[0].message.broker_set == "b"
        await scripted.session.close()

    run(story())


def test_only_the_set_itself_says_that_it_lost_a_topic() -> None:
    """A broker that has just started has not heard of other sets."""

    async def story() -> None:
        scripted = TwoSetSession()
        _, second = await scripted.join_both()
        scripted.connection.unheard.add("b")
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        second.send(delivery(0, [0]))
        await scripted.take(1)
        # Nor when it cannot be asked.
        scripted.b.answers["Route"] = refuse_with(Unreachable("down"))
        del scripted.b.topics[TOPIC]
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        await scripted.session.close()

    run(story())


def test_a_broker_of_the_set_that_lags_behind_does_not_say_so_either() -> None:
    """One that was just started has not read its log, and another may not have all of it."""

    async def story() -> None:
        scripted = TwoSetSession()
        _, second = await scripted.join_both()
        second.send(delivery(0, range(3)))
        taken = await scripted.take(3)
        place = wire.QueuePosition(topic=TOPIC, queue_id=0)
        scripted.b.answers["FindOffsets"] = lambda _: wire.FindOffsetsResponse(positions=[place])
        del scripted.b.topics[TOPIC]
        for _ in range(20):
            await asyncio.sleep(0.005)
        scripted.b.answers["FindOffsets"] = refuse_with(Unreachable("nobody leads"))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        assert not any(one.is_void for one in taken)
        # The leader does.
        scripted.b.answers["FindOffsets"] = refuse_with(TopicNotFound(TOPIC))
        await until(lambda: second.is_half_closed)
        await until(lambda: scripted.assigned_sets() == {SET})
        await scripted.session.close()

    run(story())


def test_a_set_that_left_the_cluster_is_left_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "FORGOTTEN_S", 0.05)

    async def story() -> None:
        scripted = TwoSetSession()
        _, second = await scripted.join_both()
        scripted.connection.unheard.add("b")
        scripted.b.answers["Route"] = refuse_with(Unreachable("down"))
        second.end()
        await until(lambda: scripted.assigned_sets() == {SET})
        assert list(scripted.session._memberships) == [SET]
        await scripted.session.close()

    run(story())


def test_a_set_is_attended_while_failed_messages_wait_there() -> None:
    async def story() -> None:
        scripted = TwoSetSession(topics=(SET,))
        scripted.b.topics["%RETRY%g"] = 1
        _, second = await scripted.join_both()
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not second.is_half_closed
        del scripted.b.topics["%RETRY%g"]
        await until(lambda: second.is_half_closed)
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("error", [TopicNotFound("orders"), PermissionDenied("not to be read")])
def test_a_set_that_lost_the_topic_does_not_end_the_consumer(error: MqError) -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        del scripted.b.topics[TOPIC]
        second.end(error)
        await until(lambda: scripted.assigned_sets() == {SET})
        first.send(delivery(0, [0]))
        await scripted.take(1)
        await scripted.session.close()

    run(story())


def test_a_set_that_has_not_heard_of_a_topic_yet_is_asked_again() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        await scripted.session.start()
        (await scripted.b.next_call()).end(TopicNotFound("orders"))
        await scripted.answer("b")
        await scripted.answer(SET)
        await scripted.session.joined(DEADLINE_S)
        await scripted.session.close()

    run(story())


def test_a_topic_that_is_deleted_everywhere_keeps_the_streams() -> None:
    """It may come back; who comes back to a set without it hears so, and ends."""

    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        scripted.connection.topics.clear()
        scripted.b.topics.clear()
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not first.is_half_closed
        second.end(TopicNotFound("orders"))
        with pytest.raises(TopicNotFound):
            await scripted.session.take(1, DEADLINE_S)
        await scripted.session.close()

    run(story())


def test_a_permanent_error_of_one_set_ends_the_consumer_in_all() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        second.end(SubscriptionMismatch("a and b"))
        with pytest.raises(SubscriptionMismatch):
            await scripted.session.take(1, DEADLINE_S)
        # Others get its queues at once.
        await until(lambda: first.is_half_closed)
        await scripted.session.close()

    run(story())
