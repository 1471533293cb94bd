"""Messages that failed: each comes back once an attempt, and is a dead letter in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mq import names
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.subscriber import CacheLimits, Delivered
from mq.broker.queue import Queue
from mq.broker.retry.retries import WAITS_MS, stored_messages
from mq.broker.retry.retrying import FAILED_MAX, Failed, MessagePosition, RetryResult
from mq.errors import (
    IllegalDelay,
    IllegalGroup,
    IllegalRequest,
    MessageNotFound,
    MessageTooLarge,
    MqError,
    NotAssigned,
    NotLeader,
    OutcomeUnknown,
    UnknownMember,
)
from mq.store.reading import Status
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, MODE_ORDERED, Filter
from mq.wire.v1.message_pb2 import Message, Origin
from tests.support.consensus import Node, batch, eventually, on_loop, soon, turns
from tests.unit.broker.consumer.group_scene import LATEST, World, drain, spec, world

RETRY, DEAD = "%RETRY%g", "%DLQ%g"


def at(queue_offset: int, topic: str = "t", queue_id: int = 0, **fields: Any) -> Failed:
    return Failed(MessagePosition(Queue(topic, queue_id), queue_offset), **fields)


async def retry(
    scene: World, *failed: Failed, sequence: int = 0, member: str = "a"
) -> list[RetryResult]:
    results: list[RetryResult] = await soon(
        scene.node.broker.retrying.retry("g", member, sequence, failed)
    )
    return results


def messages(node: Node, topic: str) -> list[Message]:
    start = node.broker.groups.extent(Queue(topic, 0))[0]
    result = node.store.read(topic, 0, start)
    if result.status != Status.FOUND:
        return []
    return [one.message for run in result.runs for one in stored_messages(Queue(topic, 0), run)]


def waiting(node: Node) -> int:
    return node.machine.state.schedule.messages


async def scene_with(*bodies: bytes, **options: Any) -> World:
    scene = await world(**options)
    await scene.node.send("t", *(bodies or (b"m",)))
    scene.subscribe("a")
    return scene


@on_loop
async def test_a_failed_message_waits_for_the_level_of_its_attempt() -> None:
    scene = await scene_with()
    (result,) = await retry(scene, at(0, reason="no"))
    assert result == RetryResult(None, 1, scene.node.now_ms + WAITS_MS[0])
    assert (waiting(scene.node), messages(scene.node, RETRY)) == (1, [])


@on_loop
async def test_a_message_that_is_wanted_back_at_once_is_there_at_once() -> None:
    scene = await scene_with(b"0", b"1")
    (result,) = await retry(scene, at(1, delay_ms=0, reason="no"))
    assert result == RetryResult(None, 1, scene.node.now_ms)
    (copy,) = messages(scene.node, RETRY)
    assert (copy.body, copy.origin.topic, copy.origin.queue_offset) == (b"1", "t", 1)
    assert (copy.origin.attempts, copy.origin.reason) == (1, "no")
    found = scene.node.broker.store.lookup.by_id(int(copy.origin.message_id.split(":")[1]))
    assert (found.topic, found.queue_offset) == ("t", 1)


@on_loop
async def test_attempts_count_up_to_the_limit_then_it_is_a_dead_letter() -> None:
    scene = await scene_with(retries_max=3)
    await retry(scene, at(0, delay_ms=0))
    for attempts in (2, 3):
        (result,) = await retry(scene, at(attempts - 2, RETRY, delay_ms=0))
        assert (result.attempts, result.deliver_at_ms > 0) == (attempts, True)
    (result,) = await retry(scene, at(2, RETRY, delay_ms=0, reason="last"))
    assert result == RetryResult(None, 4, 0)
    assert len(messages(scene.node, RETRY)) == 3
    (letter,) = messages(scene.node, DEAD)
    assert (letter.origin.topic, letter.origin.attempts, letter.origin.reason) == ("t", 4, "last")


@on_loop
async def test_a_group_has_a_limit_of_its_own() -> None:
    scene = await scene_with(b"0", b"1")
    letters = scene.node.broker.dead_letters
    await letters.set_retries("g", 0)
    assert (await retry(scene, at(0)))[0].deliver_at_ms == 0
    await letters.set_retries("g", 1)
    assert (await retry(scene, at(1)))[0].deliver_at_ms > 0
    with pytest.raises(IllegalRequest):
        await letters.set_retries("g", 1_001)
    assert scene.node.broker.retrying.retries_max("g") == 1


@on_loop
async def test_one_request_is_one_entry() -> None:
    scene = await scene_with(b"0", b"1", b"2", retries_max=1)
    await retry(scene, at(0, delay_ms=0))
    before = len(scene.node.consensus.proposed)
    await retry(scene, at(0, RETRY), sequence=1)  # creates the topic of dead letters
    created = len(scene.node.consensus.proposed) - before
    assert created == 2
    await retry(scene, at(0, RETRY), at(1), at(2, delay_ms=5), sequence=2)
    assert len(scene.node.consensus.proposed) - before - created == 1
    written: Any = scene.node.consensus.proposed[-1][1]
    assert [one.sequence for one in written.batches] == [2, 0, 0]


@on_loop
async def test_a_message_that_the_group_stands_at_is_done_by_the_same_entry() -> None:
    scene = await scene_with(b"0", b"1", b"2", b"3")
    node = scene.node
    await retry(scene, at(1, delay_ms=0))  # 0 is not done: nothing to say of the group's place
    assert node.committed("g").get(Queue("t", 0), 0) == 0
    await soon(node.broker.groups.commit("g", "a", {Queue("t", 0): 1, Queue(RETRY, 0): 0}))
    before = len(node.consensus.proposed)
    results = await retry(scene, at(2), at(1), at(9), at(0, RETRY, delay_ms=0))
    assert len(node.consensus.proposed) == before + 1
    assert [bool(one.error) for one in results] == [False, False, True, False]
    # The next member does not get what comes again by the retry topic.
    assert node.committed("g") == {
        Queue("t", 0): 3,
        **{Queue("t", queue_id): 0 for queue_id in (1, 2, 3)},
        Queue(RETRY, 0): 1,
    }
    node = Node(node.vfs_after_kill())
    assert node.committed("g")[Queue("t", 0)] == 3


@on_loop
async def test_a_group_that_was_set_back_stays_there() -> None:
    scene = await scene_with(b"0", b"1", b"2")
    queue = Queue("t", 0)
    await soon(scene.groups.commit("g", "a", {queue: 2}))
    subscriber = scene.groups._live["g"].streams["a"].subscriber
    scene.groups.seek(subscriber, {queue: 0})
    await retry(scene, at(2, delay_ms=0))
    await soon(scene.node.broker.commits.flush())
    assert scene.node.committed("g")[queue] == 0


@on_loop
async def test_neighbours_and_gaps_are_all_found() -> None:
    bodies = [b"%d" % number for number in range(50)]
    scene = await scene_with(*bodies)
    wanted = [7, 8, 9, 3, 49, 0, 30]
    results = await retry(scene, *[at(one, delay_ms=0) for one in wanted])
    assert [one.error for one in results] == [None] * len(wanted)
    assert sorted(int(one.body) for one in messages(scene.node, RETRY)) == sorted(wanted)


@on_loop
async def test_a_message_twice_in_a_request_is_one() -> None:
    scene = await scene_with()
    results = await retry(scene, at(0, delay_ms=0), at(0, delay_ms=0))
    assert results[0] == results[1]
    assert len(messages(scene.node, RETRY)) == 1


# -- bad input ------------------------------------------------------------------------------------


@on_loop
async def test_a_missing_message_is_reported_and_the_others_are_retried() -> None:
    scene = await scene_with(b"0")
    results = await retry(scene, at(5), at(0, delay_ms=0), at(1))
    assert [type(one.error) for one in results] == [MessageNotFound, type(None), MessageNotFound]
    assert len(messages(scene.node, RETRY)) == 1


@on_loop
async def test_a_retry_of_unknown_messages_changes_nothing() -> None:
    scene = await scene_with()
    before, proposed = scene.node.machine.state.encode(), len(scene.node.consensus.proposed)
    (result,) = await retry(scene, at(17), sequence=1)
    assert isinstance(result.error, MessageNotFound)
    assert scene.node.machine.state.encode() == before
    assert len(scene.node.consensus.proposed) == proposed


@on_loop
async def test_messages_of_a_deleted_topic_are_not_found() -> None:
    scene = await scene_with()
    await scene.node.broker.catalog.delete("t")
    (result,) = await retry(scene, at(0))
    assert isinstance(result.error, MessageNotFound | NotAssigned)
    assert RETRY not in scene.node.machine.state.topics


@on_loop
async def test_queues_of_others_are_refused() -> None:
    scene = await scene_with()
    scene.subscribe("b")
    theirs = next(queue for queue in range(4) if Queue("t", queue) in scene.assigned("a"))
    (result,) = await retry(scene, at(0, queue_id=theirs), member="b")
    assert isinstance(result.error, NotAssigned)
    assert waiting(scene.node) == 0


@pytest.mark.parametrize(
    ("failed", "group", "member", "sequence", "error"),
    [
        ((at(0),), "g", "stranger", 0, UnknownMember),
        ((at(0),), "nobody", "a", 0, UnknownMember),
        ((at(0),), "%RETRY%g", "a", 0, IllegalGroup),
        ((at(0),), "g", "a", 1 << 63, IllegalRequest),
        ((at(0, delay_ms=40 * 86_400_000 + 1),), "g", "a", 0, IllegalDelay),
        ((at(0),) * (FAILED_MAX + 1), "g", "a", 0, IllegalRequest),
    ],
)
def test_bad_requests(
    failed: tuple[Failed, ...], group: str, member: str, sequence: int, error: type[MqError]
) -> None:
    @on_loop
    async def test() -> None:
        scene = await scene_with()
        before = scene.node.machine.state.encode()
        with pytest.raises(error):
            await scene.node.broker.retrying.retry(group, member, sequence, failed)
        assert scene.node.machine.state.encode() == before

    test()


@pytest.mark.parametrize("mode", [MODE_ORDERED, MODE_BROADCAST])
def test_ordered_and_broadcast_groups_retry_in_place(mode: int) -> None:
    @on_loop
    async def test() -> None:
        scene = await world()
        await scene.node.send("t", b"m")
        scene.subscribe("a", mode)
        await turns()
        with pytest.raises(IllegalRequest):
            await retry(scene, at(0))

    test()


@on_loop
async def test_more_than_an_entry_holds_is_refused_and_one_large_message_is_not() -> None:
    scene = await scene_with(*[b"x" * 20_000] * 5, b"y" * 100_000)
    settings = scene.node.settings
    room = (64 << 10) + 80_000  # for three of them
    store = msgspec.structs.replace(settings.config.store, entry_bytes_max=room)
    settings.config = msgspec.structs.replace(settings.config, store=store)
    with pytest.raises(MessageTooLarge):
        await retry(scene, *[at(one) for one in range(5)])
    with pytest.raises(MessageTooLarge):
        await retry(scene, *[at(one) for one in (0, 2, 4, 1)])
    assert waiting(scene.node) == 0
    await retry(scene, at(0), at(1))
    await retry(scene, at(5))
    assert waiting(scene.node) == 3
    # With its origin it would be stored, and not fit an entry when it is due.
    settings.config = msgspec.structs.replace(
        settings.config, store=msgspec.structs.replace(store, entry_bytes_max=100_300)
    )
    with pytest.raises(MessageTooLarge):
        await retry(scene, at(5))
    assert waiting(scene.node) == 3


# -- once -----------------------------------------------------------------------------------------


@on_loop
async def test_a_request_that_comes_again_is_done_once() -> None:
    scene = await scene_with(b"0", b"1")
    first = await retry(scene, at(0), at(1, delay_ms=0), sequence=1)
    scene.node.now_ms += 5
    assert await retry(scene, at(0), at(1, delay_ms=0), sequence=1) == first
    assert (waiting(scene.node), len(messages(scene.node, RETRY))) == (1, 1)
    await retry(scene, at(0), sequence=2)
    assert waiting(scene.node) == 2


@on_loop
async def test_sequences_are_those_of_a_member() -> None:
    scene = await scene_with()
    await retry(scene, at(0, delay_ms=0), sequence=1)
    scene.groups.leave("g", "a")
    scene.subscribe("b")
    await retry(scene, at(0, delay_ms=0), sequence=1, member="b")
    assert len(messages(scene.node, RETRY)) == 2


@on_loop
async def test_a_request_that_comes_again_while_the_first_is_under_way_is_done_once() -> None:
    scene = await scene_with(b"0", b"1")
    await retry(scene, at(1, delay_ms=0))
    scene.node.consensus.is_held = True
    calls = [asyncio.create_task(retry(scene, at(0, delay_ms=0), sequence=1)) for _ in range(3)]
    others = asyncio.create_task(retry(scene, at(1, delay_ms=0), sequence=2))
    await turns()
    calls[0].cancel()  # the caller has gone: it is written all the same
    await turns()
    scene.node.consensus.is_held = False
    scene.node.consensus.commit()
    assert await soon(calls[1]) == await soon(calls[2])
    await soon(others)
    assert len(messages(scene.node, RETRY)) == 3
    assert await retry(scene, at(0, delay_ms=0), sequence=1) == calls[1].result()
    assert len(messages(scene.node, RETRY)) == 3


@on_loop
async def test_a_repeated_request_is_known_also_after_the_queue_has_moved() -> None:
    scene = await scene_with()
    first = await retry(scene, at(0, delay_ms=0), sequence=1)
    scene.groups.leave("g", "a")
    assert await retry(scene, at(0, delay_ms=0), sequence=1) == first
    with pytest.raises(UnknownMember):
        await retry(scene, at(0, delay_ms=0), sequence=2)


@on_loop
async def test_an_unknown_outcome_is_found_out_by_the_same_request() -> None:
    scene = await scene_with()
    node = scene.node
    await node.broker.catalog.ensure_internal(RETRY)
    await soon(node.broker.commits.flush())
    node.consensus.is_held = True
    call = asyncio.create_task(retry(scene, at(0, delay_ms=0), sequence=1))
    await turns()
    node.consensus.lose(OutcomeUnknown("lost"))
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(OutcomeUnknown):
        await call
    with pytest.raises(NotLeader):
        await retry(scene, at(0, delay_ms=0), sequence=1)
    # It was in the log after all; the next leader has applied it.
    node.consensus.is_held = False
    node.consensus.elect()
    node.broker.tick()
    (result,) = await retry(scene, at(0, delay_ms=0), sequence=1)
    assert result.error is None
    assert len(messages(node, RETRY)) == 1


@on_loop
async def test_a_restart_forgets_nothing() -> None:
    scene = await scene_with(b"0", b"1", retries_max=0)
    await scene.node.broker.dead_letters.set_retries("g", 1)
    await retry(scene, at(0), at(1, delay_ms=0), sequence=1)
    node = Node(scene.node.vfs_after_kill(), retries_max=0)
    scene = World(node)
    await retry(scene, at(0), at(1, delay_ms=0), sequence=1)  # it is no member yet, and need not be
    assert (waiting(node), len(messages(node, RETRY))) == (1, 1)
    scene.subscribe("a", positions={Queue(RETRY, 0): 0})
    (result,) = await retry(scene, at(0, RETRY), sequence=2)
    assert result == RetryResult(None, 2, 0)
    assert len(messages(node, DEAD)) == 1


@on_loop
async def test_a_full_disk_fails_the_retry_and_changes_nothing() -> None:
    scene = await scene_with()
    await scene.node.broker.catalog.ensure_internal(RETRY)
    scene.node.consensus.failure = NotLeader(None, None)
    with pytest.raises(NotLeader):
        await retry(scene, at(0), sequence=1)
    scene.node.consensus.failure = None
    await retry(scene, at(0), sequence=1)
    assert waiting(scene.node) == 1


@on_loop
async def test_groups_with_the_longest_name_have_their_topics() -> None:
    scene = await world(retries_max=0)
    node, name = scene.node, "g" * names.NAME_CHARACTERS_MAX
    await node.send("t", b"m")
    node.broker.groups.join(name, spec("m" * 255), ())
    for retries_max, topic in ((0, names.dead_letter_topic(name)), (1, names.retry_topic(name))):
        await node.broker.dead_letters.set_retries(name, retries_max)
        await node.broker.retrying.retry(name, "m" * 255, 0, [at(0, delay_ms=0)])
        assert len(messages(node, topic)) == 1


# -- the group and its retry topic ----------------------------------------------------------------


@on_loop
async def test_members_of_a_group_have_its_retry_topic() -> None:
    scene = await scene_with()
    scene.subscribe("b")
    await retry(scene, at(0, delay_ms=0))
    owners = [one for one in ("a", "b") if Queue(RETRY, 0) in scene.assigned(one)]
    assert len(owners) == 1
    # And those that come when it is there, or pull.
    scene.groups.leave("g", "a")
    scene.groups.leave("g", "b")
    scene.groups.join("g", spec("c"), ())
    assert Queue(RETRY, 0) in scene.assigned("c")


@pytest.mark.parametrize("mode", [MODE_ORDERED, MODE_BROADCAST])
def test_ordered_and_broadcast_groups_do_not_have_it(mode: int) -> None:
    @on_loop
    async def test() -> None:
        scene = await world()
        await scene.node.broker.catalog.ensure_internal(RETRY)
        scene.subscribe("a", mode)
        await eventually(lambda: len(scene.assigned("a")) == 4)
        assert Queue(RETRY, 0) not in scene.assigned("a")

    test()


@on_loop
async def test_retries_pass_every_filter_and_are_read_from_the_beginning() -> None:
    scene = await scene_with()
    await retry(scene, at(0, delay_ms=0))
    scene.groups.leave("g", "a")
    wanted = compile_filter(Filter(tags="never"))
    subscriber = scene.groups.subscribe(
        "g", spec("b", tags="never"), {"t": wanted}, CacheLimits(), LATEST, {}
    )
    said = await drain(subscriber)
    delivered = [one for one in said if isinstance(one, Delivered) and one.queue.topic == RETRY]
    assert sum(run.message_count for one in delivered for run in one.result.runs) == 1


@on_loop
async def test_a_rejoining_member_keeps_the_retry_topic() -> None:
    scene = await scene_with()
    await retry(scene, at(0, delay_ms=0))
    node = scene.node
    await soon(node.broker.groups.commit("g", "a", {Queue("t", 0): 1}))
    node.consensus.depose()
    node.broker.tick()
    node.consensus.elect()
    node.broker.tick()
    scene.subscribe("a", positions={Queue(RETRY, 0): 1, Queue("t", 0): 1})
    assert Queue(RETRY, 0) in scene.assigned("a")  # at once, though the others may come back, too


@on_loop
async def test_a_forged_origin_is_not_believed() -> None:
    scene = await world(retries_max=3)
    forged = Message(body=b"m", origin=Origin(topic="secret", attempts=3))
    slot = await scene.node.broker.submit(batch("t", messages=[forged]))
    await soon(asyncio.shield(slot.outcome))
    scene.subscribe("a")
    (result,) = await retry(scene, at(0, delay_ms=0))
    assert result.attempts == 1
    assert messages(scene.node, RETRY)[0].origin.topic == "t"


@on_loop
async def test_a_member_that_leaves_gaps_in_its_numbers_costs_no_more_for_it() -> None:
    scene = await scene_with()
    for number in range(1, 700, 2):
        await retry(scene, at(0, delay_ms=0), sequence=number)
    before = len(messages(scene.node, RETRY))
    for number in (699, 697, 300):
        await retry(scene, at(0, delay_ms=0), sequence=number - number % 2 + 1)
    assert len(messages(scene.node, RETRY)) == before
    (known,) = [one for one in scene.node.machine.state.producers.encode() if one.stored]
    assert len(known.stored) <= 512
