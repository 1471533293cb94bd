"""An end of rows is one only when Spark says so."""

from __future__ import annotations

import io

import pyarrow as pa
import pyspark
import pytest
from pyspark import worker

from mq_spark.errors import MqSparkError
from mq_spark.writing.whole_input import whole
from mq_spark.writing.writer import write_target

BATCH = pa.RecordBatch.from_pydict({"body": [b"a", b"b"]})
END = b"\xff\xff\xff\xfc"


class Broken(io.RawIOBase):
    """A connection whose other side is gone."""

    def readable(self) -> bool:
        return True

    def readinto(self, _: object, /) -> int:
        raise ConnectionResetError


def main(infile: io.BufferedReader) -> int:
    """As the one of a worker: Arrow on the way, then a mark. How many batches came."""
    return len(list(whole(pa.ipc.open_stream(infile))))


def stream(*, behind: bytes, is_closed: bool = True) -> io.BufferedReader:
    data = io.BytesIO()
    writer = pa.ipc.new_stream(data, BATCH.schema)
    for _ in range(3):
        writer.write_batch(BATCH)
    if is_closed:
        writer.close()
    return io.BufferedReader(io.BytesIO(data.getvalue() + behind))


def test_rows_with_a_mark_behind_them_are_complete_and_the_mark_stays_for_the_worker() -> None:
    infile = stream(behind=END)
    assert main(infile) == 3
    assert infile.read() == END


@pytest.mark.parametrize("is_closed", [True, False])
def test_rows_that_break_off_between_two_batches_are_not_complete(is_closed: bool) -> None:
    with pytest.raises(MqSparkError, match="the rows of this task broke off"):
        main(stream(behind=b"", is_closed=is_closed))


def test_another_mark_and_a_connection_that_broke_are_no_end() -> None:
    with pytest.raises(MqSparkError, match="broke off"):
        main(stream(behind=b"\xff\xff\xff\xff"))

    def read(infile: io.BufferedReader) -> list[pa.RecordBatch]:
        assert infile.readable()
        return list(whole(iter([BATCH])))

    with pytest.raises(MqSparkError, match="broke off"):
        read(io.BufferedReader(Broken()))


def test_where_nothing_can_be_known_nothing_is_written() -> None:
    with pytest.raises(MqSparkError, match="does not show whether the rows of a task are complete"):
        next(whole(iter([BATCH])))


def test_a_pyspark_with_another_worker_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renamed(source: object, sink: object) -> None:
        """The main function of a worker, as a later PySpark may have it."""

    options = {"servers": "127.0.0.1:1", "topic": "t"}
    # The one that is installed is known.
    write_target(options)
    monkeypatch.setattr(worker, "main", renamed)
    with pytest.raises(MqSparkError, match=f"PySpark {pyspark.__version__} does not show"):
        write_target(options)
