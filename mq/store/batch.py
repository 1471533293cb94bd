"""Batches as the store sees them: columns of sizes and hashes, and a region of message frames.

    batch   = fields of the header | frame | frame | ...     see proto/mq/v1/message.proto
    frame   = 0x7A, varint length, Message                   field 15 of Batch
    payload = 0x0A, varint length, batch | 0x0A, ...         field 1 of MessagesEntry
              | 0x12, varint length, command                 field 2, if there is one

A prepared batch is checked, all frames at once, and stored as it came. A plain one, or one whose
fields do not stand in order and once, is prepared first; a few messages that were sent one by one
are joined. Nothing here runs Python once a message except `prepare`, `frame` and `join`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from mq import names
from mq.errors import IllegalTopic, MalformedBatch, MessageTooLarge
from mq.hashing import NO_TAG, text_hash
from mq.limits import BESIDE_BODY_BYTES_MAX
from mq.store.frame_check import FRAME_TAG, prefix_width
from mq.store.message_check import check_messages
from mq.store.varints import read_varint, varint_widths
from mq.wire import varint
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Half, Message, RawBatch

_EMPTY_HALF = b"\x0a\x00"  # no producer group, said out loud
_BATCH_TAG, _COMMAND_TAG = b"\x0a", b"\x12"
# Of a Message. Below this size the length of its body has one byte.
_BODY_TAG, _BODY_SMALL_BYTES = 0x0A, 130
# So many messages of a plain batch are opened sooner one by one than by columns. A batch that is
# tiny is opened before it is looked at.
_FEW_MESSAGES, _SMALL_BYTES, _TINY_BYTES = 16, 64 << 10, 2 << 10
_NO_KEY_HASHES, _NO_KEY_COUNTS = np.empty(0, "<u8"), np.empty(0, "<u4")
# The fields of a prepared batch that have an element for each message or key.
_COLUMNS = _TAG_HASHES, _FRAME_SIZES, _KEY_HASHES, _KEY_COUNTS = range(5, 9)
_HALF = 11


class Batch(NamedTuple):
    """One prepared batch. The arrays are read-only views of `data`'s fields."""

    topic: str
    queue_id: int
    frame_sizes: npt.NDArray[np.uint32]
    frame_starts: npt.NDArray[np.int64]  # from the start of `data`
    tag_hashes: npt.NDArray[np.uint64]
    key_hashes: npt.NDArray[np.uint64]
    key_counts: npt.NDArray[np.uint32]
    data: bytes | memoryview
    region_start: int
    producer_id: str
    sequence: int
    deliver_at_ms: int
    delay_ms: int
    half: bytes
    origin_log_offset: int

    @property
    def message_count(self) -> int:
        return len(self.frame_sizes)

    @property
    def is_held(self) -> bool:
        """It waits for something, and is not on its topic until it is written there."""
        return self.deliver_at_ms != 0 or bool(self.half)


class Header(NamedTuple):
    """The fields of a batch beside its topic, its queue and its messages."""

    producer_id: str = ""
    sequence: int = 0
    deliver_at_ms: int = 0
    delay_ms: int = 0
    half: bytes = b""
    origin_log_offset: int = 0

    def encode(self, topic: str, queue_id: int, columns: bytes) -> bytes:
        """All that stands before the frames. An empty `half` is none."""
        if self is _PLAIN:
            return _queue_fields(topic, queue_id) + columns
        parts = [_queue_fields(topic, queue_id)]
        if self.producer_id or self.sequence:
            producer = RawBatch(producer_id=self.producer_id, sequence=self.sequence)
            parts.append(producer.SerializeToString())
        parts.append(columns)
        if self.deliver_at_ms or self.delay_ms:
            delay = RawBatch(deliver_at_ms=self.deliver_at_ms, delay_ms=self.delay_ms)
            parts.append(delay.SerializeToString())
        if self.half:
            parts.append(_field(_HALF, self.half))
        if self.origin_log_offset:
            origin = RawBatch(origin_log_offset=self.origin_log_offset)
            parts.append(origin.SerializeToString())
        return b"".join(parts)


_PLAIN = Header()


class Decoded(NamedTuple):
    """The payload of a MESSAGES entry. Each batch comes with its log offset."""

    batches: list[tuple[Batch, int]]
    command: bytes


