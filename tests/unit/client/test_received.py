"""Received messages whose fields are decoded when they are read, and batches of them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import pickle
import tracemalloc
from typing import TYPE_CHECKING, Any

import lz4.frame
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mq.client.arrow.columns import record_batch
from mq.client.arrow.polling import _alike_spans, _rows, joined_columns
from mq.client.batches import MessageBatch
from mq.client.decode import (
    Decoder,
    _raw_class,
    decompressed,
    parse_pull_response,
    parse_subscribe_response,
)
from mq.client.messages import Origin, QueueRef, ReceivedMessage
from mq.wire import varint
from mq.wire.v1.consumer_pb2 import PULL_FOUND, Delivery, PullResponse, RawRun, SubscribeResponse
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message
from mq.wire.v1.message_pb2 import Origin as WireOrigin
from tests.unit.client.consumer.deliveries import run

if TYPE_CHECKING:
    from collections.abc import Sequence

BODY = st.binary(max_size=200) | st.integers(4_000, 20_000).map(bytes)
TEXT = st.text(max_size=20)
UINT32, INT64 = st.integers(0, (1 << 32) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
ORIGINS = st.builds(
    WireOrigin,
    topic=TEXT,
    queue_id=UINT32,
    queue_offset=st.integers(0, 1 << 60),
    message_id=TEXT,
    stored_at_ms=INT64,
    attempts=st.integers(0, 100),
    reason=TEXT,
)


@st.composite
def wire_messages(draw: st.DrawFn) -> Message:
    """Everything that a message can carry; some bodies are compressed, some cannot be opened."""
    made = draw(
        st.builds(
            Message,
            body=BODY,
            tag=TEXT,
            keys=st.lists(TEXT, max_size=3),
            properties=st.dictionaries(TEXT, TEXT, max_size=3),
            ordering_key=TEXT,
            born_at_ms=INT64,
            origin=st.none() | ORIGINS,
            priority=UINT32,
        )
    )
    compression: Any = draw(st.sampled_from([0, 0, COMPRESSION_LZ4, 9]))
    made.compression = compression
    if compression == COMPRESSION_LZ4 and draw(st.booleans()):
        made.body = lz4.frame.compress(made.body)
    return made


RUNS = st.lists(st.lists(wire_messages(), max_size=5), max_size=3)
PLACES = [QueueRef("orders", 3, "set-0"), QueueRef("%RETRY%g", 0, "set-0")]


def response(runs: Sequence[Sequence[Message]]) -> bytes:
    wire = [
        run(messages, 100 * at, log_offset=10_000 * at, stored_at_ms=50 + at)
        for at, messages in enumerate(runs)
    ]
    return SubscribeResponse(delivery=Delivery(topic="orders", runs=wire)).SerializeToString()


def read_eagerly(data: bytes, queue: QueueRef) -> list[ReceivedMessage | None]:
    """By protobuf, field by field."""
    found: list[ReceivedMessage | None] = []
    for one in _raw_class("SubscribeResponse").FromString(data).delivery.runs:
        log_offset = one.log_offset
        for at, (content, size) in enumerate(zip(one.messages, one.frame_sizes, strict=True)):
            body: object = None
            with contextlib.suppress(DecodeError):
                message = Message.FromString(content)
                body = decompressed(message.body, message.compression)
            found.append(None)
            if isinstance(body, bytes):
                found[-1] = ReceivedMessage(
                    queue.topic,
                    queue.queue_id,
                    one.queue_offset + at,
                    f"set-0:{log_offset}",
                    one.stored_at_ms,
                    message.born_at_ms,
                    body,
                    message.tag,
                    tuple(message.keys),
                    dict(message.properties),
                    message.ordering_key,
                    **came_back(message, queue),
                )
            log_offset += size
    return found


def came_back(message: Message, queue: QueueRef) -> dict[str, Any]:
    if not queue.topic.startswith("%") or not message.HasField("origin"):
        return {}
    one = message.origin
    place = (one.topic, one.queue_id, one.queue_offset, one.message_id, one.stored_at_ms)
    return {
        "attempt": one.attempts + 1,
        "origin": Origin(*place, one.reason),
        "stored_topic": queue.topic,
    }


def field(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + varint.encode(len(value)) + value


def alike_message(body: bytes, kind: str) -> bytes:
    """Of a size that depends on that of the body only."""
    born_at = b"\x30" + varint.encode(1_790_000_000_000)
    tag = field(0x12, b"tag-1")
    match kind:
        case "other tag":
            tag = field(0x12, b"tag-2")
        case "other time":
            born_at = b"\x30" + varint.encode(1_790_000_000_001)
        case "no text":
            tag = field(0x12, b"\xff" * 5)
        case "body last":
            return tag + born_at + field(0x0A, body)
        case "two bodies":
            return field(0x0A, body[2:]) + field(0x0A, b"") + tag + born_at
        case "no body":
            return field(0x12, body) + tag + born_at
        case "compressed":
            return field(0x0A, body[2:]) + b"\x38\x01" + tag + born_at
        case "unknown field":
            return field(0x0A, body) + field(0x7A, b"tag-1") + born_at
    return field(0x0A, body) + tag + born_at


ODD = ["other tag", "other time", "no text", "body last", "two bodies", "no body", "compressed"]


def alike_run(kinds: Sequence[str], sizes: Sequence[int], at: int = 0) -> bytes:
    frames = [
        field(0x7A, alike_message(bytes([row]) * own, kind))
        for row, (own, kind) in enumerate(zip(sizes, kinds, strict=True))
    ]
    head = RawRun(queue_offset=100 * at, log_offset=10_000 * at, stored_at_ms=50 + at)
    head.frame_sizes = b"".join(len(one).to_bytes(4, "little") for one in frames)
    return field(0x7A, head.SerializeToString() + b"".join(frames))


def delivery(runs: Sequence[bytes]) -> bytes:
    return field(0x12, Delivery(topic="orders").SerializeToString() + b"".join(runs))


@st.composite
def alike_runs(draw: st.DrawFn) -> bytes:
    """A response with long runs of messages that are alike, but for a few."""
    size = draw(st.sampled_from([2, 100, 101, 102, 103, 120, 130, 400]))
    runs = []
    for at in range(draw(st.integers(1, 2))):
        count = draw(st.integers(14, 24))
        kinds = [draw(st.sampled_from(["", *ODD, "unknown field"]))] * count
        for row in draw(st.lists(st.integers(0, count - 1), max_size=4)):
            kinds[row] = draw(st.sampled_from(["", *ODD]))
        sizes = [size] * count
        if draw(st.booleans()):
            sizes[draw(st.integers(0, count - 1))] += 1
        runs.append(alike_run(kinds, sizes, at))
    return delivery(runs)


RESPONSES = RUNS.map(response) | alike_runs()


@given(RESPONSES, st.sampled_from(PLACES), st.randoms())
def test_a_field_that_is_read_late_is_the_one_that_is_read_at_once(
    data: bytes, queue: QueueRef, dice: Any
) -> None:
    _, unopened = parse_subscribe_response(data)
    lazy = Decoder().messages(queue, unopened, 0, unopened.count)
    unopened.close()
    names = [one.name for one in dataclasses.fields(ReceivedMessage)]
    for found, wanted in zip(lazy, read_eagerly(data, queue), strict=True):
        if found is None or wanted is None:
            assert found is wanted
            continue
        if wanted.origin is not None:
            wanted.topic = wanted.origin.topic
        assert (found.queue, found.broker_set) == (queue, "set-0")
        for name in dice.sample(names, len(names)):
            assert getattr(found, name) == getattr(wanted, name)
        assert found == wanted
        assert repr(found) == repr(wanted)


@given(RESPONSES, st.integers(0, 48), st.integers(0, 48))
def test_a_batch_is_its_messages(data: bytes, start: int, end: int) -> None:
    queue = PLACES[0]
    _, unopened = parse_subscribe_response(data)
    end = min(end, unopened.count)
    start = min(start, end)
    wanted = [one for one in read_eagerly(data, queue)[start:end] if one is not None]
    batch = MessageBatch(queue, unopened, start, end, Decoder())
    assert (len(batch), batch.topic, batch.queue) == (len(wanted), "orders", queue)
    assert batch.bodies == [one.body for one in wanted]
    assert list(batch.offsets) == [one.queue_offset for one in wanted]
    assert list(batch) == wanted
    assert [one.body for one in batch] == batch.bodies
    columns = batch.to_arrow(with_properties=True)
    columns.validate(full=True)
    names = ("message_id", "queue_offset", "body", "tag", "ordering_key", "keys")
    rows = zip(*(columns.column(name).to_pylist() for name in names), strict=True)
    assert list(rows) == [
        (
            one.message_id,
            one.queue_offset,
            one.body,
            one.tag or None,
            one.ordering_key or None,
            list(one.keys),
        )
        for one in wanted
    ]
    # A map has no order.
    properties = [dict(one) for one in columns.column("properties").to_pylist()]
    assert properties == [one.properties for one in wanted]


def test_batches_of_alike_and_other_messages_are_joined_as_columns() -> None:
    """In one record batch, with the same columns as those of the messages one by one."""
    batches: list[MessageBatch] = []
    for queue_id, kinds in enumerate([[""] * 20, ["other tag"] * 30, [""] * 19 + ["other time"]]):
        data = delivery(
            [alike_run(kinds, [100] * len(kinds)), alike_run(kinds[:18], [120] * 18, 1)]
        )
        _, unopened = parse_subscribe_response(data)
        queue = QueueRef("orders", queue_id, "set-0")
        batches.append(MessageBatch(queue, unopened, 3, unopened.count - 2, Decoder()))
    for some in ([0], [0, 1], [1, 0], [0, 1, 2], []):
        chosen = [batches[at] for at in some]
        found = joined_columns(chosen, with_properties=True)
        found.validate(full=True)
        singles = [
            record_batch(_rows(batch.part(at, at + 1)), batch.queue, with_properties=True)
            for batch in chosen
            for at in range(len(batch))
        ]
        assert found.to_pylist() == [row for one in singles for row in one.to_pylist()]
        assert (_alike_spans(chosen) is None) == (2 in some or not some)


@pytest.mark.parametrize("extra", [0, 1], ids=["one size", "two sizes"])
def test_a_message_without_a_body_does_not_get_the_second_one_of_another(extra: int) -> None:
    """The bodies are as many as the messages all the same."""
    kinds = [""] * 20
    kinds[3], kinds[5] = "two bodies", "no body"
    data = delivery([alike_run(kinds, [100] * 19 + [100 + extra])])
    _, unopened = parse_subscribe_response(data)
    batch = MessageBatch(PLACES[0], unopened, 0, unopened.count, Decoder())
    bodies = [bytes([row]) * 100 for row in range(19)] + [bytes([19]) * (100 + extra)]
    bodies[3] = bodies[5] = b""
    assert batch.bodies == bodies
    assert [one.body for one in batch] == bodies


def received(*messages: Message) -> list[ReceivedMessage]:
    runs = [run(messages, 7, log_offset=100, stored_at_ms=5)]
    data = PullResponse(status=PULL_FOUND, runs=runs).SerializeToString()
    _, unopened = parse_pull_response(data)
    made = Decoder().messages(PLACES[0], unopened, 0, unopened.count)
    return [one for one in made if one is not None]


COPIES = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),  # noqa: S301 # our own bytes
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "replace": dataclasses.replace,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_is_equal_and_changes_by_itself(copied: Any) -> None:
    (message,) = received(Message(body=b"a", tag="t", keys=["k"], properties={"p": "q"}))
    other = copied(message)
    assert other == message
    assert (other.queue, other.broker_set) == (PLACES[0], "set-0")
    other.tag = "changed"
    assert message.tag == "t"


def test_a_field_that_was_set_stays_when_others_are_read() -> None:
    (message,) = received(Message(body=b"a", tag="t", keys=["k"]))
    message.keys = ("mine",)
    message.attempt = 4
    assert (message.tag, message.keys, message.attempt) == ("t", ("mine",), 4)


def test_a_name_that_a_message_does_not_have_is_an_attribute_error() -> None:
    (message,) = received(Message(body=b"a"))
    for one in (message, copy.copy(message)):
        with pytest.raises(AttributeError, match="'ReceivedMessage' object has no attribute 'key'"):
            one.key  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("is_whole", [False, True], ids=["body", "message"])
def test_one_message_that_is_kept_does_not_keep_its_delivery(is_whole: bool) -> None:
    wire = PullResponse(runs=[run([Message(body=bytes(1_000))] * 2_000, 0, log_offset=0)])
    tracemalloc.start()
    try:
        kept: list[Any] = []
        for _ in range(5):
            _, unopened = parse_pull_response(wire.SerializeToString())
            batch = MessageBatch(PLACES[0], unopened, 0, unopened.count, Decoder())
            kept.append(batch[17] if is_whole else batch[17].body)
            del unopened, batch
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
    assert len(kept) == 5
