"""Which messages share a batch, which queue it is assigned to, and when it is taken."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.producer.batching import AddResult
from mq.client.producer.queues import BatchKind
from mq.hashing import text_hash
from tests.unit.client.producer.manual_accumulator import (
    LINGER_S,
    ROOM,
    SET,
    SIZE,
    TIMEOUT_S,
    ManualAccumulator,
    bodies,
    encoded,
    part,
)


def test_a_topic_needs_a_route_first() -> None:
    manual = ManualAccumulator()
    accumulator = manual.accumulator
    assert accumulator.add("new", encoded(), None, None, 1.0) is AddResult.UNROUTED
    assert accumulator.is_empty


def test_messages_wait_for_others_until_they_have_lingered() -> None:
    manual = ManualAccumulator()
    manual.add("a")
    assert manual.take() == []
    assert manual.next_poll_s() == manual.clock.now_s + LINGER_S
    manual.clock.now_s += LINGER_S / 2
    manual.add("b")
    assert manual.take() == []
    manual.clock.now_s += LINGER_S / 2
    [batch] = manual.take()
    assert bodies(batch) == ["a", "b"]
    assert manual.next_poll_s() == math.inf


def test_a_full_batch_waits_for_nothing() -> None:
    manual = ManualAccumulator(batch_bytes=3 * SIZE)
    for _ in range(4):
        manual.add()
    [batch] = manual.take()
    assert batch.count == 3
    assert batch.size_bytes == 3 * SIZE


def test_an_urgent_message_does_not_linger() -> None:
    manual = ManualAccumulator()
    manual.add("a")
    assert manual.add("b", is_urgent=True) is AddResult.WAKE
    [batch] = manual.take()
    assert bodies(batch) == ["a", "b"]


def test_messages_without_a_key_go_to_one_queue_after_the_other() -> None:
    manual = ManualAccumulator(queues=3, batch_bytes=2 * SIZE)
    manual.accumulator.set_route("u", [part(3, topic="u")], turn=2)
    queues = []
    for _ in range(6):
        for _ in range(2):
            manual.accumulator.add("u", encoded(), None, None, TIMEOUT_S)
        [batch] = manual.take()
        queues.append(batch.queue_id)
        manual.done(batch)
    assert queues == [2, 0, 1, 2, 0, 1]


def test_a_queue_with_a_batch_under_way_is_passed_over() -> None:
    manual = ManualAccumulator(queues=3, batch_bytes=SIZE)
    manual.add(queue_id=1)
    for _ in range(4):
        manual.add()
    taken = manual.take()
    assert sorted(batch.queue_id for batch in taken) == [0, 1, 2]
    assert manual.take() == []
    [second] = [batch for batch in taken if batch.queue_id == 1]
    manual.done(second)
    assert [batch.queue_id for batch in manual.take()] == [1]


@given(st.lists(st.text(max_size=5), max_size=50), st.integers(1, 9))
def test_a_key_leads_to_one_queue(keys: list[str], queues: int) -> None:
    manual = ManualAccumulator(queues, batch_bytes=ROOM)
    for number, key in enumerate(keys):
        manual.add(f"{number}", key)
    found: dict[str, int] = {}
    while taken := manual.take_lingered():
        for batch in taken:
            manual.done(batch)
            if batch.kind is BatchKind.KEY:
                found |= dict.fromkeys(bodies(batch), batch.queue_id)
    for number, key in enumerate(keys):
        if key:
            assert found.pop(f"{number}") == text_hash(key) % queues
    assert found == {}


def test_a_queue_has_one_batch_under_way_and_the_next_one_grows() -> None:
    manual = ManualAccumulator()
    manual.add("a", queue_id=2)
    [first] = manual.take_lingered()
    for text in ("b", "c"):
        manual.add(text, queue_id=2)
        assert manual.take_lingered() == []
    manual.done(first)
    [second] = manual.take()
    assert bodies(second) == ["b", "c"]


def test_keyed_messages_do_not_starve_others() -> None:
    manual = ManualAccumulator(queues=1, batch_bytes=SIZE)
    manual.add("keyed 1", key="k")
    manual.clock.now_s += 1
    manual.add("free")
    order = []
    for number in range(2, 4):
        manual.clock.now_s += 1
        manual.add(f"keyed {number}", key="k")
        [batch] = manual.take()
        order += bodies(batch)
        manual.done(batch)
    assert order == ["keyed 1", "free"]


def test_batches_leave_in_requests_of_bounded_size() -> None:
    manual = ManualAccumulator(queues=8, batch_bytes=SIZE)
    for _ in range(5):
        manual.add()
    assert len(manual.take(2 * SIZE)) == 2
    batches, next_poll_s = manual.accumulator.take(2 * SIZE, [SET], [SET])
    assert len(batches) == 2
    assert next_poll_s <= manual.clock.now_s
    assert len(manual.take(1)) == 1


def test_topics_take_turns_when_there_is_room_for_few() -> None:
    manual = ManualAccumulator(queues=100, batch_bytes=SIZE)
    manual.accumulator.set_route("u", [part(100, topic="u")])
    for _ in range(3):
        manual.add()
        manual.accumulator.add("u", encoded(), None, None, TIMEOUT_S)
    assert [manual.take(1)[0].topic for _ in range(4)] == ["t", "u", "t", "u"]


def test_a_full_buffer_takes_no_more_until_something_is_done() -> None:
    manual = ManualAccumulator(buffer_bytes=2 * SIZE)
    assert manual.add() is not AddResult.FULL
    assert manual.add() is not AddResult.FULL
    assert manual.add() is AddResult.FULL
    called: list[str] = []
    manual.accumulator.call_when_room(lambda: called.append("room"))
    [batch] = manual.take_lingered()
    assert batch.count == 2
    assert called == []
    manual.done(batch)
    assert called == ["room"]
    assert manual.add() is not AddResult.FULL


def test_a_wait_for_room_in_an_empty_buffer_ends_at_once() -> None:
    called: list[str] = []
    ManualAccumulator().accumulator.call_when_room(lambda: called.append("room"))
    assert called == ["room"]


def test_one_message_of_any_size_fits_an_empty_buffer() -> None:
    manual = ManualAccumulator(buffer_bytes=1)
    assert manual.add() is not AddResult.FULL
    assert manual.add() is AddResult.FULL


def test_the_loop_is_called_only_for_what_is_due_before_it_looks_by_itself() -> None:
    manual = ManualAccumulator(batch_bytes=3 * SIZE)
    manual.take()
    assert manual.add() is AddResult.WAKE  # it slept, and has to know when to look
    assert manual.add() is AddResult.ADDED
    manual.take()
    assert manual.add() is AddResult.WAKE  # full
    assert manual.add() is AddResult.ADDED  # it was called already
    manual.take()
    assert manual.add(is_urgent=True) is AddResult.WAKE


def test_a_batch_that_is_closed_by_a_message_that_does_not_fit_calls_the_loop() -> None:
    manual = ManualAccumulator(batch_bytes=3 * SIZE)
    manual.add()
    manual.add()
    manual.take()
    assert manual.add("x" * SIZE) is AddResult.WAKE
    assert [batch.count for batch in manual.take()] == [2]


def test_messages_with_a_key_and_messages_for_a_queue_do_not_share_a_batch() -> None:
    """Only the first may go elsewhere when the queue is gone."""
    manual = ManualAccumulator(queues=1)
    manual.add("a", key="k")
    manual.add("b", queue_id=0)
    manual.add("c", key="k")
    found = []
    while taken := manual.take_lingered():
        found += [(batch.kind, bodies(batch)) for batch in taken]
        manual.done(taken[0])
    assert found == [(BatchKind.KEY, ["a"]), (BatchKind.FIXED, ["b"]), (BatchKind.KEY, ["c"])]


def test_a_loop_that_cannot_send_is_not_woken() -> None:
    manual = ManualAccumulator(batch_bytes=SIZE)
    assert manual.accumulator.suspend_wakeups()
    assert manual.add() is AddResult.WAKE
    assert not manual.accumulator.suspend_wakeups()
    assert manual.add(is_urgent=True) is AddResult.ADDED


def test_a_different_timeout_makes_a_different_batch() -> None:
    manual = ManualAccumulator()
    manual.add("a", timeout_s=1.0)
    manual.add("b", timeout_s=2.0)
    assert [(bodies(one), one.timeout_s) for one in manual.take_lingered()] == [
        (["a"], 1.0),
        (["b"], 2.0),
    ]


def test_messages_sent_as_one_are_one_batch_behind_what_was_sent_before() -> None:
    manual = ManualAccumulator(queues=1, batch_bytes=2 * SIZE)
    manual.add("a")
    parts = [encoded("b"), encoded("c"), encoded("d")]
    accumulator = manual.accumulator
    outcome = accumulator.add_batch("t", parts, None, [None] * 3, TIMEOUT_S)  # type: ignore[list-item]
    assert outcome is AddResult.WAKE
    manual.add("e")
    order = []
    while taken := manual.take_lingered():
        order += [bodies(batch) for batch in taken]
        manual.done(taken[0])
    assert order == [["a"], ["b", "c", "d"], ["e"]]


def test_flush_waits_for_all_messages_and_ends_lingering() -> None:
    manual = ManualAccumulator(queues=2, batch_bytes=SIZE)
    manual.add("under way", queue_id=0)
    [under_way] = manual.take_lingered()
    manual.add("retried", queue_id=1)
    [retried] = manual.take_lingered()
    manual.accumulator.retry(retried, 1e9)
    manual.add("waits", queue_id=0)
    manual.add("open", queue_id=1)
    manual.clock.now_s += LINGER_S / 2
    manual.add("shared")
    unfinished = manual.accumulator.expedite()
    assert {under_way, retried} < unfinished
    assert sorted(body for batch in unfinished for body in bodies(batch)) == [
        "open",
        "retried",
        "shared",
        "under way",
        "waits",
    ]
    manual.done(under_way)
    assert [bodies(batch) for batch in manual.take()] == [["waits"]]


def test_nothing_is_added_after_the_end() -> None:
    manual = ManualAccumulator()
    manual.accumulator.close()
    with pytest.raises(RuntimeError, match="closed"):
        manual.add()


def test_threads_lose_no_message_and_each_keeps_its_order() -> None:
    manual = ManualAccumulator(queues=3, batch_bytes=7 * SIZE, buffer_bytes=1 << 30)
    threads_count, each = 4, 2000

    def send(name: int) -> None:
        for number in range(each):
            manual.add(f"{name}:{number}", key=str(name))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(threads_count)]
    for thread in threads:
        thread.start()
    received: list[str] = []
    while True:
        is_over = not any(thread.is_alive() for thread in threads)
        manual.clock.now_s += 1
        taken = manual.take()
        for batch in taken:
            received += bodies(batch)
            manual.done(batch)
        if is_over and not taken:
            break
    for name in range(threads_count):
        mine = [one for one in received if one.startswith(f"{name}:")]
        assert mine == [f"{name}:{number}" for number in range(each)]
    assert manual.accumulator.is_empty