def accept(
    data: bytes | memoryview,
    message_bytes_max: int,
    check_plain: Callable[[bytes | memoryview], None] | None = None,
    normal_half: Callable[[bytes], bytes] | None = None,
) -> Batch:
    """Checks what a producer sent, all of it, before anything is written: what is stored can be
    read, and its hashes are right. `check_plain` sees a batch before its messages are opened one by
    one, and raises if there are too many. `normal_half` gives the form in which a `half` is stored:
    small plain batches are built with that at once, others are left as they are.

    MalformedBatch, IllegalTopic, IllegalRequest (a tag) and MessageTooLarge say what is wrong.
    """
    size = len(data)
    if size <= _TINY_BYTES and (small := _accept_small(data, message_bytes_max, normal_half)):
        return small
    start = _region_start(data)
    header = _parse_header(data, start) if start else None
    if header is not None and header.frame_sizes:
        batch = _with_columns(header, data, start)
    else:
        if check_plain is not None:
            check_plain(data)
        if _TINY_BYTES < size <= _SMALL_BYTES:
            small = _accept_small(data, message_bytes_max, normal_half)
            if small is not None:
                return small
        batch = parse_stored(prepare(data))
    _check(batch, message_bytes_max, check_plain)
    return batch


def _accept_small(
    data: bytes | memoryview,
    message_bytes_max: int,
    normal_half: Callable[[bytes], bytes] | None,
) -> Batch | None:
    """A plain batch of a few messages, or a prepared one of one message; None: it is neither, or
    not quite right.
    """
    data = bytes(data)
    try:
        raw = RawBatch.FromString(data)
        messages, topic, queue_id = raw.messages, raw.topic, raw.queue_id
        is_plain = not (raw.frame_sizes or raw.tag_hashes or raw.key_hashes or raw.key_counts)
        if (
            not 0 < len(messages) <= (_FEW_MESSAGES if is_plain else 1)
            or queue_id > names.QUEUE_ID_MAX
            or raw.origin_log_offset
        ):
            return None
        names.check_topic(topic)
        # The bytes as they came: protobuf may write a message in another order.
        frames = [_frame_as_it_came(one, topic, message_bytes_max) for one in messages]
        half = _half_of(raw)
        if half and is_plain:
            half = (normal_half or _readable_half)(half)
    except DecodeError:
        return None
    header = Header(raw.producer_id, raw.sequence, raw.deliver_at_ms, raw.delay_ms, half)
    batch = join(topic, queue_id, frames, header)
    return batch if is_plain or batch.data == data else None


def _readable_half(half: bytes) -> bytes:
    Half.FromString(half)
    return half


def _half_of(header: RawBatch) -> bytes:
    """One that says nothing is one all the same: it must not become visible."""
    return header.half or (_EMPTY_HALF if header.HasField("half") else b"")


def prepare(data: bytes | memoryview) -> bytes:
    """A prepared batch with the same messages: opens each one for its tag and keys."""
    try:
        messages = WireBatch.FromString(bytes(data)).messages
        raw = RawBatch.FromString(bytes(data))
    except DecodeError as error:
        raise MalformedBatch(f"not a Batch: {error}") from None
    count = len(messages)
    if count == 0:
        raise MalformedBatch("the batch has no messages")
    lengths = np.fromiter(map(len, raw.messages), np.int64, count)
    key_counts = np.fromiter((len(message.keys) for message in messages), "<u4", count)
    keys = [text_hash(key) for message in messages for key in message.keys]
    region = RawBatch(messages=raw.messages).SerializeToString()
    raw.ClearField("messages")
    # Columns that a client did not pack are unknown fields here, and would come back as columns.
    raw.DiscardUnknownFields()
    raw.frame_sizes = (lengths + 1 + varint_widths(lengths)).astype("<u4").tobytes()
    raw.tag_hashes = np.fromiter((text_hash(m.tag) for m in messages), "<u8", count).tobytes()
    raw.key_hashes = np.array(keys, "<u8").tobytes()
    raw.key_counts = key_counts.tobytes() if keys else b""
    return bytes(raw.SerializeToString() + region)


class Frame(NamedTuple):
    """One message as it is stored, and what the columns of its batch say of it."""

    data: bytes
    tag_hash: int
    key_hashes: Sequence[int]


def frame(message: Message, topic: str, message_bytes_max: int, data: bytes | None = None) -> Frame:
    """The frame of a message that protobuf has parsed, out of these bytes if they are given. Raises
    IllegalRequest (a tag), MessageTooLarge.
    """
    tag, keys = message.tag, message.keys
    if tag:
        names.check_tag(tag)
    if data is None:
        data = message.SerializeToString()
    length = len(data)
    if length > message_bytes_max:
        _check_length(length, topic, message_bytes_max)
        _check_body(message, topic, message_bytes_max)
    return Frame(
        _frame_head(length) + data,
        text_hash(tag) if tag else NO_TAG,
        [text_hash(key) for key in keys] if keys else (),
    )


