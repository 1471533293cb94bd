"""The rows of a task up to their end, or an error: never some of them that pass for all.

Spark hands rows to a Python worker as a stream of Arrow on a socket, and Arrow takes one that
breaks off between two batches for one that has ended. So when what makes the rows fails, when the
task is killed or Java dies, a worker sees an end like any other, and would write what it holds as
the last batch of the partition: a batch that nobody makes again. Behind rows that are complete
Spark sends a mark, which its worker reads when the task is over. Here it is looked at before.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark.serializers import SpecialLengths

from mq_spark.errors import MqSparkError

_END = struct.pack("!i", SpecialLengths.END_OF_STREAM)


@runtime_checkable
class _Peekable(Protocol):
    def peek(self, size: int, /) -> bytes: ...


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same. MqSparkError in place of an end that is none. For tasks only, and only for what
    Spark gives them: what is in between may have read further, or not so far.
    """
    source = _source()
    yield from batches
    if not _is_at_end(source):
        raise MqSparkError(
            "the rows of this task broke off: what makes them has failed, or the task was stopped"
        )


def _source() -> _Peekable:
    """What the worker reads from, a local variable of its main function: Spark tells it nobody."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        source = frame.f_locals.get("infile")
        if isinstance(source, _Peekable):
            return source
        frame = frame.f_back
    raise MqSparkError(
        "this version of Spark does not show whether the rows of a task are complete, so that some "
        "could be stored twice: use PySpark 4.2 or 4.3"
    )


def _is_at_end(source: _Peekable) -> bool:
    try:
        # Some bytes of the mark are as good as all: there is nothing else that could come.
        found = source.peek(len(_END))[: len(_END)]
    except OSError:
        return False
    return found != b"" and _END.startswith(found)
