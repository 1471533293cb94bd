"""One line out of what Spark makes of an error."""

from __future__ import annotations

import os

import pytest

from mq.errors import TopicNotFound
from mq_spark.errors import MqSparkError, as_our_own, explain

WRAPPED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
initialOffset: Traceback (most recent call last):
  File "x.py", line 1, in f
mq_spark.errors.MqSparkError: topic t does not exist
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ==="""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MqSparkError("a\n  b"), "a b"),
        (TopicNotFound("no t"), "no t"),
        (RuntimeError(WRAPPED), "topic t does not exist"),
        (RuntimeError("x\nmq.errors.Unreachable: nobody\n y"), "Unreachable: nobody"),
        (
            RuntimeError("[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03\n at z"),
            "Path does not exist: /x.",
        ),
        (RuntimeError("\n\n"), "RuntimeError"),
    ],
)
def test_one_line_says_it(error: Exception, told: str) -> None:
    assert explain(error) == told


def test_errors_of_the_client_become_ours_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(MqSparkError, match="no t"), as_our_own():
        raise TopicNotFound("no t")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


def test_mistakes_of_our_own_keep_their_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ZeroDivisionError), as_our_own():
        raise ZeroDivisionError
    assert not os.environ["SPARK_HIDE_TRACEBACK"]
