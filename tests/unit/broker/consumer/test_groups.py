"""Groups on the leader: streams, offsets and locks around the decisions of `membership`."""

from __future__ import annotations

import contextlib

import pytest

from mq.broker.consumer.groups import Start
from mq.broker.consumer.membership import HANDED_OVER_MAX
from mq.broker.consumer.subscriber import Assigned, Position
from mq.broker.queue import Queue
from mq.errors import (
    GroupNotEmpty,
    IllegalOffset,
    MqError,
    NotAssigned,
    NotLeader,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
    UnknownMember,
)
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, MODE_CLUSTERING, MODE_ORDERED
from tests.support.consensus import eventually, on_loop, soon, turns
from tests.unit.broker.consumer.group_scene import (
    ALL,
    EARLIEST,
    EXPIRES_MS,
    LATEST,
    drain,
    last_assignment,
    spec,
    t,
    world,
)

# -- members come and go ---------------------------------------------------------------------------


@on_loop
async def test_a_stream_is_told_of_very_many_queues_at_once() -> None:
    """They are handed over in several turns. One that comes back keeps them all."""
    count = 2 * HANDED_OVER_MAX + 1
    here = await world()
    await here.node.topic("wide", count)
    wide = [Queue("wide", at) for at in range(count)]
    for positions in ({}, dict.fromkeys(wide, 0)):
        stream = here.subscribe("A", topic="wide", positions=positions)
        told = await soon(stream.next())
        assert isinstance(told, Assigned)
        assert [one.queue for one in told.positions] == wide
        assert not here.hand_over(stream)


@on_loop
async def test_a_queue_goes_to_the_next_when_its_owner_has_let_go() -> None:
    here = await world()
    first = here.subscribe("first")
    assert first.queues == ALL
    second = here.subscribe("second")
    assert (len(first.queues), second.queues) == (2, frozenset())
    moved = here.hand_over(first)
    assert second.queues == moved
    assert first.queues | second.queues == ALL


@on_loop
async def test_a_queue_never_assigned_to_a_member_needs_no_release() -> None:
    """Several start at once: a queue comes and goes before its stream has said so."""
    here = await world()
    first = here.subscribe("first")
    await drain(first)
    second = here.subscribe("second")
    await drain(second)
    here.hand_over(first)
    assert len(second.queues) == 2
    third = here.subscribe("third")
    assert (len(second.queues), third.queues) == (1, frozenset())
    # Only now the stream of the second one goes on.
    assert len(last_assignment(await drain(second))) == 1
    assert len(third.queues) == 1
    # It was told of that one later, has released it, and gets it once more for a moment.
    here.groups.unsubscribe(third, is_over=True)
    await drain(second)
    third = here.subscribe("third")
    await drain(second)
    assert third.queues == frozenset()
    here.hand_over(second)
    assert len(third.queues) == 1
    here.groups.unsubscribe(third, is_over=True)
    third = here.subscribe("third")
    assert third.queues == frozenset()
    await drain(second)
    assert len(third.queues) == 1


@on_loop
async def test_a_member_without_queues_gets_an_empty_assignment() -> None:
    here = await world()
    here.subscribe("first")
    second = here.subscribe("second")
    assert await drain(second) == [Assigned(here.groups.live("g").generation, [])]  # type: ignore[union-attr]


@on_loop
async def test_a_member_that_ends_its_stream_in_good_order_has_left() -> None:
    here = await world()
    first, second = here.subscribe("first"), here.subscribe("second")
    here.groups.unsubscribe(first, is_over=True)
    assert second.queues == ALL
    here.groups.unsubscribe(second, is_over=True)
    assert here.groups.live("g") is None
    assert here.groups.member_count == 0
    assert len(here.node.broker.arrivals) == 0


@pytest.mark.parametrize(("mode", "grace_ms"), [(MODE_CLUSTERING, 5_000), (MODE_ORDERED, 30_000)])
@on_loop
async def test_a_member_that_loses_its_stream_has_a_moment_to_come_back(
    mode: int, grace_ms: int
) -> None:
    here = await world()
    first = here.subscribe("first", mode)
    await eventually(lambda: first.queues == ALL)
    second = here.subscribe("second", mode)
    here.hand_over(first)
    await eventually(lambda: len(second.queues) == 2)
    here.groups.unsubscribe(first, is_over=False)
    here.node.pass_time(grace_ms - 1)
    here.groups.alive(second)
    assert len(second.queues) == 2
    here.node.pass_time(1)
    await eventually(lambda: second.queues == ALL)


