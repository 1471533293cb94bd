"""Entries that arrive damaged: nothing is cut for their sake, nothing of them is kept."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mq.raft.frames import Frame
from mq.wire.v1.raft_pb2 import Append, RaftFrame, StartOver
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.node import SimNode


def group() -> World:
    return World(3, 3)


def terms(node: SimNode) -> list[int]:
    log = node.log
    return [log.term_at(index) for index in range(log.first_index, log.last_index + 1)]


def body_behind(node: SimNode, raft_index: int) -> bytes:
    return bytes(node.log.region(raft_index + 1, 1 << 20).data)


def send(world: World, leader: SimNode, follower: SimNode, prev_index: int, body: bytes) -> None:
    assert leader.replica is not None
    assert leader.replica.core is not None
    append = Append(
        prev_index=prev_index,
        prev_term=leader.log.term_at(prev_index),
        commit_index=leader.log.last_index,
    )
    message = RaftFrame(term=leader.replica.core.term, append=append)
    follower.receive(leader.name, Frame(message, memoryview(body)))
    world.run(0.05)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_append_cuts_nothing_and_adds_nothing(seed: int) -> None:
    """Also one that looks like a conflict: its first entry has another term by its damage."""
    rng = random.Random(seed)
    with group() as world:
        leader = world.settle()
        follower, _ = world.others(leader)
        for number in range(10):
            world.commit(b"entry %d" % number)
        world.run(0.3)
        before = terms(follower)
        prev_index = leader.log.first_index + rng.randrange(8)
        body = bytearray(body_behind(leader, prev_index))
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        cut = rng.choice([len(body), rng.randrange(1, len(body))])
        send(world, leader, follower, prev_index, bytes(body[:cut]))
        assert terms(follower)[: len(before)] == before
        assert follower.is_up
        world.commit(b"goes on")
        world.converge()


def test_a_damaged_start_does_not_cost_the_log() -> None:
    with group() as world:
        leader = world.settle()
        follower, _ = world.others(leader)
        world.commit(b"kept")
        world.run(0.3)
        before = terms(follower)
        assert leader.replica is not None
        assert leader.replica.core is not None
        start = StartOver(first_index=1000, log_offset=1 << 20, commit_index=1000)
        message = RaftFrame(term=leader.replica.core.term, start_over=start)
        for body in (b"", b"garbage", body_behind(leader, leader.log.first_index)):
            follower.receive(leader.name, Frame(message, memoryview(body)))
            assert terms(follower) == before
        world.commit(b"goes on")
        world.converge()
