"""The broker as a whole, beyond its parts."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.queue import Queue
from mq.errors import IllegalTopic
from mq.store.consumequeue import QueueExtent
from mq.wire.v1.state_pb2 import ChangeLeases, Command, LeaseChange, QueueLeases
from tests.support.consensus import Node, on_loop, soon


@on_loop
async def test_messages_dropped_by_retention_are_counted_once_for_each_group_that_missed_them() -> (
    None
):
    node = Node()
    await node.topic("t")
    await node.send("t", *[b"x"] * 30)
    commits = node.broker.commits
    await soon(commits.commit("slow", {Queue("t", 0): 4}))
    await soon(commits.commit("fast", {Queue("t", 0): 30}))
    for start in (3, 10, 10, 25):
        node.broker.on_dropped([QueueExtent("t", 0, start, 30), QueueExtent("t", 1, 0, 0)])
    assert node.broker.lost_by_group == {"slow": 25 - 4}
    node.broker.on_dropped([])
    await soon(commits.commit("slow", {Queue("t", 0): 28}))
    node.broker.on_dropped([QueueExtent("t", 0, 29, 30)])
    assert node.broker.lost_by_group == {"slow": 25 - 4 + 1}


@on_loop
async def test_missing_topics_are_created_all_or_none() -> None:
    node = Node()
    with pytest.raises(IllegalTopic):
        await soon(node.broker.create_missing(["t", "not legal"]))
    assert len(node.machine.state.topics) == 0
    await soon(node.broker.create_missing(["t", "u", "%RETRY%g"]))
    assert [one.name for one in node.machine.state.topics] == ["t", "u"]
    strict = Node(auto_create_topics="no")
    await soon(strict.broker.create_missing(["t"]))
    assert len(strict.machine.state.topics) == 0


@on_loop
async def test_consumers_create_topics_only_where_both_options_say_so() -> None:
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"auto_create_by_consumers": "yes"}, True),
        ({"auto_create_by_consumers": "yes", "auto_create_topics": "no"}, False),
    ]
    for options, is_created in cases:
        node = Node(**options)
        await soon(node.broker.expect(["t"]))
        assert ("t" in node.machine.state.topics) == is_created


@on_loop
async def test_a_node_serves_from_the_moment_that_it_has_applied_what_was_before() -> None:
    node = Node()
    leadership = node.broker.leadership
    seen = [leadership.is_serving]
    node.consensus.depose()
    seen.append(leadership.is_serving)
    # Elected, and the first entry of its term is not applied yet.
    node.consensus.term += 1
    node.consensus.is_leader = True
    seen.append(leadership.is_serving)
    node.consensus.elect()
    seen.append(leadership.is_serving)
    assert seen == [True, False, False, True]
    await soon(leadership.settled())


@on_loop
async def test_a_member_that_joined_before_the_first_tick_of_a_new_leader_stays() -> None:
    node = Node()
    await node.topic("t")
    node.consensus.depose()
    node.consensus.elect()
    served = node.broker._served_term
    assert served == node.consensus.term, "applying the first entry of the term says so"


@on_loop
async def test_received_and_settled_messages_are_not_lost_to_retention() -> None:
    node = Node()
    await node.topic("t")
    changes = [
        LeaseChange(start=0, end=10, lease=7, visible_at_ms=1, attempts=1),
        LeaseChange(start=2, end=5, is_done=True),
        LeaseChange(start=8, end=10, is_done=True),
    ]
    leases = QueueLeases(group="g", topic="t", queue_id=0, changes=changes)
    command = Command(change_leases=ChangeLeases(queues=[leases]))
    await node.broker.writer.write(command)
    # 0 and 1, 5 to 7, and what was never given out.
    node.broker.on_dropped([QueueExtent("t", 0, 12, 30)])
    assert node.broker.lost_by_group == {"g": 2 + 3 + 2}
