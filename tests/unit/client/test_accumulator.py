"""Which messages share a batch, which line it takes, and when it is its turn."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.producer.batching import Outcome
from mq.client.producer.queues import Kind
from mq.hashing import text_hash
from tests.unit.client.accumulators import (
    LINGER_S,
    ROOM,
    SET,
    SIZE,
    TIMEOUT_S,
    Lines,
    bodies,
    encoded,
    part,
)


def test_a_topic_needs_a_route_first() -> None:
    lines = Lines()
    accumulator = lines.accumulator
    assert accumulator.add("new", encoded(), None, None, 1.0) is Outcome.UNROUTED
    assert accumulator.is_empty


def test_messages_wait_for_others_until_they_have_lingered() -> None:
    lines = Lines()
    lines.add("a")
    assert lines.take() == []
    assert lines.look_s() == lines.clock.now_s + LINGER_S
    lines.clock.now_s += LINGER_S / 2
    lines.add("b")
    assert lines.take() == []
    lines.clock.now_s += LINGER_S / 2
    [batch] = lines.take()
    assert bodies(batch) == ["a", "b"]
    assert lines.look_s() == math.inf


def test_a_full_batch_waits_for_nothing() -> None:
    lines = Lines(batch_bytes=3 * SIZE)
    for _ in range(4):
        lines.add()
    [batch] = lines.take()
    assert len(batch.messages) == 3
    assert batch.size_bytes == 3 * SIZE


def test_somebody_who_waits_for_his_message_does_not_wait_for_others() -> None:
    lines = Lines()
    lines.add("a")
    assert lines.add("b", is_urgent=True) is Outcome.WAKE
    [batch] = lines.take()
    assert bodies(batch) == ["a", "b"]


def test_messages_without_a_key_go_to_one_queue_after_the_other() -> None:
    lines = Lines(queues=3, batch_bytes=2 * SIZE)
    lines.accumulator.set_route("u", [part(3, topic="u")], turn=2)
    queues = []
    for _ in range(6):
        for _ in range(2):
            lines.accumulator.add("u", encoded(), None, None, TIMEOUT_S)
        [batch] = lines.take()
        queues.append(batch.queue_id)
        lines.done(batch)
    assert queues == [2, 0, 1, 2, 0, 1]


def test_a_queue_with_a_batch_under_way_is_passed_over() -> None:
    lines = Lines(queues=3, batch_bytes=SIZE)
    lines.add(queue_id=1)
    for _ in range(4):
        lines.add()
    taken = lines.take()
    assert sorted(batch.queue_id for batch in taken) == [0, 1, 2]
    assert lines.take() == []
    [second] = [batch for batch in taken if batch.queue_id == 1]
    lines.done(second)
    assert [batch.queue_id for batch in lines.take()] == [1]


@given(st.lists(st.text(max_size=5), max_size=50), st.integers(1, 9))
def test_a_key_leads_to_one_queue_whatever_else_is_sent(keys: list[str], queues: int) -> None:
    lines = Lines(queues, batch_bytes=ROOM)
    for number, key in enumerate(keys):
        lines.add(f"{number}", key)
    found: dict[str, int] = {}
    while taken := lines.take_lingered():
        for batch in taken:
            lines.done(batch)
            if batch.kind is Kind.KEY:
                found |= dict.fromkeys(bodies(batch), batch.queue_id)
    for number, key in enumerate(keys):
        if key:
            assert found.pop(f"{number}") == text_hash(key) % queues
    assert found == {}


def test_a_queue_has_one_batch_under_way_and_the_next_one_grows() -> None:
    lines = Lines()
    lines.add("a", queue_id=2)
    [first] = lines.take_lingered()
    for text in ("b", "c"):
        lines.add(text, queue_id=2)
        assert lines.take_lingered() == []
    lines.done(first)
    [second] = lines.take()
    assert bodies(second) == ["b", "c"]


def test_keys_do_not_keep_others_out_for_ever() -> None:
    lines = Lines(queues=1, batch_bytes=SIZE)
    lines.add("keyed 1", key="k")
    lines.clock.now_s += 1
    lines.add("free")
    order = []
    for number in range(2, 4):
        lines.clock.now_s += 1
        lines.add(f"keyed {number}", key="k")
        [batch] = lines.take()
        order += bodies(batch)
        lines.done(batch)
    assert order == ["keyed 1", "free"]


def test_batches_leave_in_requests_of_bounded_size() -> None:
    lines = Lines(queues=8, batch_bytes=SIZE)
    for _ in range(5):
        lines.add()
    assert len(lines.take(2 * SIZE)) == 2
    batches, look_s = lines.accumulator.take(2 * SIZE, [SET], [SET])
    assert len(batches) == 2
    assert look_s <= lines.clock.now_s
    assert len(lines.take(1)) == 1


def test_topics_take_turns_when_there_is_room_for_few() -> None:
    lines = Lines(queues=100, batch_bytes=SIZE)
    lines.accumulator.set_route("u", [part(100, topic="u")])
    for _ in range(3):
        lines.add()
        lines.accumulator.add("u", encoded(), None, None, TIMEOUT_S)
    assert [lines.take(1)[0].topic for _ in range(4)] == ["t", "u", "t", "u"]


def test_a_full_buffer_takes_no_more_until_something_is_done() -> None:
    lines = Lines(buffer_bytes=2 * SIZE)
    assert lines.add() is not Outcome.FULL
    assert lines.add() is not Outcome.FULL
    assert lines.add() is Outcome.FULL
    called: list[str] = []
    lines.accumulator.call_when_room(lambda: called.append("room"))
    [batch] = lines.take_lingered()
    assert len(batch.messages) == 2
    assert called == []
    lines.done(batch)
    assert called == ["room"]
    assert lines.add() is not Outcome.FULL


def test_who_asks_for_room_when_there_is_nothing_is_called_at_once() -> None:
    called: list[str] = []
    Lines().accumulator.call_when_room(lambda: called.append("room"))
    assert called == ["room"]


def test_one_message_fits_an_empty_buffer_whatever_its_size() -> None:
    lines = Lines(buffer_bytes=1)
    assert lines.add() is not Outcome.FULL
    assert lines.add() is Outcome.FULL


def test_the_loop_is_called_only_for_what_is_due_before_it_looks_by_itself() -> None:
    lines = Lines(batch_bytes=3 * SIZE)
    lines.take()
    assert lines.add() is Outcome.WAKE  # it slept, and has to know when to look
    assert lines.add() is Outcome.ADDED
    lines.take()
    assert lines.add() is Outcome.WAKE  # full
    assert lines.add() is Outcome.ADDED  # it was called already
    lines.take()
    assert lines.add(is_urgent=True) is Outcome.WAKE


def test_a_batch_that_is_closed_by_a_message_that_does_not_fit_calls_the_loop() -> None:
    lines = Lines(batch_bytes=3 * SIZE)
    lines.add()
    lines.add()
    lines.take()
    assert lines.add("x" * SIZE) is Outcome.WAKE
    assert [len(batch.messages) for batch in lines.take()] == [2]


def test_messages_with_a_key_and_messages_for_a_queue_do_not_share_a_batch() -> None:
    """Only the first may go elsewhere when the queue is gone."""
    lines = Lines(queues=1)
    lines.add("a", key="k")
    lines.add("b", queue_id=0)
    lines.add("c", key="k")
    found = []
    while taken := lines.take_lingered():
        found += [(batch.kind, bodies(batch)) for batch in taken]
        lines.done(taken[0])
    assert found == [(Kind.KEY, ["a"]), (Kind.FIXED, ["b"]), (Kind.KEY, ["c"])]


def test_nobody_calls_a_loop_that_cannot_send() -> None:
    lines = Lines(batch_bytes=SIZE)
    assert lines.accumulator.rest()
    assert lines.add() is Outcome.WAKE
    assert not lines.accumulator.rest()
    assert lines.add(is_urgent=True) is Outcome.ADDED


def test_a_different_timeout_makes_a_different_batch() -> None:
    lines = Lines()
    lines.add("a", timeout_s=1.0)
    lines.add("b", timeout_s=2.0)
    assert [(bodies(one), one.timeout_s) for one in lines.take_lingered()] == [
        (["a"], 1.0),
        (["b"], 2.0),
    ]


def test_messages_sent_as_one_are_one_batch_behind_what_was_sent_before() -> None:
    lines = Lines(queues=1, batch_bytes=2 * SIZE)
    lines.add("a")
    parts = [encoded("b"), encoded("c"), encoded("d")]
    accumulator = lines.accumulator
    outcome = accumulator.add_batch("t", parts, None, [None] * 3, TIMEOUT_S, kind=Kind.ANY)  # type: ignore[list-item]
    assert outcome is Outcome.WAKE
    lines.add("e")
    order = []
    while taken := lines.take_lingered():
        order += [bodies(batch) for batch in taken]
        lines.done(taken[0])
    assert order == [["a"], ["b", "c", "d"], ["e"]]


def test_flush_waits_for_everything_that_is_there_and_for_nothing_to_linger() -> None:
    lines = Lines(queues=2, batch_bytes=SIZE)
    lines.add("under way", queue_id=0)
    [under_way] = lines.take_lingered()
    lines.add("retried", queue_id=1)
    [retried] = lines.take_lingered()
    lines.accumulator.retry(retried, 1e9)
    lines.add("waits", queue_id=0)
    lines.add("open", queue_id=1)
    lines.clock.now_s += LINGER_S / 2
    lines.add("shared")
    unfinished = lines.accumulator.expedite()
    assert {under_way, retried} < unfinished
    assert sorted(body for batch in unfinished for body in bodies(batch)) == [
        "open",
        "retried",
        "shared",
        "under way",
        "waits",
    ]
    lines.done(under_way)
    assert [bodies(batch) for batch in lines.take()] == [["waits"]]


def test_nothing_is_added_after_the_end() -> None:
    lines = Lines()
    lines.accumulator.close()
    with pytest.raises(RuntimeError, match="closed"):
        lines.add()


def test_threads_lose_no_message_and_each_keeps_its_order() -> None:
    lines = Lines(queues=3, batch_bytes=7 * SIZE, buffer_bytes=1 << 30)
    threads_count, each = 4, 2000

    def send(name: int) -> None:
        for number in range(each):
            lines.add(f"{name}:{number}", key=str(name))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(threads_count)]
    for thread in threads:
        thread.start()
    received: list[str] = []
    while True:
        is_over = not any(thread.is_alive() for thread in threads)
        lines.clock.now_s += 1
        taken = lines.take()
        for batch in taken:
            received += bodies(batch)
            lines.done(batch)
        if is_over and not taken:
            break
    for name in range(threads_count):
        mine = [one for one in received if one.startswith(f"{name}:")]
        assert mine == [f"{name}:{number}" for number in range(each)]
    assert lines.accumulator.is_empty