def _frame_as_it_came(data: bytes, topic: str, message_bytes_max: int) -> Frame:
    """Raises as `frame`; DecodeError."""
    length = len(data)
    if length <= message_bytes_max and _is_body_alone(data):
        return Frame(_frame_head(length) + data, *_NO_HASHES)
    return frame(Message.FromString(data), topic, message_bytes_max, data)


def frame_hashes(data: bytes, topic: str, message_bytes_max: int) -> tuple[int, Sequence[int]]:
    """Of the tag and the keys, as `frame` has them, of a frame below 16 KiB that is stored as it
    came. Raises as `frame`; DecodeError.
    """
    message = data[2 if data[1] < 0x80 else 3 :]
    if len(message) <= message_bytes_max and _is_body_alone(message):
        return _NO_HASHES
    _, tag, keys = frame(Message.FromString(message), topic, message_bytes_max, message)
    return tag, keys


_NO_HASHES: tuple[int, Sequence[int]] = NO_TAG, ()


def _is_body_alone(message: bytes) -> bool:
    """Whether it has a body and nothing else: then there is nothing to be opened."""
    size = len(message)
    if size < _BODY_SMALL_BYTES:
        return size > 1 and message[0] == _BODY_TAG and message[1] == size - 2
    return (
        message[0] == _BODY_TAG
        and message[1] > 0x7F
        and message[1] + (message[2] - 1 << 7) == size - 3 >= 0x80
    )


def join(topic: str, queue_id: int, frames: Sequence[Frame], header: Header = _PLAIN) -> Batch:
    """The batch of a few messages, built without the checks of `accept`: topic and queue are known
    to be legal, and the frames were made here.
    """
    datas, tags, keys = zip(*frames, strict=True)
    return join_columns(topic, queue_id, datas, tags, keys, header)


def join_columns(
    topic: str,
    queue_id: int,
    datas: Sequence[bytes],
    tags: Sequence[int],
    keys: Sequence[Sequence[int]],
    header: Header = _PLAIN,
) -> Batch:
    """As `join`, of the columns of the frames."""
    column = _column_of_one if len(datas) == 1 else _column
    tag_hashes, tags_field = column(_TAG_HASHES, tuple(tags), "Q")
    sizes = tuple(map(len, datas))
    frame_sizes, sizes_field = column(_FRAME_SIZES, sizes, "I")
    columns = tags_field + sizes_field
    key_hashes, key_counts = _NO_KEY_HASHES, _NO_KEY_COUNTS
    if any(keys):
        key_hashes, hashes_field = _column(_KEY_HASHES, list(chain.from_iterable(keys)), "Q")
        key_counts, counts_field = _column(_KEY_COUNTS, list(map(len, keys)), "I")
        columns += hashes_field + counts_field
    head = header.encode(topic, queue_id, columns)
    start = len(head)
    return Batch(
        topic,
        queue_id,
        frame_sizes,
        _frame_starts(sizes, start),
        tag_hashes,
        key_hashes,
        key_counts,
        b"".join((head, *datas)),
        start,
        *header,
    )


def _frame_starts(sizes: Sequence[int], start: int) -> npt.NDArray[np.int64]:
    if len(sizes) == 1:
        return _one_start(start)
    return np.fromiter(accumulate(sizes[:-1], initial=start), np.int64, len(sizes))


# Callers choose topics, and a known one is seldom new.
@functools.lru_cache(maxsize=4096)
def _queue_fields(topic: str, queue_id: int) -> bytes:
    return RawBatch(topic=topic, queue_id=queue_id).SerializeToString()


def _field(number: int, content: bytes) -> bytes:
    return varint.field_head(number, len(content)) + content


def _column(number: int, values: Sequence[int], kind: str) -> tuple[npt.NDArray[Any], bytes]:
    """As an array, and as the field of this number; `kind` is that of `struct`."""
    packed = struct.pack(f"<{len(values)}{kind}", *values)
    return np.frombuffer(packed, f"<{kind}"), _field(number, packed)


# Sizes and tags of messages that are sent one by one are mostly those of others.
_column_of_one = functools.lru_cache(maxsize=4096)(_column)


@functools.lru_cache(maxsize=4096)
def _one_start(start: int) -> npt.NDArray[np.int64]:
    return np.frombuffer(struct.pack("<q", start), "<i8")


@functools.lru_cache(maxsize=4096)
def _frame_head(length: int) -> bytes:
    return bytes([FRAME_TAG]) + varint.encode(length)


