"""Half messages that are damaged in the log: their transaction waits or ends, others go on."""

from __future__ import annotations

import pytest

from mq.broker.state.transactions import TransactionOutcome
from mq.errors import MessagesDamaged, TransactionNotFound
from mq.names import GIVE_UP_TOPIC
from tests.support.consensus import Node, on_loop
from tests.unit.broker.transaction.transaction_scene import (
    begin,
    bodies,
    commit,
    half,
    new_node,
    open_ones,
    pass_time,
    producer,
    questions,
    roll_back,
)

# So large that it is read from the log.
LARGE = b"x" * (65 << 10)


class Scene:
    """A transaction whose messages are damaged in the log, between two others."""

    def __init__(self, node: Node, ids: tuple[int, int, int], position: int) -> None:
        self.node = node
        self.before, self.bad, self.behind = ids
        self._position = position

    def flip(self) -> None:
        """Damages it, or mends it. Nothing is known of any entry."""
        (info,) = self.node.store.log.segments()
        self.node.vfs.flip_bit(info.path, self._position)
        self.node.store.log.verified.start_at(self.node.store.log.end_offset)

    def lose(self) -> None:
        """No other node has it."""
        (found,) = self.node.store.damage.records()
        self.node.store.damage.lose(found.path, found.start, "")


async def damaged(checks_max: int = 15) -> Scene:
    node = await new_node()
    ids = []
    for number in range(3):
        ids.append(await begin(node, b"%d" % number + LARGE, half=half(checks_max=checks_max)))
        if number == 1:
            position = node.store.log.place_of(node.store.log.last_index)[1] - 20
    scene = Scene(node, (ids[0], ids[1], ids[2]), position)
    scene.flip()
    return scene


@on_loop
async def test_a_damaged_transaction_can_be_committed_when_it_is_mended_and_delays_no_other() -> (
    None
):
    scene = await damaged()
    with pytest.raises(MessagesDamaged) as raised:
        await commit(scene.node, scene.bad)
    assert raised.value.retryable
    await commit(scene.node, scene.before)
    await commit(scene.node, scene.behind)
    assert [body[:1] for body in bodies(scene.node)] == [b"0", b"2"]
    scene.flip()
    await commit(scene.node, scene.bad)
    assert [body[:1] for body in bodies(scene.node)] == [b"0", b"2", b"1"]


@on_loop
async def test_a_transaction_that_no_node_can_read_is_over_with_its_commit() -> None:
    scene = await damaged()
    with pytest.raises(MessagesDamaged):
        await commit(scene.node, scene.bad)
    scene.lose()
    for _ in range(2):
        with pytest.raises(TransactionNotFound, match="damaged on every node"):
            await commit(scene.node, scene.bad)
    assert [one.id for one in open_ones(scene.node)] == [scene.before, scene.behind]
    ended = scene.node.machine.state.transactions.ended[scene.bad]
    assert ended.outcome == TransactionOutcome.GIVEN_UP
    # As of any that was given up.
    assert await roll_back(scene.node, scene.bad) is None


@on_loop
async def test_producers_are_asked_about_the_others_and_one_that_is_lost_is_given_up() -> None:
    scene = await damaged(checks_max=1)
    asked = producer(scene.node)
    await pass_time(scene.node, 6_000)
    assert [one.transaction.id for one in questions(asked)] == [scene.before, scene.behind]
    scene.lose()
    await pass_time(scene.node, 30_000)
    assert open_ones(scene.node) == []
    assert [body[:1] for body in bodies(scene.node, GIVE_UP_TOPIC)] == [b"0", b"2"]


@on_loop
async def test_a_transaction_that_is_lost_does_not_hold_retention() -> None:
    scene = await damaged()
    transacting, end = scene.node.broker.transacting, scene.node.store.log.end_offset
    await transacting.carry(end)
    # Another node may have it.
    assert transacting.needs_log_before(end)
    assert [one.log_offset < end for one in open_ones(scene.node)].count(True) == 1
    scene.lose()
    await transacting.carry(end)
    assert not transacting.needs_log_before(end)
    assert [one.id for one in open_ones(scene.node)] == [scene.before, scene.behind]
