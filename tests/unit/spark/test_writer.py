"""Wrong options and columns are refused before anything is written."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mq.client.lowlevel import ConnectionOptions
from mq_spark.errors import MqSparkError
from mq_spark.source import MqDataSource
from mq_spark.writing.sending import Target
from mq_spark.writing.writer import BatchWriter, StreamWriter, check_columns, write_target

OPTIONS = {"servers": "b-0:1, b-1:2", "topic": "t"}
TEXT, INT, LONG, TIME = StringType(), IntegerType(), LongType(), TimestampType()


def schema(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


BODY = schema(("body", TEXT))
EVERYTHING = (
    ("body", BinaryType()),
    ("keys", ArrayType(TEXT)),
    ("tag", TEXT),
    ("ordering_key", TEXT),
    ("properties", MapType(TEXT, TEXT)),
    ("topic", TEXT),
    ("born_at", TIME),
)
MADE_BY_BROKER = (
    ("broker_set", TEXT),
    ("queue_id", INT),
    ("queue_offset", LONG),
    ("stored_at", TIME),
    ("message_id", TEXT),
    ("delivery_attempt", INT),
)


@pytest.fixture(autouse=True)
def _traces(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is set where an error is to be told without its trace: here it is to last no longer.
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_options_have_defaults_and_any_case() -> None:
    assert write_target(OPTIONS) == Target(ConnectionOptions(("b-0:1", "b-1:2")), "t", 4096, 120)
    given = {"TOPIC": "u", "Zone": "z", "compressaboveBYTES": "0", "timeoutSeconds": "7"}
    assert write_target({"servers": "b:1", **given}) == Target(
        ConnectionOptions(("b:1",), zone="z"), "u", 0, 7
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"servers": ""}, "option servers is missing"),
        ({"servers": "nowhere"}, "nowhere"),
        ({"topics": "t"}, "option topics is unknown for writing with format mq: did you mean"),
        ({"startingOffsets": "earliest"}, "option startingOffsets is unknown for writing"),
        ({"topic": "a b"}, "topic: topic 'a b' is not legal"),
        ({"topic": "x" * 128}, "use 1 to 127 of letters, digits and .%|_-"),
        ({"topic": "%SYS%HALF"}, "topic: %SYS%HALF is written by the broker alone"),
        ({"topic": "%RETRY%g"}, "topic: %RETRY%g is written by the broker alone"),
        ({"path": "t"}, "path is for reading"),
        ({"compressAboveBytes": "-1"}, "compressAboveBytes = '-1': use a whole number, 0 or more"),
        ({"timeoutSeconds": "0"}, "timeoutSeconds = '0': use a whole number, 1 or more"),
        ({"timeoutSeconds": "1.5"}, "timeoutSeconds = '1.5': use a whole number"),
        ({"txnAppId": "a"}, "txnAppId = 'a', txnVersion = '': give both or none"),
        ({"txnVersion": "1"}, "txnAppId = '', txnVersion = '1': give both or none"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion = '-1': give both or none, a name"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], told: str) -> None:
    source = MqDataSource({**OPTIONS, **options})
    with pytest.raises(MqSparkError) as caught:
        source.writer(BODY, overwrite=False)
    assert told in str(caught.value)
    with pytest.raises(MqSparkError):
        source.streamWriter(BODY, overwrite=False)


def test_messages_are_not_replaced() -> None:
    source = MqDataSource(OPTIONS)
    with pytest.raises(MqSparkError) as caught:
        source.writer(BODY, overwrite=True)
    assert str(caught.value) == "mode overwrite: messages are not replaced; use mode('append')"
    with pytest.raises(MqSparkError) as caught:
        source.streamWriter(BODY, overwrite=True)
    assert str(caught.value) == "outputMode complete: messages are not replaced; use 'append'"


def test_a_stream_has_a_number_of_its_own() -> None:
    StreamWriter(OPTIONS, BODY)
    with pytest.raises(MqSparkError, match="txnAppId and txnVersion are for batches"):
        StreamWriter({**OPTIONS, "txnAppId": "a", "txnVersion": "1"}, BODY)


def test_outside_of_a_task_nothing_is_written() -> None:
    with pytest.raises(MqSparkError, match="no task of Spark"):
        BatchWriter(OPTIONS, BODY).write(iter(()))


@pytest.mark.parametrize(
    "columns",
    [
        BODY,
        schema(*EVERYTHING),
        schema(("body", TEXT), ("keys", TEXT), ("born_at", TimestampNTZType())),
        schema(*MADE_BY_BROKER, *EVERYTHING),
    ],
)
def test_columns_of_messages_and_of_the_source_are_taken(columns: StructType) -> None:
    check_columns(columns, "t")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            schema(("value", TEXT)),
            (
                "there is no column body among value: name the one that has the content, as "
                "df.selectExpr('value AS body') does"
            ),
        ),
        (
            schema(("body", TEXT), ("price", INT)),
            (
                "column price is no part of a message: leave it out with df.drop, or put it into "
                "one of body, keys, tag, ordering_key, properties, topic, born_at"
            ),
        ),
        (
            schema(("body", TEXT), ("tag", TEXT), ("tag", TEXT)),
            "there are 2 columns tag: keep one",
        ),
        (schema(("body", INT)), "column body is int: it must be binary or string"),
    ],
)
def test_a_wrong_schema_is_refused(columns: StructType, told: str) -> None:
    with pytest.raises(MqSparkError) as caught:
        check_columns(columns, "t")
    assert str(caught.value) == told
    for make in (MqDataSource(OPTIONS).writer, MqDataSource(OPTIONS).streamWriter):
        with pytest.raises(MqSparkError, match="column"):
            make(columns, overwrite=False)


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("keys", ArrayType(INT), "is array<int>: it must be array<string> or string"),
        ("tag", INT, "is int: it must be string"),
        ("tag", NullType(), "is void: it must be string"),
        ("ordering_key", LONG, "is bigint: it must be string"),
        ("properties", TEXT, "is string: it must be map<string,string>"),
        ("properties", MapType(TEXT, INT), "is map<string,int>: it must be map<string,string>"),
        ("topic", INT, "is int: it must be string"),
        ("born_at", LONG, "is bigint: it must be timestamp"),
    ],
)
def test_a_column_of_another_type_is_named(name: str, kind: DataType, told: str) -> None:
    with pytest.raises(MqSparkError) as caught:
        check_columns(schema(("body", TEXT), (name, kind)), "t")
    assert str(caught.value) == f"column {name} {told}"


def test_rows_need_a_topic() -> None:
    check_columns(schema(("body", TEXT), ("topic", TEXT)), "")
    with pytest.raises(MqSparkError) as caught:
        check_columns(BODY, "")
    assert str(caught.value) == "option topic is missing, and there is no column topic: give one"
