"""Delayed messages on their way out: what they say of their time, which of them share a batch, and
that they keep nothing else waiting.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from mq.client.encode import columns, delay_field, encode_message, place
from mq.client.messages import Message, SendResult
from mq.client.producer import batching
from mq.client.producer.batching import AddResult
from mq.client.producer.producer import recall_request
from mq.client.producer.queues import Batch, BatchKind, SendFuture
from mq.errors import IllegalDelay, IllegalRequest
from mq.levels import DELAY_MS_MAX, LEVELS_MS
from mq.store.batch import accept
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.producer_pb2 import BatchResult
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

SOON, LATE = delay_field(Message(b"", delay_s=5)), delay_field(Message(b"", delay_s=60))


def add(
    manual: ManualAccumulator, text: str = "x" * 10, delay: bytes = SOON, **options: Any
) -> AddResult:
    key, queue_id = options.pop("key", ""), options.pop("queue_id", None)
    timeout_s = options.pop("timeout_s", TIMEOUT_S)
    message = (*encoded(text, key)[:4], delay, 0)
    return manual.accumulator.add("t", message, queue_id, None, timeout_s, **options)


# What a message says of its time.


@pytest.mark.parametrize(
    ("message", "deliver_at_ms", "delay_ms"),
    [
        ("text", 0, 0),
        (Message(b""), 0, 0),
        (Message(b"", deliver_at_ms=1_794_826_512_544), 1_794_826_512_544, 0),
        (Message(b"", delay_s=1.5), 0, 1_500),
        (Message(b"", delay_s=0.0001), 0, 1),
        (Message(b"", delay_s=DELAY_MS_MAX / 1_000), 0, DELAY_MS_MAX),
        *((Message(b"", delay_level=at + 1), 0, one) for at, one in enumerate(LEVELS_MS)),
    ],
)
def test_a_batch_says_when_it_is_delivered(
    message: Message | str, deliver_at_ms: int, delay_ms: int
) -> None:
    content = columns([encoded(key="k"), encoded()], encode_message(message, 1, 4096)[4])
    data = place("t", 3, "p", 7) + content
    wire = WireBatch.FromString(data)
    assert (wire.deliver_at_ms, wire.delay_ms) == (deliver_at_ms, delay_ms)
    # As it stands, in the order that the broker wants: it opens no message.
    batch = accept(data, 1 << 20)
    assert batch.data is data
    assert (batch.deliver_at_ms, batch.delay_ms) == (deliver_at_ms, delay_ms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"deliver_at_ms": -1},
        {"deliver_at_ms": 1 << 63},
        {"delay_s": -0.001},
        {"delay_s": DELAY_MS_MAX / 1_000 + 1},
        {"delay_s": math.inf},
        {"delay_s": math.nan},
        {"delay_level": 19},
        {"delay_level": -1},
        {"delay_s": 1, "delay_level": 1},
        {"delay_s": 1, "deliver_at_ms": 1_794_826_512_544},
        {"delay_level": 1, "deliver_at_ms": 1_794_826_512_544},
    ],
)
def test_an_illegal_time_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(IllegalDelay):
        delay_field(Message(b"", **wrong))


# Which of them share a batch.


def test_messages_of_one_delay_share_a_batch_beside_those_without() -> None:
    manual = ManualAccumulator()
    for text, delay in (("a", b""), ("b", SOON), ("c", b""), ("d", LATE), ("e", SOON)):
        add(manual, text, delay)
    batches = manual.take_lingered()
    assert sorted(bodies(batch) for batch in batches) == [["a", "c"], ["b", "e"], ["d"]]
    kinds = {tuple(bodies(batch)): batch.kind for batch in batches}
    assert kinds[("a", "c")] is BatchKind.ANY
    assert kinds[("b", "e")] is kinds[("d",)] is BatchKind.DELAYED


def test_a_different_timeout_makes_a_different_batch() -> None:
    manual = ManualAccumulator()
    add(manual, "a")
    add(manual, "b", timeout_s=9.0)
    assert sorted(bodies(batch) for batch in manual.take_lingered()) == [["a"], ["b"]]


def test_delayed_messages_wait_until_they_have_lingered_or_are_many() -> None:
    manual = ManualAccumulator(batch_bytes=3 * SIZE)
    assert add(manual) is AddResult.WAKE
    assert manual.take() == []
    assert manual.next_poll_s() == manual.clock.now_s + LINGER_S
    add(manual)
    add(manual)
    [full] = manual.take()
    assert full.count == 3
    add(manual)
    add(manual)
    assert add(manual, "y" * 20) is AddResult.WAKE  # does not fit: the other one is closed by it
    [closed] = manual.take()
    assert closed.count == 2
    assert [bodies(one) for one in manual.take_lingered()] == [["y" * 20]]
    assert add(manual, is_urgent=True) is AddResult.WAKE
    assert len(manual.take()) == 1
    assert manual.next_poll_s() == math.inf


def test_delayed_messages_need_no_queue_buffer() -> None:
    manual = ManualAccumulator(queues=2, batch_bytes=SIZE)
    for _ in range(6):
        add(manual)
    delayed = manual.take()
    assert [batch.queue_id for batch in delayed] == [0, 1, 0, 1, 0, 1]
    assert [batch.sequence for batch in delayed] == [1, 2, 3, 4, 5, 6]
    add(manual, delay=b"")
    [plain] = manual.take()
    for batch in delayed:
        manual.done(batch)
    # The line of the plain one is still its own.
    add(manual, delay=b"", queue_id=plain.queue_id)
    assert manual.take() == []
    manual.done(plain)
    assert len(manual.take()) == 1


def test_a_key_or_a_queue_keeps_the_order_of_its_line() -> None:
    manual = ManualAccumulator()
    for text, delay in (("a", b""), ("b", SOON), ("c", SOON), ("d", b"")):
        add(manual, text, delay, queue_id=2)
    taken: list[list[str]] = []
    while batches := manual.take_lingered():
        assert len(batches) == 1
        taken.append(bodies(batches[0]))
        manual.done(batches[0])
    assert taken == [["a"], ["b", "c"], ["d"]]
    add(manual, "e", SOON, key="k")
    [keyed] = manual.take_lingered()
    assert keyed.kind is BatchKind.KEY
    assert WireBatch.FromString(b"".join(keyed.request_parts())).delay_ms == 5_000


def test_only_so_many_are_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "DELAYED_IN_FLIGHT_MAX", 3)
    manual = ManualAccumulator(batch_bytes=SIZE)
    for _ in range(5):
        add(manual)
    first = manual.take()
    assert len(first) == 3
    assert manual.take() == []
    manual.accumulator.retry(first[0], 0.0, elsewhere=True)
    assert manual.take() == [first[0]]
    assert first[0].queue_id == 3
    assert first[0].sequence == 1
    manual.done(first[0])
    assert len(manual.take()) == 1
    manual.done(first[1], is_stored=False)
    [last] = manual.take()
    assert last.sequence == first[1].sequence
    for batch in manual.accumulator.expedite():
        manual.done(batch)
    assert manual.accumulator.is_empty
    assert manual.next_poll_s() == math.inf


def test_neither_delayed_nor_plain_messages_starve() -> None:
    manual = ManualAccumulator(queues=4, batch_bytes=SIZE)
    served: set[bytes] = set()
    for _ in range(4):
        for delay in (SOON, b""):
            manual.clock.now_s += 0.001
            add(manual, delay=delay)
        batches = manual.take(SIZE)
        served |= {batch.delay for batch in batches}
        for batch in batches:
            manual.done(batch)
    assert served == {SOON, b""}


def test_one_that_is_given_up_before_it_is_sent_is_gone() -> None:
    manual = ManualAccumulator()
    add(manual, "open")
    add(manual, "waiting", is_urgent=True)
    add(manual, "other", LATE)
    for batch in manual.accumulator.unsent():
        manual.done(batch, is_stored=False)
    assert manual.take_lingered() == []
    assert manual.accumulator.is_empty


def test_delayed_messages_find_another_queue_after_a_change_of_the_topic() -> None:
    manual = ManualAccumulator(queues=4)
    add(manual, "a")
    [batch] = manual.take_lingered()
    manual.accumulator.set_route("t", [part(1)])
    [moved] = manual.accumulator.split(batch)[batch]
    [again] = manual.take()
    assert again is moved
    assert (bodies(again), again.delay, again.queue_id) == (["a"], SOON, 0)
    manual.done(again)
    assert manual.accumulator.is_empty


def test_a_flush_waits_for_nothing_to_linger() -> None:
    manual = ManualAccumulator()
    add(manual, "a")
    add(manual, "b", LATE)
    assert len(manual.accumulator.expedite()) == 2
    assert len(manual.take()) == 2


def test_messages_that_are_sent_as_one_are_delivered_as_one() -> None:
    manual = ManualAccumulator()
    sent = [encoded("a", delay_s=5), encoded("b", delay_s=5.0)]
    futures = [SendFuture(), SendFuture()]
    with pytest.raises(IllegalDelay, match="apart"):
        manual.accumulator.add_batch("t", [*sent, encoded()], None, futures, TIMEOUT_S)
    assert manual.accumulator.is_empty
    outcome = manual.accumulator.add_batch("t", sent, None, futures, TIMEOUT_S)
    assert outcome is AddResult.WAKE
    add(manual, "c")
    [batch] = manual.take(ROOM)
    assert (batch.kind, batch.delay, bodies(batch)) == (BatchKind.DELAYED, SOON, ["a", "b"])


# What is said of them.


def answered(result: BatchResult) -> list[SendResult]:
    batch = Batch("t", BatchKind.DELAYED, 1, 0.0, 1.0, SOON, broker_set=SET)
    futures = [SendFuture(), SendFuture()]
    for text, future in zip("ab", futures, strict=True):
        batch.add(encoded(text), future, 1)
    batch.request_parts()
    batch.succeed(result, "SEND_OK")
    return [future.result() for future in futures]


def test_a_result_has_an_id_and_a_time_but_no_queue_offset_yet() -> None:
    result = BatchResult(queue_id=1, queue_offset=-1, log_offset=500, deliver_at_ms=9_000)
    first, second = answered(result)
    assert (first.message_id, first.queue_offset, first.deliver_at_ms) == ("set-0:500", -1, 9_000)
    assert second.message_id == f"set-0:{500 + len(encoded('a')[0])}"
    assert second.queue_offset == -1
    [unknown, _] = answered(BatchResult(queue_offset=-1, log_offset=-1, deliver_at_ms=9_000))
    assert (unknown.message_id, unknown.deliver_at_ms) == ("", 9_000)


def test_a_request_to_take_back_needs_all_of_it() -> None:
    result = SendResult("set-0:5", "t", 0, -1, 7, deliver_at_ms=9)
    for request in (recall_request(result, "", "", 0), recall_request(None, "t", "set-0:5", 9)):
        assert (request.topic, request.message_id, request.deliver_at_ms) == ("t", "set-0:5", 9)
    for wrong in (result._replace(deliver_at_ms=0), result._replace(message_id="")):
        with pytest.raises(IllegalRequest, match="taken back"):
            recall_request(wrong, "", "", 0)
    with pytest.raises(IllegalRequest):
        recall_request(None, "t", "set-0:5", 0)
