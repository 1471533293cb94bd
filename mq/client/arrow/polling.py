"""Messages that a member of a group was delivered, as record batches.

Runs whose messages differ in their bodies only are known by their layout: bodies are copied as a
table of bytes, and all other columns are told by run. Other messages are opened, see `columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mq.client.arrow.columns import attempt_of, message_schema, record_batch, time_us
from mq.client.arrow.runs import Rows
from mq.client.arrow.slices import numbered_texts
from mq.client.decode import Layout, RunPlace
from mq.client.messages import QueueRef
from mq.wire.v1.message_pb2 import Message
from mq.wire.walking import Numbers

if TYPE_CHECKING:
    from mq.client.batches import MessageBatch

_BODIES_BYTES_MAX = (1 << 31) - 1


def joined_columns(batches: Sequence[MessageBatch], *, with_properties: bool) -> pa.RecordBatch:
    """All messages in one record batch, in their order; it is empty without any."""
    schema = message_schema(with_properties=with_properties)
    if spans := _alike_spans(batches):
        return _alike_columns(spans, schema)
    made = [
        record_batch(_rows(batch), batch.queue, with_properties=with_properties)
        for batch in batches
    ]
    if len(made) == 1:
        return made[0]
    table = pa.Table.from_batches(made, schema).combine_chunks()
    found = table.to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema)


def _rows(batch: MessageBatch) -> Rows:
    runs, rows = batch.runs, batch.rows
    first = rows[0] if rows else 0
    spans = list(runs.spans(first, rows[-1] + 1 if rows else 0))
    starts = [_numbers(place.starts[at:to]) for place, at, to in spans]
    ends = [_numbers(place.starts[at + 1 : to + 1]) for place, at, to in spans]
    counts = [to - at for _, at, to in spans]
    columns = [
        _joined(starts),
        _joined(ends),
        _joined([np.arange(at, to) + place.queue_offset for place, at, to in spans]),
        _joined([own + place.log_shift for own, (place, _, _) in zip(starts, spans, strict=True)]),
        np.repeat(np.array([place.stored_at_ms for place, _, _ in spans], np.int64), counts),
    ]
    columns[1] -= columns[0]
    if not isinstance(rows, range):
        chosen = np.array(rows, np.int64) - first
        columns = [column[chosen] for column in columns]
    return Rows(runs.data, *columns)


def _numbers(found: Sequence[int]) -> Numbers:
    if isinstance(found, range):
        return np.arange(found.start, found.stop, found.step)
    return np.array(found, np.int64)


def _joined(parts: list[Numbers]) -> Numbers:
    return np.concatenate([np.empty(0, np.int64), *parts])


# Messages that are alike


class _Span(NamedTuple):
    """The messages [start, end) of a run, which differ in their bodies only."""

    queue: QueueRef
    data: bytes
    place: RunPlace
    start: int
    end: int
    layout: Layout
    # What they have beside their bodies.
    message: Message


def _alike_spans(batches: Sequence[MessageBatch]) -> list[_Span] | None:
    """None if some messages are not alike."""
    spans: list[_Span] = []
    for batch in batches:
        runs, rows = batch.runs, batch.rows
        if not isinstance(rows, range):
            return None
        for place, start, end in runs.spans(rows.start, rows.stop):
            layout = runs.layout(place)
            if layout is None or layout.tail is None:
                return None
            message = Message.FromString(layout.tail)
            spans.append(_Span(batch.queue, runs.data, place, start, end, layout, message))
    sets = {one.queue.broker_set for one in spans}
    bodies_bytes = sum(one.layout.body_bytes * (one.end - one.start) for one in spans)
    return spans if len(sets) == 1 and bodies_bytes <= _BODIES_BYTES_MAX else None


def _alike_columns(spans: Sequence[_Span], schema: pa.Schema) -> pa.RecordBatch:
    counts = np.array([one.end - one.start for one in spans])
    queues, messages = [one.queue for one in spans], [one.message for one in spans]
    log_offsets = [
        np.arange(one.place.starts[one.start], one.place.starts[one.end], one.layout.size)
        + one.place.log_shift
        for one in spans
    ]
    offsets = [np.arange(one.start, one.end) + one.place.queue_offset for one in spans]
    # One for each run...
    values: dict[str, list[Any]] = {
        "keys": [list(one.keys) for one in messages],
        "topic": [one.topic for one in queues],
        "broker_set": [one.broker_set for one in queues],
        "queue_id": [one.queue_id for one in queues],
        "tag": [one.tag or None for one in messages],
        "ordering_key": [one.ordering_key or None for one in messages],
        "properties": [list(one.properties.items()) for one in messages],
        "born_at": [time_us(one.born_at_ms) for one in messages],
        "stored_at": [time_us(one.place.stored_at_ms) for one in spans],
        "delivery_attempt": [
            attempt_of(queue.topic, one.origin.attempts)
            for queue, one in zip(queues, messages, strict=True)
        ],
    }
    # ... or for each message.
    columns = {
        "body": _bodies(spans),
        "queue_offset": pa.array(np.concatenate(offsets)),
        "message_id": numbered_texts(f"{queues[0].broker_set}:", np.concatenate(log_offsets)),
    }
    runs = pa.array(np.repeat(np.arange(len(spans)), counts))
    for field in schema:
        if field.name not in columns:
            own = values[field.name]
            if own.count(own[0]) == len(own) and not pa.types.is_nested(field.type):
                columns[field.name] = pa.repeat(pa.scalar(own[0], field.type), len(runs))
            else:
                columns[field.name] = pa.array(own, field.type).take(runs)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _bodies(spans: Sequence[_Span]) -> pa.Array:
    sizes = np.repeat(
        np.array([one.layout.body_bytes for one in spans]),
        np.array([one.end - one.start for one in spans]),
    )
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    bodies = np.empty(int(offsets[-1]), np.uint8)
    at = 0
    for _, data, place, start, end, layout, _ in spans:
        count, size = end - start, layout.body_bytes
        before = layout.body_at - place.starts[0]
        frames = np.frombuffer(data, np.uint8, count * layout.size, place.starts[start])
        target = bodies[at : at + count * size].reshape(count, size)
        target[:] = frames.reshape(count, layout.size)[:, before : before + size]
        at += count * size
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
