"""Rows of a batch, by the topic that each of them names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mq_spark.errors import MqSparkError
from mq_spark.writing.sending import by_topic


def batch(topics: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"topic": topics, "body": pa.array(range(len(topics)))})


def test_rows_of_a_topic_keep_their_order() -> None:
    rows = batch(pa.array(["b", "a", "b", "a", "b"]))
    found = {topic: part.column("body").to_pylist() for topic, part in by_topic(rows)}
    assert found == {"b": [0, 2, 4], "a": [1, 3]}


def test_one_topic_for_all_needs_no_column() -> None:
    ((topic, part),) = by_topic(pa.record_batch({"body": pa.array([1, 2])}), "t")
    assert (topic, part.num_rows) == ("t", 2)


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        (pa.array(["a", None]), "column topic is null in 1 of 2 rows"),
        # As Spark's cast of binary to string makes them.
        (
            pa.StringArray.from_buffers(
                1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
            ),
            "column topic has bytes that are no text",
        ),
    ],
)
def test_rows_without_a_legal_topic_are_refused(topics: pa.Array, told: str) -> None:
    with pytest.raises(MqSparkError, match=told):
        list(by_topic(batch(topics)))
