"""What becomes of batches that were not stored: order, numbers, other queues."""

from __future__ import annotations

import pytest

from mq.client.producer.batching import Accumulator
from mq.client.producer.queues import Batch, BatchKind
from mq.hashing import text_hash
from mq.wire.v1.message_pb2 import Batch as WireBatch
from tests.unit.client.accumulators import (
    ROOM,
    SET,
    SIZE,
    Buffers,
    bodies,
    encoded,
    part,
)


def test_a_batch_that_is_retried_is_not_overtaken() -> None:
    buffers = Buffers(batch_bytes=SIZE)
    for text in ("a", "b", "c"):
        buffers.add(text.ljust(10), key="k")
    [first] = buffers.take()
    buffers.accumulator.retry(first, buffers.clock.now_s + 1.0)
    assert buffers.take() == []
    assert buffers.next_poll_s() == first.retry_s
    buffers.clock.now_s += 1.0
    assert buffers.take() == [first]
    buffers.done(first)
    assert [bodies(batch) for batch in buffers.take()] == [["b".ljust(10)]]


def test_a_retry_without_a_key_may_go_elsewhere_with_its_number() -> None:
    buffers = Buffers(queues=2)
    buffers.add("a")
    [batch] = buffers.take_lingered()
    number, queue_id = batch.sequence, batch.queue_id
    buffers.accumulator.retry(batch, 0.0, elsewhere=True)
    assert buffers.take() == [batch]
    assert (batch.queue_id, batch.sequence) == (1 - queue_id, number)
    wire = WireBatch.FromString(b"".join(batch.encoded()))
    assert (wire.queue_id, wire.sequence) == (1 - queue_id, number)
    # The line that it left is free, the other one is not.
    buffers.add("b")
    assert [batch.queue_id for batch in buffers.take_lingered()] == [queue_id]


@pytest.mark.parametrize("pinned", [{"key": "k"}, {"queue_id": 1}])
def test_a_retry_with_a_key_or_a_queue_stays(pinned: dict[str, object]) -> None:
    buffers = Buffers(queues=8)
    buffers.add("a", **pinned)  # type: ignore[arg-type]
    [batch] = buffers.take_lingered()
    queue_id = batch.queue_id
    buffers.accumulator.retry(batch, 0.0, elsewhere=True)
    assert buffers.take() == [batch]
    assert batch.queue_id == queue_id


def test_a_topic_with_one_queue_keeps_the_order_of_everything() -> None:
    buffers = Buffers(queues=1, batch_bytes=SIZE)
    buffers.add("a".ljust(10))
    buffers.add("b".ljust(10))
    [first] = buffers.take()
    buffers.accumulator.retry(first, 0.0, elsewhere=True)
    assert buffers.take() == [first]
    assert buffers.take() == []


def test_numbers_go_up_by_one_in_the_order_of_leaving() -> None:
    buffers = Buffers(batch_bytes=SIZE)
    for _ in range(4):
        buffers.add()
    assert [(batch.producer_id, batch.sequence) for batch in buffers.take()] == [
        ("p", 1),
        ("p", 2),
        ("p", 3),
        ("p", 4),
    ]


def test_the_number_of_a_batch_that_was_certainly_not_stored_is_used_again() -> None:
    buffers = Buffers(batch_bytes=SIZE)
    for _ in range(4):
        buffers.add()
    _, refused, doubtful, _ = buffers.take()
    buffers.done(refused, is_stored=False)
    doubtful.in_doubt = True
    buffers.done(doubtful, is_stored=False)
    buffers.add()
    buffers.add()
    assert [batch.sequence for batch in buffers.take()] == [refused.sequence, 5]


def test_a_refused_producer_id_is_replaced_when_it_was_made_up() -> None:
    accumulator = Accumulator(None, linger_s=0, batch_bytes=SIZE, buffer_bytes=ROOM)
    accumulator.set_route("t", [part(4)])
    for _ in range(3):
        accumulator.add("t", encoded(), None, None, 1.0)
    first, second, third = accumulator.take(ROOM, [SET], [SET])[0]
    assert accumulator.renumber(second)
    assert second.producer_id != first.producer_id
    assert second.sequence == 1
    # The next one of the old name does not change the name once more.
    assert accumulator.renumber(third)
    assert (third.producer_id, third.sequence) == (second.producer_id, 2)


