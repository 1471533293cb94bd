"""What the client makes of messages is what the broker accepts, and what it says of itself."""

from __future__ import annotations

import re
import struct
from typing import Any

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client import encode
from mq.client.encode import (
    MESSAGE_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_MAX,
    encode_message,
)
from mq.client.messages import Message
from mq.errors import IllegalRequest, MessageTooLarge
from mq.hashing import text_hash
from mq.names import is_legal_tag
from mq.store.batch import accept, prepare
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, COMPRESSION_NONE
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message as WireMessage
from mq.wire.v1.producer_pb2 import PublishRequest

NOW_MS = 1_794_826_512_544
NEVER = 1 << 30

texts = st.text(st.characters(codec="utf-8"), max_size=200)
messages = st.builds(
    Message,
    st.binary(max_size=300),
    tag=texts.filter(is_legal_tag),
    keys=st.lists(texts, max_size=3),
    properties=st.dictionaries(texts, texts, max_size=3),
    ordering_key=texts,
)


def wire_message(frame: bytes) -> WireMessage:
    [message] = WireBatch.FromString(frame).messages
    return message


def plain(message: Message) -> WireMessage:
    return WireMessage(
        body=message.body,
        tag=message.tag,
        keys=message.keys,
        properties=message.properties,
        ordering_key=message.ordering_key,
        born_at_ms=NOW_MS,
    )


@given(messages)
def test_a_frame_is_the_message_as_protobuf_reads_it(message: Message) -> None:
    frame, tag_hash, key_hashes, ordering_hash, *_ = encode_message(message, NOW_MS, NEVER)
    assert wire_message(frame) == plain(message)
    assert tag_hash == text_hash(message.tag)
    assert list(key_hashes) == [text_hash(key) for key in message.keys]
    assert ordering_hash == (text_hash(message.ordering_key) if message.ordering_key else None)


@given(
    st.lists(messages, min_size=1, max_size=20),
    st.integers(0, 65_535),
    st.sampled_from([("", 0), ("p", 1), ("producer-7", 2**63)]),
)
def test_the_broker_stores_a_batch_as_it_comes(
    sent: list[Message], queue_id: int, number: tuple[str, int]
) -> None:
    """Byte for byte what the broker itself would make of a plain batch: nothing is prepared."""
    producer_id, sequence = number
    columns = encode.columns([encode_message(message, NOW_MS, NEVER) for message in sent])
    data = encode.place("orders", queue_id, producer_id, sequence) + columns
    batch = accept(data, MESSAGE_BYTES_MAX)
    assert batch.data == data
    wire = WireBatch(
        topic="orders",
        queue_id=queue_id,
        producer_id=producer_id,
        sequence=sequence,
        messages=[plain(message) for message in sent],
    )
    prepared = prepare(wire.SerializeToString())
    assert WireBatch.FromString(prepared) == WireBatch.FromString(data)
    assert len(prepared) == len(data)


runs = st.one_of(
    st.lists(messages, min_size=1, max_size=5),
    st.builds(
        encode.Bodies,
        st.integers(1, 2**45),
        st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    ),
    st.builds(
        encode.Bodies,
        st.just(NOW_MS),
        st.integers(0, 300).flatmap(
            lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=8)
        ),
    ),
)


@given(st.lists(runs, min_size=1, max_size=4))
def test_messages_that_are_only_a_body_are_framed_together_as_one_by_one(
    sent: list[encode.Bodies | list[Message]],
) -> None:
    one_by_one: list[encode.Encoded] = []
    content: list[encode.Run] = []
    for run in sent:
        if isinstance(run, encode.Bodies):
            one_by_one += (encode_message(body, run.born_at_ms, NEVER) for body in run.bodies)
            content.append(run)
        else:
            encoded = [encode_message(message, NOW_MS, NEVER) for message in run]
            one_by_one += encoded
            content.append(encoded)
    prepared = encode.prepare(content)
    assert prepared.columns == encode.columns(one_by_one)
    assert prepared.sizes == struct.pack(
        f"<{len(one_by_one)}I", *(len(frame) for frame, *_ in one_by_one)
    )
    assert prepared.count == len(one_by_one)


@given(messages)
def test_only_a_message_without_anything_else_is_sent_as_its_body(message: Message) -> None:
    fields = {"tag", "keys", "properties", "ordering_key", "priority", "deliver_at_ms"}
    has_more = any(getattr(message, one) for one in (*fields, "delay_s", "delay_level"))
    assert encode.sole_body(message) == (None if has_more else message.body)
    assert encode.sole_body(message.body) == message.body
    assert encode.sole_body("text") is None


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**21 + 1])
def test_bodies_of_any_size_are_framed(size: int) -> None:
    encoded = encode_message(b"x" * size, NOW_MS, NEVER)
    data = encode.place("t", 0, "", 0) + encode.columns([encoded])
    assert accept(data, MESSAGE_BYTES_MAX).message_count == 1
    assert len(wire_message(encoded[0]).body) == size


def test_a_request_has_its_batches_in_order() -> None:
    first = encode.place("a", 1, "p", 7), encode.columns([encode_message(b"1", NOW_MS, NEVER)])
    second = encode.place("b", 0, "p", 8), encode.columns([encode_message(b"2", NOW_MS, NEVER)])
    request = PublishRequest.FromString(encode.request(300, 2, [first, second]))
    assert (request.request_id, request.ack) == (300, 2)
    assert [(one.topic, one.queue_id, one.sequence) for one in request.batches] == [
        ("a", 1, 7),
        ("b", 0, 8),
    ]
    assert [one.messages[0].body for one in request.batches] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("body", "stored"),
    [("straße", "straße".encode()), (bytearray(b"ab"), b"ab"), (memoryview(b"cd"), b"cd")],
)
def test_text_and_buffers_are_bodies_too(body: object, stored: bytes) -> None:
    for message in (body, Message(body)):  # type: ignore[arg-type]
        assert wire_message(encode_message(message, NOW_MS, NEVER)[0]).body == stored  # type: ignore[arg-type]


