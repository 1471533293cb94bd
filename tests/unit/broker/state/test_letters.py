"""Dead letters that were settled one by one, in the replicated state."""

from __future__ import annotations

from mq.broker.state.letters import SettledLetters
from mq.broker.state.state import State
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.state_pb2 import Command, SettleLetters, TrimQueues
from tests.unit.broker.state.test_machine import Replica


def settled() -> SettledLetters:
    letters = SettledLetters()
    letters.settle(SettleLetters(group="g", resent=[5, 1], start=0))
    letters.settle(SettleLetters(group="g", purged=[3], start=1))
    letters.settle(SettleLetters(group="other", purged=[0]))
    return letters


def test_letters_are_known_until_their_queue_begins_behind_them() -> None:
    letters = settled()
    assert (letters.resent("g"), letters.purged("g")) == ({1, 5}, {3})
    letters.settle(SettleLetters(group="g", resent=[6], start=3))
    assert (letters.resent("g"), letters.purged("g")) == ({5, 6}, {3})
    letters.trim("%DLQ%g", 6)
    letters.trim("g", 100)
    assert (letters.resent("g"), letters.purged("g")) == ({6}, set())
    letters.drop_topic("%DLQ%g")
    assert not letters.resent("g")
    assert letters.purged("other") == {0}


def test_a_checkpoint_has_them_in_the_same_bytes() -> None:
    state, other = State(), State()
    for one in (
        SettleLetters(group="g", resent=[9, 2], purged=[4]),
        SettleLetters(group="a", purged=[1]),
    ):
        state.letters.settle(one)
    other.letters.settle(SettleLetters(group="a", purged=[1]))
    other.letters.settle(SettleLetters(group="g", resent=[2]))
    other.letters.settle(SettleLetters(group="g", resent=[9], purged=[4]))
    assert state.encode() == other.encode()
    again = State()
    again.restore(state.encode())
    assert again.encode() == state.encode()
    assert (again.letters.resent("g"), again.letters.purged("a")) == ({2, 9}, {1})
    again.restore(b"")
    assert not again.letters.resent("g")


def test_replicas_and_a_restart_know_the_same_letters() -> None:
    leader, follower = Replica().open(), Replica().open()
    for replica in (leader, follower):
        for one in (
            SettleLetters(group="g", resent=[1, 4], purged=[2]),
            SettleLetters(group="g", purged=[3], start=2),
        ):
            replica.write(Command(settle_letters=one))
        replica.apply()
    assert leader.summary() == follower.summary()
    assert (leader.state.letters.resent("g"), leader.state.letters.purged("g")) == ({4}, {2, 3})
    leader.vfs.kill()
    again = Replica(leader.vfs)
    again.apply()
    assert again.state.letters.purged("g") == {2, 3}
    trim = TrimQueues(starts=[QueuePosition(topic="%DLQ%g", queue_offset=4)])
    again.write(Command(trim_queues=trim))
    again.apply()
    assert (again.state.letters.resent("g"), again.state.letters.purged("g")) == ({4}, set())
