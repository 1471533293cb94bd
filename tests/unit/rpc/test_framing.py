"""Hand-written encoding and decoding agrees with protobuf."""

from __future__ import annotations

import random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.consumer.subscriber import Delivered
from mq.broker.queue import Queue
from mq.broker.receive.grants import GrantedRun
from mq.broker.receive.leases import lease_bytes
from mq.errors import IllegalRequest
from mq.rpc.framing import (
    delivery,
    pull_response,
    read_publish,
    read_single,
    receive_response,
)
from mq.store.reading import ReadResult, Run, Status
from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1.message_pb2 import Batch, Message
from mq.wire.v1.producer_pb2 import PublishRequest
from tests.support.wire_fuzz import mutate

BATCHES = st.lists(
    st.builds(
        lambda topic, body: Batch(topic=topic, messages=[Message(body=body)]),
        st.text(max_size=5),
        st.binary(max_size=300),
    ),
    min_size=1,
    max_size=4,
)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 2), BATCHES)
def test_a_request_is_read_as_protobuf_reads_it(
    request_id: int, ack: int, batches: list[Batch]
) -> None:
    request = PublishRequest(request_id=request_id, ack=ack, batches=batches)  # type: ignore[arg-type]
    found = read_publish(request.SerializeToString())
    assert (found.request_id, found.ack) == (request_id, ack)
    assert [Batch.FromString(bytes(one)) for one in found.batches] == batches


def test_fields_may_come_in_any_order_and_the_last_one_counts() -> None:
    parts = [b"\x7a\x00", b"\x10\x02", b"\x08\x05", b"\x7a\x02ab", b"\x08\x07"]
    found = read_publish(b"".join(parts))
    assert (found.request_id, found.ack) == (7, 2)
    assert [bytes(one) for one in found.batches] == [b"", b"ab"]


BAD = [
    pytest.param(b"", "no batches", id="nothing"),
    pytest.param(b"\x08\x05\x10\x01", "no batches", id="no batches"),
    pytest.param(b"\x7a\x05abcd", "cut short", id="short batch"),
    pytest.param(b"\x7a", "cut short", id="no length"),
    pytest.param(b"\x7a\x80", "cut short", id="half a length"),
    pytest.param(b"\x08\xff", "cut short", id="half an id"),
    pytest.param(b"\x7a\x00\x1a\x00", "byte 2", id="another field"),
    pytest.param(b"\x0a\x00", "byte 0", id="an id of another type"),
    pytest.param(b"\x7a\x00\x08" + b"\xff" * 10, "64 bits", id="an id without an end"),
    pytest.param(b"\x7a\x00\x08" + b"\xff" * 9 + b"\x02", "64 bits", id="an id of 65 bits"),
    pytest.param(b"\x7a\x00\x08" + b"\x80" * 9 + b"\x02", "64 bits", id="an id of 2^64"),
    pytest.param(b"\x7a" + b"\xff" * 9 + b"\x01", "cut short", id="a batch without an end"),
]


@pytest.mark.parametrize(("data", "text"), BAD)
def test_bytes_that_are_no_request_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(IllegalRequest, match=text):
        read_publish(data)


def test_malformed_protobuf_is_never_read_as_another_message() -> None:
    rng = random.Random(1)
    good = PublishRequest(request_id=rng.getrandbits(64), batches=[Batch(topic="t")] * 2)
    compared = 0
    for _ in range(2_000):
        data = mutate(good.SerializeToString(), rng)
        try:
            found = read_publish(data)
        except IllegalRequest:
            continue
        assert found.batches
        try:
            expected = PublishRequest.FromString(data)
        except DecodeError:
            continue  # a batch in it is damaged, which is that batch's trouble
        assert found.request_id == expected.request_id, data
        assert len(found.batches) == len(expected.batches), data
        compared += 1
    assert compared > 100