def test_one_key_may_be_given_as_a_string() -> None:
    frame, _, key_hashes, *_ = encode_message(Message(b"", keys="order-7"), NOW_MS, NEVER)
    assert wire_message(frame).keys == ["order-7"]
    assert key_hashes == [text_hash("order-7")]


def test_a_body_that_is_no_text_and_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes or str, not int"):
        encode_message(7, NOW_MS, NEVER)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes or str, not NoneType"):
        encode_message(Message(None), NOW_MS, NEVER)  # type: ignore[arg-type]


def test_bodies_above_the_limit_are_compressed() -> None:
    above = wire_message(encode_message(b"x" * 4097, NOW_MS, 4096)[0])
    assert above.compression == COMPRESSION_LZ4
    assert lz4.frame.decompress(above.body) == b"x" * 4097
    assert above.born_at_ms == NOW_MS
    at_limit = wire_message(encode_message(b"x" * 4096, NOW_MS, 4096)[0])
    assert (at_limit.compression, at_limit.body) == (COMPRESSION_NONE, b"x" * 4096)


def test_a_body_that_compression_does_not_shrink_is_sent_as_it_is() -> None:
    noise = bytes(text_hash(str(n)) % 256 for n in range(6000))
    message = wire_message(encode_message(noise, NOW_MS, 4096)[0])
    assert (message.compression, message.body) == (COMPRESSION_NONE, noise)


def test_a_message_that_is_too_large_is_refused_before_it_is_sent() -> None:
    body = b"x" * MESSAGE_BYTES_MAX
    for message in (body, Message(body, tag="t", keys=["k"], properties={"a": "b" * 16_000})):
        for compress_above in (NEVER, 4096):
            encode_message(message, NOW_MS, compress_above)
    for compress_above in (NEVER, 4096):
        with pytest.raises(MessageTooLarge, match=r"a body of 4194305 bytes: at most 4194304 are"):
            encode_message(body + b"x", NOW_MS, compress_above)
    with pytest.raises(MessageTooLarge, match=r"for its body and 65536 for its tag, keys"):
        encode_message(Message(body, keys=["k" * (64 << 10)]), NOW_MS, NEVER)


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"tag": 5}, "tag of a message is a str, not int; write '5'"),
    ({"tag": b"paid"}, "tag of a message is a str, not bytes"),
    ({"keys": ["a", 7]}, "keys[1] of a message is a str, not int; write '7'"),
    ({"keys": 7}, "keys of a message is a list of str, not int"),
    ({"properties": {"amount": 120}}, "properties['amount'] of a message is a str, not int; write"),
    ({"properties": {"amount": 1.5}}, "properties['amount'] of a message is a str, not float"),
    ({"properties": {"amount": None}}, "properties['amount'] of a message is a str, not NoneType"),
    ({"properties": {5: "x"}}, "a name in properties of a message is a str, not int; write '5'"),
    ({"properties": ["a"]}, "properties of a message is a dict of str to str, not list"),
    ({"ordering_key": 3}, "ordering_key of a message is a str, not int; write '3'"),
    ({"priority": "high"}, "priority of a message is an int, not str"),
]


@pytest.mark.parametrize(("fields", "text"), WRONG_TYPES)
def test_a_value_of_another_type_is_refused_with_its_field(
    fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        encode_message(Message(b"", **fields), NOW_MS, NEVER)


@pytest.mark.parametrize(
    "properties",
    [
        {str(n): "" for n in range(PROPERTIES_MAX + 1)},
        {"name": "x" * (PROPERTIES_BYTES_MAX - 3)},
        {"n" * PROPERTIES_BYTES_MAX: "x"},
        {"name": "ß" * (PROPERTIES_BYTES_MAX // 2)},
    ],
)
def test_too_many_properties_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageTooLarge, match="properties"):
        encode_message(Message(b"", properties=properties), NOW_MS, NEVER)


def test_as_many_properties_as_are_allowed_are_sent() -> None:
    many = {f"{n:03}": "" for n in range(PROPERTIES_MAX)}
    large = {"name": "x" * (PROPERTIES_BYTES_MAX - 4)}
    for properties in (many, large):
        frame = encode_message(Message(b"", properties=properties), NOW_MS, NEVER)[0]
        assert dict(wire_message(frame).properties) == properties


@pytest.mark.parametrize("tag", ["two words", "a||b", "a|b", "*", " a", "x" * 4097])
def test_a_tag_that_no_filter_can_ask_for_is_refused_before_it_is_sent(tag: str) -> None:
    for _ in range(2):
        with pytest.raises(IllegalRequest, match="is not legal: no filter could ask for it"):
            encode_message(Message(b"", tag=tag), NOW_MS, NEVER)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", tag="\ud800"),
        Message(b"", keys=["\ud800"]),
        Message(b"", properties={"\ud800": ""}),
        Message(b"", properties={"a": "\ud800"}),
        Message(b"", ordering_key="\ud800"),
        "\ud800",
    ],
)
def test_text_that_is_no_unicode_is_refused(message: Message | str) -> None:
    with pytest.raises(IllegalRequest, match="Unicode"):
        encode_message(message, NOW_MS, NEVER)
