"""Files of record batches: complete when they are closed, in groups of a useful size."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from mq.client.arrow import files
from mq.client.arrow.files import TableFile

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema({"body": pa.binary()})
BODIES = [[b"a", b"b"], [], [b"c"], [b"d" * 100]]
ALL = [body for bodies in BODIES for body in bodies]


def batch_of(bodies: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": bodies}, SCHEMA)


def test_batches_are_gathered_into_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_GROUP_ROWS", 3)
    path = tmp_path / "file"
    with TableFile(str(path), "parquet", SCHEMA) as file:
        for bodies in BODIES:
            file.write(batch_of(bodies))
    assert file.rows == len(ALL)
    found = pa.parquet.ParquetFile(path)
    assert [found.metadata.row_group(at).num_rows for at in range(2)] == [3, 1]
    assert found.read().column("body").to_pylist() == ALL


def test_an_arrow_file_can_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with TableFile(str(path), "arrow", SCHEMA) as file:
        for bodies in BODIES:
            file.write(batch_of(bodies))
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        assert reader.num_record_batches == 1
        assert reader.read_all().column("body").to_pylist() == ALL


def test_a_stream_shows_every_batch_at_once() -> None:
    pipe = io.BytesIO()
    with TableFile(pipe, "arrow-stream", SCHEMA) as file:
        for at, bodies in enumerate(filter(None, BODIES)):
            file.write(batch_of(bodies))
            with pa.ipc.open_stream(pipe.getvalue()) as reader:
                *_, newest = (reader.read_next_batch() for _ in range(at + 1))
                assert newest.column("body").to_pylist() == bodies
    assert not pipe.closed
    with pa.ipc.open_stream(pipe.getvalue()) as reader:
        assert reader.read_all().column("body").to_pylist() == ALL


@pytest.mark.parametrize("kind", ["arrow", "arrow-stream", "parquet"])
def test_a_file_without_rows_has_a_schema_and_closes_twice(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    file = TableFile(str(path), kind, SCHEMA)  # type: ignore[arg-type] # one of three
    file.close()
    file.close()
    if kind == "parquet":
        assert pa.parquet.read_table(path).schema == SCHEMA
        return
    opened = pa.ipc.open_file(path) if kind == "arrow" else pa.ipc.open_stream(path.read_bytes())
    with opened as reader:
        assert reader.read_all().schema == SCHEMA
