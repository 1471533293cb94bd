"""Rows of a record batch as frames of messages, a column at a time.

Python runs once per compressed body, and once per distinct text, for its hash; never once per row.

    frame = 0x7A, varint length | body, tag, keys, properties, ordering key, compression, born at

Fields and limits are those of `mq.client.encode`. A row without `born_at` has a placeholder, which
is stamped when the row is sent: until then its bytes do not depend on the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mq.client.encode import (
    MESSAGE_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_MAX,
    Prepared,
)
from mq.errors import IllegalRequest, MessageTooLarge
from mq.hashing import text_hashes
from mq.limits import BESIDE_BODY_BYTES_MAX
from mq.names import check_tag
from mq.wire import varint

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

# Tags of the fields, as in `mq.client.encode`.
_BODY, _TAG, _KEY, _PROPERTY, _ORDERING_KEY, _BORN = 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x30
_PROPERTY_NAME, _PROPERTY_VALUE = 0x0A, 0x12
_MESSAGE = 0x7A
_COMPRESSED = b"\x38\x01"
# The placeholder has as many bytes as any time from 1971 to 2109.
_BORN_BYTES = 6
_NO_TIME_MS = 1 << 35
# Arrow's offsets have 32 bits, and memory has to be bounded.
_SLICE_BYTES = 64 << 20


class Encoded(NamedTuple):
    """One element per row, except for `key_hashes`: those of all rows, one after the other."""

    frames: pa.BinaryArray
    frame_sizes: Int64s
    tag_hashes: UInt64s
    key_counts: Int64s
    key_hashes: UInt64s
    # Chooses the queue of a row that has an ordering key.
    ordering_hashes: UInt64s
    is_ordered: Bools
    # `born_at` is still a placeholder.
    is_unstamped: Bools

    def take(self, rows: Int64s) -> Encoded:
        """These rows, in this order."""
        key_starts = np.cumsum(self.key_counts) - self.key_counts
        key_counts = self.key_counts[rows]
        return Encoded(
            self.frames.take(pa.array(rows)),
            self.frame_sizes[rows],
            self.tag_hashes[rows],
            key_counts,
            self.key_hashes[_spread(key_starts[rows], key_counts)],
            self.ordering_hashes[rows],
            self.is_ordered[rows],
            self.is_unstamped[rows],
        )

    def slice(self, start: int, end: int) -> Encoded:
        key_ends = np.concatenate(([0], np.cumsum(self.key_counts)))
        return Encoded(
            self.frames.slice(start, end - start),
            self.frame_sizes[start:end],
            self.tag_hashes[start:end],
            self.key_counts[start:end],
            self.key_hashes[key_ends[start] : key_ends[end]],
            self.ordering_hashes[start:end],
            self.is_ordered[start:end],
            self.is_unstamped[start:end],
        )

    def frame_bytes(self) -> npt.NDArray[np.uint8]:
        """All frames, one after the other."""
        _, offsets, data = self.frames.buffers()
        if data is None:
            return np.empty(0, np.uint8)
        first = np.frombuffer(offsets, np.int32)[self.frames.offset]
        return np.frombuffer(data, np.uint8)[first : first + int(self.frame_sizes.sum())]

    def columns(self) -> list[bytes]:
        """The columns of a batch of these rows, as they stand before its frames."""
        made = [
            _column(0x2A, self.tag_hashes.astype("<u8")),
            _column(0x32, self.frame_sizes.astype("<u4")),
        ]
        if len(self.key_hashes):
            made.append(_column(0x3A, self.key_hashes.astype("<u8")))
            made.append(_column(0x42, self.key_counts.astype("<u4")))
        return made

    def prepared(self) -> Prepared:
        """A batch of these rows, whose times are known."""
        columns = b"".join((*self.columns(), self.frame_bytes().data))
        return Prepared(columns, self.frame_sizes.astype("<u4").tobytes())


def joined(parts: Sequence[Encoded]) -> Encoded:
    if len(parts) == 1:
        return parts[0]
    frames, *columns = zip(*parts, strict=True)
    return Encoded(pa.concat_arrays(frames), *map(np.concatenate, columns))


def by_queue(encoded: Encoded, queues: int) -> list[tuple[int, Int64s | None]]:
    """The positions of queues, -1 for any of them, with their rows; None: all rows. Rows with an
    ordering key go to the queue to which a producer sends them.
    """
    if not encoded.is_ordered.any():
        return [(-1, None)]
    positions = (encoded.ordering_hashes % np.uint64(queues)).astype(np.int64)
    positions[~encoded.is_ordered] = -1
    order = np.argsort(positions, kind="stable")
    bounds = np.flatnonzero(np.diff(positions[order])) + 1
    return [(int(positions[rows[0]]), rows) for rows in np.split(order, bounds)]


# What a batch has for each message and each key beside the frames.
_ROW_BYTES, _KEY_BYTES = 12, 8


def weights(encoded: Encoded) -> Int64s:
    """The bytes of each row in a batch."""
    return encoded.frame_sizes + encoded.key_counts * _KEY_BYTES + _ROW_BYTES


def fitting(encoded: Encoded, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Rows that make a batch of up to so many bytes; a larger row is a batch of its own."""
    ends = np.cumsum(weights(encoded))
    start, before = 0, 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
        yield start, end
        start, before = end, int(ends[end - 1])


