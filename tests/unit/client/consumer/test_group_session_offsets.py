"""A consumer's offsets: committed, sought, kept in a file; and its end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from mq.client.consumer import group_session as session_module
from mq.client.messages import QueueRef
from mq.errors import (
    IllegalOffset,
    NotAssigned,
    UnknownMember,
    Unreachable,
)
from mq.wire.v1.consumer_pb2 import CommitOffsetsResponse
from tests.unit.client.consumer.deliveries import SET, TOPIC, assignment, delivery, ref
from tests.unit.client.consumer.scripted_broker import DEADLINE_S
from tests.unit.client.consumer.scripted_session import ScriptedSession, run, shorten_waits, until


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


# Offsets


def test_a_commit_is_made_as_a_member_with_all_that_is_done() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0), (1, 4))
        call.send(delivery(0, range(3)))
        scripted.buffer.done((await scripted.take(3))[:2])
        await scripted.session.commit()
        ((method, request),) = scripted.connection.calls
        assert (method, request.group, request.member_id) == ("CommitOffsets", "g", "me")
        assert scripted.connection.committed() == [{ref(0): 2, ref(1): 4}]
        await scripted.session.close()

    run(story())


def test_a_commit_waits_until_a_new_leader_knows_the_member() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.join((0, 0))
        refusals = [UnknownMember("join again")] * 3

        def answer(_: object) -> CommitOffsetsResponse:
            if refusals:
                raise refusals.pop()
            return CommitOffsetsResponse()

        scripted.connection.answers["CommitOffsets"] = answer
        await scripted.session.commit()
        assert len(scripted.connection.calls) == 4
        await scripted.session.close()

    run(story())


def test_seeking_is_checked_before_anything_is_moved() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 50))
        with pytest.raises(IllegalOffset, match=r"101 is behind the end of queue 0.*which is 100"):
            await scripted.session.seek({ref(0): 101})
        with pytest.raises(NotAssigned):
            await scripted.session.seek({ref(5): 1})
        assert call.requests.empty()
        await scripted.session.seek({ref(0): 100})
        (place,) = (await call.heard("seek")).seek.positions
        assert place.queue_offset == 100
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize(("to", "at"), [("earliest", 0), ("latest", 100), (77, 77)])
def test_seeking_by_name_or_time_asks_the_broker_where_that_is(to: Any, at: int) -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 50), (1, 50))
        await scripted.session.seek_to(to, TOPIC)
        places = (await call.heard("seek")).seek.positions
        assert {one.queue_id: one.queue_offset for one in places} == {0: at, 1: at}
        await scripted.session.seek_to(to, "another topic")
        await scripted.session.close()

    run(story())


@pytest.mark.parametrize("to", ["earliest", "latest", 77])
def test_seeking_everywhere_leaves_what_failed_where_it_is(to: Any) -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        assigned = assignment((0, 50))
        assigned.queues.add(topic="%RETRY%g", queue_id=0, queue_offset=5)
        scripted.connection.prepared = [assigned]
        await scripted.session.joined(DEADLINE_S)
        await scripted.session.seek_to(to, None)
        moved = {ref for ref, queue in scripted.buffer._queues.items() if queue.sought is not None}
        assert moved == {ref(0)}
        await scripted.session.seek_to(to, "%RETRY%g")
        assert scripted.buffer._queues[QueueRef("%RETRY%g", 0, SET)].sought is not None
        await scripted.session.close()

    run(story())


# Broadcast


def test_a_broadcast_consumer_keeps_its_offsets_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"

    async def first() -> None:
        scripted = ScriptedSession(mode="broadcast", offsets_file=path)
        call = await scripted.join((0, 5), (1, 7))
        call.send(delivery(0, range(5, 8)))
        scripted.buffer.done((await scripted.take(3))[:2])
        await scripted.session.close()
        assert scripted.connection.committed() == []

    async def second() -> None:
        scripted = ScriptedSession(mode="broadcast", offsets_file=path)
        await scripted.session.start()
        start = await (await scripted.connection.next_call()).started()
        assert {one.queue_id: one.queue_offset for one in start.positions} == {0: 7, 1: 7}
        await scripted.session.close()

    run(first())
    run(second())


def test_the_file_is_saved_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_SAVE_S", 0.001)
    path = tmp_path / "offsets.json"

    async def story() -> None:
        scripted = ScriptedSession(mode="broadcast", offsets_file=path)
        await scripted.join((0, 5))
        await until(path.exists)
        await scripted.session.close()

    run(story())
    assert '"0": 5' in path.read_text()


# Ending


def test_a_session_leaves_with_a_durable_commit_and_a_half_closed_stream() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.send(delivery(0, range(3)))
        taken = await scripted.take(3)
        scripted.buffer.done(taken[:2])
        await scripted.session.close()
        assert scripted.connection.committed() == [{ref(0): 2}]
        assert call.is_half_closed
        assert scripted.connection.is_closed
        assert [method for method, _ in scripted.connection.calls] == ["CommitOffsets"]
        await scripted.session.close()

    run(story())


def test_without_its_stream_it_says_that_it_leaves() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.end()
        await scripted.connection.next_call()
        await scripted.session.close()
        assert [method for method, _ in scripted.connection.calls] == ["CommitOffsets", "Leave"]

    run(story())


def test_progress_is_reported_on_the_stream_when_the_last_commit_is_refused() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        call.send(delivery(0, range(3)))
        taken = await scripted.take(3)

        def refuse(_: object) -> None:
            scripted.buffer.done(taken)
            scripted.session._memberships[SET]._closing.set()
            raise NotAssigned("one of the queues is another's")

        scripted.connection.answers["CommitOffsets"] = refuse
        await scripted.session.close()
        assert await call.progress() == {0: 3}
        assert call.is_half_closed

    run(story())


def test_a_close_without_a_broker_comes_to_an_end(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.join((0, 0))

        def refuse(_: object) -> None:
            raise Unreachable("no broker answered")

        scripted.connection.answers["CommitOffsets"] = refuse
        await scripted.session.close()
        assert scripted.connection.is_closed

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "could not commit at its end: no broker answered" in caplog.text


def test_a_session_that_was_never_started_closes() -> None:
    async def story() -> None:
        scripted = ScriptedSession()
        await scripted.session.close()
        assert scripted.connection.is_closed
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            scripted.session.check_open()

    run(story())
