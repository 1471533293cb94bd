"""A consumer in several broker sets: what happens in one does not disturb the others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from mq.client.consumer import set_stream as set_stream_module
from mq.client.consumer.retries import Failure
from mq.client.messages import QueueRef
from mq.errors import (
    IllegalRequest,
    NotAssigned,
    Unreachable,
)
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
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)


# Apart from each other


def test_a_broken_stream_is_opened_again_with_the_positions_of_its_set() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        first.send(delivery(0, range(5)))
        second.send(delivery(1, range(3)))
        await scripted.take(8)
        second.end()
        start = await (await scripted.b.next_call()).started()
        assert {one.queue_id: one.queue_offset for one in start.positions} == {0: 0, 1: 3}
        assert not first.is_cancelled
        assert (scripted.connection.failures, scripted.b.failures) == ([], ["b:1"])
        await scripted.session.close()

    run(story())


def test_alone_for_too_long_it_gives_out_nothing_of_that_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(set_stream_module, "ALONE_S_MAX", 0.01)

    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        second.send(delivery(0, range(3)))
        await scripted.take(1)
        second.end()
        again = await scripted.b.next_call()
        await asyncio.sleep(0.05)
        first.send(delivery(0, range(2)))
        assert {one.message.broker_set for one in await scripted.take(2)} == {SET}
        assert await scripted.session.take(5, 0.0) == []
        again.send(assignment((0, 3), (1, 0)))
        assert len(await scripted.take(2)) == 2
        await scripted.session.close()

    run(story())


def test_progress_goes_to_the_set_of_the_queue() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        second.send(delivery(1, range(3)))
        scripted.buffer.done(await scripted.take(3))
        assert await second.progress() == {1: 3}
        assert first.requests.empty()
        await scripted.session.seek({ref(0, "b"): 9})
        assert (await second.heard("seek")).seek.positions[0].queue_offset == 9
        assert first.requests.empty()
        await scripted.session.close()

    run(story())


# Offsets


def test_a_commit_is_durable_in_all_sets() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        first.send(delivery(0, range(2)))
        second.send(delivery(0, range(3)))
        scripted.buffer.done(await scripted.take(5))
        await scripted.session.commit()
        assert scripted.connection.committed() == [{ref(0): 2, ref(1): 0}]
        assert scripted.b.committed() == [{ref(0, "b"): 3, ref(1, "b"): 0}]
        # A set where nothing is new is not asked: it may be down.
        scripted.b.answers["CommitOffsets"] = refuse_with(Unreachable("down"))
        first.send(delivery(0, [2]))
        scripted.buffer.done(await scripted.take(1))
        await scripted.session.commit()
        assert scripted.connection.committed()[1:] == [{ref(0): 3}]
        await scripted.session.close()

    run(story())


def test_a_commit_that_fails_names_the_set_and_is_durable_in_the_others() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        await scripted.join_both()
        scripted.b.answers["CommitOffsets"] = refuse_with(NotAssigned("queue 1 is another's"))
        with pytest.raises(NotAssigned, match=r"^broker set b: queue 1 is another's"):
            await scripted.session.commit()
        assert scripted.connection.committed() == [{ref(0): 0, ref(1): 0}]
        await scripted.session.close()

    run(story())


def test_failed_messages_go_back_to_their_set_and_one_that_is_down_holds_up_no_other() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        first.send(delivery(0, [0]))
        second.send(delivery(0, [0]))
        scripted.b.answers["Retry"] = refuse_with(Unreachable("down"))
        for one in sorted(await scripted.take(2), key=lambda one: one.message.broker_set):
            scripted.session.retries.add(Failure(one, None, "no"))
        await until(lambda: len(scripted.connection.retry_requests()) == 1)
        await until(lambda: len(scripted.b.retry_requests()) > 1)
        assert scripted.buffer.done_offsets()[ref(0)] == 1
        assert scripted.buffer.done_offsets()[ref(0, "b")] == 0
        scripted.b.answers["Retry"] = scripted.connection.answers["Retry"]
        await until(lambda: scripted.buffer.done_offsets()[ref(0, "b")] == 1)
        await scripted.session.close()

    run(story())


def test_a_queue_needs_its_set_when_several_have_the_topic() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        await scripted.join_both()
        with pytest.raises(IllegalRequest, match="queue 0 of topic orders is in b, set-0"):
            scripted.session.resolve(TOPIC, 0)
        assert scripted.session.resolve(TOPIC, 0, "b") == ref(0, "b")
        with pytest.raises(IllegalRequest, match="%RETRY%g is in b, set-0"):
            scripted.session.resolve("%RETRY%g", 0)
        await scripted.session.close()

    run(story())


def test_an_old_file_of_broadcast_offsets_is_used_in_the_set_of_its_topic(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"version": 1, "group": "g", "offsets": {"orders": {"0": 5}}}')

    async def story() -> None:
        scripted = TwoSetSession(topics=("b",), mode="broadcast", offsets_file=path)
        await scripted.session.start()
        call = await scripted.b.next_call()
        (place,) = (await call.started()).positions
        assert (place.queue_id, place.queue_offset) == (0, 5)
        call.send(assignment((0, 5)))
        await scripted.session.joined(DEADLINE_S)
        await scripted.session.close()
        assert scripted.session._offsets.offsets == {QueueRef(TOPIC, 0, "b"): 5}

    run(story())


# Ending


def test_a_session_leaves_all_sets_though_one_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        second.send(delivery(0, [0]))
        scripted.buffer.done(await scripted.take(1))
        second.end()
        scripted.b.answers["CommitOffsets"] = refuse_with(Unreachable("no broker answered"))
        await scripted.session.close()
        assert first.is_half_closed
        assert scripted.connection.committed() == [{ref(0): 0, ref(1): 0}]
        assert [method for method, _ in scripted.b.calls] == ["CommitOffsets", "Leave"]
        assert scripted.connection.is_closed

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "could not commit at its end: broker set b: no broker answered" in caplog.text


def test_a_close_that_is_cut_short_leaves_nothing_behind() -> None:
    async def story() -> None:
        scripted = TwoSetSession()
        first, second = await scripted.join_both()
        second.send(delivery(0, [0]))
        scripted.buffer.done(await scripted.take(1))
        never = asyncio.Event()

        async def hang(*_: object, **__: object) -> None:
            await never.wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scripted.b, "call", hang)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(scripted.session.close(), 0.05)
        await until(lambda: first.is_cancelled and second.is_cancelled)
        # And it can be closed again, in good order.
        await scripted.session.close()
        assert scripted.connection.is_closed
        left = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        assert [one for one in left if "SetMembership" in repr(one)] == []

    run(story())
