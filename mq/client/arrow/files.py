"""Record batches in a file: Parquet, or the IPC format of Arrow.

The file has a valid end only when it is closed. Batches are gathered to about 16 MiB before they
are written, as one row group of Parquet or one batch of Arrow, except for a stream: that is for a
pipe, whose reader is to see rows as they come.
"""

from __future__ import annotations

from types import TracebackType
from typing import BinaryIO, Literal, Self

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

FileFormat = Literal["arrow", "arrow-stream", "parquet"]

_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 16 << 20


class TableFile:
    """`target`: a path, or a file that is open for writing, which stays open."""

    def __init__(self, target: str | BinaryIO, kind: FileFormat, schema: pa.Schema) -> None:
        self._sink = pa.OSFile(target, "wb") if isinstance(target, str) else pa.PythonFile(target)
        self._is_ours = isinstance(target, str)
        self._is_stream = kind == "arrow-stream"
        self._schema = schema
        if kind == "parquet":
            self._writer = pa.parquet.ParquetWriter(self._sink, schema, compression="zstd")
        elif kind == "arrow":
            self._writer = pa.ipc.new_file(self._sink, schema)
        else:
            self._writer = pa.ipc.new_stream(self._sink, schema)
        self._gathered: list[pa.RecordBatch] = []
        self._is_closed = False
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self.rows += batch.num_rows
        rows = sum(one.num_rows for one in self._gathered)
        size = sum(one.nbytes for one in self._gathered)
        if self._is_stream or rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered, self._schema).combine_chunks()
            self._writer.write_table(table)
            self._gathered = []
        self._sink.flush()

    def close(self) -> None:
        """Writes the rest and the end of the file. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._flush()
            self._writer.close()
        finally:
            if self._is_ours:
                self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