def _column(tag: int, values: npt.NDArray[Any]) -> bytes:
    return bytes((tag,)) + varint.encode(values.nbytes) + values.tobytes()


def slices(
    rows: pa.RecordBatch | pa.Table, slice_bytes: int = _SLICE_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in parts of about so many bytes, which can be encoded."""
    count = max(1, min(rows.num_rows, slice_bytes * rows.num_rows // max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, count):
        part = rows.slice(start, count)
        if isinstance(part, pa.Table):
            yield from part.combine_chunks().to_batches()
        else:
            yield part


def encode(
    batch: pa.RecordBatch, topic: str, compress_above_bytes: int, born_at_ms: int | None = None
) -> Encoded:
    """Reads the columns body, keys, tag, ordering_key, properties and born_at; others are ignored.
    `born_at_ms`: of rows without a time; None: they are stamped later. Raises IllegalRequest or
    MessageTooLarge with the topic if a row cannot be a message.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    count = batch.num_rows
    bodies, is_compressed = _bodies(_bytes(columns["body"]), topic, compress_above_bytes)
    pieces = _field(_BODY, bodies)
    tag_hashes = ordering_hashes = np.zeros(count, np.uint64)
    key_counts, key_hashes = np.zeros(count, np.int64), np.empty(0, np.uint64)
    if "tag" in columns:
        tags = _texts(columns["tag"], "tag", topic)
        _check_tags(tags, topic)
        pieces += _field(_TAG, tags)
        tag_hashes = _hashes(tags)
    if "keys" in columns:
        keys, key_counts = _keys(columns["keys"], topic)
        pieces.append(_joined_by_row(_field(_KEY, keys, is_always=True), key_counts))
        key_hashes = _hashes(keys)
    if "properties" in columns:
        pieces.append(_properties(columns["properties"], topic))
    is_ordered = np.zeros(count, np.bool_)
    if "ordering_key" in columns:
        ordering_keys = _texts(columns["ordering_key"], "ordering_key", topic)
        pieces += _field(_ORDERING_KEY, ordering_keys)
        ordering_hashes = _hashes(ordering_keys)
        is_ordered = _lengths(ordering_keys) > 0
    if is_compressed.any():
        pieces.append(_where(is_compressed, _COMPRESSED))
    born, is_unstamped = _born(columns.get("born_at"), count, born_at_ms)
    pieces.append(born)
    lengths = sum((_lengths(piece) for piece in pieces), np.zeros(count, np.int64))
    _check_bodies(_lengths(bodies), topic)
    _check_sizes(lengths, topic)
    heads = _numbers(lengths.view(np.uint64), _MESSAGE)
    frames = _join([heads, *pieces])
    return Encoded(
        frames,
        lengths + _lengths(heads),
        tag_hashes,
        key_counts,
        key_hashes,
        ordering_hashes,
        is_ordered,
        is_unstamped,
    )


def stamp(frames: npt.NDArray[np.uint8], frame_ends: Int64s, born_at_ms: int) -> None:
    """Replaces the placeholders of the frames that end at `frame_ends`."""
    # The last eight bytes of a frame, of which the time has the last six.
    words = np.ndarray((len(frames) - 7,), "<u8", frames.data, strides=(1,))
    born = int.from_bytes(varint.encode(born_at_ms).ljust(_BORN_BYTES, b"\0"), "little")
    at = frame_ends - 8
    words[at] = (words[at] & np.uint64(0xFFFF)) | np.uint64(born << 16)


# Fields


def _bodies(bodies: pa.Array, topic: str, compress_above_bytes: int) -> tuple[pa.Array, Bools]:
    """The bodies as they are sent, and which of them are compressed."""
    if bodies.null_count:
        raise IllegalRequest(
            f"topic {topic}: {bodies.null_count} of {len(bodies)} rows have no body (null): filter "
            "them out, or replace null by an empty text"
        )
    lengths = _lengths(bodies)
    is_compressed = np.zeros(len(bodies), np.bool_)
    large = np.flatnonzero(lengths > compress_above_bytes)
    if not len(large):
        return bodies, is_compressed
    # The body that a consumer gets has the same limit as the stored one.
    _check_bodies(lengths, topic)
    smaller: list[bytes] = []
    for at in large.tolist():
        body = bodies[at].as_buffer()
        compressed = lz4.frame.compress(body)
        if len(compressed) < body.size:
            is_compressed[at] = True
            smaller.append(compressed)
    return pc.replace_with_mask(
        bodies, pa.array(is_compressed), pa.array(smaller, pa.binary())
    ), is_compressed


def _check_tags(tags: pa.Array, topic: str) -> None:
    for tag in pc.unique(tags).to_pylist():
        try:
            check_tag(tag.decode())
        except IllegalRequest as error:
            raise IllegalRequest(f"topic {topic}: {error}") from None


def _keys(column: pa.Array, topic: str) -> tuple[pa.Array, Int64s]:
    """All keys of all rows, and how many each row has."""
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        # A text is one key; an empty text is no key.
        keys = _texts(column, "keys", topic)
        is_there = _lengths(keys) > 0
        return keys.filter(pa.array(is_there)), is_there.astype(np.int64)
    counts = _int64s(pc.fill_null(pc.list_value_length(column), 0))
    keys = column.flatten()
    if keys.null_count:
        raise IllegalRequest(
            f"topic {topic}: column keys has {keys.null_count} keys that are null: leave them out"
        )
    return _texts(keys, "keys", topic), counts


def _properties(column: pa.MapArray, topic: str) -> pa.Array:
    """The fields of all properties of a row, as one piece."""
    offsets = _int64s(column.offsets)
    # A row that is null may have elements all the same.
    counts = np.where(np.asarray(column.is_valid()), np.diff(offsets), 0)
    elements = pa.array(_spread(offsets[:-1], counts))
    names, values = column.keys.take(elements), column.items.take(elements)
    if values.null_count:
        raise IllegalRequest(
            f"topic {topic}: column properties has {values.null_count} values that are null: leave "
            "them out"
        )
    names, values = _texts(names, "properties", topic), _texts(values, "properties", topic)
    _check_properties(counts, _lengths(names) + _lengths(values), topic)
    entry = [
        *_field(_PROPERTY_NAME, names, is_always=True),
        *_field(_PROPERTY_VALUE, values, is_always=True),
    ]
    lengths = sum((_lengths(piece) for piece in entry), np.zeros(len(names), np.int64))
    return _joined_by_row([_numbers(lengths.view(np.uint64), _PROPERTY), *entry], counts)


def _check_properties(counts: Int64s, sizes: Int64s, topic: str) -> None:
    ends = np.concatenate(([0], np.cumsum(sizes)))
    last = np.cumsum(counts)
    bytes_by_row = ends[last] - ends[last - counts]
    if counts.max(initial=0) > PROPERTIES_MAX or bytes_by_row.max(initial=0) > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(
            f"topic {topic}: a message with {counts.max()} properties, one with "
            f"{bytes_by_row.max()} bytes of them: at most {PROPERTIES_MAX} of "
            f"{PROPERTIES_BYTES_MAX} bytes in all are allowed"
        )


def _check_bodies(lengths: Int64s, topic: str) -> None:
    largest = int(lengths.max(initial=0))
    if largest > MESSAGE_BYTES_MAX:
        raise MessageTooLarge(
            f"topic {topic}: a body of {largest} bytes: at most {MESSAGE_BYTES_MAX} are "
            "allowed; put the content elsewhere and send where it is"
        )


def _check_sizes(lengths: Int64s, topic: str) -> None:
    largest = int(lengths.max(initial=0))
    if largest > MESSAGE_BYTES_MAX + BESIDE_BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"topic {topic}: a message of {largest} bytes: at most {MESSAGE_BYTES_MAX} are allowed "
            f"for its body and {BESIDE_BODY_BYTES_MAX} for its tag, keys, properties and times"
        )


