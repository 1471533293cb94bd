"""Dead letters: listed, sent again once, purged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mq.broker.queue import Queue
from mq.broker.retry import retries
from mq.broker.retry.dead_letters import Totals
from mq.errors import IllegalGroup, IllegalRequest, MessageNotFound, OutcomeUnknown, TopicNotFound
from tests.support.consensus import Node, on_loop, soon, turns
from tests.unit.broker.retry.test_retrying import DEAD, RETRY, at, messages, retry, scene_with

if TYPE_CHECKING:
    from mq.broker.retry.dead_letters import DeadLetters
    from tests.unit.broker.consumer.group_scene import World


async def with_letters(count: int = 3, size: int = 1) -> tuple[World, DeadLetters]:
    bodies = [b"%d" % number * size for number in range(count)]
    scene = await scene_with(*bodies, retries_max=0)
    for first in range(0, count, 500):
        await retry(
            scene, *[at(one, reason="why") for one in range(first, min(count, first + 500))]
        )
    await scene.node.broker.dead_letters.set_retries("g", 16)
    return scene, scene.node.broker.dead_letters


def ends(node: Node) -> tuple[int, int]:
    return tuple(node.broker.groups.extent(Queue(topic, 0))[1] for topic in (RETRY, DEAD))  # type: ignore[return-value]


@on_loop
async def test_letters_are_counted_and_listed() -> None:
    scene, letters = await with_letters(5)
    (count,) = letters.counts()
    assert count == ("g", 5, scene.node.now_ms)
    assert letters.messages == 5
    first, next_offset = letters.listed("g", 0, 2)
    assert [(one.queue_offset, one.message.body) for one in first] == [(0, b"0"), (1, b"1")]
    rest, end = letters.listed("g", next_offset, 0)
    assert ([one.queue_offset for one in rest], end) == ([2, 3, 4], 5)
    assert letters.listed("g", end, 10) == ([], 5)
    assert letters.listed("g", 99, 10) == ([], 5)


@on_loop
async def test_all_are_sent_again_counted_from_zero() -> None:
    scene, letters = await with_letters()
    assert await letters.resend_all("g") == 3
    assert (list(letters.counts()), messages(scene.node, DEAD)) == ([], [])
    copies = messages(scene.node, RETRY)
    assert [one.body for one in copies] == [b"0", b"1", b"2"]
    assert [(one.origin.topic, one.origin.attempts) for one in copies] == [("t", 0)] * 3
    assert copies[0].origin.reason == "why"
    # The next failure is the first one.
    (result,) = await retry(scene, at(0, RETRY))
    assert result.attempts == 1
    assert await letters.resend_all("g") == 0


@on_loop
async def test_many_are_sent_again_in_entries_that_are_bounded() -> None:
    scene, letters = await with_letters(1_200)
    before = len(scene.node.consensus.proposed)
    assert await letters.resend_all("g") == 1_200
    assert 4 <= len(scene.node.consensus.proposed) - before <= 6
    bodies = [int(one.body) for one in messages(scene.node, RETRY)]
    assert bodies == list(range(1_200))


@on_loop
async def test_a_dead_letter_is_in_exactly_one_place() -> None:
    scene, letters = await with_letters(1_200)
    node = scene.node
    await node.broker.catalog.ensure_internal(RETRY)
    node.consensus.is_held = True
    work = asyncio.create_task(letters.resend_all("g"))
    await turns()
    node.consensus.commit(1)
    await turns()
    assert len(messages(node, RETRY)) + len(messages(node, DEAD)) == 1_200
    node.consensus.lose(OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        await soon(work)
    # The second entry is in the log, and the next leader has it.
    node.consensus.is_held = False
    node.consensus.depose()
    node.broker.tick()
    node.consensus.elect()
    node.broker.tick()
    await letters.resend_all("g")
    bodies = [int(one.body) for one in messages(node, RETRY)]
    assert bodies == list(range(1_200))


@on_loop
async def test_letters_that_come_meanwhile_are_not_sent_again() -> None:
    scene, letters = await with_letters(3)
    node = scene.node
    await node.broker.catalog.ensure_internal(RETRY)
    node.consensus.is_held = True
    resent = asyncio.create_task(letters.resend_all("g"))
    await turns()
    (letter,), _ = letters.listed("g", 0, 1)
    late = retries.dead_letters("g", "set-0", [retries.Letter(letter, 17, "")])
    writing = asyncio.create_task(letters._core.writer.write(batches=[late]))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(writing)
    assert await soon(resent) == 3
    assert letters.messages == 1


@on_loop
async def test_two_that_send_all_again_at_once_send_each_once() -> None:
    scene, letters = await with_letters(10)
    counts = await soon(asyncio.gather(letters.resend_all("g"), letters.resend_all("g")))
    assert sorted(counts) == [0, 10]
    assert len(messages(scene.node, RETRY)) == 10


@on_loop
async def test_a_cancelled_resend_keeps_others_out_until_it_has_ended() -> None:
    scene, letters = await with_letters(3)
    node = scene.node
    await node.broker.catalog.ensure_internal(RETRY)
    node.consensus.is_held = True
    first = asyncio.ensure_future(letters.resend_all("g"))
    await turns()
    first.cancel()
    await turns()
    # The same again, while the entry of the first one is still on its way.
    second = asyncio.ensure_future(letters.resend_all("g"))
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    assert await soon(second) == 0
    assert first.cancelled()
    assert [one.body for one in messages(node, RETRY)] == [b"0", b"1", b"2"]


@on_loop
async def test_a_letter_that_retention_takes_is_not_sent_as_another() -> None:
    scene, letters = await with_letters(3)
    node = scene.node
    node.consensus.is_held = True
    sending = asyncio.ensure_future(letters.resend("g", [0, 2]))
    await turns()  # the retry topic is on its way
    node.store.derived.trim(DEAD, 0, 1)
    node.consensus.is_held = False
    node.consensus.commit()
    assert await soon(sending) == 1
    assert [one.body for one in messages(node, RETRY)] == [b"2"]


@on_loop
async def test_single_letters_are_sent_again_and_stay() -> None:
    scene, letters = await with_letters()
    assert await letters.resend("g", [2, 0, 2]) == 2
    assert [one.body for one in messages(scene.node, RETRY)] == [b"0", b"2"]
    assert letters.messages == 3


@on_loop
async def test_a_letter_that_is_not_there_stops_the_request() -> None:
    scene, letters = await with_letters()
    await letters.purge("g", 1)
    for wrong in ([0], [3], [1, 99]):
        with pytest.raises(MessageNotFound):
            await letters.resend("g", wrong)
    with pytest.raises(IllegalRequest):
        await letters.resend("g", range(1_001))
    assert messages(scene.node, RETRY) == []


@on_loop
async def test_letters_are_let_go_of() -> None:
    scene, letters = await with_letters(5)
    assert await letters.purge("g", 2) == 2
    assert await letters.purge("g", 2) == 0
    assert letters.listed("g", 0, 1)[0][0].queue_offset == 2
    assert await letters.purge("g", 99) == 3
    assert (await letters.purge("g"), letters.messages) == (0, 0)
    await scene.node.broker.dead_letters.set_retries("g", 0)
    await retry(scene, at(0))
    assert (await letters.purge("g"), letters.messages) == (1, 0)


@on_loop
async def test_groups_without_letters() -> None:
    _, letters = await with_letters()
    for group, error in (("other", TopicNotFound), ("%bad", IllegalGroup)):
        with pytest.raises(error):
            letters.listed(group, 0, 0)
        for call in (letters.resend_all(group), letters.resend(group, [0]), letters.purge(group)):
            with pytest.raises(error):
                await call


@on_loop
async def test_totals_outlive_a_purge_and_a_restart() -> None:
    scene, letters = await with_letters(4)
    await letters.resend("g", [0])
    await letters.purge("g")
    assert letters.totals() == {"g": Totals(4, 1)}
    node = Node(scene.node.vfs_after_kill())
    assert node.broker.dead_letters.totals() == {"g": Totals(4, 1)}
    assert list(node.broker.dead_letters.counts()) == []


@pytest.mark.parametrize("has_letters", [False, True])
def test_a_deleted_group_takes_its_retries_along_and_no_dead_letters(*, has_letters: bool) -> None:
    @on_loop
    async def test() -> None:
        scene, letters = await with_letters()
        await letters.resend("g", [0])
        if not has_letters:
            await letters.purge("g")
        await soon(scene.groups.commit("g", "a", {Queue("t", 0): 1}))
        scene.groups.leave("g", "a")
        await scene.node.broker.catalog.delete_group("g", 0)
        topics = scene.node.machine.state.topics
        assert (RETRY in topics, DEAD in topics) == (False, has_letters)
        assert letters.messages == (3 if has_letters else 0)
        # A new group of that name has nothing of the old one's to do.
        scene.subscribe("b")
        assert Queue(RETRY, 0) not in scene.assigned("b")
        await letters.set_retries("g", 1)
        await retry(scene, at(0, delay_ms=0), member="b")
        assert len(messages(scene.node, RETRY)) == 1

    test()