SINGLES = st.builds(
    lambda request_id, topic, queue_id, body, tag: PublishRequest(
        request_id=request_id,
        batches=[Batch(topic=topic, queue_id=queue_id, messages=[Message(body=body, tag=tag)])],
    ),
    st.sampled_from([0, 1, 127, 128, 1 << 21, (1 << 63) - 1]),
    st.text(min_size=1, max_size=31),
    st.sampled_from([0, 1, 127, 128, 15_617]),
    st.sampled_from([0, 1, 119, 121, 123, 125, 127, 128, 200, 8_000]).map(bytes),
    st.sampled_from(["", "red"]),
)


def check_single(data: bytes) -> None:
    found = read_single(data)
    assert found is not None, data
    id_field, queue_fields, frame = found
    request = PublishRequest.FromString(data)
    batch = Batch.FromString(queue_fields + frame)
    again = PublishRequest.FromString(id_field)
    again.batches.append(batch)
    assert (request, len(batch.messages)) == (again, 1), data
    queue = Batch.FromString(queue_fields)
    assert (queue.topic, queue.queue_id) == (batch.topic, batch.queue_id)
    # Stored as it stands, so its length is written as protobuf would.
    assert Batch(messages=batch.messages).SerializeToString()[:3] == frame[:3]


@given(SINGLES)
def test_a_request_of_one_message_is_read_as_protobuf_reads_it(request: PublishRequest) -> None:
    check_single(request.SerializeToString())


@pytest.mark.parametrize(
    "request_",
    [
        PublishRequest(request_id=1),
        PublishRequest(batches=[Batch(topic="t")]),
        PublishRequest(batches=[Batch(topic="t", messages=[Message()] * 2)]),
        PublishRequest(batches=[Batch(topic="t", messages=[Message()])] * 2),
        PublishRequest(ack=1, batches=[Batch(topic="t", messages=[Message()])]),  # type: ignore[arg-type]
        PublishRequest(batches=[Batch(messages=[Message(body=b"x")])]),
        PublishRequest(batches=[Batch(topic="t", delay_ms=5, messages=[Message()])]),
        PublishRequest(batches=[Batch(topic="t", sequence=5, messages=[Message()])]),
        PublishRequest(batches=[Batch(topic="t", tag_hashes=[1], messages=[Message()])]),
        PublishRequest(batches=[Batch(topic="t", messages=[Message(body=bytes(20_000))])]),
    ],
)
def test_a_request_of_something_else_is_none_of_one_message(request_: PublishRequest) -> None:
    assert read_single(request_.SerializeToString()) is None


def test_a_damaged_request_of_one_message_is_never_read_as_another() -> None:
    rng, compared = random.Random(2), 0
    for _ in range(10_000):
        batch = Batch(topic="topic", queue_id=rng.choice([0, 1, 300, 15_617]))
        batch.messages.add(body=bytes(rng.choice([0, 3, 119, 121, 123, 128, 300])))
        good = PublishRequest(request_id=rng.getrandbits(rng.choice([1, 8, 64])), batches=[batch])
        data = mutate(good.SerializeToString(), rng)
        if read_single(data) is None:
            continue
        try:
            PublishRequest.FromString(data)
        except DecodeError:
            continue  # its topic or its message is damaged, and both are parsed
        check_single(data)
        compared += 1
    assert compared > 300


# -- answers ---------------------------------------------------------------------------------------


def run(queue_offset: int, *bodies: bytes) -> tuple[Run, pb.Run]:
    """As the store gives it, and as a client sees it."""
    messages = [Message(body=body) for body in bodies]
    frames = [Batch(messages=[one]).SerializeToString() for one in messages]
    sizes = np.array([len(frame) for frame in frames], np.uint32)
    data = memoryview(b"".join(frames))
    found = Run(queue_offset, len(bodies), queue_offset * 7, 1_234, data, sizes)
    wire = pb.Run(
        queue_offset=queue_offset,
        log_offset=queue_offset * 7,
        stored_at_ms=1_234,
        frame_sizes=sizes.tolist(),
        messages=messages,
    )
    return found, wire


