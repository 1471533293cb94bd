"""Sets that operators added and removed, and their way through the log."""

from __future__ import annotations

from mq.broker.state.sets import KnownSets
from mq.broker.state.state import State
from mq.wire.v1.cluster_pb2 import PeerSet
from mq.wire.v1.state_pb2 import Command, DropBrokerSet, PutBrokerSet
from tests.support.consensus import Node, on_loop


def put(name: str, *addresses: str) -> Command:
    return Command(put_broker_set=PutBrokerSet(broker_set=PeerSet(name=name, addresses=addresses)))


def drop(name: str) -> Command:
    return Command(drop_broker_set=DropBrokerSet(name=name))


def test_a_removed_set_is_remembered_until_it_is_added_again() -> None:
    sets = KnownSets()
    assert (len(sets), sets.added(), sets.is_removed("b")) == (0, {}, False)
    sets.put(PeerSet(name="b", addresses=["b:1"]))
    assert (sets.added(), sets.is_removed("b"), "b" in sets) == ({"b": ("b:1",)}, False, True)
    sets.drop("b")
    sets.drop("never-there")
    assert (sets.added(), sets.is_removed("b"), sets.is_removed("never-there")) == ({}, True, True)
    assert ("b" in sets, len(sets)) == (True, 2)
    sets.put(PeerSet(name="b", addresses=["b:2"]))
    assert (sets.added(), sets.is_removed("b")) == ({"b": ("b:2",)}, False)


def test_a_copy_is_equal_in_any_order() -> None:
    one, other = KnownSets(), KnownSets()
    one.put(PeerSet(name="b", addresses=["b:1", "b:2"]))
    one.drop("c")
    other.drop("c")
    other.put(PeerSet(name="b", addresses=["b:1", "b:2"]))
    assert list(one.encode()) == list(other.encode())
    copied = KnownSets()
    copied.put(PeerSet(name="old", addresses=["old:1"]))
    copied.restore(one.encode())
    assert list(copied.encode()) == list(one.encode())


@on_loop
async def test_known_sets_survive_by_the_log_and_by_a_checkpoint() -> None:
    node = Node()
    for command in (put("b", "b:1"), put("c", "c:1"), drop("c"), put("b", "b:2", "b:3")):
        await node.broker.writer.write(command)
    again = Node(node.vfs_after_kill())
    assert again.machine.state.sets.added() == {"b": ("b:2", "b:3")}
    assert again.machine.state.sets.is_removed("c")
    state = State()
    state.restore(again.machine.state.encode())
    assert list(state.sets.encode()) == list(again.machine.state.sets.encode())
    assert len(state.sets) == 2
