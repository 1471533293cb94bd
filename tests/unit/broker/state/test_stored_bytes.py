"""Bytes of a topic: the total is part of the replicated state, and what the log still holds follows
from it and the checkpoint that opens the log.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mq.names import SCHEDULE_TOPIC
from mq.store import checkpoint, rebatch
from mq.store.batch import decode_payload
from mq.store.commitlog import NewEntry
from mq.store.format import Kind
from mq.store.holding import lane_of
from mq.wire.v1.state_pb2 import (
    BrokerState,
    CarryScheduled,
    Command,
    DeliverScheduled,
    LaneCarried,
    LaneProgress,
    RecallScheduled,
)
from tests.support.consensus import batch
from tests.support.logs import send
from tests.support.stores import roll
from tests.unit.broker.state.test_machine import Replica, drop, put

if TYPE_CHECKING:
    from mq.store.batch import Batch

TOPICS = "tuv"


def in_the_log(replica: Replica) -> dict[str, int]:
    """Counted by reading all of it, since each topic's last creation."""
    log, topics = replica.store.log, replica.state.topics
    found = dict.fromkeys((one.name for one in topics), 0)
    for ref, payload in log.entries(log.first_index, log.last_index + 1):
        if ref.kind != Kind.MESSAGES:
            continue
        for one, _ in decode_payload(payload, ref.payload_log_offset).batches:
            topic = topics.get(one.topic)
            if topic is not None and ref.log_offset > topic.created_at_log_offset:
                found[one.topic] += len(one.data)
    return found


def counted(replica: Replica) -> dict[str, int]:
    return {one.name: replica.machine.stored_bytes(one.name) for one in replica.state.topics}


def some_batch(rng: random.Random) -> list[Batch]:
    topic = rng.choice(TOPICS)
    bodies = [rng.randbytes(rng.randint(0, 50)) for _ in range(rng.randint(1, 3))]
    later = {"deliver_at_ms": 9_000_000} if rng.random() < 0.2 else {}
    return [batch(topic, *bodies, **later)]


def work_on(replica: Replica, rng: random.Random) -> None:
    """One step: a batch mostly, a topic created or deleted, a new segment, segments dropped."""
    match rng.randrange(12):
        case 0:
            replica.write(put(rng.choice(TOPICS)))
        case 1:
            replica.write(drop(rng.choice(TOPICS)))
        case 2:
            replica.apply()
            roll(replica.store, 5_000, 1)
        case 3:
            replica.apply()
            replica.store.drop_front(rng.randint(1, 2))
        case _:
            replica.write(some_batch(rng))
    replica.apply()


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_of_each_topic_are_those_that_the_log_holds(seed: int) -> None:
    rng = random.Random(seed)
    leader = Replica().open()
    for topic in TOPICS:
        leader.write(put(topic))
    leader.apply()
    for _ in range(80):
        work_on(leader, rng)
        assert counted(leader) == in_the_log(leader)
    # A follower that has copied what is left counts the same ...
    follower = Replica()
    follower.store.log.start_over(leader.store.log.first_index, leader.store.log.start_offset)
    send(leader.store.log, follower.store.log, 1 << 20)
    follower.store.log.sync()
    follower.machine.start_over()
    follower.apply()
    assert counted(follower) == counted(leader)
    assert follower.state.encode() == leader.state.encode()
    # ... and so does one that starts again, with a checkpoint of its own or without.
    if seed % 2:
        leader.store.checkpoint()
    before = counted(leader)
    leader.vfs.kill()
    again = Replica(leader.vfs)
    again.apply()
    assert counted(again) == before


def test_a_topic_that_is_created_again_begins_at_zero() -> None:
    replica = Replica().open()
    replica.write(put("t"))
    replica.write([batch("t", b"x" * 100)])
    replica.apply()
    roll(replica.store, 5_000, 1)
    replica.apply()
    replica.store.drop_front(1)
    assert replica.machine.stored_bytes("t") == 0
    replica.write(drop("t"))
    replica.write(put("t"))
    small = batch("t", b"y")
    replica.write([small])
    replica.apply()
    assert replica.machine.stored_bytes("t") == len(small.data)
    assert replica.machine.stored_bytes("other") == 0


def opening(replica: Replica, state: BrokerState, term: int = 1) -> None:
    """A checkpoint as another broker would write it."""
    queues = replica.store.queues.extents()
    payload = checkpoint.encode_entry(queues, state.SerializeToString(deterministic=True))
    replica.store.log.roll(NewEntry(Kind.CHECKPOINT, term, 5_000, payload))


