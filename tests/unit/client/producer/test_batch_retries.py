"""Batches that were not stored: their order, sequences and queues in the next attempt."""

from __future__ import annotations

import pytest

from mq.client.producer.batching import Accumulator
from mq.client.producer.queues import Batch, BatchKind
from mq.hashing import text_hash
from mq.wire.v1.message_pb2 import Batch as WireBatch
from tests.unit.client.producer.manual_accumulator import (
    ROOM,
    SET,
    SIZE,
    ManualAccumulator,
    bodies,
    encoded,
    part,
)


def test_a_batch_that_is_retried_is_not_overtaken() -> None:
    manual = ManualAccumulator(batch_bytes=SIZE)
    for text in ("a", "b", "c"):
        manual.add(text.ljust(10), key="k")
    [first] = manual.take()
    manual.accumulator.retry(first, manual.clock.now_s + 1.0)
    assert manual.take() == []
    assert manual.next_poll_s() == first.retry_s
    manual.clock.now_s += 1.0
    assert manual.take() == [first]
    manual.done(first)
    assert [bodies(batch) for batch in manual.take()] == [["b".ljust(10)]]


def test_a_retry_without_a_key_may_go_elsewhere_with_its_number() -> None:
    manual = ManualAccumulator(queues=2)
    manual.add("a")
    [batch] = manual.take_lingered()
    number, queue_id = batch.sequence, batch.queue_id
    manual.accumulator.retry(batch, 0.0, elsewhere=True)
    assert manual.take() == [batch]
    assert (batch.queue_id, batch.sequence) == (1 - queue_id, number)
    wire = WireBatch.FromString(b"".join(batch.request_parts()))
    assert (wire.queue_id, wire.sequence) == (1 - queue_id, number)
    # The line that it left is free, the other one is not.
    manual.add("b")
    assert [batch.queue_id for batch in manual.take_lingered()] == [queue_id]


@pytest.mark.parametrize("pinned", [{"key": "k"}, {"queue_id": 1}])
def test_a_retry_with_a_key_or_a_queue_stays(pinned: dict[str, object]) -> None:
    manual = ManualAccumulator(queues=8)
    manual.add("a", **pinned)  # type: ignore[arg-type]
    [batch] = manual.take_lingered()
    queue_id = batch.queue_id
    manual.accumulator.retry(batch, 0.0, elsewhere=True)
    assert manual.take() == [batch]
    assert batch.queue_id == queue_id


def test_a_topic_with_one_queue_keeps_the_order_of_everything() -> None:
    manual = ManualAccumulator(queues=1, batch_bytes=SIZE)
    manual.add("a".ljust(10))
    manual.add("b".ljust(10))
    [first] = manual.take()
    manual.accumulator.retry(first, 0.0, elsewhere=True)
    assert manual.take() == [first]
    assert manual.take() == []


def test_numbers_go_up_by_one_in_the_order_of_leaving() -> None:
    manual = ManualAccumulator(batch_bytes=SIZE)
    for _ in range(4):
        manual.add()
    assert [(batch.producer_id, batch.sequence) for batch in manual.take()] == [
        ("p", 1),
        ("p", 2),
        ("p", 3),
        ("p", 4),
    ]


def test_the_number_of_a_batch_that_was_certainly_not_stored_is_used_again() -> None:
    manual = ManualAccumulator(batch_bytes=SIZE)
    for _ in range(4):
        manual.add()
    _, refused, doubtful, _ = manual.take()
    manual.done(refused, is_stored=False)
    doubtful.in_doubt = True
    manual.done(doubtful, is_stored=False)
    manual.add()
    manual.add()
    assert [batch.sequence for batch in manual.take()] == [refused.sequence, 5]


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
    manual = ManualAccumulator()
    manual.add()
    [batch] = manual.take_lingered()
    assert not manual.accumulator.renumber(batch)