def _born(column: pa.Array | None, count: int, otherwise_ms: int | None) -> tuple[pa.Array, Bools]:
    no_time_ms = _NO_TIME_MS if otherwise_ms is None else otherwise_ms
    if column is None:
        piece = bytes([_BORN]) + varint.encode(no_time_ms)
        is_unstamped = np.full(count, otherwise_ms is None)
        return _where(np.ones(count, np.bool_), piece), is_unstamped
    micros = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64())
    has_no_time = np.asarray(pc.is_null(micros))
    at_ms = _int64s(pc.fill_null(micros, 0)) // 1_000
    at_ms[has_no_time] = no_time_ms
    is_unstamped = has_no_time & (otherwise_ms is None)
    return _numbers(at_ms.view(np.uint64), _BORN), is_unstamped


# Pieces of frames: arrays with some bytes of each row


def _field(tag: int, values: pa.Array, *, is_always: bool = False) -> list[pa.Array]:
    """Tag, length and value; no field for an empty value, unless `is_always`."""
    lengths = _lengths(values)
    present = None if is_always or lengths.all() else lengths > 0
    return [_numbers(lengths.view(np.uint64), tag, present), values]


def _numbers(values: UInt64s, tag: int, present: Bools | None = None) -> pa.Array:
    """A tag and a varint for each row, or no bytes where it is not present."""
    widths = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        more = values >= np.uint64(1 << bits)
        if not more.any():
            break
        widths += more
    width = int(widths.max(initial=1))
    table = np.empty((len(values), 1 + width), np.uint8)
    table[:, 0] = tag
    for byte in range(width):
        groups = (values >> np.uint64(7 * byte)).astype(np.uint8) & np.uint8(0x7F)
        table[:, 1 + byte] = groups | np.where(widths > byte + 1, np.uint8(0x80), np.uint8(0))
    sizes = 1 + widths
    if present is not None:
        sizes[~present] = 0
    if present is None and int(widths.min(initial=width)) == width:
        flat = table.reshape(-1)
    else:
        flat = table[np.arange(1 + width) < sizes[:, None]]
    return _binary(np.concatenate(([0], np.cumsum(sizes))), flat)