def test_a_users_producer_id_is_kept() -> None:
    buffers = Buffers()
    buffers.add()
    [batch] = buffers.take_lingered()
    assert not buffers.accumulator.renumber(batch)


def test_a_batch_in_doubt_keeps_its_name() -> None:
    accumulator = Accumulator(None, linger_s=0, batch_bytes=SIZE, buffer_bytes=ROOM)
    accumulator.set_route("t", [part(4)])
    accumulator.add("t", encoded(), None, None, 1.0)
    [batch] = accumulator.take(ROOM, [SET], [SET])[0]
    batch.in_doubt = True
    assert not accumulator.renumber(batch)


def test_a_retry_that_finds_no_room_is_taken_later() -> None:
    buffers = Buffers(queues=8, batch_bytes=SIZE)
    for _ in range(2):
        buffers.add()
    batches = buffers.take()
    for batch in batches:
        buffers.accumulator.retry(batch, 0.0)
    assert buffers.take(1) == batches[:1]
    assert buffers.take(1) == batches[1:]


def test_messages_of_a_queue_that_is_gone_go_where_their_keys_lead_now() -> None:
    buffers = Buffers(queues=8, batch_bytes=4 * SIZE)
    candidates = [key for key in map(str, range(1000)) if text_hash(key) % 8 == 7]
    one = candidates[0]
    other = next(key for key in candidates if text_hash(key) % 5 != text_hash(one) % 5)
    for text, key in (("a1", one), ("b1", other), ("a2", one), ("b2", other)):
        buffers.add(text, key)
    [batch] = buffers.take_lingered()
    assert batch.queue_id == 7
    # Some wait, in several batches, and one is open.
    for number in range(3, 13):
        buffers.add(f"a{number}", one)
        buffers.add(f"b{number}", other)
    buffers.accumulator.set_route("t", [part(5)])
    buffers.add("a13", one)
    parts = buffers.accumulator.split(batch)[batch]
    assert sum(one_part.size_bytes for one_part in parts) == batch.size_bytes
    order: dict[int, list[str]] = {text_hash(one) % 5: [], text_hash(other) % 5: []}
    sequences = []
    while taken := buffers.take_lingered():
        for one_part in taken:
            order[one_part.queue_id] += bodies(one_part)
            sequences.append(one_part.sequence)
            buffers.done(one_part)
    assert list(order.values()) == [
        [f"a{number}" for number in range(1, 14)],
        [f"b{number}" for number in range(1, 13)],
    ]
    assert sorted(sequences) == list(range(1, len(sequences) + 1))
    assert buffers.accumulator.is_empty


def test_a_batch_without_a_key_whose_queue_is_gone_takes_another() -> None:
    buffers = Buffers(queues=2)
    buffers.add("a", is_urgent=True)
    buffers.done(buffers.take()[0])
    buffers.add("b", is_urgent=True)
    [batch] = buffers.take()
    assert batch.queue_id == 1
    buffers.accumulator.set_route("t", [part(1)])
    buffers.accumulator.split(batch)
    assert [(one.queue_id, bodies(one)) for one in buffers.take()] == [(0, ["b"])]


def test_what_is_not_with_the_broker_can_expire() -> None:
    buffers = Buffers(queues=1)
    buffers.add("a")
    [batch] = buffers.take_lingered()
    buffers.add("b")
    buffers.accumulator.take(ROOM, [SET], [SET])
    assert [bodies(one) for one in buffers.accumulator.unsent()] == [["b"]]
    buffers.accumulator.retry(batch, 1e9)
    assert sorted(bodies(one) for one in buffers.accumulator.unsent()) == [["a"], ["b"]]
    for one in buffers.accumulator.unsent():
        buffers.done(one, is_stored=False)
    assert buffers.accumulator.is_empty
    buffers.clock.now_s = 2e9
    assert buffers.take() == []


def test_the_wait_behind_others_does_not_count_while_those_are_answered() -> None:
    batch = Batch("t", BatchKind.ANY, -1, opened_s=100.0, timeout_s=3.0)
    assert batch.expires_s(progress_s=50.0) == 103.0
    assert batch.expires_s(progress_s=110.0) == 113.0
    batch.sent_s = 111.0
    assert batch.expires_s(progress_s=120.0) == 114.0
