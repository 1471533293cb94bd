"""A wrong sink is refused when it is made; the rows of a function are checked."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from mq.client import Message
from mq_spark.errors import MqSparkError
from mq_spark.writing.sink import _record_batch, sink


def _plain(row: Row) -> str:
    return str(row)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "sink: give either topic or topic_column"),
        ({"topic": "t", "topic_column": "c"}, "sink: give either topic or topic_column"),
        ({"topic": "t", "message": _plain, "keys": "k"}, "give columns, or a function `message`"),
        ({"topic": "t", "message": _plain, "body": "b"}, "give columns, or a function `message`"),
        ({"topic_column": "c", "message": _plain}, "give columns, or a function `message`"),
        ({"topic": "a b"}, "topic: topic 'a b' is not legal"),
        ({"topic": "%SYS%HALF"}, "%SYS%HALF is written by the broker alone"),
        ({"topic": "t", "servers": []}, "option servers is missing"),
        ({"topic": "t", "servers": "nowhere"}, "nowhere"),
        ({"topic": "t", "timeout_s": 0}, "timeoutSeconds = '0'"),
        ({"topic": "t", "compress_above_bytes": -1}, "compressAboveBytes = '-1'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(MqSparkError) as caught:
        sink(**{"servers": "b:1", **arguments})
    assert told in str(caught.value)


def test_a_function_makes_messages_bytes_or_texts() -> None:
    whole = Message(b"a", tag="t", keys=["k", "l"], properties={"p": "q"}, ordering_key="o")
    made = _record_batch([whole, Message(b"b", keys="one"), b"c", "é"]).to_pylist()
    assert made[0] == {
        "body": b"a",
        "keys": ["k", "l"],
        "tag": "t",
        "ordering_key": "o",
        "properties": [("p", "q")],
    }
    assert made[1]["keys"] == ["one"]
    assert [row["body"] for row in made[1:]] == [b"b", b"c", "é".encode()]
    assert _record_batch([]).num_rows == 0


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "the body of a message is bytes or str, not NoneType"),
        (Message(7), "the body of a message is bytes or str, not int"),  # type: ignore[arg-type]
        (Message(b"", delay_s=1), "delivered at once and has no priority"),
        (Message(b"", priority=1), "delivered at once and has no priority"),
        (Message(b"", tag=7), "what `message` gave is no message"),  # type: ignore[arg-type]
        (Message(b"", keys=[7]), "what `message` gave is no message"),  # type: ignore[list-item]
        (Message(b"", properties={"n": 7}), "`message` gave is no message"),  # type: ignore[dict-item]
        ("\ud800", "what `message` gave is no message"),
        (Message(b"", tag="\ud800"), "what `message` gave is no message"),
    ],
)
def test_an_illegal_message_is_refused_with_its_reason(made: Any, told: str) -> None:
    with pytest.raises(MqSparkError) as caught:
        _record_batch([b"good", made])
    assert told in str(caught.value)