@on_loop
async def test_a_member_that_returns_in_time_keeps_its_queues() -> None:
    here = await world()
    first = here.subscribe("first")
    here.groups.unsubscribe(first, is_over=False)
    here.node.pass_time(4_999)
    again = here.subscribe("first")
    here.node.pass_time(4_999)
    assert again.queues == ALL


@on_loop
async def test_a_newer_stream_ends_the_older_one() -> None:
    here = await world()
    older = here.subscribe("m")
    newer = here.subscribe("m")
    with pytest.raises(UnknownMember, match="newer"):
        await soon(older.next())
    here.groups.unsubscribe(older, is_over=True)  # its end is not the member's
    assert newer.queues == ALL
    assert here.groups.member_count == 1


@on_loop
async def test_silence_ends_a_stream_and_a_sign_of_life_does_not() -> None:
    here = await world()
    silent, lively = here.subscribe("silent"), here.subscribe("lively")
    for _ in range(3):
        here.node.pass_time(EXPIRES_MS // 3)
        here.groups.alive(lively)
    here.node.pass_time(0)
    with pytest.raises(UnknownMember, match="silent for too long"):
        await soon(silent.next())
    assert lively.queues == ALL


@on_loop
async def test_a_member_is_told_to_leave() -> None:
    here = await world()
    one = here.subscribe("m")
    here.groups.leave("g", "nobody")
    here.groups.leave("h", "m")
    assert one.queues == ALL
    here.groups.leave("g", "m")
    with pytest.raises(UnknownMember):
        await soon(one.next())
    assert here.groups.live("g") is None


@on_loop
async def test_a_mismatching_member_is_refused_and_leaves_no_trace() -> None:
    here = await world(auto_create_topics="no")
    with pytest.raises(TopicNotFound):
        here.subscribe("m", topic="gone")
    await here.node.topic("mute")
    await here.node.broker.catalog.alter("mute", is_readable=False)
    with pytest.raises(PermissionDenied):
        here.subscribe("m", topic="mute")
    assert here.groups.live("g") is None
    here.subscribe("m")
    with pytest.raises(SubscriptionMismatch):
        here.subscribe("n", tags="a")
    assert here.groups.member_count == 1
    here.node.consensus.depose()
    with pytest.raises(NotLeader):
        here.subscribe("o")
    with pytest.raises(NotLeader):
        here.groups.join("g", spec("o"), ())
    with pytest.raises(NotLeader):
        here.groups.heartbeat("g", "m", ())
    with pytest.raises(NotLeader):
        here.groups.leave("g", "m")
    with pytest.raises(NotLeader):
        await soon(here.groups.commit("g", "m", {}))


@on_loop
async def test_in_broadcast_mode_every_member_has_all_queues_and_nothing_is_committed() -> None:
    here = await world()
    await here.node.send("t", b"1", b"2", b"3")
    first = here.subscribe("first", MODE_BROADCAST)
    second = here.subscribe("second", MODE_BROADCAST, positions={Queue("t", 0): 2})
    assert first.queues == second.queues == ALL
    assert last_assignment(await drain(first))[Queue("t", 0)].queue_offset == 0
    assert last_assignment(await drain(second))[Queue("t", 0)].queue_offset == 2
    here.groups.progress(first, [Position(Queue("t", 0), 3, 0)])
    here.groups.seek(first, {Queue("t", 0): 1})
    assert here.node.broker.commits.position("g", Queue("t", 0)) is None


# -- members that pull -----------------------------------------------------------------------------


@on_loop
async def test_members_that_pull_let_go_with_a_heartbeat() -> None:
    here = await world()
    here.groups.join("g", spec("first"), ())
    here.groups.join("g", spec("second"), ())
    kept = here.assigned("first")
    assert len(kept) == 2
    here.groups.heartbeat("g", "first", ALL)
    assert here.assigned("second") == frozenset()
    here.groups.heartbeat("g", "first", kept)
    assert here.assigned("second") == ALL - kept
    here.groups.leave("g", "first")
    assert here.assigned("second") == ALL


@on_loop
async def test_a_stranger_is_told_to_join() -> None:
    here = await world()
    with pytest.raises(UnknownMember):
        here.groups.heartbeat("g", "nobody", ())
    here.groups.join("g", spec("m"), ())
    with pytest.raises(UnknownMember):
        here.groups.heartbeat("g", "nobody", ())
    here.node.pass_time(EXPIRES_MS)
    with pytest.raises(UnknownMember):
        here.groups.heartbeat("g", "m", ())


# -- offsets ---------------------------------------------------------------------------------------


@on_loop
async def test_only_progress_of_the_owner_is_committed() -> None:
    here = await world()
    await here.node.send("t", b"1", b"2", b"3")
    first = here.subscribe("first")
    await drain(first)
    here.subscribe("second")
    moved = here.hand_over(first)
    queue = Queue("t", 0)
    here.groups.progress(first, [Position(queue, 2, 0)])
    expected = 0 if queue in moved else 2
    assert here.node.broker.commits.position("g", queue) == expected
    await eventually(lambda: here.node.committed("g").get(queue) == expected)


@on_loop
async def test_a_report_that_was_overtaken_by_a_commit_does_not_take_it_back() -> None:
    here = await world()
    queue = Queue("t", 0)
    await here.node.send("t", *[b"x"] * 10)
    one = here.subscribe("one")
    await drain(one)
    await soon(here.groups.commit("g", "one", {queue: 7}))
    here.groups.progress(one, [Position(queue, 5, 0)])
    assert here.node.broker.commits.position("g", queue) == 7
    here.groups.progress(one, [Position(queue, 8, 0)])
    assert here.node.broker.commits.position("g", queue) == 8
    # Where the member goes by itself, its reports count again.
    here.groups.seek(one, {queue: 2})
    here.groups.progress(one, [Position(queue, 3, 0)])
    assert here.node.broker.commits.position("g", queue) == 2
    await drain(one)
    here.groups.progress(one, [Position(queue, 3, 1)])
    assert here.node.broker.commits.position("g", queue) == 3


@on_loop
async def test_the_first_sight_of_a_topic_fixes_the_place_of_a_group() -> None:
    here = await world()
    await here.node.send("t", b"1", b"2")
    one = here.subscribe("m", start=LATEST)
    here.groups.unsubscribe(one, is_over=True)
    await here.node.send("t", b"3")
    again = here.subscribe("m", start=LATEST)
    assert last_assignment(await drain(again))[Queue("t", 0)].queue_offset == 2
    await eventually(lambda: here.node.committed("g") == {q: 2 * (q.queue_id == 0) for q in ALL})
    # Queues that are added later are read from their beginning.
    await here.node.broker.catalog.alter("t", read_queues=5, write_queues=5)
    await here.node.send("t", b"x", queue_id=4)
    assert last_assignment(await drain(again))[Queue("t", 4)].queue_offset == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [(EARLIEST, 0), (LATEST, 4), (Start(at_ms=1_000_500), 2), (Start(at_ms=9_000_000), 4)],
)
@on_loop
async def test_a_new_group_starts_where_it_says(start: Start, expected: int) -> None:
    here = await world()
    await here.node.send("t", b"1", b"2")
    here.node.now_ms += 1_000
    await here.node.send("t", b"3", b"4")
    said = await drain(here.subscribe("m", start=start))
    assert last_assignment(said)[Queue("t", 0)].queue_offset == expected
    assert here.groups.start_offset(Queue("t", 3), start) == 0


