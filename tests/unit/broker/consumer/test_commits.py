"""Offsets on their way into the log: gathered, in their order, and no caller waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker.queue import Queue
from mq.errors import DiskFull, NotLeader
from mq.store.format import Kind
from tests.support.consensus import Node, eventually, on_loop, soon, turns

HERE, THERE = Queue("t", 0), Queue("t", 1)


def commands(node: Node) -> int:
    return sum(kind == Kind.COMMAND for kind, _ in node.consensus.proposed)


@on_loop
async def test_a_commit_is_durable_when_it_returns() -> None:
    node = Node()
    await node.topic("t")
    await soon(node.broker.commits.commit("g", {HERE: 3}))
    assert node.committed("g") == {HERE: 3}
    await soon(node.broker.commits.commit("g", {}))
    assert node.committed("h") == {}


@on_loop
async def test_progress_of_many_members_is_one_entry() -> None:
    node = Node()
    await node.topic("t")
    before = commands(node)
    commits = node.broker.commits
    for number in range(1_000):
        commits.note(f"group-{number % 10}", {Queue("t", number % 4): number})
    assert commits.position("group-9", Queue("t", 3)) == 999
    assert node.committed("group-9") == {}
    # A caller that waits for its own takes all others along.
    await soon(commits.commit("group-0", {HERE: 1_000}))
    assert commands(node) == before + 1
    assert node.committed("group-9") == {Queue("t", 1): 989, Queue("t", 3): 999}
    assert node.committed("group-0")[HERE] == 1_000


@on_loop
async def test_a_note_is_committed_soon_by_itself() -> None:
    node = Node()
    await node.topic("t")
    node.broker.commits.note("g", {HERE: 5})
    await eventually(lambda: node.committed("g") == {HERE: 5})


@on_loop
async def test_the_newest_is_known_before_it_is_committed() -> None:
    node = Node()
    await node.topic("t")
    commits = node.broker.commits
    await soon(commits.commit("g", {HERE: 1}))
    node.consensus.is_held = True
    first = asyncio.ensure_future(commits.commit("g", {HERE: 2}))
    await turns()
    assert commits.position("g", HERE) == 2  # under way
    commits.note("g", {HERE: 3})
    assert commits.position("g", HERE) == 3  # noted
    assert commits.position("g", THERE) is None
    assert node.committed("g") == {HERE: 1}
    second = asyncio.ensure_future(commits.commit("g", {THERE: 9}))
    await turns()
    node.consensus.commit()
    await soon(first)
    await turns()
    node.consensus.commit()
    await soon(second)
    assert node.committed("g") == {HERE: 3, THERE: 9}


@on_loop
async def test_a_large_commit_is_cut_into_entries() -> None:
    node = Node()
    await node.topic("t", 5_000)
    before = commands(node)
    positions = {Queue("t", number): number for number in range(4_500)}
    commits = node.broker.commits
    commits.note("h", {HERE: 7})
    await soon(commits.commit("g", positions))
    assert node.committed("g") == positions
    assert node.committed("h") == {HERE: 7}
    assert commands(node) == before + 3


@on_loop
async def test_a_commit_that_fails_says_so_and_the_next_one_goes_on() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.failure = DiskFull("no space")
    with pytest.raises(DiskFull):
        await soon(node.broker.commits.commit("g", {HERE: 1}))
    assert node.broker.commits.position("g", HERE) is None
    node.consensus.failure = None
    await soon(node.broker.commits.commit("g", {HERE: 2}))
    assert node.committed("g") == {HERE: 2}


@on_loop
async def test_waiting_commits_fail_when_the_node_steps_down() -> None:
    node = Node()
    await node.topic("t")
    commits = node.broker.commits
    node.consensus.is_held = True
    under_way = asyncio.ensure_future(commits.commit("g", {HERE: 1}))
    await turns()
    waiting = asyncio.ensure_future(commits.commit("g", {HERE: 2}))
    await turns()
    commits.forget()
    with pytest.raises(NotLeader):
        await soon(waiting)
    assert commits.position("g", HERE) is None
    node.consensus.lose(NotLeader(None, None))
    with pytest.raises(NotLeader):
        await soon(under_way)
    # And it may lead again.
    node.consensus.is_held = False
    await soon(commits.commit("g", {HERE: 3}))
    assert node.committed("g")[HERE] == 3


@pytest.mark.parametrize("turns_before", range(8))
@on_loop
async def test_a_commit_that_returns_is_durable_whenever_the_node_steps_down(
    turns_before: int,
) -> None:
    node = Node()
    await node.topic("t")
    commits = node.broker.commits
    waiting = asyncio.ensure_future(commits.commit("g", {HERE: 1}))
    for _ in range(turns_before):
        await asyncio.sleep(0)
    commits.forget()
    try:
        await soon(waiting)
    except NotLeader:
        assert node.committed("g") == {}
    else:
        assert node.committed("g") == {HERE: 1}


@on_loop
async def test_waiting_commits_of_a_dropped_group_are_answered() -> None:
    node = Node()
    await node.topic("t")
    commits = node.broker.commits
    node.consensus.is_held = True
    under_way = asyncio.ensure_future(commits.commit("h", {HERE: 1}))
    await turns()
    waiting = asyncio.ensure_future(commits.commit("g", {HERE: 2}))
    await turns()
    commits.drop_group("g")
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(asyncio.gather(under_way, waiting))
    assert (node.committed("h"), node.committed("g")) == ({HERE: 1}, {})


@on_loop
async def test_progress_in_a_deleted_topic_is_not_committed() -> None:
    node = Node()
    await node.topic("t")
    await node.topic("u")
    commits = node.broker.commits
    commits.note("g", {HERE: 5, Queue("u", 0): 6})
    await node.broker.catalog.delete("t")
    await node.topic("t")
    await soon(commits.commit("g", {Queue("u", 1): 1}))
    assert node.committed("g") == {Queue("u", 0): 6, Queue("u", 1): 1}


@on_loop
async def test_a_client_that_gives_up_waiting_disturbs_no_other() -> None:
    node = Node()
    await node.topic("t")
    commits = node.broker.commits
    waiting = [asyncio.ensure_future(commits.commit("g", {HERE: at})) for at in (1, 2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await soon(waiting[1])
    assert node.committed("g") == {HERE: 2}


@on_loop
async def test_noted_progress_is_durable_after_a_flush() -> None:
    node = Node()
    await node.topic("t")
    commits = node.broker.commits
    await soon(commits.flush())
    commits.note("g", {HERE: 5})
    await soon(commits.flush())
    assert node.committed("g") == {HERE: 5}
    # A node that cannot write stops all the same.
    commits.note("g", {HERE: 6})
    node.consensus.failure = DiskFull("no space")
    await soon(commits.flush())
    assert node.committed("g") == {HERE: 5}
