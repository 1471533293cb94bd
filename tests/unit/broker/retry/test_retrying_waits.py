"""Requests with failed messages that wait for another write."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.queue import Queue
from mq.errors import NotLeader, UnknownMember
from tests.support.consensus import on_loop, soon, turns
from tests.unit.broker.retry.test_retrying import RETRY, at, messages, retry, scene_with

QUEUE = Queue("t", 0)


@on_loop
async def test_progress_that_is_on_its_way_does_not_undo_that_a_message_went_back() -> None:
    scene = await scene_with(b"0", b"1", b"2")
    commits = scene.node.broker.commits
    commits.note("g", {QUEUE: 1})
    await retry(scene, at(1))
    await soon(commits.flush())
    assert scene.node.committed("g")[QUEUE] == 2


@on_loop
async def test_a_consumer_that_reports_all_the_time_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = await scene_with(b"0", b"1", b"2")
    commits = scene.node.broker.commits
    await scene.node.broker.catalog.ensure_internal(RETRY)
    flush = commits.flush

    async def flush_and_more() -> None:
        await flush()
        commits.note("g", {QUEUE: 1})

    commits.note("g", {QUEUE: 1})
    monkeypatch.setattr(commits, "flush", flush_and_more)
    await retry(scene, at(1, delay_ms=0))
    assert len(messages(scene.node, RETRY)) == 1
    # Not done by the same entry: what is noted would undo it. The consumer will report it.
    await soon(flush())
    assert scene.node.committed("g")[QUEUE] == 1


@pytest.mark.parametrize("is_back", [False, True])
def test_a_member_that_has_to_come_back_does_not_hear_that_it_lost_its_queues(
    *, is_back: bool
) -> None:
    @on_loop
    async def test() -> None:
        scene = await scene_with()
        node = scene.node
        node.consensus.is_held = True
        call = asyncio.ensure_future(retry(scene, at(0, delay_ms=0), sequence=1))
        await turns()  # the retry topic is on its way
        node.consensus.depose()
        node.broker.tick()
        if is_back:
            node.consensus.elect()
            node.broker.tick()
        node.consensus.is_held = False
        node.consensus.commit()
        with pytest.raises(UnknownMember if is_back else NotLeader):
            await soon(call)
        assert messages(node, RETRY) == []

    test()
