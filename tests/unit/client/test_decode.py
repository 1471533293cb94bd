"""Messages out of deliveries: readable ones come through, unreadable neighbours are skipped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client import decode as decode_module
from mq.client.decode import (
    Decoder,
    Unreadable,
    decompressed,
    parse_page,
    parse_pull_response,
    parse_subscribe_response,
)
from mq.client.messages import Origin, QueueRef, ReceivedMessage
from mq.errors import Internal
from mq.limits import BODY_BYTES_MAX
from mq.wire.v1.consumer_pb2 import (
    PULL_FOUND,
    Assignment,
    Delivery,
    PullResponse,
    Run,
    SubscribeResponse,
)
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message
from mq.wire.v1.message_pb2 import Origin as WireOrigin
from tests.unit.client.consumer.deliveries import run as stored_run

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE = QueueRef("orders", 3, "set-0")
BAD_TEXT, NO_TEXT = b"broken-text", b"\xff" * 11


def delivery(*runs: Run) -> bytes:
    wire = Delivery(topic="orders", queue_id=3, epoch=7, next_offset=90, end=100, runs=runs)
    return SubscribeResponse(delivery=wire).SerializeToString()


def run(messages: Sequence[Message], queue_offset: int = 10, log_offset: int = 1000) -> Run:
    return stored_run(messages, queue_offset, log_offset, stored_at_ms=5_000)


def damage(data: bytes) -> bytes:
    """A tag that is no UTF-8, which a broker stores as it came."""
    assert BAD_TEXT in data
    return data.replace(BAD_TEXT, NO_TEXT)


def decode(
    data: bytes, decoder: Decoder | None = None, queue: QueueRef = QUEUE
) -> list[ReceivedMessage | None]:
    _, runs = parse_subscribe_response(data)
    return (decoder or Decoder()).messages(queue, runs, 0, runs.count)


def bodies(decoded: Sequence[ReceivedMessage | None]) -> list[bytes | None]:
    return [one.body if one else None for one in decoded]


def test_a_message_has_all_that_was_sent_and_where_it_stands() -> None:
    sent = Message(
        body=b"paid",
        tag="paid",
        keys=["a", "b"],
        properties={"region": "EU"},
        ordering_key="customer",
        born_at_ms=4_000,
    )
    (decoded,) = decode(delivery(run([sent])))
    assert decoded == ReceivedMessage(
        topic="orders",
        queue_id=3,
        queue_offset=10,
        message_id="set-0:1000",
        stored_at_ms=5_000,
        born_at_ms=4_000,
        body=b"paid",
        tag="paid",
        keys=("a", "b"),
        properties={"region": "EU"},
        ordering_key="customer",
    )


ORIGIN = WireOrigin(
    topic="orders",
    queue_id=1,
    queue_offset=7,
    message_id="set-0:4711",
    stored_at_ms=3_000,
    attempts=2,
    reason="no",
)


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing", "%SYS%GIVE_UP"])
def test_a_message_that_came_back_has_its_topic_and_says_where_it_stands(topic: str) -> None:
    decoder = Decoder({"orders": frozenset({"paid"})})
    sent = delivery(run([Message(body=b"a", origin=ORIGIN)]))
    (message,) = decode(sent, decoder, QueueRef(topic, 0, "set-0"))
    assert message is not None
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 0, 10)
    assert (message.message_id, message.stored_at_ms) == ("set-0:1000", 5_000)
    assert message.queue == QueueRef(topic, 0, "set-0")
    assert (message.attempt, message.origin) == (
        3,
        Origin("orders", 1, 7, "set-0:4711", 3_000, "no"),
    )


def test_an_illegal_origin_is_ignored() -> None:
    (decoded,) = decode(delivery(run([Message(body=b"a", origin=ORIGIN)])))
    assert decoded is not None
    assert (decoded.attempt, decoded.origin) == (1, None)
    assert decoded.queue == QUEUE


def test_a_message_of_a_retry_topic_without_an_origin_stands_for_itself() -> None:
    (decoded,) = decode(delivery(run([Message(body=b"a")])), queue=QueueRef("%RETRY%g", 0, "s"))
    assert decoded is not None
    assert (decoded.topic, decoded.origin) == ("%RETRY%g", None)


def test_ids_and_offsets_follow_the_frames_through_all_runs() -> None:
    runs = [
        run([Message(body=b"a"), Message(body=b"b"), Message(body=b"c")]),
        run([Message(body=b"d"), Message(body=b"e")], queue_offset=50, log_offset=9_000),
    ]
    found = [(one.message_id, one.queue_offset) for one in decode(delivery(*runs)) if one]
    # A frame of these has five bytes.
    assert found == [
        ("set-0:1000", 10),
        ("set-0:1005", 11),
        ("set-0:1010", 12),
        ("set-0:9000", 50),
        ("set-0:9005", 51),
    ]


def test_compressed_bodies_come_as_they_were_sent() -> None:
    body = b"long " * 1000
    sent = Message(body=lz4.frame.compress(body), compression=COMPRESSION_LZ4)
    assert bodies(decode(delivery(run([sent])))) == [body]


def test_messages_are_made_when_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []

    def unpack(body: bytes, _: int) -> bytes:
        opened.append(body)
        return body

    monkeypatch.setattr(decode_module, "decompressed", unpack)
    sent = [Message(body=bytes([65 + i]), compression=COMPRESSION_LZ4) for i in range(3)]
    _, runs = parse_subscribe_response(delivery(run(sent)))
    assert opened == []
    Decoder().messages(QUEUE, runs, 0, 1)
    assert opened == [b"A"]


def test_a_malformed_message_hides_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = [Message(body=b"a"), Message(body=b"b", tag=BAD_TEXT.decode()), Message(body=b"c")]
    decoder = Decoder()
    with caplog.at_level(logging.ERROR):
        decoded = decode(damage(delivery(run(sent), run(sent, queue_offset=20))), decoder)
    assert bodies(decoded) == [b"a", None, b"c"] * 2
    assert [one.queue_offset for one in decoded if one] == [10, 12, 20, 22]
    last = decoded[2]
    assert last is not None
    assert last.message_id == "set-0:1023"
    assert decoder.unreadable_messages == 2
    assert "set-0:1005" in caplog.text
    assert "topic orders" in caplog.text


def test_the_head_of_a_delivery_is_read_also_when_a_message_cannot_be() -> None:
    data = damage(delivery(run([Message(tag=BAD_TEXT.decode())])))
    response, runs = parse_subscribe_response(data)
    head = response.delivery
    assert (head.topic, head.queue_id, head.epoch, head.next_offset, head.end) == (
        "orders",
        3,
        7,
        90,
        100,
    )
    assert (runs.count, runs.is_plain) == (1, False)


def test_a_pull_response_is_read_in_the_same_way() -> None:
    sent = [Message(body=b"a"), Message(tag=BAD_TEXT.decode())]
    response = PullResponse(status=PULL_FOUND, next_offset=12, start=1, end=99, runs=[run(sent)])
    whole, runs = parse_pull_response(response.SerializeToString())
    assert (whole.next_offset, runs.count) == (12, 2)
    head, runs = parse_pull_response(damage(response.SerializeToString()))
    assert (head.next_offset, head.start, head.end) == (12, 1, 99)
    assert bodies(Decoder().messages(QUEUE, runs, 0, 2)) == [b"a", None]


def test_an_assignment_has_no_runs() -> None:
    data = SubscribeResponse(assignment=Assignment(generation=4)).SerializeToString()
    response, runs = parse_subscribe_response(data)
    assert (response.assignment.generation, runs.count) == (4, 0)


def test_a_malformed_response_is_an_error() -> None:
    with pytest.raises(Internal):
        parse_subscribe_response(b"\x12\xff\xff\xff")
    with pytest.raises(Internal):
        parse_pull_response(b"\x12\xff\xff\xff")


@pytest.mark.parametrize(
    "sent",
    [
        Message(body=b"no lz4 frame", compression=COMPRESSION_LZ4),
        Message(body=lz4.frame.compress(b"x" * 100)[:-9], compression=COMPRESSION_LZ4),
        Message(body=b"", compression=COMPRESSION_LZ4),
        Message(body=b"from tomorrow", compression=9),  # type: ignore[arg-type] # open enum
    ],
    ids=["not compressed", "cut short", "empty", "unknown compression"],
)
def test_a_body_that_cannot_be_opened_is_passed_over(
    sent: Message, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = Decoder()
    assert bodies(decode(delivery(run([sent, Message(body=b"next")])), decoder)) == [None, b"next"]
    assert decoder.unreadable_messages == 1
    assert "set-0:1000" in caplog.text


@pytest.mark.parametrize("is_told", [True, False])
def test_a_body_is_unpacked_up_to_its_limit_and_no_further(is_told: bool) -> None:
    for size, fits in ((999, True), (1_000, True), (1_001, False), (50_000_000, False)):
        packed = lz4.frame.compress(bytes(size), store_size=is_told)
        found = decompressed(packed, COMPRESSION_LZ4, 1_000)
        if fits:
            assert found == bytes(size)
        else:
            assert found == Unreadable("its body has more than 1000 bytes when it is decompressed")


def test_a_few_bytes_that_are_a_gigabyte_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    packed = lz4.frame.compress(bytes(BODY_BYTES_MAX + 1))
    assert len(packed) < 1 << 20
    decoder = Decoder()
    sent = [Message(body=packed, compression=COMPRESSION_LZ4), Message(body=b"next")]
    assert bodies(decode(delivery(run(sent)), decoder)) == [None, b"next"]
    assert decoder.unreadable_messages == 1
    assert f"more than {BODY_BYTES_MAX} bytes" in caplog.text


def test_tags_are_compared_and_not_only_their_hashes() -> None:
    sent = [Message(body=tag.encode(), tag=tag) for tag in ("paid", "open", "shipped", "")]
    decoder = Decoder({"orders": frozenset({"paid", "shipped"})})
    decoded = decode(delivery(run(sent)), decoder)
    assert bodies(decoded) == [b"paid", None, b"shipped", None]
    assert [one.queue_offset for one in decoded if one] == [10, 12]
    assert decoder.unreadable_messages == 0
    other = Decoder({"returns": frozenset({"paid"})})
    assert bodies(decode(delivery(run(sent)), other)) == [b"paid", b"open", b"shipped", b""]


@given(st.integers(0, 12), st.integers(0, 6), st.integers(0, 6))
def test_runs_without_their_first_messages_are_the_rest(behind: int, few: int, other: int) -> None:
    sent = [Message(body=bytes([at]) * at) for at in range(1, 7)]
    data = delivery(run(sent[:few], queue_offset=2), run(sent[:other], queue_offset=9))
    _, runs = parse_subscribe_response(data)
    rest = runs.behind(behind)
    kept = Decoder().messages(QUEUE, rest, 0, rest.count)
    assert kept == [
        message for message in decode(data) if message and message.queue_offset >= behind
    ]
    for row in range(rest.count):
        assert rest.row(rest.queue_offset(row)) == row


def frame_sizes_that_lie() -> bytes:
    wrong = run([Message(body=b"a"), Message(body=b"b")])
    wrong.frame_sizes[:] = [4, 5]
    return delivery(wrong)


def test_frames_that_are_not_where_their_sizes_say_are_an_error() -> None:
    with pytest.raises(Internal, match="not as long as their sizes say"):
        parse_subscribe_response(frame_sizes_that_lie())


# Answers to pulls as pages

UINT64 = st.integers(0, (1 << 64) - 1)
# Bodies beyond 127 and 16,383 bytes: lengths of one, two and three bytes.
of_page = st.builds(Message, body=st.sampled_from([1, 100, 200, 20_000]).map(bytes))
pages = st.builds(
    PullResponse,
    status=st.integers(0, 3),
    next_offset=UINT64,
    start=UINT64,
    end=UINT64,
    read_from=st.text(max_size=9),
    runs=st.lists(
        st.builds(Run, queue_offset=UINT64, messages=st.lists(of_page, max_size=2)),
        max_size=5,
    ),
)


@given(pages)
def test_pages_have_what_protobuf_finds(response: PullResponse) -> None:
    page = parse_page(response.SerializeToString())
    for name in ("status", "next_offset", "start", "end", "read_from"):
        assert getattr(page, name) == getattr(response, name)
    assert page.has_messages == bool(response.runs)
    places = zip(page.runs[::2], page.runs[1::2], strict=True)
    assert [Run.FromString(page.data[at:end]) for at, end in places] == list(response.runs)


@given(pages)
def test_a_page_that_was_cut_is_refused(response: PullResponse) -> None:
    data = response.SerializeToString()
    if response.runs:
        with pytest.raises(Internal):
            parse_page(data[:-1])


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a",
        b"\x7a\x80",
        b"\x7a\x05abc",
        b"\x7a\x00\x08\x01",
        b"\x7a" + b"\xff" * 11,
        b"\x0d\x00\x00\x00\x00",
        b"\x08",
        b"\x2a\x05x",
        b"\xff" * 12,
    ],
)
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(Internal):
        parse_page(data)