def encode_batch(
    *,
    frames: Sequence[bytes | memoryview],
    frame_sizes: npt.NDArray[np.generic],
    tag_hashes: npt.NDArray[np.generic],
    key_hashes: npt.NDArray[np.generic],
    key_counts: npt.NDArray[np.generic],
    **header: Any,
) -> bytes:
    """A prepared batch of frames as they stand. An empty `half` is none."""
    if not header.get("half"):
        header.pop("half", None)
    head = RawBatch(
        frame_sizes=frame_sizes.astype("<u4").tobytes(),
        tag_hashes=tag_hashes.astype("<u8").tobytes(),
        key_hashes=key_hashes.astype("<u8").tobytes(),
        key_counts=key_counts.astype("<u4").tobytes(),
        **header,
    )
    return b"".join((head.SerializeToString(), *frames))


def with_header(batch: Batch, topic: str, queue_id: int, header: Header = _PLAIN) -> Batch:
    """The messages of a batch as they stand, behind another header."""
    columns = [
        _field(_TAG_HASHES, batch.tag_hashes.tobytes()),
        _field(_FRAME_SIZES, batch.frame_sizes.tobytes()),
    ]
    if len(batch.key_hashes):
        columns.append(_field(_KEY_HASHES, batch.key_hashes.tobytes()))
        columns.append(_field(_KEY_COUNTS, batch.key_counts.tobytes()))
    head = header.encode(topic, queue_id, b"".join(columns))
    start = len(head)
    starts = batch.frame_starts
    return Batch(
        topic,
        queue_id,
        batch.frame_sizes,
        _one_start(start) if len(starts) == 1 else starts + (start - batch.region_start),
        batch.tag_hashes,
        batch.key_hashes,
        batch.key_counts,
        b"".join((head, memoryview(batch.data)[batch.region_start :])),
        start,
        *header,
    )


def encode_payload(batches: Sequence[Batch], command: bytes = b"") -> list[bytes | memoryview]:
    """Buffers of the payload of one MESSAGES entry; the batches are not copied."""
    buffers: list[bytes | memoryview] = []
    for batch in batches:
        buffers.append(_BATCH_TAG + varint.encode(len(batch.data)))
        buffers.append(batch.data)
    if command:
        buffers += (_COMMAND_TAG + varint.encode(len(command)), command)
    return buffers


def decode_payload(payload: memoryview, log_offset: int) -> Decoded:
    """Decodes a payload that was checked when it came in. Raises MalformedBatch if it is none."""
    batches: list[tuple[Batch, int]] = []
    command = b""
    position = 0
    while position < len(payload):
        tag = payload[position]
        if tag not in (_BATCH_TAG[0], _COMMAND_TAG[0]) or command:
            raise MalformedBatch(f"no batch starts at byte {position} of the entry")
        length, start = read_varint(payload, position + 1)
        position = start + length
        if position > len(payload):
            raise MalformedBatch(f"a batch of {length} bytes does not fit its entry")
        if tag == _COMMAND_TAG[0]:
            command = bytes(payload[start:position])
        else:
            batches.append((parse_stored(payload[start:position]), log_offset + start))
    return Decoded(batches, command)


def data_offsets(batches: Sequence[Batch], payload_log_offset: int) -> list[int]:
    """Log offset of each batch, when they are written as one payload."""
    offsets = []
    for batch in batches:
        size = len(batch.data)
        payload_log_offset += 1 + varint.width(size)
        offsets.append(payload_log_offset)
        payload_log_offset += size
    return offsets


def message_of_frame(frame: bytes | memoryview) -> memoryview:
    """The bytes of the Message in one frame."""
    length, start = read_varint(memoryview(frame), 1)
    return memoryview(frame)[start : start + length]


def parse_stored(data: bytes | memoryview) -> Batch:
    """Bytes that were accepted once. MalformedBatch: they were not."""
    start = _region_start(data)
    if start == 0:
        raise MalformedBatch("not a prepared batch: its fields are cut short, or not in order")
    return _with_columns(_parse_header(data, start), data, start)


def _parse_header(data: bytes | memoryview, start: int) -> RawBatch:
    try:
        return RawBatch.FromString(bytes(data[:start]))
    except DecodeError as error:
        raise MalformedBatch(f"not a Batch: {error}") from None