def _where(rows: Bools, piece: bytes) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(rows) * len(piece)))
    return _binary(offsets, np.frombuffer(piece * int(rows.sum()), np.uint8))


def _joined_by_row(pieces: list[pa.Array], counts: Int64s) -> pa.Array:
    """Pieces of elements, of which each row has `counts`, as one piece per row."""
    joined = _join(pieces)
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[np.concatenate(([0], np.cumsum(counts)))]
    return _binary(ends, data if data is not None else b"")


def _join(pieces: list[pa.Array]) -> pa.Array:
    if len(pieces[0]) == 0:
        return pa.array([], pa.binary())
    tables: list[npt.NDArray[np.uint8]] = []
    for piece in pieces:
        if (table := _table(piece)) is None:
            return pc.binary_join_element_wise(*pieces, b"")
        tables.append(table)
    # All rows are alike: columns of bytes are copied, which takes half of the time.
    rows: npt.NDArray[np.uint8] = np.concatenate(tables, axis=1)
    return _binary(np.arange(len(rows) + 1) * rows.shape[1], rows)


def _table(piece: pa.Array) -> npt.NDArray[np.uint8] | None:
    """The bytes as a table, if all rows have as many."""
    _, offsets, data = piece.buffers()
    kind = np.int64 if pa.types.is_large_binary(piece.type) else np.int32
    ends = np.frombuffer(offsets, kind)[piece.offset : piece.offset + len(piece) + 1]
    width = int(ends[1] - ends[0])
    if (np.diff(ends) != width).any():
        return None
    first, last = int(ends[0]), int(ends[-1])
    flat = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[first:last]
    return flat.reshape(len(piece), width)


def _binary(offsets: npt.NDArray[np.integer], data: object) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _bytes(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else pc.cast(column, pa.binary())


def _texts(column: pa.Array, name: str, topic: str) -> pa.Array:
    """As bytes; null becomes empty. Checks that they are UTF-8: a string column of Spark may have
    any bytes, and consumers could not read such a message.
    """
    texts = pc.fill_null(_bytes(column), b"")
    try:
        pc.cast(texts, pa.string())
    except pa.ArrowInvalid:
        raise IllegalRequest(
            f"topic {topic}: column {name} has bytes that are no text (UTF-8): put them into the "
            "body, or write them as text, as hex and base64 do"
        ) from None
    return texts


def _lengths(values: pa.Array) -> Int64s:
    return _int64s(pc.binary_length(values))


def _int64s(numbers: pa.Array) -> Int64s:
    return np.asarray(numbers).astype(np.int64)


def _hashes(texts: pa.Array) -> UInt64s:
    """The hash of each text; 0 for an empty one."""
    encoded = pc.dictionary_encode(texts)
    distinct = np.frombuffer(text_hashes(encoded.dictionary.to_pylist()), "<u8")
    hashes: UInt64s = distinct[np.asarray(encoded.indices)]
    return hashes


def _spread(starts: Int64s, counts: Int64s) -> Int64s:
    """start, start + 1, ... of each, `counts` of them."""
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    spread: Int64s = within + np.repeat(starts - (ends - counts), counts)
    return spread
