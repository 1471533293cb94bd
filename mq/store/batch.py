"""Batches as the store sees them: columns of sizes and hashes, and a region of message frames that
stays closed.

    batch   = fields of the header ... | frame | frame | ... | frame        (protobuf, see proto/mq/v1/message.proto)
    frame   = 0x7A, varint length, Message                                  (field 15 of Batch, length-delimited)
    payload = 0x0A, varint length, batch | 0x0A, varint length, batch ...   (field 1 of MessagesEntry)

A prepared batch is checked and stored as it came, with numpy over all frames at once; a plain one
is prepared first, which is the only place that opens messages. Nothing here runs Python once a
message except `prepare`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from mq import names
from mq.errors import IllegalTopic, MalformedBatch, MessageTooLarge
from mq.hashing import text_hash
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import RawBatch

FRAME_TAG = 0x7A
_BATCH_TAG = b"\x0a"
# A frame adds its tag and a length of up to four bytes to the message.
FRAME_OVERHEAD_MAX = 5
# The largest frame with a length prefix of one, two, three bytes: the tag, the prefix, 2**(7 *
# width) - 1.
_FRAME_MAX_BY_WIDTH = (1 + 1 + 127, 1 + 2 + 16_383, 1 + 3 + 2_097_151)


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

    @property
    def message_count(self) -> int:
        return len(self.frame_sizes)


def accept(data: bytes, message_bytes_max: int) -> Batch:
    """Checks what a producer sent, all of it, before anything is written.

    MalformedBatch, IllegalTopic and MessageTooLarge say what is wrong with it.
    """
    batch = _parse(data)
    if not len(batch.frame_sizes):
        batch = _parse(prepare(data))
    _check(batch, message_bytes_max)
    return batch


def prepare(data: bytes) -> bytes:
    """A prepared batch with the same messages: opens each one for its tag and keys."""
    try:
        messages = WireBatch.FromString(data).messages
        raw = RawBatch.FromString(data)
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
    raw.frame_sizes = (lengths + 1 + _varint_widths(lengths)).astype("<u4").tobytes()
    raw.tag_hashes = np.fromiter((text_hash(m.tag) for m in messages), "<u8", count).tobytes()
    raw.key_hashes = np.array(keys, "<u8").tobytes()
    raw.key_counts = key_counts.tobytes() if keys else b""
    return bytes(raw.SerializeToString() + region)


def encode_payload(batches: Sequence[Batch]) -> list[bytes | memoryview]:
    """Buffers of the payload of one MESSAGES entry; the batches are not copied."""
    buffers: list[bytes | memoryview] = []
    for batch in batches:
        buffers.append(_BATCH_TAG + _varint(len(batch.data)))
        buffers.append(batch.data)
    return buffers


def decode_payload(payload: memoryview, log_offset: int) -> Iterator[tuple[Batch, int]]:
    """The batches of a MESSAGES entry that was checked when it came in, each with the log offset of
    its first frame.
    """
    position = 0
    while position < len(payload):
        length, start = _read_varint(payload, position + 1)
        position = start + length
        if position > len(payload):
            raise MalformedBatch(f"a batch of {length} bytes does not fit its entry")
        batch = _parse(payload[start:position])
        yield batch, log_offset + start


def data_offsets(batches: Sequence[Batch], payload_log_offset: int) -> list[int]:
    """Log offset of each batch, when they are written as one payload."""
    offsets = []
    for batch in batches:
        size = len(batch.data)
        payload_log_offset += 1 + _varint_width(size)
        offsets.append(payload_log_offset)
        payload_log_offset += size
    return offsets


def message_of_frame(frame: bytes | memoryview) -> memoryview:
    """The bytes of the Message in one frame."""
    length, start = _read_varint(memoryview(frame), 1)
    return memoryview(frame)[start : start + length]


def _parse(data: bytes | memoryview) -> Batch:
    try:
        start = _region_start(data)
        header = RawBatch.FromString(bytes(data[:start]))
    except (DecodeError, IndexError) as error:
        raise MalformedBatch(f"not a Batch: {error}") from None
    packed_sizes, tags = header.frame_sizes, header.tag_hashes
    keys, key_counts = header.key_hashes, header.key_counts
    if len(packed_sizes) % 4 or len(tags) % 8 or len(keys) % 8 or len(key_counts) % 4:
        raise MalformedBatch("a packed field of the batch does not hold whole elements")
    frame_sizes = np.frombuffer(packed_sizes, "<u4")
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
        np.frombuffer(keys, "<u8"),
        np.frombuffer(key_counts, "<u4"),
        data,
        start,
    )


def _region_start(data: bytes | memoryview) -> int:
    """Where the first frame of `messages` stands. Walks the few fields before it, never the frames."""
    position, end = 0, len(data)
    while position < end:
        if data[position] == FRAME_TAG:
            return position
        key, position = _read_varint(data, position)
        match key & 7:
            case 2:
                length, position = _read_varint(data, position)
                position += length
            case 0:
                _, position = _read_varint(data, position)
            case 1:
                position += 8
            case 5:
                position += 4
            case wire_type:
                raise MalformedBatch(f"not a Batch: wire type {wire_type} at byte {position}")
    if position > end:
        raise MalformedBatch("not a Batch: it is cut short")
    return end


def _check(batch: Batch, message_bytes_max: int) -> None:
    names.check_topic(batch.topic)
    if batch.queue_id > names.QUEUE_ID_MAX:
        raise IllegalTopic(
            f"queue {batch.queue_id} of topic {batch.topic}: at most {names.QUEUE_ID_MAX}"
        )
    largest = int(np.maximum.reduce(batch.frame_sizes))
    if largest > message_bytes_max + FRAME_OVERHEAD_MAX:
        raise MessageTooLarge(
            f"a message of {largest} bytes for topic {batch.topic}: "
            f"at most {message_bytes_max} are allowed"
        )
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
    if not _frames_match(batch):
        raise MalformedBatch("frame_sizes are not the sizes of the messages that follow")


def _frames_match(batch: Batch) -> bool:
    """Whether the region is exactly frames of these sizes: tag, length prefix, nothing in between."""
    starts, sizes = batch.frame_starts, batch.frame_sizes.astype(np.uint64)
    if int(starts[-1]) + int(sizes[-1]) != len(batch.data):
        return False
    # The eight bytes at every position, as integers: one gather fetches tag and prefix of all frames.
    words = np.ndarray((len(batch.data) - 7,), "<u8", batch.data, strides=(1,))
    width = _prefix_width(int(sizes[0]))
    if _prefixes_match(words, starts, sizes, width):
        return True
    widths = 1 + np.searchsorted(_FRAME_MAX_BY_WIDTH, sizes)
    return all(
        _prefixes_match(words, starts[widths == width], sizes[widths == width], width)
        for width in range(1, 5)
    )


def _prefix_width(frame_size: int) -> int:
    """How many bytes of a frame are its length, given the size of the frame."""
    return 1 + bisect.bisect_left(_FRAME_MAX_BY_WIDTH, frame_size)


def _prefixes_match(
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.uint64],
    width: int,
) -> bool:
    """Whether each frame starts with the tag and its length, `width` bytes in groups of seven bits.

    A size that needs another width, or has no room for a prefix, never matches: what does not fit
    the groups stays above them.
    """
    expected = sizes - (1 + width)
    for byte in range(1, width):
        # Everything from this group on moves up by the one bit that says "more follows".
        low = expected & ((1 << (8 * byte - 1)) - 1)
        expected <<= 1
        expected -= low
        expected |= 0x80 << (8 * (byte - 1))
    expected <<= 8
    expected |= FRAME_TAG
    # Eight bytes that end with the prefix: a short last frame has no eight bytes of its own, and the
    # header of a prepared batch is longer than what is read before the first frame.
    found = words[starts + (width - 7)]
    found >>= 8 * (7 - width)
    return bool((found == expected).all())


def _varint_widths(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    widths = np.ones_like(values)
    for limit in (1 << 7, 1 << 14, 1 << 21, 1 << 28):
        widths += values >= limit
    return widths


def _varint_width(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Value and position behind it. IndexError when the data ends first."""
    byte = data[position]
    value, shift = byte & 0x7F, 7
    while byte & 0x80:
        position += 1
        if shift > 63:
            raise MalformedBatch("not a Batch: a varint of more than ten bytes")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, position + 1
