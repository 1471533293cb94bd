"""Topics with queues in several broker sets: which set a batch goes to, and when it changes it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.cluster.topology import Route
from mq.client.encode import delay_field
from mq.client.messages import Message
from mq.client.producer.batching import split_batch
from mq.client.producer.queues import Batch, BatchKind
from mq.errors import IllegalRequest
from mq.hashing import text_hash
from tests.unit.client.accumulators import SIZE, TIMEOUT_S, Buffers, bodies, encoded, part

SOON = delay_field(Message(b"", delay_s=5))


def two_sets(a: int = 4, b: int = 4, **options: int) -> Buffers:
    buffers = Buffers(**options)
    buffers.accumulator.set_route("t", [part(a, "a"), part(b, "b")])
    # What the scene gave it is gone.
    buffers.free = buffers.healthy = ["a", "b"]
    return buffers


def place(batch: Batch) -> tuple[str, int]:
    return batch.broker_set, batch.queue_id


def send_one(buffers: Buffers, text: str = "x") -> tuple[str, int]:
    buffers.add(text, is_urgent=True)
    [batch] = buffers.take()
    buffers.done(batch)
    return place(batch)


@pytest.mark.parametrize(("a", "b"), [(4, 4), (1, 3), (8, 2), (3, 0)])
def test_messages_without_a_key_take_all_queues_of_all_sets_in_turn(a: int, b: int) -> None:
    buffers = two_sets(a, b)
    found = [send_one(buffers) for _ in range(3 * (a + b))]
    every = [("a", queue) for queue in range(a)] + [("b", queue) for queue in range(b)]
    assert Counter(found) == dict.fromkeys(every, 3)
    if a == b:
        assert all(one[0] != other[0] for one, other in itertools.pairwise(found))


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=20))
def test_keys_choose_among_all_queues_as_every_client_does(keys: list[str]) -> None:
    parts = [part(3, "b"), part(4, "a"), part(9, "c", is_writable=False)]
    buffers = Buffers()
    buffers.accumulator.set_route("t", parts)
    buffers.free = buffers.healthy = ["a", "b", "c"]
    expected = Route("t", tuple(sorted(parts, key=lambda one: one.broker_set))).writable
    for key in keys:
        buffers.add("x", key, is_urgent=True)
        [batch] = buffers.take()
        buffers.done(batch)
        queue = expected[text_hash(key) % len(expected)]
        assert place(batch) == (queue.broker_set, queue.queue_id)


def test_each_set_has_its_own_numbers() -> None:
    buffers = two_sets(batch_bytes=SIZE)
    for _ in range(8):
        buffers.add()
    taken = buffers.take()
    for name in "ab":
        mine = [batch.sequence for batch in taken if batch.broker_set == name]
        assert mine == [1, 2, 3, 4]
    [first_of_a, *_] = [batch for batch in taken if batch.broker_set == "a"]
    buffers.done(first_of_a, is_stored=False)
    for batch in taken:
        if batch is not first_of_a:
            buffers.done(batch)
    numbers = {}
    for _ in range(2):
        buffers.add(is_urgent=True)
        [batch] = buffers.take()
        numbers[batch.broker_set] = batch.sequence
        buffers.done(batch)
    assert numbers == {"a": 1, "b": 5}, "a number that was not used goes to a batch of its set"


def test_a_set_that_is_not_well_gets_only_what_has_to_go_there() -> None:
    buffers = two_sets()
    buffers.healthy = ["a"]
    assert {send_one(buffers)[0] for _ in range(8)} == {"a"}
    buffers.accumulator.add("t", encoded(), 2, None, TIMEOUT_S, is_urgent=True, broker_set="b")
    [batch] = buffers.take()
    assert place(batch) == ("b", 2)
    buffers.healthy = []
    assert {send_one(buffers)[0] for _ in range(8)} == {"a", "b"}, "when none is, all are used"


def test_what_has_to_go_to_a_set_waits_for_it_and_keeps_nothing_else_waiting() -> None:
    buffers = two_sets()
    buffers.free = buffers.healthy = ["a"]
    key = next(key for key in map(str, range(99)) if text_hash(key) % 8 >= 4)
    buffers.add("keyed", key, is_urgent=True)
    assert buffers.take() == []
    assert buffers.next_poll_s() == float("inf"), "the loop is woken when the set is there"
    assert send_one(buffers)[0] == "a"
    buffers.free = buffers.healthy = ["a", "b"]
    [batch] = buffers.take()
    assert (batch.broker_set, bodies(batch)) == ("b", ["keyed"])


def test_each_set_has_room_for_a_request_of_its_own() -> None:
    buffers = two_sets(batch_bytes=SIZE)
    for _ in range(8):
        buffers.add()
    taken = buffers.take(2 * SIZE)
    assert Counter(batch.broker_set for batch in taken) == {"a": 2, "b": 2}
    assert Counter(batch.broker_set for batch in buffers.take(SIZE)) == {"a": 1, "b": 1}


def test_memory_is_bounded_over_all_sets() -> None:
    buffers = two_sets(buffer_bytes=4 * SIZE, batch_bytes=SIZE)
    outcomes = [buffers.add() for _ in range(5)]
    assert [outcome.name for outcome in outcomes].count("FULL") == 1


@pytest.mark.parametrize("delay", [b"", SOON])
def test_a_batch_that_is_certainly_not_stored_moves_to_a_set_that_is_well(delay: bytes) -> None:
    buffers = two_sets()
    buffers.accumulator.add("t", encoded("x"), None, None, TIMEOUT_S, is_urgent=True, delay=delay)
    [batch] = buffers.take()
    before, other = batch.broker_set, {"a": "b", "b": "a"}[batch.broker_set]
    buffers.accumulator.retry(batch, buffers.clock.now_s + 60)
    buffers.healthy = []
    assert buffers.take() == [], "there is no other that is healthy: it waits here"
    buffers.healthy = [other]
    assert buffers.take() == [batch], "at once"
    assert (batch.broker_set, batch.sequence) == (other, 1)
    buffers.done(batch)
    # Its line and its number there are free again.
    buffers.healthy = [before]
    buffers.accumulator.add("t", encoded("y"), None, None, TIMEOUT_S, is_urgent=True, delay=delay)
    [batch] = buffers.take()
    assert (batch.broker_set, batch.sequence) == (before, 1)
    buffers.done(batch)
    assert buffers.accumulator.is_empty


def test_a_batch_in_doubt_stays_unless_it_may_be_stored_twice() -> None:
    buffers = two_sets()
    buffers.add("x", is_urgent=True)
    [batch] = buffers.take()
    batch.in_doubt = True
    buffers.accumulator.retry(batch, 0.0)
    before = batch.broker_set
    buffers.healthy = ["a" if before == "b" else "b"]
    assert buffers.take() == [batch]
    assert batch.broker_set == before, "whatever that set is like"
    batch.producer_id = ""  # as without idempotence
    buffers.accumulator.retry(batch, 0.0)
    assert buffers.take() == [batch]
    assert batch.broker_set != before


@pytest.mark.parametrize("pinned", [{"key": "k"}, {"queue_id": 1}])
def test_a_key_or_a_queue_keeps_a_batch_in_its_set(pinned: dict[str, object]) -> None:
    buffers = two_sets()
    message = encoded("x", str(pinned.get("key", "")))
    queue_id, name = pinned.get("queue_id"), "b" if "queue_id" in pinned else ""
    buffers.accumulator.add(
        "t",
        message,
        queue_id,  # type: ignore[arg-type]
        None,
        TIMEOUT_S,
        is_urgent=True,
        broker_set=name,
    )
    [batch] = buffers.take()
    before = place(batch)
    buffers.accumulator.retry(batch, 0.0, elsewhere=True)
    buffers.healthy = ["a" if batch.broker_set == "b" else "b"]
    assert buffers.take() == [batch]
    assert place(batch) == before


def test_a_moved_batch_goes_before_those_that_wait() -> None:
    buffers = two_sets(1, 1, batch_bytes=SIZE)
    for text in ("1", "2", "3"):
        buffers.add(text.ljust(10))
    first, _ = buffers.take()
    ill = first.broker_set
    buffers.healthy = [name for name in "ab" if name != ill]
    buffers.accumulator.retry(first, 0.0)
    assert buffers.take() == []
    [other] = [
        one for one in buffers.accumulator.expedite() if one.broker_set == buffers.healthy[0]
    ]
    buffers.done(other)
    assert buffers.take() == [first]


def test_after_a_set_is_drained_keys_follow_the_new_map_and_order_holds() -> None:
    buffers = two_sets(batch_bytes=2 * SIZE)
    key = next(key for key in map(str, range(99)) if text_hash(key) % 8 >= 4)
    for number in range(6):
        buffers.add(f"{number}".ljust(10), key)
    [batch] = buffers.take()
    assert batch.broker_set == "b"
    buffers.accumulator.set_route("t", [part(4, "a"), part(4, "b", is_writable=False)])
    buffers.add("6".ljust(10), key)
    buffers.accumulator.split(batch)
    order = []
    while taken := buffers.take_lingered():
        [one] = taken
        assert place(one) == ("a", text_hash(key) % 4)
        order += bodies(one)
        buffers.done(one)
    assert [int(text) for text in order] == list(range(7))
    assert buffers.accumulator.is_empty


def test_a_set_that_joins_takes_its_share() -> None:
    buffers = Buffers(4)
    buffers.accumulator.set_route("t", [part(4, "a")])
    buffers.free = buffers.healthy = ["a", "b"]
    assert {send_one(buffers)[0] for _ in range(8)} == {"a"}
    buffers.accumulator.set_route("t", [part(4, "a"), part(4, "b")])
    assert Counter(send_one(buffers)[0] for _ in range(8)) == {"a": 4, "b": 4}


def test_a_queue_needs_its_set_when_several_have_the_topic() -> None:
    buffers = two_sets()
    with pytest.raises(IllegalRequest, match="say which"):
        buffers.add(queue_id=1)
    with pytest.raises(IllegalRequest, match="it has some in a, b"):
        buffers.accumulator.add("t", encoded(), 1, None, TIMEOUT_S, broker_set="c")
    with pytest.raises(IllegalRequest, match="say which"):
        split_batch(buffers.accumulator, "t", [encoded()], 1)
    groups = split_batch(buffers.accumulator, "t", [encoded()], 1, broker_set="b")
    assert groups is not None
    assert buffers.accumulator.is_empty
    assert groups[0].kind is BatchKind.FIXED
    groups[0].add(buffers.accumulator, [None], TIMEOUT_S)  # type: ignore[list-item]
    assert place(buffers.take()[0]) == ("b", 1)


def test_who_is_needed_for_what_is_here_and_more_of_the_like() -> None:
    buffers = two_sets()
    accumulator = buffers.accumulator
    accumulator.set_route("u", [part(4, "c", topic="u")])
    assert [name for name in "abc" if accumulator.needs(name)] == []
    buffers.add("x", is_urgent=True)
    [batch] = buffers.take()
    assert [name for name in "abc" if accumulator.needs(name)] == ["a", "b"]
    buffers.done(batch)
    assert [name for name in "abc" if accumulator.needs(name)] == []
