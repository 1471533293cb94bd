"""Batches of received messages: their parts, and the steps that acknowledging them takes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from mq.client.decode import Decoder, parse_receive_response
from mq.client.messages import QueueRef
from mq.client.simple.batch import LeasedMessages, ReceivedMessages
from mq.client.simple.consumer import handles_of, leases_of
from mq.wire.v1.consumer_pb2 import ReceivedRun, ReceiveResponse
from mq.wire.v1.message_pb2 import Message
from tests.unit.client.consumer.deliveries import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

QUEUE = QueueRef("t", 3, "set-0")
UNKNOWN_COMPRESSION: Any = 9


def wire_message(body: int, *, is_readable: bool = True) -> Message:
    compression: Any = 0 if is_readable else UNKNOWN_COMPRESSION
    return Message(body=b"%d" % body, compression=compression)


def leased(runs: Sequence[Sequence[Message]]) -> list[LeasedMessages]:
    """One lease a run, at the queue offsets 0, 1,000, 2,000, ..."""
    wire = [
        ReceivedRun(topic="t", queue_id=3, lease=b"L%d" % at, run=run(one, 1_000 * at, 0))
        for at, one in enumerate(runs)
    ]
    parsed = parse_receive_response(ReceiveResponse(runs=wire).SerializeToString())
    decoder = Decoder()
    return [LeasedMessages(QUEUE, own, decoder, one.lease, 4) for one, own in parsed]


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_a_part_is_its_messages(
    runs: list[list[bool]], is_opened: bool, data: st.DataObject
) -> None:
    bodies = iter(range(100))
    batches = leased([[wire_message(next(bodies), is_readable=one) for one in own] for own in runs])
    for at, batch in enumerate(batches):
        wanted = readable_offsets(runs, at)
        if is_opened:
            assert len(batch.messages) == len(wanted)
        start = data.draw(st.integers(0, len(wanted)))
        end = data.draw(st.integers(start, len(wanted)))
        part = batch.part(start, end)
        left = set(data.draw(st.lists(st.sampled_from(wanted)))) if wanted else set()
        rest = batch.without(left)
        for found, offsets in (
            (part, wanted[start:end]),
            (rest, [one for one in wanted if one not in left]),
            (rest.part(0, 1), [one for one in wanted if one not in left][:1]),
        ):
            assert list(found.offsets) == offsets
            assert found.bodies == [one.body for one in found]
            assert [(one.queue_offset, one.attempt, one.handle) for one in found] == [
                (offset, 4, b"L%d" % at) for offset in offsets
            ]
            assert (found.lease.handle, list(found.lease.queue_offsets)) == (b"L%d" % at, offsets)
            assert len(found) == len(offsets)


def readable_offsets(runs: list[list[bool]], at: int) -> list[int]:
    """The queue offsets of messages that can be read."""
    return [1_000 * at + row for row, is_readable in enumerate(runs[at]) if is_readable]


def test_messages_have_the_leases_of_their_batch_also_in_another_order() -> None:
    batches = ReceivedMessages(leased([[wire_message(at) for at in range(5)]] * 3))
    assert len(batches) == len(batches.messages) == 15
    assert leases_of(batches.messages) == [
        (one.broker_set, one.handle, list(one.queue_offsets)) for one in batches.leases
    ]
    assert sorted(leases_of(reversed(batches.messages))) == sorted(leases_of(batches.messages))


def test_the_columns_of_a_batch_have_all_of_its_messages() -> None:
    batch = ReceivedMessages(leased([[wire_message(at) for at in range(5)]] * 3))
    columns = batch.to_arrow()
    assert columns.column("body").to_pylist() == batch.bodies
    assert columns.column("queue_offset").to_pylist() == [one.queue_offset for one in batch]


def python_lines(work: Callable[[], object]) -> int:
    count = 0

    def trace(_: Any, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_the_handles_of_a_batch_take_no_step_for_each_message() -> None:
    few, many = (
        ReceivedMessages(leased([[wire_message(at) for at in range(count)]] * 2))
        for count in (2, 900)
    )
    steps = python_lines(lambda: [handles_of(one) for one in few.leases])
    assert steps == python_lines(lambda: [handles_of(one) for one in many.leases]) > 0