def _with_columns(header: RawBatch, data: bytes | memoryview, start: int) -> Batch:
    packed_sizes, tags = header.frame_sizes, header.tag_hashes
    keys, key_counts = header.key_hashes, header.key_counts
    if len(packed_sizes) % 4 or len(tags) % 8 or len(keys) % 8 or len(key_counts) % 4:
        raise MalformedBatch("a packed field of the batch does not hold whole elements")
    frame_sizes = np.frombuffer(packed_sizes, "<u4")
    if len(frame_sizes) == 1:
        starts = _one_start(start)
    else:
        sizes = frame_sizes.astype(np.int64)
        starts = np.add.accumulate(sizes)
        starts += start
        starts -= sizes
    return Batch(
        header.topic,
        header.queue_id,
        frame_sizes,
        starts,
        np.frombuffer(tags, "<u8"),
        np.frombuffer(keys, "<u8") if keys else _NO_KEY_HASHES,
        np.frombuffer(key_counts, "<u4") if key_counts else _NO_KEY_COUNTS,
        data,
        start,
        header.producer_id,
        header.sequence,
        header.deliver_at_ms,
        header.delay_ms,
        _half_of(header),
        header.origin_log_offset,
    )


def _region_start(data: bytes | memoryview) -> int:
    """Position of the first frame. Walks the few fields before it, never the frames.

    0 unless these fields are in order, each one once and columns packed: only then do the broker,
    for which a column is bytes and the last one wins, and clients, for which it is a list that
    grows, read the same. It also bounds the walk.
    """
    position, end, last = 0, len(data), 0
    while position < end:
        key = data[position]
        if key == FRAME_TAG:
            return position
        number, wire_type = key >> 3, key & 7
        if key > 0x7F or number <= last or (number in _COLUMNS and wire_type != 2):
            return 0
        last = number
        match wire_type:
            case 2:
                length, position = read_varint(data, position + 1)
                position += length
            case 0:
                _, position = read_varint(data, position + 1)
            case 1:
                position += 9
            case 5:
                position += 5
            case _:
                return 0
    return position if position == end else 0


def prepared_header_bytes(data: bytes | memoryview) -> int:
    """The header before the frames of a prepared batch, in which `accept` finds all but the
    frames; 0: it reads the whole of this one. MalformedBatch.
    """
    start = _region_start(data)
    return start if start and _parse_header(data, start).frame_sizes else 0


def _check(
    batch: Batch,
    message_bytes_max: int,
    check_plain: Callable[[bytes | memoryview], None] | None,
) -> None:
    names.check_topic(batch.topic)
    if batch.queue_id > names.QUEUE_ID_MAX:
        raise IllegalTopic(
            f"queue {batch.queue_id} of topic {batch.topic}: at most {names.QUEUE_ID_MAX}"
        )
    smallest = int(np.minimum.reduce(batch.frame_sizes))
    largest = int(np.maximum.reduce(batch.frame_sizes))
    largest_message = largest - 1 - prefix_width(largest)
    _check_length(largest_message, batch.topic, message_bytes_max)
    if len(batch.tag_hashes) != batch.message_count:
        raise MalformedBatch(
            f"{len(batch.tag_hashes)} tag hashes for {batch.message_count} messages"
        )
    if len(batch.key_counts) not in (0, batch.message_count):
        raise MalformedBatch(
            f"{len(batch.key_counts)} key counts for {batch.message_count} messages"
        )
    if len(batch.key_hashes) != (
        len(batch.key_counts) and int(batch.key_counts.sum(dtype=np.int64))
    ):
        raise MalformedBatch("the key counts do not add up to the number of key hashes")
    if batch.origin_log_offset:
        raise MalformedBatch("origin_log_offset is the broker's own")
    check_messages(batch, smallest, largest, check_plain)
    if largest_message > message_bytes_max:
        _check_bodies(batch, message_bytes_max)


def _check_bodies(batch: Batch, message_bytes_max: int) -> None:
    """Raises MessageTooLarge if a body exceeds its limit. Opens only the few messages whose frames
    do.
    """
    large = np.flatnonzero(batch.frame_sizes > message_bytes_max)
    for start, size in zip(batch.frame_starts[large], batch.frame_sizes[large], strict=True):
        message = message_of_frame(batch.data[start : start + size])
        _check_body(Message.FromString(bytes(message)), batch.topic, message_bytes_max)


def _check_length(length: int, topic: str, message_bytes_max: int) -> None:
    if length > message_bytes_max + BESIDE_BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"a message of {length} bytes for topic {topic}: at most "
            f"{message_bytes_max} are allowed for its body and {BESIDE_BODY_BYTES_MAX} beside it"
        )


def _check_body(message: Message, topic: str, message_bytes_max: int) -> None:
    if len(message.body) > message_bytes_max:
        raise MessageTooLarge(
            f"a message with a body of {len(message.body)} bytes for topic {topic}: at most "
            f"{message_bytes_max} are allowed"
        )
