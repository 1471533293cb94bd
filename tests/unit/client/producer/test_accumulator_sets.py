"""Topics with queues in several broker sets: which set a batch goes to, and when it moves."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.messages import QueueRef
from mq.client.producer.queues import Batch, BatchKind, SendFuture
from mq.errors import IllegalRequest
from mq.hashing import text_hash
from tests.unit.client.producer.manual_accumulator import (
    SIZE,
    TIMEOUT_S,
    ManualAccumulator,
    bodies,
    encoded,
    part,
)


def two_sets(a: int = 4, b: int = 4, **options: int) -> ManualAccumulator:
    manual = ManualAccumulator(**options)
    manual.accumulator.set_route("t", [part(a, "a"), part(b, "b")])
    manual.free = manual.healthy = ["a", "b"]
    return manual


def place(batch: Batch) -> tuple[str, int]:
    return batch.broker_set, batch.queue_id


def send_one(manual: ManualAccumulator, text: str = "x") -> tuple[str, int]:
    manual.add(text, is_urgent=True)
    [batch] = manual.take()
    manual.done(batch)
    return place(batch)


@pytest.mark.parametrize(("a", "b"), [(4, 4), (1, 3), (8, 2), (3, 0)])
def test_messages_without_a_key_take_all_queues_of_all_sets_in_turn(a: int, b: int) -> None:
    manual = two_sets(a, b)
    found = [send_one(manual) for _ in range(3 * (a + b))]
    every = [("a", queue) for queue in range(a)] + [("b", queue) for queue in range(b)]
    assert Counter(found) == dict.fromkeys(every, 3)
    if a == b:
        assert all(one[0] != other[0] for one, other in itertools.pairwise(found))


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=20))
def test_keys_choose_among_all_queues_as_every_client_does(keys: list[str]) -> None:
    parts = [part(3, "b"), part(4, "a"), part(9, "c", is_writable=False)]
    manual = ManualAccumulator()
    manual.accumulator.set_route("t", parts)
    manual.free = manual.healthy = ["a", "b", "c"]
    expected = [QueueRef("t", at, "a") for at in range(4)] + [
        QueueRef("t", at, "b") for at in range(3)
    ]
    for key in keys:
        manual.add("x", key, is_urgent=True)
        [batch] = manual.take()
        manual.done(batch)
        queue = expected[text_hash(key) % len(expected)]
        assert place(batch) == (queue.broker_set, queue.queue_id)


def test_each_set_has_its_own_numbers() -> None:
    manual = two_sets(batch_bytes=SIZE)
    for _ in range(8):
        manual.add()
    taken = manual.take()
    for name in "ab":
        mine = [batch.sequence for batch in taken if batch.broker_set == name]
        assert mine == [1, 2, 3, 4]
    [first_of_a, *_] = [batch for batch in taken if batch.broker_set == "a"]
    manual.done(first_of_a, is_stored=False)
    for batch in taken:
        if batch is not first_of_a:
            manual.done(batch)
    numbers = {}
    for _ in range(2):
        manual.add(is_urgent=True)
        [batch] = manual.take()
        numbers[batch.broker_set] = batch.sequence
        manual.done(batch)
    assert numbers == {"a": 1, "b": 5}, "a number that was not used goes to a batch of its set"


def test_a_set_that_is_not_well_gets_only_what_has_to_go_there() -> None:
    manual = two_sets()
    manual.healthy = ["a"]
    assert {send_one(manual)[0] for _ in range(8)} == {"a"}
    manual.accumulator.add("t", encoded(), 2, None, TIMEOUT_S, is_urgent=True, broker_set="b")
    [batch] = manual.take()
    assert place(batch) == ("b", 2)
    manual.healthy = []
    assert {send_one(manual)[0] for _ in range(8)} == {"a", "b"}, "when none is, all are used"


def test_messages_for_one_set_wait_for_it_and_delay_no_others() -> None:
    manual = two_sets()
    manual.free = manual.healthy = ["a"]
    key = next(key for key in map(str, range(99)) if text_hash(key) % 8 >= 4)
    manual.add("keyed", key, is_urgent=True)
    assert manual.take() == []
    assert manual.next_poll_s() == float("inf"), "the loop is woken when the set is there"
    assert send_one(manual)[0] == "a"
    manual.free = manual.healthy = ["a", "b"]
    [batch] = manual.take()
    assert (batch.broker_set, bodies(batch)) == ("b", ["keyed"])


def test_each_set_has_room_for_a_request_of_its_own() -> None:
    manual = two_sets(batch_bytes=SIZE)
    for _ in range(8):
        manual.add()
    taken = manual.take(2 * SIZE)
    assert Counter(batch.broker_set for batch in taken) == {"a": 2, "b": 2}
    assert Counter(batch.broker_set for batch in manual.take(SIZE)) == {"a": 1, "b": 1}


def test_memory_is_bounded_over_all_sets() -> None:
    manual = two_sets(buffer_bytes=4 * SIZE, batch_bytes=SIZE)
    outcomes = [manual.add() for _ in range(5)]
    assert [outcome.name for outcome in outcomes].count("FULL") == 1


@pytest.mark.parametrize("delay_s", [0, 5])
def test_a_batch_that_is_certainly_not_stored_moves_to_a_set_that_is_well(delay_s: int) -> None:
    manual = two_sets()
    message = encoded("x", delay_s=delay_s)
    manual.accumulator.add("t", message, None, None, TIMEOUT_S, is_urgent=True)
    [batch] = manual.take()
    before, other = batch.broker_set, {"a": "b", "b": "a"}[batch.broker_set]
    manual.accumulator.retry(batch, manual.clock.now_s + 60)
    manual.healthy = []
    assert manual.take() == [], "there is no other that is healthy: it waits here"
    manual.healthy = [other]
    assert manual.take() == [batch], "at once"
    assert (batch.broker_set, batch.sequence) == (other, 1)
    manual.done(batch)
    # Its line and its number there are free again.
    manual.healthy = [before]
    message = encoded("y", delay_s=delay_s)
    manual.accumulator.add("t", message, None, None, TIMEOUT_S, is_urgent=True)
    [batch] = manual.take()
    assert (batch.broker_set, batch.sequence) == (before, 1)
    manual.done(batch)
    assert manual.accumulator.is_empty


def test_a_batch_in_doubt_stays_unless_it_may_be_stored_twice() -> None:
    manual = two_sets()
    manual.add("x", is_urgent=True)
    [batch] = manual.take()
    batch.in_doubt = True
    manual.accumulator.retry(batch, 0.0)
    before = batch.broker_set
    manual.healthy = ["a" if before == "b" else "b"]
    assert manual.take() == [batch]
    assert batch.broker_set == before, "whatever that set is like"
    batch.producer_id = ""  # as without idempotence
    manual.accumulator.retry(batch, 0.0)
    assert manual.take() == [batch]
    assert batch.broker_set != before


@pytest.mark.parametrize("pinned", [{"key": "k"}, {"queue_id": 1}])
def test_a_key_or_a_queue_keeps_a_batch_in_its_set(pinned: dict[str, object]) -> None:
    manual = two_sets()
    message = encoded("x", str(pinned.get("key", "")))
    queue_id, name = pinned.get("queue_id"), "b" if "queue_id" in pinned else ""
    manual.accumulator.add(
        "t",
        message,
        queue_id,  # type: ignore[arg-type]
        None,
        TIMEOUT_S,
        is_urgent=True,
        broker_set=name,
    )
    [batch] = manual.take()
    before = place(batch)
    manual.accumulator.retry(batch, 0.0, elsewhere=True)
    manual.healthy = ["a" if batch.broker_set == "b" else "b"]
    assert manual.take() == [batch]
    assert place(batch) == before


def test_a_moved_batch_goes_before_those_that_wait() -> None:
    manual = two_sets(1, 1, batch_bytes=SIZE)
    for text in ("1", "2", "3"):
        manual.add(text.ljust(10))
    first, _ = manual.take()
    ill = first.broker_set
    manual.healthy = [name for name in "ab" if name != ill]
    manual.accumulator.retry(first, 0.0)
    assert manual.take() == []
    [other] = [one for one in manual.accumulator.expedite() if one.broker_set == manual.healthy[0]]
    manual.done(other)
    assert manual.take() == [first]


def test_after_a_set_is_drained_keys_follow_the_new_map_and_order_holds() -> None:
    manual = two_sets(batch_bytes=2 * SIZE)
    key = next(key for key in map(str, range(99)) if text_hash(key) % 8 >= 4)
    for number in range(6):
        manual.add(f"{number}".ljust(10), key)
    [batch] = manual.take()
    assert batch.broker_set == "b"
    manual.accumulator.set_route("t", [part(4, "a"), part(4, "b", is_writable=False)])
    manual.add("6".ljust(10), key)
    manual.accumulator.split(batch)
    order = []
    while taken := manual.take_lingered():
        [one] = taken
        assert place(one) == ("a", text_hash(key) % 4)
        order += bodies(one)
        manual.done(one)
    assert [int(text) for text in order] == list(range(7))
    assert manual.accumulator.is_empty


def test_a_set_that_joins_takes_its_share() -> None:
    manual = ManualAccumulator(4)
    manual.accumulator.set_route("t", [part(4, "a")])
    manual.free = manual.healthy = ["a", "b"]
    assert {send_one(manual)[0] for _ in range(8)} == {"a"}
    manual.accumulator.set_route("t", [part(4, "a"), part(4, "b")])
    assert Counter(send_one(manual)[0] for _ in range(8)) == {"a": 4, "b": 4}


def test_a_queue_needs_its_set_when_several_have_the_topic() -> None:
    manual = two_sets()
    with pytest.raises(IllegalRequest, match="say which"):
        manual.add(queue_id=1)
    with pytest.raises(IllegalRequest, match="it has some in a, b"):
        manual.accumulator.add("t", encoded(), 1, None, TIMEOUT_S, broker_set="c")
    with pytest.raises(IllegalRequest, match="say which"):
        manual.accumulator.add_batch("t", [encoded()], 1, [SendFuture()], TIMEOUT_S)
    assert manual.accumulator.is_empty
    manual.accumulator.add_batch("t", [encoded()], 1, [SendFuture()], TIMEOUT_S, "b")
    [batch] = manual.take()
    assert (place(batch), batch.kind) == (("b", 1), BatchKind.FIXED)


def test_a_set_is_needed_by_waiting_batches_and_by_topics_in_use() -> None:
    manual = two_sets()
    accumulator = manual.accumulator
    accumulator.set_route("u", [part(4, "c", topic="u")])
    assert [name for name in "abc" if accumulator.needs(name)] == []
    manual.add("x", is_urgent=True)
    [batch] = manual.take()
    assert [name for name in "abc" if accumulator.needs(name)] == ["a", "b"]
    manual.done(batch)
    assert [name for name in "abc" if accumulator.needs(name)] == []
