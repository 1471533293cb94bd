"""Which messages share a batch, which line it takes, and when it is its turn."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.producer.batching import AddResult
from mq.client.producer.queues import BatchKind
from mq.hashing import text_hash
from tests.unit.client.accumulators import (
    LINGER_S,
    ROOM,
    SET,
    SIZE,
    TIMEOUT_S,
    Buffers,
    bodies,
    encoded,
    part,
)


def test_a_topic_needs_a_route_first() -> None:
    buffers = Buffers()
    accumulator = buffers.accumulator
    assert accumulator.add("new", encoded(), None, None, 1.0) is AddResult.UNROUTED
    assert accumulator.is_empty


def test_messages_wait_for_others_until_they_have_lingered() -> None:
    buffers = Buffers()
    buffers.add("a")
    assert buffers.take() == []
    assert buffers.next_poll_s() == buffers.clock.now_s + LINGER_S
    buffers.clock.now_s += LINGER_S / 2
    buffers.add("b")
    assert buffers.take() == []
    buffers.clock.now_s += LINGER_S / 2
    [batch] = buffers.take()
    assert bodies(batch) == ["a", "b"]
    assert buffers.next_poll_s() == math.inf


def test_a_full_batch_waits_for_nothing() -> None:
    buffers = Buffers(batch_bytes=3 * SIZE)
    for _ in range(4):
        buffers.add()
    [batch] = buffers.take()
    assert len(batch.messages) == 3
    assert batch.size_bytes == 3 * SIZE


def test_somebody_who_waits_for_his_message_does_not_wait_for_others() -> None:
    buffers = Buffers()
    buffers.add("a")
    assert buffers.add("b", is_urgent=True) is AddResult.WAKE
    [batch] = buffers.take()
    assert bodies(batch) == ["a", "b"]


def test_messages_without_a_key_go_to_one_queue_after_the_other() -> None:
    buffers = Buffers(queues=3, batch_bytes=2 * SIZE)
    buffers.accumulator.set_route("u", [part(3, topic="u")], turn=2)
    queues = []
    for _ in range(6):
        for _ in range(2):
            buffers.accumulator.add("u", encoded(), None, None, TIMEOUT_S)
        [batch] = buffers.take()
        queues.append(batch.queue_id)
        buffers.done(batch)
    assert queues == [2, 0, 1, 2, 0, 1]


def test_a_queue_with_a_batch_under_way_is_passed_over() -> None:
    buffers = Buffers(queues=3, batch_bytes=SIZE)
    buffers.add(queue_id=1)
    for _ in range(4):
        buffers.add()
    taken = buffers.take()
    assert sorted(batch.queue_id for batch in taken) == [0, 1, 2]
    assert buffers.take() == []
    [second] = [batch for batch in taken if batch.queue_id == 1]
    buffers.done(second)
    assert [batch.queue_id for batch in buffers.take()] == [1]


@given(st.lists(st.text(max_size=5), max_size=50), st.integers(1, 9))
def test_a_key_leads_to_one_queue_whatever_else_is_sent(keys: list[str], queues: int) -> None:
    buffers = Buffers(queues, batch_bytes=ROOM)
    for number, key in enumerate(keys):
        buffers.add(f"{number}", key)
    found: dict[str, int] = {}
    while taken := buffers.take_lingered():
        for batch in taken:
            buffers.done(batch)
            if batch.kind is BatchKind.KEY:
                found |= dict.fromkeys(bodies(batch), batch.queue_id)
    for number, key in enumerate(keys):
        if key:
            assert found.pop(f"{number}") == text_hash(key) % queues
    assert found == {}


def test_a_queue_has_one_batch_under_way_and_the_next_one_grows() -> None:
    buffers = Buffers()
    buffers.add("a", queue_id=2)
    [first] = buffers.take_lingered()
    for text in ("b", "c"):
        buffers.add(text, queue_id=2)
        assert buffers.take_lingered() == []
    buffers.done(first)
    [second] = buffers.take()
    assert bodies(second) == ["b", "c"]


def test_keys_do_not_keep_others_out_for_ever() -> None:
    buffers = Buffers(queues=1, batch_bytes=SIZE)
    buffers.add("keyed 1", key="k")
    buffers.clock.now_s += 1
    buffers.add("free")
    order = []
    for number in range(2, 4):
        buffers.clock.now_s += 1
        buffers.add(f"keyed {number}", key="k")
        [batch] = buffers.take()
        order += bodies(batch)
        buffers.done(batch)
    assert order == ["keyed 1", "free"]


def test_batches_leave_in_requests_of_bounded_size() -> None:
    buffers = Buffers(queues=8, batch_bytes=SIZE)
    for _ in range(5):
        buffers.add()
    assert len(buffers.take(2 * SIZE)) == 2
    batches, next_poll_s = buffers.accumulator.take(2 * SIZE, [SET], [SET])
    assert len(batches) == 2
    assert next_poll_s <= buffers.clock.now_s
    assert len(buffers.take(1)) == 1


def test_topics_take_turns_when_there_is_room_for_few() -> None:
    buffers = Buffers(queues=100, batch_bytes=SIZE)
    buffers.accumulator.set_route("u", [part(100, topic="u")])
    for _ in range(3):
        buffers.add()
        buffers.accumulator.add("u", encoded(), None, None, TIMEOUT_S)
    assert [buffers.take(1)[0].topic for _ in range(4)] == ["t", "u", "t", "u"]


def test_a_full_buffer_takes_no_more_until_something_is_done() -> None:
    buffers = Buffers(buffer_bytes=2 * SIZE)
    assert buffers.add() is not AddResult.FULL
    assert buffers.add() is not AddResult.FULL
    assert buffers.add() is AddResult.FULL
    called: list[str] = []
    buffers.accumulator.call_when_room(lambda: called.append("room"))
    [batch] = buffers.take_lingered()
    assert len(batch.messages) == 2
    assert called == []
    buffers.done(batch)
    assert called == ["room"]
    assert buffers.add() is not AddResult.FULL


def test_who_asks_for_room_when_there_is_nothing_is_called_at_once() -> None:
    called: list[str] = []
    Buffers().accumulator.call_when_room(lambda: called.append("room"))
    assert called == ["room"]


def test_one_message_fits_an_empty_buffer_whatever_its_size() -> None:
    buffers = Buffers(buffer_bytes=1)
    assert buffers.add() is not AddResult.FULL
    assert buffers.add() is AddResult.FULL


def test_the_loop_is_called_only_for_what_is_due_before_it_looks_by_itself() -> None:
    buffers = Buffers(batch_bytes=3 * SIZE)
    buffers.take()
    assert buffers.add() is AddResult.WAKE  # it slept, and has to know when to look
    assert buffers.add() is AddResult.ADDED
    buffers.take()
    assert buffers.add() is AddResult.WAKE  # full
    assert buffers.add() is AddResult.ADDED  # it was called already
    buffers.take()
    assert buffers.add(is_urgent=True) is AddResult.WAKE


def test_a_batch_that_is_closed_by_a_message_that_does_not_fit_calls_the_loop() -> None:
    buffers = Buffers(batch_bytes=3 * SIZE)
    buffers.add()
    buffers.add()
    buffers.take()
    assert buffers.add("x" * SIZE) is AddResult.WAKE
    assert [len(batch.messages) for batch in buffers.take()] == [2]


def test_messages_with_a_key_and_messages_for_a_queue_do_not_share_a_batch() -> None:
    """Only the first may go elsewhere when the queue is gone."""
    buffers = Buffers(queues=1)
    buffers.add("a", key="k")
    buffers.add("b", queue_id=0)
    buffers.add("c", key="k")
    found = []
    while taken := buffers.take_lingered():
        found += [(batch.kind, bodies(batch)) for batch in taken]
        buffers.done(taken[0])
    assert found == [(BatchKind.KEY, ["a"]), (BatchKind.FIXED, ["b"]), (BatchKind.KEY, ["c"])]


def test_nobody_calls_a_loop_that_cannot_send() -> None:
    buffers = Buffers(batch_bytes=SIZE)
    assert buffers.accumulator.suspend_wakeups()
    assert buffers.add() is AddResult.WAKE
    assert not buffers.accumulator.suspend_wakeups()
    assert buffers.add(is_urgent=True) is AddResult.ADDED


def test_a_different_timeout_makes_a_different_batch() -> None:
    buffers = Buffers()
    buffers.add("a", timeout_s=1.0)
    buffers.add("b", timeout_s=2.0)
    assert [(bodies(one), one.timeout_s) for one in buffers.take_lingered()] == [
        (["a"], 1.0),
        (["b"], 2.0),
    ]


def test_messages_sent_as_one_are_one_batch_behind_what_was_sent_before() -> None:
    buffers = Buffers(queues=1, batch_bytes=2 * SIZE)
    buffers.add("a")
    parts = [encoded("b"), encoded("c"), encoded("d")]
    accumulator = buffers.accumulator
    outcome = accumulator.add_batch("t", parts, None, [None] * 3, TIMEOUT_S, kind=BatchKind.ANY)  # type: ignore[list-item]
    assert outcome is AddResult.WAKE
    buffers.add("e")
    order = []
    while taken := buffers.take_lingered():
        order += [bodies(batch) for batch in taken]
        buffers.done(taken[0])
    assert order == [["a"], ["b", "c", "d"], ["e"]]


def test_flush_waits_for_everything_that_is_there_and_for_nothing_to_linger() -> None:
    buffers = Buffers(queues=2, batch_bytes=SIZE)
    buffers.add("under way", queue_id=0)
    [under_way] = buffers.take_lingered()
    buffers.add("retried", queue_id=1)
    [retried] = buffers.take_lingered()
    buffers.accumulator.retry(retried, 1e9)
    buffers.add("waits", queue_id=0)
    buffers.add("open", queue_id=1)
    buffers.clock.now_s += LINGER_S / 2
    buffers.add("shared")
    unfinished = buffers.accumulator.expedite()
    assert {under_way, retried} < unfinished
    assert sorted(body for batch in unfinished for body in bodies(batch)) == [
        "open",
        "retried",
        "shared",
        "under way",
        "waits",
    ]
    buffers.done(under_way)
    assert [bodies(batch) for batch in buffers.take()] == [["waits"]]


def test_nothing_is_added_after_the_end() -> None:
    buffers = Buffers()
    buffers.accumulator.close()
    with pytest.raises(RuntimeError, match="closed"):
        buffers.add()


def test_threads_lose_no_message_and_each_keeps_its_order() -> None:
    buffers = Buffers(queues=3, batch_bytes=7 * SIZE, buffer_bytes=1 << 30)
    threads_count, each = 4, 2000

    def send(name: int) -> None:
        for number in range(each):
            buffers.add(f"{name}:{number}", key=str(name))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(threads_count)]
    for thread in threads:
        thread.start()
    received: list[str] = []
    while True:
        is_over = not any(thread.is_alive() for thread in threads)
        buffers.clock.now_s += 1
        taken = buffers.take()
        for batch in taken:
            received += bodies(batch)
            buffers.done(batch)
        if is_over and not taken:
            break
    for name in range(threads_count):
        mine = [one for one in received if one.startswith(f"{name}:")]
        assert mine == [f"{name}:{number}" for number in range(each)]
    assert buffers.accumulator.is_empty
