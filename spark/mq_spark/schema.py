"""The columns of format mq as Spark's own types: those of `mq.client.arrow.columns.schema`."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def spark_schema(*, with_properties: bool) -> StructType:
    fields = [
        StructField("keys", ArrayType(StringType())),
        StructField("body", BinaryType()),
        StructField("topic", StringType()),
        StructField("broker_set", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("tag", StringType()),
        StructField("ordering_key", StringType()),
    ]
    if with_properties:
        fields.append(StructField("properties", MapType(StringType(), StringType())))
    fields += [
        StructField("born_at", TimestampType()),
        StructField("stored_at", TimestampType()),
        StructField("message_id", StringType()),
        StructField("delivery_attempt", IntegerType()),
    ]
    return StructType(fields)
