"""Strategies for messages as bytes: what clients write, what protobuf allows, and damage."""

from __future__ import annotations

from hypothesis import strategies as st

from mq.wire.v1.message_pb2 import Message, Origin, RocketMq
from tests.support.naive_wire import varint

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(max_size=5)

origins = st.builds(
    Origin,
    topic=TEXTS,
    queue_id=st.integers(0, 300),
    queue_offset=st.integers(0, (1 << 64) - 1),
    message_id=TEXTS,
    stored_at_ms=INT64,
    attempts=st.integers(0, (1 << 32) - 1),
    reason=TEXTS,
)
rocketmq_fields = st.builds(
    RocketMq,
    message_id=TEXTS,
    born_host=TEXTS,
    message_type=st.integers(0, 300),
    deliver_at_ms=INT64,
    trace_context=TEXTS,
)
messages = st.builds(
    Message,
    body=st.binary(max_size=300),
    tag=TEXTS,
    keys=st.lists(TEXTS, max_size=4),
    properties=st.dictionaries(TEXTS, TEXTS, max_size=4),
    ordering_key=TEXTS,
    born_at_ms=INT64,
    compression=st.integers(0, 2),
    origin=st.none() | origins,
    priority=st.integers(0, 9),
    rocketmq=st.none() | rocketmq_fields,
)


def field_of(number: int, wire_type: int, content: bytes) -> bytes:
    """With a value of that wire type made of the content."""
    tag = varint(number << 3 | wire_type)
    value = int.from_bytes(content[:8].ljust(8, b"\1"), "little")
    if wire_type == 0:
        return tag + varint(value)
    if wire_type in (1, 5):
        return tag + content[:8].ljust(8, b"\0")[: 8 if wire_type == 1 else 4]
    if wire_type == 3:
        return tag + b"\x08\x01" + varint(number << 3 | 4)
    return tag + varint(len(content)) + content


# Known and unknown fields of all kinds, in any order, any number of times.
loose_fields = st.builds(
    field_of,
    st.integers(1, 20) | st.sampled_from([1, 2, 3, 4, 5, 8, 10]),
    st.sampled_from([2, 2, 2, 0, 0, 1, 5, 3]),
    st.binary(max_size=20)
    | TEXTS.map(str.encode)
    | st.lists(
        st.builds(
            field_of,
            st.integers(1, 8),
            st.sampled_from([2, 2, 0, 5]),
            TEXTS.map(str.encode) | st.binary(max_size=3),
        ),
        max_size=3,
    ).map(b"".join),
)
loose_messages = st.lists(loose_fields, max_size=6).map(b"".join)
# Pieces of several messages, one behind the other, are one message, with fields that repeat.
joined_messages = st.lists(messages.map(Message.SerializeToString), max_size=3).map(b"".join)


@st.composite
def mutated_messages(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(messages).SerializeToString())
    for _ in range(draw(st.integers(1, 3))):
        if data:
            at = draw(st.integers(0, len(data) - 1))
            data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


anything = joined_messages | loose_messages | mutated_messages() | st.binary(max_size=12)
