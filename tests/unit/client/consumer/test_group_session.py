"""A consumer's life: it joins, reports, comes back after a break, and leaves in good order."""

from __future__ import annotations

import asyncio

import pytest

from mq.client.cluster import leader_stream as leader_stream_module
from mq.client.consumer import set_stream as set_stream_module
from mq.errors import (
    IllegalFilter,
    IllegalOffset,
    Internal,
    MqError,
    NotAssigned,
    NotLeader,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
    UnknownMember,
    Unreachable,
)
from tests.unit.client.consumer.deliveries import assignment, delivery
from tests.unit.client.consumer.scripted_broker import DEADLINE_S
from tests.unit.client.consumer.scripted_session import ScriptedSession, run, shorten_waits, until


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


def test_a_session_joins_with_its_subscriptions_and_takes_deliveries() -> None:
    async def story() -> None:
        scripted = ScriptedSession(start="earliest", cache_messages=7)
        await scripted.session.start()
        await scripted.session.start()
        call = await scripted.connection.next_call()
        start = await call.started()
        assert (start.group, start.member_id, start.cache_messages) == ("g", "me", 7)
        assert list(start.positions) == []
        call.send(assignment((0, 5)), delivery(0, [5, 6]))
        taken = await scripted.take(2)
        assert [one.message.message_id for one in taken] == ["set-0:50", "set-0:60"]
        await scripted.session.close()
        assert scripted.connection.opened.empty()

    run(story())


def test_progress_follows_what_is_done() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0), (1, 0))
        call.send(delivery(0, range(3)), delivery(1, range(3)))
        taken = await scripted.take(6)
        scripted.buffer.done(taken[:4])
        assert await call.progress() == {0: 3, 1: 1}
        scripted.buffer.done(taken[4:])
        assert await call.progress() == {1: 3}
        await scripted.session.close()

    run(story())


def test_only_the_start_is_sent_before_the_first_assignment() -> None:
    """Epochs are counted anew on each stream."""

    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.send(delivery(0, range(3)))
        taken = await scripted.take(3)
        call.end()
        again = await scripted.connection.next_call()
        await again.started()
        scripted.buffer.done(taken)
        for _ in range(20):
            await asyncio.sleep(0)
        assert again.requests.empty()
        again.send(assignment((0, 3, 8)))
        (place,) = (await again.heard("progress")).progress.positions
        assert (place.queue_offset, place.epoch) == (3, 8)
        await scripted.session.close()

    run(story())


def test_a_broken_stream_is_reopened_with_the_current_positions() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 5), (1, 9))
        call.send(delivery(0, range(5, 8)))
        taken = await scripted.take(3)
        scripted.buffer.done(taken[:1])
        call.end()
        again = await scripted.connection.next_call()
        assert call.is_cancelled
        assert scripted.connection.failures == ["one:1"]
        start = await again.started()
        positions = {one.queue_id: one.queue_offset for one in start.positions}
        assert positions == {0: 8, 1: 9}
        again.send(assignment((0, 8), (1, 9)), delivery(0, [8]))
        assert (await scripted.take(1))[0].message.queue_offset == 8
        assert (await again.progress())[0] == 6
        await scripted.session.close()

    run(story())


def test_a_broker_that_is_away_is_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_stream_module, "back_off_s", lambda _: 1_000)

    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.end()
        await until(lambda: call.is_cancelled)
        for _ in range(50):
            await asyncio.sleep(0)
        assert scripted.connection.opened.empty()
        await scripted.session.close()

    run(story())


