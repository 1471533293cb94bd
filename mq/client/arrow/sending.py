"""Rows of a table as messages of a topic: `Producer.send_arrow`.

A few MiB of rows at a time are encoded and cut into batches on a thread, while the batches before
them are on their way: one per queue, up to `_IN_FLIGHT_BYTES`. Batches are numbered, so that one
that is sent again after a lost answer is stored once.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from mq.client.arrow.cutting import Cutter, NumberedBatch
from mq.client.arrow.encoding import encode, slices
from mq.client.cluster.connection import Connection
from mq.client.lowlevel import BatchSender, Shipment, Stored
from mq.errors import IllegalRequest

# Encoded at a time: the loop and other threads wait for the interpreter meanwhile.
_SLICE_BYTES = 4 << 20
_IN_FLIGHT_BYTES = 16 << 20

# A pyarrow table or record batch, or an object that exports an Arrow stream (`__arrow_c_stream__`),
# as data frames of Polars and pandas and relations of DuckDB do.
ArrowData: TypeAlias = Any


class ArrowSendResult(NamedTuple):
    """All rows are stored, in `batches` batches."""

    topic: str
    rows: int
    batches: int


class ArrowSender:
    """Sends the tables of one producer. Used on the loop of the connection."""

    def __init__(self, connection: Connection, compress_above_bytes: int) -> None:
        self._sender = BatchSender(connection)
        self._compress_above_bytes = compress_above_bytes
        self._writer = f"producer {uuid.uuid4()}"
        self._calls = itertools.count()

    async def send(
        self, topic: str, data: ArrowData, names: Mapping[str, str | None], timeout_s: float
    ) -> ArrowSendResult:
        """`names`: the column of each part of a message, see `message_columns`."""
        table = message_columns(data, names)
        queues = await self._sender.layout(topic, timeout_s)
        cutter = Cutter(self._writer, topic, queues, 0, next(self._calls))
        parts = slices(table, _SLICE_BYTES)
        in_flight = _InFlight(self._sender, timeout_s)
        try:
            while batches := await asyncio.to_thread(self._encoded, parts, topic, cutter):
                for batch in batches:
                    await in_flight.send(batch)
            for batch in cutter.flush(_now_ms()):
                await in_flight.send(batch)
            await in_flight.settle(0)
        finally:
            in_flight.cancel()
        return ArrowSendResult(topic, table.num_rows, in_flight.count)

    def _encoded(
        self, parts: Iterator[pa.RecordBatch], topic: str, cutter: Cutter
    ) -> list[NumberedBatch]:
        """The next complete batches; none at the end of the rows."""
        for part in parts:
            plain = pa.schema([(field.name, _plain(field.type)) for field in part.schema])
            encoded = encode(part.cast(plain), topic, self._compress_above_bytes)
            if batches := list(cutter.add(encoded, _now_ms())):
                return batches
        return []


class _InFlight:
    """The batches of one table that are on their way."""

    def __init__(self, sender: BatchSender, timeout_s: float) -> None:
        self.count = 0
        self._sender = sender
        self._timeout_s = timeout_s
        self._tasks: deque[tuple[int, asyncio.Task[Stored]]] = deque()
        self._bytes = 0

    async def send(self, batch: NumberedBatch) -> None:
        """Waits while there is too much on its way. Raises the error of an earlier batch."""
        size = len(batch.data)
        await self.settle(max(0, _IN_FLIGHT_BYTES - size))
        work = self._sender.send(Shipment(batch.queue, batch.data), self._timeout_s)
        self._tasks.append((size, asyncio.create_task(work)))
        self._bytes += size
        self.count += 1

    async def settle(self, bytes_max: int) -> None:
        """Returns when no more than so many bytes are on their way."""
        while self._bytes > bytes_max:
            size, task = self._tasks[0]
            await task
            self._tasks.popleft()
            self._bytes -= size

    def cancel(self) -> None:
        for _, task in self._tasks:
            task.cancel()
            # The first error was raised; asyncio would log those of the others.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
