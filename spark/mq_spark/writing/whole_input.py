"""The rows of a task up to their end, or an error: never some of them that pass for all.

Spark hands rows to a Python worker as a stream of Arrow on a socket, and Arrow takes one that
breaks off between two batches for one that has ended. So when what makes the rows fails, when the
task is killed or Java dies, a worker sees an end like any other, and would write what it holds as
the last batch of the partition: a batch that no other attempt makes again. Behind rows that are
complete Spark sends a mark, which its worker reads when the task is over. Here it is looked at
before.

The stream is an argument of the worker's main function, which Spark does not hand to tasks: `whole`
takes it from the stack. `check_pyspark` fails at once with a PySpark whose worker has another one.
"""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyspark
from pyspark import worker
from pyspark.serializers import SpecialLengths

from mq_spark.errors import MqSparkError

_END = struct.pack("!i", SpecialLengths.END_OF_STREAM)
# The name of the stream in the worker's main function.
_INPUT = "infile"
_UNKNOWN_WORKER = (
    f"PySpark {pyspark.__version__} does not show whether the rows of a task are complete, so that "
    "some could be stored twice: use PySpark 4.2 or 4.3"
)


@runtime_checkable
class _Peekable(Protocol):
    def peek(self, size: int, /) -> bytes: ...


def check_pyspark() -> None:
    """For the driver, before there are tasks. MqSparkError: tasks would not find their input."""
    if _INPUT not in inspect.signature(worker.main).parameters:
        raise MqSparkError(_UNKNOWN_WORKER)


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
    """The stream that the worker reads from."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        source = frame.f_locals.get(_INPUT)
        if isinstance(source, _Peekable):
            return source
        frame = frame.f_back
    raise MqSparkError(_UNKNOWN_WORKER)


def _is_at_end(source: _Peekable) -> bool:
    try:
        # Some bytes of the mark are as good as all: there is nothing else that could come.
        found = source.peek(len(_END))[: len(_END)]
    except OSError:
        return False
    return found != b"" and _END.startswith(found)