@on_loop
async def test_a_returned_member_goes_on_with_the_messages_it_holds() -> None:
    here = await world()
    await here.node.send("t", *[b"x"] * 10)
    one = here.subscribe("m")
    await drain(one)
    here.groups.progress(one, [Position(Queue("t", 0), 4, 0)])
    here.groups.unsubscribe(one, is_over=False)
    for in_hand, expected in ((7, 7), (10, 10), (11, 4), (2, 4)):
        again = here.subscribe("m", positions={Queue("t", 0): in_hand})
        said = last_assignment(await drain(again))
        assert said[Queue("t", 0)].queue_offset == expected, in_hand


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
@on_loop
async def test_a_claim_beyond_the_end_is_worth_nothing(mode: int) -> None:
    """Also of a queue that it has to release at once, because another one is to have it."""
    here = await world()
    await here.node.send("t", b"1", b"2")
    here.node.consensus.is_held = True
    here.subscribe("honest", mode)
    liar = here.subscribe("liar", mode, positions=dict.fromkeys(ALL, 1 << 40))
    here.node.consensus.is_held = False
    here.node.consensus.commit()
    await turns()
    for queue in ALL:
        for epoch in (0, 1):
            with contextlib.suppress(IllegalOffset):
                here.groups.progress(liar, [Position(queue, 1 << 40, epoch)])
        assert (here.node.broker.commits.position("g", queue) or 0) <= 2