RUNS = [run(3, b"a", b"bc"), run(5, b""), run(1 << 40, bytes(70_000), b"x" * 200)]


@pytest.mark.parametrize("count", range(len(RUNS) + 1))
def test_a_pull_is_answered_with_what_protobuf_reads(count: int) -> None:
    runs = RUNS[:count]
    status = Status.FOUND if runs else Status.END
    result = ReadResult(status, [one for one, _ in runs], 99, 1, 1 << 50)
    for read_from in ("", "broker-2:8081"):
        data = pull_response(result, read_from)
        assert pb.PullResponse.FromString(data) == pb.PullResponse(
            status=pb.PULL_FOUND if runs else pb.PULL_END,
            next_offset=99,
            start=1,
            end=1 << 50,
            read_from=read_from,
            runs=[wire for _, wire in runs],
        )


@pytest.mark.parametrize(
    ("status", "expected", "next_offset"),
    [
        (Status.END, pb.PULL_END, 9),
        (Status.NOTHING_MATCHED, pb.PULL_END, 9),
        (Status.TOO_SMALL, pb.PULL_TOO_SMALL, 4),
        (Status.TOO_LARGE, pb.PULL_TOO_LARGE, 20),
    ],
)
def test_a_pull_that_finds_nothing_says_where_to_go(
    status: Status, expected: pb.PullStatus, next_offset: int
) -> None:
    answer = pb.PullResponse.FromString(pull_response(ReadResult(status, [], 9, 4, 20)))
    assert (answer.status, answer.next_offset) == (expected, next_offset)
    assert (answer.start, answer.end) == (4, 20)


@pytest.mark.parametrize("count", range(len(RUNS) + 1))
def test_a_delivery_is_what_protobuf_reads(count: int) -> None:
    runs = RUNS[:count]
    result = ReadResult(Status.FOUND, [one for one, _ in runs], 8, 2, 9)
    data = b"".join(delivery(Delivered(Queue("t", 3), 5, result)))
    expected = pb.Delivery(
        topic="t",
        queue_id=3,
        epoch=5,
        next_offset=8,
        start=2,
        end=9,
        runs=[wire for _, wire in runs],
    )
    assert pb.SubscribeResponse.FromString(data) == pb.SubscribeResponse(delivery=expected)


def run_of(queue_offset: int, messages: list[Message]) -> Run:
    frames = Batch(messages=messages).SerializeToString()
    sizes = [len(Batch(messages=[one]).SerializeToString()) for one in messages]
    return Run(
        queue_offset,
        len(messages),
        1000 + queue_offset,
        77,
        memoryview(frames),
        np.array(sizes, np.uint32),
    )


def test_a_receive_response_is_what_protobuf_makes_of_it() -> None:
    small, large = [Message(body=b"a"), Message()], [Message(body=bytes(300), tag="t")]
    given = [
        GrantedRun(Queue("t", 0), 7, 1, 5_000, run_of(0, small)),
        GrantedRun(Queue("other", 300), (1 << 64) - 1, 200, 1 << 41, run_of(1 << 40, large)),
    ]
    expected = pb.ReceiveResponse(
        runs=[
            pb.ReceivedRun(
                topic=one.queue.topic,
                queue_id=one.queue.queue_id,
                lease=lease_bytes(one.queue, one.lease),
                attempt=one.attempt,
                invisible_until_ms=one.visible_at_ms,
                run=pb.Run(
                    queue_offset=one.run.queue_offset,
                    log_offset=one.run.log_offset,
                    stored_at_ms=77,
                    frame_sizes=one.run.sizes.tolist(),
                    messages=messages,
                ),
            )
            for one, messages in zip(given, (small, large), strict=True)
        ]
    )
    assert pb.ReceiveResponse.FromString(receive_response(given)) == expected
    assert receive_response([]) == b""
