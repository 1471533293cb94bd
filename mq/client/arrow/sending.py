"""Rows of a table as messages of a topic: `Producer.send_arrow`.

A few MiB of rows at a time are encoded and cut into batches on a thread, while the batches before
them are on their way. Batches go the way of all batches of the producer: its order, numbers,
retries and limits are theirs. Rows with an ordering key go to the queue of that key.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from mq.client.arrow.encoding import by_queue, encode, fitting, slices
from mq.client.encode import Prepared
from mq.client.messages import QueueRef
from mq.client.producer.bulk import SendResults
from mq.client.producer.queues import SendFuture
from mq.client.producer.sender import Sender
from mq.errors import IllegalRequest

# Encoded at a time: the loop and other threads wait for the interpreter meanwhile.
_SLICE_BYTES = 4 << 20

# A pyarrow table or record batch, or an object that exports an Arrow stream (`__arrow_c_stream__`),
# as data frames of Polars and pandas and relations of DuckDB do.
ArrowData: TypeAlias = Any


class ArrowSendResult(NamedTuple):
    """All rows are stored, in `batches` batches."""

    topic: str
    rows: int
    batches: int


class _PreparedRows(NamedTuple):
    # None: any.
    queue: QueueRef | None
    batch: Prepared


async def send_arrow(
    core: Sender, topic: str, data: ArrowData, names: Mapping[str, str | None], timeout_s: float
) -> ArrowSendResult:
    """`names`: the column of each part of a message, see `message_columns`. Returns when all rows
    are stored; raises the error of the first batch that failed.
    """
    table = message_columns(data, names)
    queues = await core.queues_of_keys(topic, timeout_s)
    results, count = SendResults(), 0
    parts = slices(table, _SLICE_BYTES)
    while (part := next(parts, None)) is not None:
        prepared = await asyncio.to_thread(_prepared, part, topic, core, queues)
        for queue, batch in prepared:
            future = SendFuture()
            queue_id, broker_set = (
                (None, "") if queue is None else (queue.queue_id, queue.broker_set)
            )
            args = batch, queue_id, future, timeout_s, broker_set
            add = functools.partial(core.accumulator.add_prepared, topic, *args)
            await core.added(topic, add, timeout_s)
            results.add(future, batch.count)
            count += 1
    await results.settled()
    results.raise_first()
    return ArrowSendResult(topic, table.num_rows, count)


def _prepared(
    part: pa.RecordBatch, topic: str, core: Sender, queues: Sequence[QueueRef]
) -> list[_PreparedRows]:
    plain = pa.schema([(field.name, _plain(field.type)) for field in part.schema])
    born_at_ms = time.time_ns() // 1_000_000
    options = core.options
    encoded = encode(part.cast(plain), topic, options.compress_above_bytes, born_at_ms)
    return [
        _PreparedRows(None if at < 0 else queues[at], own.slice(start, end).prepared())
        for at, rows in by_queue(encoded, len(queues))
        for own in [encoded if rows is None else encoded.take(rows)]
        for start, end in fitting(own, options.batch_bytes)
    ]


# -- columns ---------------------------------------------------------------------------------------


def message_columns(data: ArrowData, names: Mapping[str, str | None]) -> pa.Table:
    """The columns that make messages, under the names that `encode` knows. `names` has the column
    of each part of a message; None: the column of the same name, if there is one. Raises
    IllegalRequest for a column that is missing, not unique or of a wrong type; TypeError if `data`
    is no table.
    """
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else pa.table(data)
    columns = {}
    for part, given in names.items():
        name = given or part
        found = table.schema.get_all_field_indices(name)
        if not found and (given is not None or part == "body"):
            raise IllegalRequest(
                f"there is no column {name} among {', '.join(table.column_names)}: say which one "
                f"is the {part.replace('_', ' ')}, with {part}=..."
            )
        if len(found) > 1:
            raise IllegalRequest(f"there are {len(found)} columns {name}: keep one")
        # A column of nulls has no type, and says nothing.
        if found and (part == "body" or not pa.types.is_null(table.schema.types[found[0]])):
            columns[part] = _checked(table.column(found[0]), name, part)
    return pa.table(columns)


def _checked(column: pa.ChunkedArray, name: str, part: str) -> pa.ChunkedArray:
    fits, wanted = _PARTS[part]
    if not fits(_plain(column.type)):
        raise IllegalRequest(f"column {name} is {column.type}: {part} must be {wanted}")
    if part == "body" and column.null_count:
        raise IllegalRequest(
            f"{column.null_count} of {len(column)} rows have no body (column {name} is null): "
            "filter them out, or replace null by an empty text"
        )
    return column


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without a dictionary and without views, which `encode` takes."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.large_binary()
    if types.is_fixed_size_list(kind) or _is_list(kind):
        return pa.large_list(_plain(kind.value_type))
    return kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text_or_list(kind: pa.DataType) -> bool:
    return _is_text(kind) or (_is_list(kind) and _is_text(kind.value_type))


def _is_text_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


# Parts of a message: the types that a column may have, as a check and in words.
_PARTS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "body": (_is_bytes, "binary or string"),
    "keys": (_is_text_or_list, "string or list<string>"),
    "tag": (_is_text, "string"),
    "ordering_key": (_is_text, "string"),
    "properties": (_is_text_map, "map<string, string>"),
    "born_at": (pa.types.is_timestamp, "timestamp"),
}