def test_a_batch_in_doubt_keeps_its_name() -> None:
    accumulator = Accumulator(None, linger_s=0, batch_bytes=SIZE, buffer_bytes=ROOM)
    accumulator.set_route("t", [part(4)])
    accumulator.add("t", encoded(), None, None, 1.0)
    [batch] = accumulator.take(ROOM, [SET], [SET])[0]
    batch.in_doubt = True
    assert not accumulator.renumber(batch)


def test_a_retry_that_finds_no_room_is_taken_later() -> None:
    manual = ManualAccumulator(queues=8, batch_bytes=SIZE)
    for _ in range(2):
        manual.add()
    batches = manual.take()
    for batch in batches:
        manual.accumulator.retry(batch, 0.0)
    assert manual.take(1) == batches[:1]
    assert manual.take(1) == batches[1:]


def test_messages_of_a_queue_that_is_gone_go_where_their_keys_lead_now() -> None:
    manual = ManualAccumulator(queues=8, batch_bytes=4 * SIZE)
    candidates = [key for key in map(str, range(1000)) if text_hash(key) % 8 == 7]
    one = candidates[0]
    other = next(key for key in candidates if text_hash(key) % 5 != text_hash(one) % 5)
    for text, key in (("a1", one), ("b1", other), ("a2", one), ("b2", other)):
        manual.add(text, key)
    [batch] = manual.take_lingered()
    assert batch.queue_id == 7
    # Some wait, in several batches, and one is open.
    for number in range(3, 13):
        manual.add(f"a{number}", one)
        manual.add(f"b{number}", other)
    manual.accumulator.set_route("t", [part(5)])
    manual.add("a13", one)
    parts = manual.accumulator.split(batch)[batch]
    assert sum(one_part.size_bytes for one_part in parts) == batch.size_bytes
    order: dict[int, list[str]] = {text_hash(one) % 5: [], text_hash(other) % 5: []}
    sequences = []
    while taken := manual.take_lingered():
        for one_part in taken:
            order[one_part.queue_id] += bodies(one_part)
            sequences.append(one_part.sequence)
            manual.done(one_part)
    assert list(order.values()) == [
        [f"a{number}" for number in range(1, 14)],
        [f"b{number}" for number in range(1, 13)],
    ]
    assert sorted(sequences) == list(range(1, len(sequences) + 1))
    assert manual.accumulator.is_empty


def test_a_batch_without_a_key_whose_queue_is_gone_takes_another() -> None:
    manual = ManualAccumulator(queues=2)
    manual.add("a", is_urgent=True)
    manual.done(manual.take()[0])
    manual.add("b", is_urgent=True)
    [batch] = manual.take()
    assert batch.queue_id == 1
    manual.accumulator.set_route("t", [part(1)])
    manual.accumulator.split(batch)
    assert [(one.queue_id, bodies(one)) for one in manual.take()] == [(0, ["b"])]


def test_a_batch_that_was_not_sent_can_expire() -> None:
    manual = ManualAccumulator(queues=1)
    manual.add("a")
    [batch] = manual.take_lingered()
    manual.add("b")
    manual.accumulator.take(ROOM, [SET], [SET])
    assert [bodies(one) for one in manual.accumulator.unsent()] == [["b"]]
    manual.accumulator.retry(batch, 1e9)
    assert sorted(bodies(one) for one in manual.accumulator.unsent()) == [["a"], ["b"]]
    for one in manual.accumulator.unsent():
        manual.done(one, is_stored=False)
    assert manual.accumulator.is_empty
    manual.clock.now_s = 2e9
    assert manual.take() == []


def test_the_wait_behind_others_does_not_count_while_those_are_answered() -> None:
    batch = Batch("t", BatchKind.ANY, -1, opened_s=100.0, timeout_s=3.0)
    assert batch.expires_s(progress_s=50.0) == 103.0
    assert batch.expires_s(progress_s=110.0) == 113.0
    batch.sent_s = 111.0
    assert batch.expires_s(progress_s=120.0) == 114.0
