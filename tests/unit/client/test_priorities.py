"""Topics with priorities at the client: which queue a message goes to, and whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest

from mq.client.cluster.topology import queues_of
from mq.client.consumer.prefetch import FairTurns
from mq.client.encode import Encoded, encode_message
from mq.client.messages import Message
from mq.client.producer.batching import AddResult
from mq.client.producer.queues import BatchKind, SendFuture
from mq.errors import IllegalRequest
from mq.wire.v1.cluster_pb2 import TopicRoute
from mq.wire.v1.consumer_pb2 import AssignedQueue, Assignment
from mq.wire.v1.message_pb2 import Batch
from tests.unit.client.consumer.deliveries import SET, TOPIC, deliver, delivery
from tests.unit.client.consumer.manual_buffer import ManualBuffer
from tests.unit.client.producer.manual_accumulator import SET as SET_0
from tests.unit.client.producer.manual_accumulator import (
    TIMEOUT_S,
    ManualAccumulator,
    bodies,
    encoded,
    part,
)


def test_each_priority_has_its_share_of_the_queues() -> None:
    ranks = part(8, priorities=3)
    assert [list(queues_of(ranks, at)) for at in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert list(queues_of(part(4), 9)) == [0, 1, 2, 3], "without priorities it means nothing"
    for priority in (3, -1):
        with pytest.raises(IllegalRequest):
            queues_of(ranks, priority)


def test_a_priority_is_a_field_of_the_message() -> None:
    frame, *_, priority = encode_message(Message(b"x", priority=7), 1, 4096)
    assert Batch.FromString(frame).messages[0].priority == priority == 7
    for priority in (-1, 10):
        with pytest.raises(IllegalRequest):
            encode_message(Message(b"x", priority=priority), 1, 4096)


# -- sending ---------------------------------------------------------------------------------------


def ranked(*parts: TopicRoute) -> ManualAccumulator:
    manual = ManualAccumulator(6)
    manual.accumulator.set_route("t", parts or [part(6, priorities=3)])
    manual.free = manual.healthy = [one.broker_set for one in parts] or [SET_0]
    return manual


def add(manual: ManualAccumulator, text: str, priority: int, key: str = "") -> None:
    message = encoded(text, key, priority=priority)
    manual.accumulator.add("t", message, None, None, TIMEOUT_S)


def test_messages_of_a_priority_fill_one_batch_and_the_next_goes_to_the_next_queue() -> None:
    manual = ranked()
    seen = []
    for _ in range(4):
        for text in ("a", "b"):
            add(manual, text, 1)
        (batch,) = manual.take_lingered()
        assert batch.count == 2
        seen.append(batch.queue_id)
        manual.done(batch)
    assert set(seen) == {1, 4}
    assert seen[0] != seen[1]


def test_a_key_stays_in_one_queue_of_its_priority() -> None:
    manual = ranked()
    for priority in range(3):
        found = set()
        for _ in range(5):
            add(manual, "x", priority, key="k")
            (batch,) = manual.take_lingered()
            found.add(batch.queue_id)
            manual.done(batch)
        assert len(found) == 1
        assert found.pop() % 3 == priority
    for key in ("", "k"):
        with pytest.raises(IllegalRequest, match="has 3"):
            add(manual, "x", 3, key)
    assert manual.accumulator.is_empty, "what is refused takes no room"


def test_messages_of_a_topic_without_priorities_share_a_batch() -> None:
    manual = ManualAccumulator()
    add(manual, "a", 5)
    add(manual, "b", 7)
    (batch,) = manual.take_lingered()
    assert batch.count == 2


def test_each_set_has_queues_of_each_priority_and_takes_its_share() -> None:
    manual = ranked(part(4, "a", priorities=2), part(4, "b", priorities=2))
    for priority in range(2):
        seen = []
        for _ in range(8):
            add(manual, "x", priority)
            (batch,) = manual.take_lingered()
            seen.append((batch.broker_set, batch.queue_id))
            manual.done(batch)
        expected = {(name, queue) for name in "ab" for queue in (priority, priority + 2)}
        assert Counter(seen) == dict.fromkeys(expected, 2)
    keyed = set()
    for number in range(40):
        add(manual, "x", 1, key=str(number))
    for batch in manual.take_lingered():
        keyed.add((batch.broker_set, batch.queue_id))
    assert keyed == {("a", 1), ("a", 3), ("b", 1), ("b", 3)}


def test_a_batch_is_parted_by_priority_alone() -> None:
    manual = ranked()
    accumulator = manual.accumulator
    futures = [SendFuture() for _ in range(6)]

    def batch_of(*priorities: int) -> list[Encoded]:
        return [encoded(str(at), priority=one) for at, one in enumerate(priorities)]

    accumulator.add_batch("t", batch_of(0, 2, 0, 2, 2, 0), None, futures, TIMEOUT_S)
    high, low = manual.take()
    assert (high.kind, high.priority, bodies(high)) == (BatchKind.ANY, 2, ["1", "3", "4"])
    assert (low.kind, low.priority, bodies(low)) == (BatchKind.ANY, 0, ["0", "2", "5"])
    accumulator.add_batch("t", batch_of(*[1] * 6), None, futures, TIMEOUT_S)
    (batch,) = manual.take()
    assert (batch.queue_id % 3, batch.count) == (1, 6)
    outcome = accumulator.add_batch("new", batch_of(1), None, futures[:1], TIMEOUT_S)
    assert outcome is AddResult.UNROUTED, "not known yet"
    with pytest.raises(IllegalRequest, match="has 3"):
        accumulator.add_batch("t", batch_of(*[3] * 6), None, futures, TIMEOUT_S)


# -- taking ----------------------------------------------------------------------------------------


def test_high_priorities_come_first_and_low_ones_do_not_starve() -> None:
    turns = FairTurns()
    line = [("low", 2), ("middle", 1), ("high", 0)]
    served: Counter[str] = Counter()
    for _ in range(200):
        chosen = line.pop(turns.choose([rank for _, rank in line]))
        served[chosen[0]] += 1
        line.append(chosen)
    assert served["high"] == 180
    assert min(served["low"], served["middle"]) >= 9


def test_a_consumer_hands_out_high_first() -> None:
    buffered = ManualBuffer()
    queues = [
        AssignedQueue(topic=TOPIC, queue_id=0, rank=1),
        AssignedQueue(topic=TOPIC, queue_id=1, rank=0),
    ]
    buffered.open_set()
    buffered.buffer.assign(Assignment(generation=1, queues=queues), SET, is_first=True)
    deliver(buffered.buffer, delivery(0, range(50)))
    deliver(buffered.buffer, delivery(1, range(50)))
    order = [buffered.take()[0].message.queue_id for _ in range(100)]
    assert order[:10] == [1] * 9 + [0]
    assert Counter(order[:50]) == {1: 45, 0: 5}
    assert Counter(order) == {0: 50, 1: 50}