def older(replica: Replica) -> BrokerState:
    """The state as a broker wrote it that did not count."""
    state = BrokerState.FromString(replica.state.encode())
    state.ClearField("begins_counting")
    state.ClearField("counts_stored_bytes")
    for topic in state.topics:
        topic.ClearField("stored_bytes")
    return state


def test_replicas_that_are_upgraded_one_after_the_other_begin_to_count_at_the_same_entry() -> None:
    old = Replica()
    opening(old, older(old))
    old.apply()
    old.write(put("t"))
    old.write([batch("t", b"x" * 100)])
    old.apply()
    assert counted(old) == {"t": 0}
    # One replica starts again in between; a checkpoint of its own is no entry of the log.
    other = Replica()
    send(old.store.log, other.store.log, 1 << 20)
    other.apply()
    other.store.checkpoint()
    other.vfs.kill()
    other = Replica(other.vfs)
    assert not other.state.topics.counts_stored_bytes
    opening(old, older(old))
    old.write([batch("t", b"x" * 200)])
    old.apply()
    assert counted(old) == {"t": 0}
    # The first checkpoint of a broker that counts.
    roll(old.store, 6_000, 1)
    behind = batch("t", b"y" * 300)
    old.write([behind])
    old.apply()
    send(old.store.log, other.store.log, 1 << 20)
    other.apply()
    late = Replica()
    send(old.store.log, late.store.log, 1 << 20)
    late.apply()
    for one in (old, other, late):
        assert counted(one) == {"t": len(behind.data)}
        assert one.state.encode() == old.state.encode()
    # Also if that one is all that is left, and everything else is rebuilt from it.
    old.store.drop_front(2)
    fresh = Replica()
    fresh.store.log.start_over(old.store.log.first_index, old.store.log.start_offset)
    send(old.store.log, fresh.store.log, 1 << 20)
    fresh.store.log.sync()
    fresh.machine.start_over()
    fresh.apply()
    assert fresh.state.encode() == old.state.encode()
    assert counted(fresh) == counted(old) == {"t": len(behind.data)}


def test_delayed_messages_of_a_topic_are_counted_until_they_are_delivered_or_recalled() -> None:
    leader, follower = Replica().open(), Replica()
    leader.write(put("t"))
    late = [batch("t", b"1", b"2", deliver_at_ms=900_000), batch("t", b"3", deliver_at_ms=900_000)]
    (lane,) = {lane_of(one.deliver_at_ms) for one in late}
    written = leader.write(late)
    leader.apply()
    topics = leader.state.topics
    assert topics.delayed_messages("t") == 3
    first, second = written.stored
    queue = leader.store.queues.get(SCHEDULE_TOPIC, lane)
    assert queue is not None
    places = queue.read(0, 2)["log_offset"].tolist()
    recall = RecallScheduled(
        lane=lane,
        due_ms=900_000,
        log_offset=places[0],
        message_log_offset=first.log_offset,
        topic="t",
    )
    leader.write(Command(recall_scheduled=recall))
    leader.apply()
    assert topics.delayed_messages("t") == 2
    # One that is written again, so that retention can drop the log before it, is the same one.
    carried = rebatch.carried(late[1], second.log_offset)
    lanes = [LaneCarried(lane=lane, below_log_offset=places[1] + 1, batches=1, messages=1)]
    leader.write_atom([carried], Command(carry_scheduled=CarryScheduled(lanes=lanes)))
    leader.apply()
    assert topics.delayed_messages("t") == 2
    progress = LaneProgress(lane=lane, due_ms=900_000, log_offset=1 << 40, batches=2, messages=3)
    command = Command(deliver_scheduled=DeliverScheduled(lanes=[progress]))
    leader.write_atom([batch("t", b"2"), batch("t", b"3")], command)
    send(leader.store.log, follower.store.log, 1 << 20)
    follower.apply()
    leader.apply()
    assert topics.delayed_messages("t") == 0
    assert follower.state.encode() == leader.state.encode()


def test_delayed_messages_come_back_with_a_checkpoint_and_go_with_their_topic() -> None:
    replica = Replica().open()
    replica.write(put("t"))
    replica.write([batch("t", b"x", deliver_at_ms=900_000)])
    replica.apply()
    replica.store.checkpoint()
    replica.vfs.kill()
    again = Replica(replica.vfs)
    assert again.state.topics.delayed_messages("t") == 1
    again.write(drop("t"))
    again.write(put("t"))
    again.apply()
    assert again.state.topics.delayed_messages("t") == 0