COMMITS: list[tuple[str, Queue, int, type[MqError]]] = [
    ("stranger", Queue("t", 0), 0, UnknownMember),
    ("", Queue("t", 0), 0, GroupNotEmpty),
    ("m", Queue("t", 0), 3, IllegalOffset),
    ("m", Queue("gone", 0), 0, TopicNotFound),
]


@pytest.mark.parametrize(("member_id", "queue", "queue_offset", "error"), COMMITS)
@on_loop
async def test_a_commit_that_may_not_be_is_refused_as_a_whole(
    member_id: str, queue: Queue, queue_offset: int, error: type[MqError]
) -> None:
    here = await world()
    await here.node.send("t", b"1", b"2")
    here.groups.join("g", spec("m"), ())
    positions = {Queue("t", 1): 0, queue: queue_offset}
    with pytest.raises(error):
        await soon(here.groups.commit("g", member_id, positions))
    assert here.node.committed("g") == {}


@on_loop
async def test_a_member_commits_what_is_its_own_also_while_it_lets_go() -> None:
    here = await world()
    await here.node.send("t", b"1", b"2")
    here.groups.join("g", spec("first"), ())
    here.groups.join("g", spec("second"), ())
    await soon(here.groups.commit("g", "first", dict.fromkeys(ALL, 0)))
    with pytest.raises(NotAssigned):
        await soon(here.groups.commit("g", "second", {Queue("t", 0): 1}))
    await soon(here.groups.commit("other", "", {Queue("t", 0): 2}))
    assert here.node.committed("other") == {Queue("t", 0): 2}


@on_loop
async def test_a_seek_moves_the_group_and_one_that_is_late_nothing() -> None:
    here = await world()
    await here.node.send("t", b"1", b"2")
    one = here.subscribe("m")
    await drain(one)
    queue = Queue("t", 0)
    here.groups.seek(one, {queue: 1, Queue("t", 9): 0})
    said = last_assignment(await drain(one))
    assert said[queue] == Position(queue, 1, 1)
    assert here.node.broker.commits.position("g", queue) == 1
    assert here.node.broker.commits.position("g", Queue("t", 9)) is None
    with pytest.raises(IllegalOffset):
        here.groups.seek(one, {queue: 3})
    assert here.node.broker.commits.position("g", queue) == 1


@on_loop
async def test_a_reset_moves_members_that_stream_and_waits_for_no_others() -> None:
    here = await world()
    await here.node.send("t", b"1", b"2")
    one = here.subscribe("m")
    await drain(one)
    queue = Queue("t", 0)
    here.groups.progress(one, [Position(queue, 2, 0)])
    await soon(here.groups.reset("g", {queue: 1}))
    assert here.node.committed("g")[queue] == 1
    assert last_assignment(await drain(one))[queue] == Position(queue, 1, 1)
    here.groups.progress(one, [Position(queue, 2, 0)])  # of the time before
    assert here.node.broker.commits.position("g", queue) == 1
    here.groups.join("g", spec("puller"), ())
    with pytest.raises(GroupNotEmpty, match="puller"):
        await soon(here.groups.reset("g", {queue: 0}))
    assert here.node.committed("g")[queue] == 1


# -- topics, questions ----------------------------------------------------------------------------


@on_loop
async def test_a_topic_that_changes_changes_assignments() -> None:
    here = await world()
    one = here.subscribe("m")
    await here.node.broker.catalog.alter("t", read_queues=6)
    assert one.queues == t(0, 1, 2, 3, 4, 5)
    await here.node.broker.catalog.delete("t")
    assert one.queues == frozenset()
    here.hand_over(one)
    await here.node.topic("t", 2)
    assert one.queues == t(0, 1)


@on_loop
async def test_a_group_is_known_by_its_members_or_its_offsets() -> None:
    here = await world()
    assert here.groups.names() == []
    await here.node.send("t", b"1", b"2", b"3")
    one = here.subscribe("m", MODE_BROADCAST)
    assert here.groups.names() == ["g"]
    await drain(one)
    assert here.groups.in_flight("g") == 3
    here.groups.progress(one, [Position(Queue("t", 0), 2, 0)])
    assert here.groups.in_flight("g") == 1
    assert here.groups.in_flight("nobody") == 0
    await soon(here.groups.commit("h", "", {Queue("t", 0): 0}))
    here.groups.unsubscribe(one, is_over=True)
    assert here.groups.names() == ["h"]
