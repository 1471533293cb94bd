"""The schema of messages, and messages as Arrow record batches.

    keys, body, topic, broker_set, queue_id, queue_offset, tag, ordering_key, [properties,]
    born_at, stored_at, message_id, delivery_attempt

A missing tag or ordering key is null. `born_at` is the producer's clock, `stored_at` that of the
leader that stored the message. `properties` is an optional column.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mq.client.arrow.frames import FrameFields, read_frames
from mq.client.arrow.runs import Rows
from mq.client.arrow.slices import (
    binary_array,
    is_ascii,
    list_offsets,
    number_array,
    numbered_texts,
    or_null,
    text_array,
)
from mq.client.decode import Unreadable, decompressed
from mq.client.messages import QueueRef
from mq.limits import BODY_BYTES_MAX
from mq.names import DEAD_LETTER_PREFIX, GIVE_UP_TOPIC, RETRY_PREFIX, message_id
from mq.wire.walking import Flags, Many, Numbers, Slices

log = logging.getLogger(__name__)

# The approximate size of one record batch.
_BATCH_BYTES_MAX = 16 << 20
# Assumed of a compressed body whose header does not tell its size.
_BODY_BYTES_USUAL = 4 << 20
_YEAR_1_MS, _YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000
_TIME = pa.timestamp("us", "UTC")
_INT32_MAX = (1 << 31) - 1
_WITH_ORIGINS = (RETRY_PREFIX, DEAD_LETTER_PREFIX, GIVE_UP_TOPIC)
# How many unreadable messages of one batch are logged one by one.
_LOGGED_MAX = 20


@functools.cache
def message_schema(*, with_properties: bool) -> pa.Schema:
    """The columns of a record batch of messages."""
    fields = [
        pa.field("keys", pa.list_(pa.field("element", pa.string()))),
        pa.field("body", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("broker_set", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("queue_offset", pa.int64()),
        pa.field("tag", pa.string()),
        pa.field("ordering_key", pa.string()),
    ]
    if with_properties:
        fields.append(pa.field("properties", pa.map_(pa.string(), pa.string())))
    fields += [
        pa.field("born_at", _TIME),
        pa.field("stored_at", _TIME),
        pa.field("message_id", pa.string()),
        pa.field("delivery_attempt", pa.int32()),
    ]
    return pa.schema(fields)


def record_batches(
    rows: Rows, ref: QueueRef, *, with_properties: bool, tags: frozenset[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """As `record_batch`, in batches that are not empty and have about 16 MiB at most when their
    bodies are decompressed. A larger message is a batch of its own.
    """
    opened, texts = _open(rows)
    parts = _parts(rows, opened)
    for part in parts:
        if len(parts) > 1:
            opened, texts = _open(part)
        batch = _batch(part, opened, texts, ref, with_properties=with_properties, tags=tags)
        if batch.num_rows:
            yield batch


def record_batch(
    rows: Rows, ref: QueueRef, *, with_properties: bool, tags: frozenset[str] | None = None
) -> pa.RecordBatch:
    """One row per message, in the order of the queue; with `tags`, only messages that have one of
    them. An unreadable message is logged and left out.
    """
    opened, texts = _open(rows)
    return _batch(rows, opened, texts, ref, with_properties=with_properties, tags=tags)


def _batch(
    rows: Rows,
    opened: FrameFields,
    texts: _Texts,
    ref: QueueRef,
    *,
    with_properties: bool,
    tags: frozenset[str] | None,
) -> pa.RecordBatch:
    count = len(rows.queue_offsets)
    is_wanted = np.ones(count, np.bool_) if tags is None else _has_one_of(texts.tag, tags)
    body, unreadable = _bodies(opened, is_wanted)
    unreadable |= opened.unreadable
    is_wanted[list(unreadable)] = False
    _log_unreadable(rows, ref, unreadable)
    schema = message_schema(with_properties=with_properties)
    kinds = {field.name: field.type for field in schema}
    columns = {
        "keys": _list_array(kinds["keys"], opened.keys, texts.keys, count),
        "body": body,
        "topic": pa.repeat(pa.scalar(ref.topic), count),
        "broker_set": pa.repeat(pa.scalar(ref.broker_set), count),
        "queue_id": pa.repeat(pa.scalar(ref.queue_id, pa.int32()), count),
        "queue_offset": pa.array(rows.queue_offsets),
        "tag": or_null(texts.tag, opened.tag.sizes > 0),
        "ordering_key": or_null(texts.ordering_key, opened.ordering_key.sizes > 0),
        "born_at": _times(opened.born_at_ms),
        "stored_at": _times(rows.stored_at_ms),
        "message_id": numbered_texts(f"{ref.broker_set}:", rows.log_offsets),
        "delivery_attempt": _attempts(ref.topic, opened),
    }
    if with_properties:
        entries = pa.StructArray.from_arrays(
            [texts.property_names, texts.property_values],
            fields=[kinds["properties"].key_field, kinds["properties"].item_field],
        )
        columns["properties"] = _list_array(
            kinds["properties"], opened.property_names, entries, count
        )
    batch = pa.RecordBatch.from_arrays([columns[name] for name in kinds], schema=schema)
    return batch if is_wanted.all() else batch.filter(pa.array(is_wanted))


class _Texts(NamedTuple):
    """The text fields of `FrameFields`, without nulls."""

    tag: pa.StringArray
    ordering_key: pa.StringArray
    keys: pa.StringArray
    property_names: pa.StringArray
    property_values: pa.StringArray


def _open(rows: Rows) -> tuple[FrameFields, _Texts]:
    """The fields of all messages. Unusual messages are parsed by protobuf: those with text that may
    be malformed, and those with repeated properties, of which the last one counts.
    """
    by_protobuf = np.zeros(len(rows.frames_at), np.bool_)
    while True:
        opened = read_frames(rows.data, rows.frames_at, rows.frame_sizes, by_protobuf)
        try:
            texts = _texts(opened)
        except pa.ArrowInvalid:
            by_protobuf |= _is_beyond_ascii(opened)
            continue
        repeated = _with_repeated_names(opened.property_names, texts.property_names)
        if not len(repeated):
            return opened, texts
        by_protobuf[repeated] = True


def _texts(opened: FrameFields) -> _Texts:
    """Raises ArrowInvalid if a text is not UTF-8."""
    data = opened.data
    text_array(data, Slices(*opened.unused_texts[1:]))
    return _Texts(
        text_array(data, opened.tag),
        text_array(data, opened.ordering_key),
        text_array(data, Slices(*opened.keys[1:])),
        text_array(data, Slices(*opened.property_names[1:])),
        text_array(data, Slices(*opened.property_values[1:])),
    )


def _is_beyond_ascii(opened: FrameFields) -> Flags:
    """Marks the messages that have a text beyond ASCII."""
    found = ~is_ascii(opened.data, opened.tag) | ~is_ascii(opened.data, opened.ordering_key)
    for many in (
        opened.keys,
        opened.property_names,
        opened.property_values,
        opened.unused_texts,
    ):
        found[many.rows[~is_ascii(opened.data, Slices(*many[1:]))]] = True
    return found


def _with_repeated_names(many: Many, names: pa.StringArray) -> Numbers:
    """The rows of messages that have two properties of the same name."""
    if not (many.rows[1:] == many.rows[:-1]).any():
        return many.rows[:0]
    encoded = names.dictionary_encode()
    codes = np.sort(many.rows * len(encoded.dictionary) + encoded.indices.to_numpy())
    repeated: Numbers = codes[1:][codes[1:] == codes[:-1]] // len(encoded.dictionary)
    return repeated


def _has_one_of(tag: pa.StringArray, tags: frozenset[str]) -> Flags:
    chosen = pc.is_in(tag, pa.array(sorted(tags), pa.string()))
    return np.array(chosen.to_numpy(zero_copy_only=False), np.bool_)


# -- bodies ---------------------------------------------------------------------------------------


def _bodies(opened: FrameFields, is_wanted: Flags) -> tuple[pa.BinaryArray, dict[int, str]]:
    """The bodies, decompressed where they are wanted; and by row, why a body is unreadable."""
    compressed = np.flatnonzero((opened.compression != 0) & is_wanted)
    if not len(compressed):
        return binary_array(opened.data, opened.body), {}
    starts, sizes = opened.body.starts.copy(), opened.body.sizes.copy()
    pieces = [opened.data]
    unreadable: dict[int, str] = {}
    end = len(opened.data)
    for row in compressed.tolist():
        body = decompressed(_body(opened, row), int(opened.compression[row]))
        if isinstance(body, Unreadable):
            unreadable[row], body = body.reason, b""
        starts[row], sizes[row] = end, len(body)
        pieces.append(body)
        end += len(body)
    return binary_array(b"".join(pieces), Slices(starts, sizes)), unreadable


def _body(opened: FrameFields, row: int) -> bytes:
    start, size = int(opened.body.starts[row]), int(opened.body.sizes[row])
    return bytes(opened.data[start : start + size])


def _parts(rows: Rows, opened: FrameFields) -> list[Rows]:
    """Consecutive rows that fit into one batch when they are decompressed."""
    sizes = rows.frame_sizes.copy()
    for row in np.flatnonzero(opened.compression).tolist():
        sizes[row] += _declared_size(_body(opened, row))
    ends = np.cumsum(sizes)
    parts, first = [], 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _BATCH_BYTES_MAX, "right")))
        parts.append(Rows(rows.data, *(column[first:last] for column in rows[1:])))
        first = last
    return parts


def _declared_size(compressed: bytes) -> int:
    try:
        size: int = lz4.frame.get_frame_info(compressed)["content_size"]
    except RuntimeError:
        return 0
    return min(size or _BODY_BYTES_USUAL, BODY_BYTES_MAX)


# -- other columns --------------------------------------------------------------------------------


def _list_array(kind: pa.DataType, many: Many, values: pa.Array, count: int) -> pa.Array:
    """Lists or maps of the values."""
    buffers = [None, list_offsets(many, count)]
    return pa.Array.from_buffers(kind, count, buffers, children=[values])


def time_us(time_ms: int) -> int | None:
    """A time outside the years 1 to 9999 is null: Python and Spark cannot represent it."""
    return time_ms * 1000 if _YEAR_1_MS <= time_ms < _YEAR_10000_MS else None


def _times(times_ms: Numbers) -> pa.Array:
    """As `time_us`."""
    is_time = (times_ms >= _YEAR_1_MS) & (times_ms < _YEAR_10000_MS)
    return number_array(_TIME, np.where(is_time, times_ms, 0) * 1000, is_time)


def attempt_of(topic: str, attempts: int) -> int:
    """Only the broker's own topics have origins that count: elsewhere a producer may set any."""
    return min(attempts + 1, _INT32_MAX) if topic.startswith(_WITH_ORIGINS) else 1


def _attempts(topic: str, opened: FrameFields) -> pa.Array:
    """As `attempt_of`."""
    if not topic.startswith(_WITH_ORIGINS):
        return pa.repeat(pa.scalar(1, pa.int32()), len(opened.attempts))
    return pa.array(np.minimum(opened.attempts + 1, _INT32_MAX).astype(np.int32))


def _log_unreadable(rows: Rows, ref: QueueRef, unreadable: Mapping[int, str]) -> None:
    for row, reason in sorted(unreadable.items())[:_LOGGED_MAX]:
        log.error(
            "message %s, at %d of queue %d of topic %s, is passed over: %s",
            message_id(ref.broker_set, int(rows.log_offsets[row])),
            rows.queue_offsets[row],
            ref.queue_id,
            ref.topic,
            reason,
        )
    if len(unreadable) > _LOGGED_MAX:
        log.error(
            "%d more messages, up to %d of queue %d of topic %s, are passed over",
            len(unreadable) - _LOGGED_MAX,
            rows.queue_offsets[max(unreadable)],
            ref.queue_id,
            ref.topic,
        )