def test_a_session_follows_the_leader() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        assert call.address == "one:1"
        call.end(NotLeader("two", "two:2"))
        again = await scripted.connection.next_call()
        assert again.address == "two:2"
        assert scripted.connection.failures == []
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize(
    "error", [UnknownMember("too long"), Internal("bug"), NotAssigned("late"), IllegalOffset("?")]
)
def test_a_passing_error_is_retried(error: MqError) -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.end(error)
        again = await scripted.connection.next_call()
        await again.started()
        again.send(assignment((0, 0)), delivery(0, [0]))
        await scripted.take(1)
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize(
    "error",
    [
        SubscriptionMismatch("'a' wants x; 'b' has y"),
        TopicNotFound("orders"),
        IllegalFilter("no such thing"),
        PermissionDenied("not you"),
    ],
)
def test_a_permanent_error_ends_the_consumer(error: MqError) -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.session.start()
        call = await scripted.connection.next_call()
        call.end(error)
        with pytest.raises(type(error), match=str(error)):
            await scripted.session.joined(DEADLINE_S)
        with pytest.raises(type(error)):
            await scripted.session.take(1, DEADLINE_S)
        scripted.session.raise_untold()
        await scripted.session.close()
        assert scripted.connection.opened.empty()
        assert scripted.connection.calls == []

    run(story())


def test_a_waiting_take_raises_the_error_that_ended_the_consumer() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        waiting = asyncio.create_task(scripted.session.take(1, None))
        call.end(TopicNotFound("it was deleted"))
        with pytest.raises(TopicNotFound, match="it was deleted"):
            await waiting
        with pytest.raises(TopicNotFound):
            scripted.session.raise_untold()
        scripted.session.raise_untold()
        await scripted.session.close()

    run(story())


def test_a_mistake_of_ours_is_not_a_silent_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(scripted.buffer, "deliver", fail)
        call.send(delivery(0, [0]))
        with pytest.raises(Internal, match="ZeroDivisionError"):
            await scripted.session.take(1, DEADLINE_S)
        await scripted.session.close()

    run(story())
    assert "ZeroDivisionError" in caplog.text


def test_an_unreadable_response_breaks_the_stream() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call._answers.put_nowait(b"\x12\xff\xff")
        await (await scripted.connection.next_call()).started()
        await scripted.session.close()

    run(story())


def test_joining_without_a_broker_names_the_addresses_tried() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        with pytest.raises(Unreachable, match=r"me into group g within 0\.01 s; tried one:1"):
            await scripted.session.joined(0.01)
        await scripted.session.close()

    run(story())


def test_a_broker_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_stream_module, "START_S_MAX", 0.01)

    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.session.start()
        frozen = await scripted.connection.next_call()
        await scripted.connection.next_call()
        assert frozen.is_cancelled
        assert scripted.connection.failures == ["one:1"]
        await scripted.session.close()

    run(story())


def test_a_session_sends_heartbeats() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.session.start()
        call = await scripted.connection.next_call()
        await call.started()
        call.send(assignment((0, 0), heartbeat_ms=5))
        await call.heard("alive")
        await call.heard("alive")
        await scripted.session.close()

    run(story())


def test_a_leader_that_was_deposed_and_does_not_know_it_is_left() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.session.start()
        call = await scripted.connection.next_call()
        call.send(assignment((0, 0), heartbeat_ms=5))
        await scripted.session.joined(DEADLINE_S)
        # Somebody who knows less says so: nothing happens.
        scripted.connection.leaders.append("two:2")
        for _ in range(4):
            await call.requests.get()
        assert scripted.connection.opened.empty()
        scripted.connection.term = 2
        again = await scripted.connection.next_call()
        assert again.address == "two:2"
        assert call.is_cancelled
        await scripted.session.close()

    run(story())


def test_alone_for_too_long_it_gives_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have its queues by then."""
    monkeypatch.setattr(set_stream_module, "ALONE_S_MAX", 0.01)

    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.send(delivery(0, range(3)))
        await scripted.take(1)
        call.end()
        again = await scripted.connection.next_call()
        await asyncio.sleep(0.05)
        assert await scripted.session.take(5, 0.0) == []
        again.send(assignment((0, 3)))
        assert len(await scripted.take(2)) == 2
        await scripted.session.close()

    run(story())


def test_a_revoked_queue_is_reported_and_released() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0), (1, 0))
        call.send(delivery(0, range(3)))
        taken = await scripted.take(1)
        call.send(assignment((1, 0)))
        await until(lambda: len(scripted.buffer.assignment) == 1)
        scripted.buffer.done(taken)
        assert await call.progress() == {0: 1}
        released = (await call.heard("released")).released.queues
        assert [one.queue_id for one in released] == [0]
        await scripted.session.close()

    run(story())
