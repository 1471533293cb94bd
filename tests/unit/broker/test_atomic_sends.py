"""Atomic sends: output and offsets in one entry, once, by the owner of the queue, from the group's
position.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.broker import atomic_sends
from mq.broker.atomic_sends import WorkStart
from mq.broker.consumer.subscriber import Position
from mq.broker.queue import Queue
from mq.broker.retry.origins import opened
from mq.errors import (
    DiskFull,
    FlowControl,
    GroupNotEmpty,
    IllegalGroup,
    IllegalOffset,
    IllegalRequest,
    IllegalSequence,
    MessageTooLarge,
    NotAssigned,
    NotLeader,
    OutcomeUnknown,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
    UnknownMember,
)
from mq.store.format import Kind
from mq.wire.v1.consumer_pb2 import FailedMessage
from mq.wire.v1.producer_pb2 import DeadLetterBatch
from tests.support.consensus import Node, batch, eventually, on_loop, soon, turns
from tests.unit.broker.atomic_scene import IN_0, IN_1, move, output, scene, send, written
from tests.unit.broker.consumer.group_scene import World, drain, last_assignment, t, world

if TYPE_CHECKING:
    from mq.broker.state.machine import ProposedEntry


@on_loop
async def test_output_and_offsets_are_one_entry() -> None:
    one = await scene()
    before = written(one)
    stored = await send(one, output(1, b"a", b"b"), output(2, queue_id=3), **move(0, 7))
    assert [(at.queue_id, at.queue_offset, at.is_duplicate) for at in stored] == [
        (0, 0, False),
        (3, 0, False),
    ]
    assert written(one) == before + 1
    assert one.node.ends("out") == [2, 0, 0, 1]
    assert one.node.committed("g")[IN_0] == 7
    publisher = one.node.broker.publisher
    assert (publisher.in_flight_bytes, publisher.messages_total) == (0, 23)


def letter(queue_offset: int) -> DeadLetterBatch:
    one = FailedMessage(topic="t", queue_offset=queue_offset, attempts=3, reason="it is poison")
    return DeadLetterBatch(producer_id="letters", sequence=1, messages=[one])


def owner(one: World, queue: Queue) -> str:
    live = one.groups.live("g")
    assert live is not None
    return live.owner(queue) or ""


def buried(one: World) -> list[tuple[bytes, int, int, str]]:
    """The dead letters of the group: body, and what is said of the origin."""
    result = one.node.store.read("%DLQ%g", 0, 0)
    return [
        (message.body, message.origin.queue_offset, message.origin.attempts, message.origin.reason)
        for run in result.runs
        for message in opened(run)
    ]


@on_loop
async def test_a_dead_letter_and_the_offset_behind_it_are_one_entry_once() -> None:
    one = await scene()
    await send(one, **move(0, 3))
    before = written(one)
    starts = {IN_0: WorkStart(3, 3)}
    stored = await send(one, output(2), starts=starts, dead_letters=letter(3))
    assert [place.queue_offset for place in stored] == [0, 0]
    # Its topic is made first.
    assert written(one) == before + 2
    assert one.node.committed("g")[IN_0] == 4
    assert buried(one) == [(b"3", 3, 3, "it is poison")]
    again = await send(one, output(2), starts=starts, dead_letters=letter(3))
    assert again == [place._replace(is_duplicate=True) for place in stored]
    assert written(one) == before + 2
    assert len(buried(one)) == 1


@on_loop
async def test_a_dead_letter_of_work_that_another_member_did_is_refused() -> None:
    one = await scene("m", "n")
    await send(one, **move(0, 5), member=owner(one, IN_0))
    with pytest.raises(IllegalOffset):
        await send(
            one,
            member=owner(one, IN_0),
            starts={IN_0: WorkStart(3, 3)},
            dead_letters=letter(3),
        )
    other = {"m": "n", "n": "m"}[owner(one, IN_0)]
    with pytest.raises(NotAssigned):
        await send(one, member=other, starts={IN_0: WorkStart(5, 5)}, dead_letters=letter(5))
    assert buried(one) == []
    assert one.node.committed("g")[IN_0] == 5


@on_loop
async def test_a_dead_letter_that_retention_has_dropped_is_done_without_a_copy() -> None:
    one = await scene()
    await send(one, **move(0, 3))
    with pytest.raises(IllegalOffset):  # behind the end
        await send(one, starts={IN_0: WorkStart(3, 20)}, dead_letters=letter(20))
    one.node.store.derived.trim("t", 0, 10)
    await send(one, starts={IN_0: WorkStart(3, 3)}, dead_letters=letter(3))
    assert buried(one) == []
    assert one.node.committed("g")[IN_0] == 4


@on_loop
async def test_work_without_output_moves_the_group_too() -> None:
    one = await scene()
    assert await send(one, **move(0, 7)) == []
    assert await send(one, **move(0, 7)) == [], "and again: it is there"
    assert one.node.committed("g")[IN_0] == 7
    with pytest.raises(IllegalOffset):
        await send(one, **move(0, 9))


@on_loop
async def test_batches_alone_are_all_or_nothing() -> None:
    one = await scene()
    await soon(one.node.broker.atomic_sends.send([output(1), output(2, queue_id=1)]))
    with pytest.raises(QueueNotFound):
        await soon(one.node.broker.atomic_sends.send([output(3), output(4, queue_id=9)]))
    assert one.node.ends("out") == [1, 1, 0, 0]


# -- once ------------------------------------------------------------------------------------------


@on_loop
async def test_a_repeated_send_is_answered_as_before_also_after_the_queue_has_moved() -> None:
    one = await scene()
    first = await send(one, output(1), output(2), **move(0, 7))
    duplicates = [at._replace(is_duplicate=True) for at in first]
    assert await send(one, output(1), output(2), **move(0, 7)) == duplicates
    one.groups.leave("g", "m")
    assert await send(one, output(1), output(2), **move(0, 7)) == duplicates
    assert one.node.ends("out")[0] == 2


@on_loop
async def test_concurrent_equal_atomic_sends_are_done_once() -> None:
    """In one turn, and in the turn behind it."""
    one = await scene()
    one.node.consensus.is_held = True
    asked = [asyncio.create_task(send(one, output(1), **move(0, 7))) for _ in range(3)]
    await turns()
    asked.append(asyncio.create_task(send(one, output(1), **move(0, 7))))
    await turns()
    one.node.consensus.commit()
    answers = await soon(asyncio.gather(*asked))
    assert {answer[0].queue_offset for answer in answers} == {0}
    assert [answer[0].is_duplicate for answer in answers] == [False, False, False, True]
    assert one.node.ends("out")[0] == 1


@on_loop
async def test_a_part_of_what_was_sent_is_refused() -> None:
    one = await scene()
    await send(one, output(1), output(2), **move(0, 7))
    for parts in ([output(2), output(3)], [output(3), output(1)]):
        with pytest.raises(IllegalSequence):
            await send(one, *parts, **move(7, 9))
    with pytest.raises(IllegalSequence, match="the same sequence"):
        await send(one, output(3), output(3), **move(7, 9))
    results = await asyncio.gather(
        send(one, output(3), output(4), **move(7, 9)),
        send(one, output(4), output(5), **move(7, 9)),
        return_exceptions=True,
    )
    assert isinstance(results[1], IllegalSequence), "of one turn"
    assert one.node.ends("out")[0] == 4
    assert one.node.committed("g")[IN_0] == 9


@on_loop
async def test_a_batch_of_a_stream_and_of_an_atomic_send_is_stored_once() -> None:
    one = await scene()
    one.node.consensus.is_held = True
    atom = asyncio.create_task(send(one, output(1), **move(0, 7)))
    await turns()
    slot = one.node.broker.publisher.submit(output(1))
    lonely = one.node.broker.publisher.submit(output(9))
    await turns()
    late = asyncio.create_task(send(one, output(9), **move(7, 9)))
    one.node.consensus.commit(1)
    assert (await soon(slot.outcome)).queue_offset == 0
    await soon(atom)
    with pytest.raises(IllegalSequence, match="by itself"):
        await late
    one.node.consensus.commit()
    await soon(lonely.outcome)
    assert one.node.ends("out")[0] == 2


@on_loop
async def test_one_that_failed_may_come_again() -> None:
    one = await scene()
    one.node.consensus.failure = DiskFull("no space")
    with pytest.raises(DiskFull):
        await send(one, output(1), **move(0, 7))
    assert one.node.committed("g")[IN_0] == 0
    one.node.consensus.failure = None
    assert not (await send(one, output(1), **move(0, 7)))[0].is_duplicate


@on_loop
@pytest.mark.parametrize("is_in_log", [True, False])
async def test_an_unknown_outcome_is_known_when_it_is_sent_again(is_in_log: bool) -> None:
    """To the next leader, whose log has the entry or not."""
    one = await scene()
    node = one.node
    if is_in_log:
        node.consensus.is_held = True
        atom = asyncio.create_task(send(one, output(1), **move(0, 7)))
        await turns()
        node.consensus.lose(OutcomeUnknown("the leader changed"))
    else:
        node.consensus.failure = OutcomeUnknown("the leader changed")
        atom = asyncio.create_task(send(one, output(1), **move(0, 7)))
    with pytest.raises(OutcomeUnknown):
        await soon(atom)
    node.consensus.is_held, node.consensus.failure = False, None
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(NotLeader):
        await send(one, output(1), **move(0, 7))
    node.consensus.elect()
    node.broker.tick()
    one.subscribe("m", positions={IN_0: 20})
    again = await send(one, output(1), **move(0, 7))
    assert again[0].is_duplicate is is_in_log
    assert (node.ends("out")[0], node.committed("g")[IN_0]) == (1, 7)


@on_loop
async def test_one_whose_client_is_gone_is_whole_and_known() -> None:
    one = await scene()
    one.node.consensus.is_held = True
    atom = asyncio.create_task(send(one, output(1), **move(0, 7)))
    await turns()
    atom.cancel()
    await turns()
    one.node.consensus.commit()
    one.node.consensus.is_held = False
    assert (await send(one, output(1), **move(0, 7)))[0].is_duplicate
    assert one.node.broker.publisher.in_flight_bytes == 0
    assert (one.node.ends("out")[0], one.node.committed("g")[IN_0]) == (1, 7)


# -- owner and position ----------------------------------------------------------------------------


@on_loop
async def test_a_member_without_the_queue_is_refused() -> None:
    one = await scene("m", "n")
    has = next(name for name in ("m", "n") if IN_0 in one.assigned(name))
    other = "n" if has == "m" else "m"
    for member, error in ((other, NotAssigned), ("stranger", UnknownMember), ("", GroupNotEmpty)):
        with pytest.raises(error):
            await send(one, output(1), member=member, **move(0, 7))
    assert one.node.ends("out")[0] == 0
    await send(one, output(1), member=has, **move(0, 7))


@on_loop
async def test_work_that_another_member_did_is_refused() -> None:
    """However the second one cut it: shorter, longer, or the same."""
    one = await scene()
    await send(one, output(1), **move(0, 7))
    for at, end in enumerate((3, 7, 12)):
        with pytest.raises(IllegalOffset):
            await send(one, output(1, producer_id=f"q{at}"), **move(0, end))
    with pytest.raises(IllegalOffset):
        await send(one, output(1, producer_id="q"), **move(7, 5))
    with pytest.raises(IllegalOffset):
        await send(one, output(1, producer_id="q"), positions={IN_0: 6}, starts={})
    with pytest.raises(IllegalOffset):
        await send(one, output(1, producer_id="q"), **move(9, 12))
    assert (one.node.ends("out")[0], one.node.committed("g")[IN_0]) == (1, 7)
    await send(one, output(2), positions={IN_0: 8}, starts={})


@on_loop
async def test_work_of_two_members_at_once_counts_once() -> None:
    """Both believe that the queue is theirs, and their atoms are decided in one turn."""
    one = await scene()
    answers = await asyncio.gather(
        send(one, output(1), **move(0, 7)),
        send(one, output(1, producer_id="q"), **move(0, 9)),
        send(one, output(2), **move(7, 8)),
        return_exceptions=True,
    )
    assert [isinstance(answer, IllegalOffset) for answer in answers] == [False, True, False]
    assert (one.node.ends("out")[0], one.node.committed("g")[IN_0]) == (2, 8)


@on_loop
@pytest.mark.parametrize("is_in_log", [True, False])
async def test_the_next_owner_may_begin_before_the_outcome_is_known(is_in_log: bool) -> None:
    """It begins before the atom: nothing is lost when that fails, nor done twice when not."""
    one = await scene()
    one.node.consensus.is_held = True
    atom = asyncio.create_task(send(one, output(1), **move(0, 7)))
    await turns()
    one.groups.leave("g", "m")
    late = asyncio.create_task(send(one, output(5), **move(0, 6)))
    assert last_assignment(await drain(one.subscribe("n")))[IN_0].queue_offset == 0
    one.node.consensus.is_held = False
    if is_in_log:
        one.node.consensus.commit()
        await soon(atom)
        with pytest.raises(IllegalOffset):
            await send(one, output(1, producer_id="q"), member="n", **move(0, 9))
        assert (one.node.ends("out")[0], one.node.committed("g")[IN_0]) == (1, 7)
    else:
        one.node.consensus.lose(DiskFull("nothing was written"))
        with pytest.raises(DiskFull):
            await soon(atom)
    with pytest.raises(UnknownMember):
        await soon(late)


@on_loop
async def test_messages_that_needed_no_work_may_be_reported_in_between() -> None:
    """A filter left out those before 5: the stream may say so before the atom does."""
    one = await scene()
    member = one.groups._live["g"].streams["m"].subscriber
    await drain(member)
    one.groups.progress(member, [Position(IN_0, 4, 0)])
    await send(one, output(1), **move(0, 7, first=5))
    with pytest.raises(IllegalOffset):
        await send(one, output(2), **move(5, 9, first=6))
    await one.groups.commit("g", "m", {IN_0: 3})
    with pytest.raises(IllegalOffset, match="stands at 3"):
        await send(one, output(2), **move(7, 9))
    assert (one.node.ends("out")[0], one.node.committed("g")[IN_0]) == (1, 3)


@on_loop
async def test_a_report_that_was_overtaken_does_not_undo_it() -> None:
    """One that waits for its entry, and one that comes while the atom is under way."""
    one = await scene()
    member = one.groups._live["g"].streams["m"].subscriber
    await drain(member)
    one.groups.progress(member, [Position(IN_0, 5, 0)])
    with pytest.raises(IllegalOffset):
        await send(one, output(1), **move(0, 7))
    assert one.node.committed("g")[IN_0] == 5, "written first"
    one.node.consensus.is_held = True
    atom = asyncio.create_task(send(one, output(1), **move(5, 9)))
    await turns()
    one.groups.progress(member, [Position(IN_0, 8, 0)])
    one.node.consensus.commit()
    one.node.consensus.is_held = False
    await soon(atom)
    await one.node.broker.commits.flush()
    assert one.node.committed("g")[IN_0] == 9


@on_loop
async def test_a_report_that_comes_while_an_atom_waits_for_its_turn_is_written_first() -> None:
    one = await scene()
    one.node.consensus.is_held = True
    first = asyncio.create_task(send(one, output(1), **move(0, 7)))
    await turns()
    second = asyncio.create_task(send(one, output(2), **move(7, 9, first=8)))
    await turns()
    one.node.broker.commits.note("g", {IN_0: 8})
    one.node.consensus.is_held = False
    one.node.consensus.commit()
    await soon(asyncio.gather(first, second))
    await one.node.broker.commits.flush()
    assert one.node.committed("g")[IN_0] == 9


@on_loop
async def test_a_group_that_an_operator_moved_keeps_its_new_position() -> None:
    one = await scene()
    one.node.consensus.is_held = True
    atom = asyncio.create_task(send(one, output(1), **move(0, 7)))
    await turns()
    reset = asyncio.create_task(one.groups.reset("g", {IN_0: 2}))
    behind = asyncio.create_task(send(one, output(2), **move(7, 9)))
    await eventually(lambda: len(one.node.consensus._waiting) == 2)
    one.node.consensus.commit()
    one.node.consensus.is_held = False
    await soon(asyncio.gather(atom, reset))
    with pytest.raises(IllegalOffset, match="stands at 2"):
        await soon(behind)
    assert one.node.committed("g")[IN_0] == 2


@on_loop
async def test_a_first_position_that_is_noted_is_written_first() -> None:
    """The place where a new group starts."""
    one = await world()
    await one.node.topic("out")
    await one.node.send("t", b"1", b"2", b"3")
    one.subscribe("m")
    await send(one, output(1), **move(0, 3))
    await one.node.broker.commits.flush()
    assert one.node.committed("g") == {IN_0: 3, **dict.fromkeys(t(1, 2, 3), 0)}


@on_loop
async def test_a_queue_without_an_offset_starts_where_the_member_says() -> None:
    one = await scene()
    assert await soon(one.node.broker.atomic_sends.send([output(1)], "pullers", "", **move(4, 6)))
    assert one.node.committed("pullers") == {IN_0: 6}


# -- what is wrong with it -------------------------------------------------------------------------


@on_loop
async def test_bad_atoms_change_nothing() -> None:
    one = await scene()
    await one.node.broker.catalog.ensure_internal("%RETRY%g")
    await one.node.topic("closed")
    await one.node.broker.catalog.alter("closed", is_writable=False)
    numbered: dict[str, Any] = {"producer_id": "p", "sequence": 1}
    one.node.settings.config = Node(auto_create_topics="no").settings.config
    before, state = written(one), one.node.machine.state.encode()
    for batches, fields, error in (
        ([], {}, IllegalRequest),
        ([batch("out", b"x")], move(0, 7), IllegalRequest),
        ([batch("out", b"x", producer_id="p")], move(0, 7), IllegalRequest),
        ([batch("out", b"x", sequence=1)], move(0, 7), IllegalRequest),
        ([output(1, producer_id="p" * 128)], move(0, 7), IllegalRequest),
        ([output(1 << 63)], move(0, 7), IllegalRequest),
        ([batch("out", b"x", delay_ms=9, **numbered)], move(0, 7), IllegalRequest),
        ([batch("out", b"x", deliver_at_ms=9, **numbered)], move(0, 7), IllegalRequest),
        ([batch("gone", b"x", **numbered)], move(0, 7), TopicNotFound),
        ([batch("%RETRY%g", b"x", **numbered)], move(0, 7), PermissionDenied),
        ([batch("closed", b"x", **numbered)], move(0, 7), PermissionDenied),
        ([output(1), output(2, queue_id=4)], move(0, 7), QueueNotFound),
        ([output(1)], move(0, 21), IllegalOffset),
        ([output(1)], move(7, 9, first=6), IllegalRequest),
        ([output(1)], move(0, 7, Queue("t", 4)), QueueNotFound),
        ([output(1)], move(0, 7, Queue("none", 0)), TopicNotFound),
        (
            [output(1)],
            {"positions": {IN_0: 1}, "starts": {IN_1: atomic_sends.WorkStart(0, 0)}},
            IllegalRequest,
        ),
        ([output(n + 1) for n in range(atomic_sends.BATCHES_MAX + 1)], move(0, 7), IllegalRequest),
    ):
        with pytest.raises(error):
            await send(one, *batches, **fields)
    with pytest.raises(IllegalGroup):
        await one.node.broker.atomic_sends.send([output(1)], "a b", "m", **move(0, 7))
    assert (written(one), one.node.machine.state.encode()) == (before, state)


@on_loop
async def test_an_atom_fits_an_entry_and_many_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_sends, "_GROUP_BYTES", 2_000)
    one = await scene()
    service = one.node.broker.atomic_sends
    service._entry_bytes_max = 3_000
    with pytest.raises(MessageTooLarge):
        await send(one, output(1, bytes(3_000)), **move(0, 7))
    before = written(one)
    sizes = []
    append = one.node.consensus._append

    def measured(kind: Kind, payload: list[bytes], context: ProposedEntry) -> int:
        sizes.append((sum(map(len, payload)), len(context.batches)))
        return append(kind, payload, context)

    monkeypatch.setattr(one.node.consensus, "_append", measured)
    many = [
        send(one, output(n + 1, bytes(size)), **move(n, n + 1))
        for n, size in enumerate([2_500, *[100] * 9, 2_500])
    ]
    stored = await soon(asyncio.gather(*many))
    assert [answer[0].queue_offset for answer in stored] == list(range(11)), "in their order"
    assert written(one) - before < 7
    assert all(size <= 2_000 or count == 1 for size, count in sizes)
    service._waiting_bytes_max = 1_000
    one.node.consensus.is_held = True
    waiting = asyncio.create_task(send(one, output(20, bytes(900)), **move(11, 12)))
    await turns()
    with pytest.raises(FlowControl):
        await send(one, output(21, bytes(900)), **move(12, 13))
    one.node.consensus.commit()
    await soon(waiting)
    assert service._waiting_bytes == 0


@on_loop
async def test_the_topic_of_the_output_is_created_where_that_is_allowed() -> None:
    one = await scene()
    await send(one, batch("new", b"x", producer_id="p", sequence=1), **move(0, 7))
    assert one.node.ends("new", 1) == [1]


@on_loop
async def test_messages_dropped_by_retention_need_no_work() -> None:
    one = await scene()
    one.node.store.derived.trim("t", 0, 5)
    with pytest.raises(IllegalOffset):
        await send(one, output(1), **move(6, 9))
    await send(one, output(1), **move(5, 9))
    one.node.store.derived.trim("t", 0, 15)
    await send(one, output(2), **move(9, 12))
    assert one.node.committed("g")[IN_0] == 12


@on_loop
async def test_an_atomic_send_survives_a_restart() -> None:
    one = await scene()
    first = await send(one, output(1), output(2), **move(0, 7))
    node = Node(one.node.vfs_after_kill())
    again = World(node)
    again.subscribe("m")
    node.pass_time(5_000)  # others might have come back first
    assert node.committed("g")[IN_0] == 7
    answer = await send(again, output(1), output(2), **move(0, 7))
    assert answer == [at._replace(is_duplicate=True) for at in first]
    with pytest.raises(IllegalOffset):
        await send(again, output(1, producer_id="q"), **move(0, 9))
