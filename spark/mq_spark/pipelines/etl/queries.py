"""The two queries of the tutorial, in plain PySpark. Read this file from top to bottom.

    shop-clicks ──────────────► sessions ─► topic shop-sessions, Parquet
    shop-orders ──┬─ join ────► sales ────► topic shop-sales, Parquet
    shop-payments ┘

Each query has a checkpoint, which says how far it is, and writes a batch that it has to repeat
after a crash under the same number: into the topic once, into the same Parquet folder. So the
results are exact, whenever and however often the program is killed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from mq.client.lowlevel import ConnectionOptions
from mq_spark.options import connection_options
from mq_spark.pipelines.etl.shop import CLOSES_HOUR, PAY_WITHIN_MINUTES, SESSION_GAP_MINUTES
from mq_spark.pipelines.etl.traffic import Topics
from mq_spark.writing.sink import sink

# How much later than the latest event another one may come in and still be counted. Spark keeps
# what it may need for so long, and has results final after it.
LATENESS = "10 minutes"

SESSION_COLUMNS = ["user", "began_at", "ended_at", "clicks", "has_cart", "has_checkout"]
SALE_COLUMNS = ["order_id", "user", "amount_cents", "ordered_at", "paid_at", "method", "status"]

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from mq_spark.pipelines.common import Runs

WriteBatch = Callable[[DataFrame, int], None]


def read_topic(
    spark: SparkSession, connection: ConnectionOptions, topic: str, group: str, fields: str
) -> DataFrame:
    """The messages of a topic as a stream of rows with these fields, out of their JSON.

    `group` makes the query visible to operators: `mq group describe` shows how far it is behind.
    """
    messages = (
        spark.readStream.format("mq")
        .options(**connection_options(connection))
        .option("subscribe", topic)
        .option("group", group)
        # A new query begins with the oldest message. A restarted one goes on at its checkpoint.
        .option("startingOffsets", "earliest")
        .load()
    )
    # A body that is no such JSON makes a row of nulls, which the condition of is_open drops.
    event = F.from_json(messages.body.cast("string"), fields)
    return messages.select(event.alias("event")).select("event.*")


def is_open(at: Column) -> Column:
    """True for events of the day, false for the mark that ends a topic.

    The mark has to reach the watermark first, so this stands behind `withWatermark`. And it has to
    ask for the time: Spark's optimizer moves conditions on other columns before the watermark.
    """
    return F.hour(at) < CLOSES_HOUR


def sessions(spark: SparkSession, connection: ConnectionOptions, topics: Topics) -> DataFrame:
    """Clicks of one user, as long as they are not further apart than the gap. A session is there
    once the watermark has passed its end: then no click can be added.
    """
    clicks = (
        read_topic(
            spark,
            connection,
            topics.clicks,
            topics.sessions,
            "user string, page string, at timestamp",
        )
        .withWatermark("at", LATENESS)
        .where(is_open(F.col("at")))
    )
    return (
        clicks.groupBy(F.session_window("at", f"{SESSION_GAP_MINUTES} minutes"), "user")
        .agg(
            F.min("at").alias("began_at"),
            F.max("at").alias("ended_at"),
            F.count("*").alias("clicks"),
            F.max(F.col("page") == "/cart").alias("has_cart"),
            F.max(F.col("page") == "/checkout").alias("has_checkout"),
        )
        .select(SESSION_COLUMNS)
    )


def sales(spark: SparkSession, connection: ConnectionOptions, topics: Topics) -> DataFrame:
    """Every order with its payment. An order is there when it is paid; or, without a payment, once
    the watermarks of both streams have passed the time in which it could have been paid.
    """
    orders = (
        read_topic(
            spark,
            connection,
            topics.orders,
            topics.sales,
            "order_id string, user string, amount_cents long, at timestamp",
        )
        .withColumnRenamed("at", "ordered_at")
        .withWatermark("ordered_at", LATENESS)
        .where(is_open(F.col("ordered_at")))
    )
    payments = (
        read_topic(
            spark,
            connection,
            topics.payments,
            topics.sales,
            "order_id string, method string, at timestamp",
        )
        .withColumnRenamed("at", "paid_at")
        .withWatermark("paid_at", LATENESS)
        .where(is_open(F.col("paid_at")))
    )
    # The bounds in time tell Spark how long it has to keep an order that waits for its payment.
    in_time = F.expr(
        "orders.order_id = payments.order_id AND paid_at BETWEEN ordered_at AND "
        f"ordered_at + INTERVAL {PAY_WITHIN_MINUTES} MINUTES"
    )
    joined = orders.alias("orders").join(payments.alias("payments"), in_time, "left_outer")
    status = F.when(F.col("paid_at").isNull(), "unpaid").otherwise("paid")
    return joined.withColumn("status", status).select("orders.order_id", *SALE_COLUMNS[1:])


def sessions_to_topic(connection: ConnectionOptions, topic: str, checkpoint: str) -> WriteBatch:
    """Rows become messages by what the sink is told of their columns. Of the checkpoint it needs
    the id of the query, if this runs through Spark Connect.
    """
    body = F.to_json(F.struct(*SESSION_COLUMNS))
    return sink(
        **connection.shared, topic=topic, body=body, ordering_key="user", checkpoint=checkpoint
    )


def sales_to_topic(connection: ConnectionOptions, topic: str, checkpoint: str) -> WriteBatch:
    """With the status as the tag, so that a consumer can ask for what is unpaid alone."""
    body = F.to_json(F.struct(*SALE_COLUMNS))
    keys = F.array("order_id")
    return sink(
        **connection.shared,
        topic=topic,
        body=body,
        keys=keys,
        tag="status",
        checkpoint=checkpoint,
    )


def also_to_parquet(to_topic: WriteBatch, folder: str) -> WriteBatch:
    """The function of each batch of results, for `foreachBatch`."""

    def write(rows: DataFrame, batch_id: int) -> None:
        # After a crash Spark makes the same batch once more. The broker knows the rows that it has
        # by their place in it, so they need an order that does not depend on chance.
        rows = rows.sortWithinPartitions(*rows.columns)
        # Two outputs: without this Spark would read and compute everything twice.
        rows.persist()
        try:
            to_topic(rows, batch_id)
            # A batch that is repeated replaces its own files.
            rows.coalesce(1).write.mode("overwrite").parquet(f"{folder}/batch={batch_id}")
        finally:
            rows.unpersist()

    return write


def start(
    spark: SparkSession, connection: ConnectionOptions, topics: Topics, folder: str, runs: Runs
) -> dict[str, StreamingQuery]:
    """Both queries, by name. `runs` says whether they end when all of now is done."""
    parts = {
        "sessions": (sessions(spark, connection, topics), sessions_to_topic, topics.sessions),
        "sales": (sales(spark, connection, topics), sales_to_topic, topics.sales),
    }
    started = {}
    for name, (rows, to_topic, topic) in parts.items():
        # Each query has a checkpoint of its own: two must never share one.
        checkpoint = f"{runs.checkpoint or f'{folder}/checkpoints'}/{name}"
        write = also_to_parquet(to_topic(connection, topic, checkpoint), f"{folder}/{name}")
        own = dataclasses.replace(runs, checkpoint=checkpoint)
        started[name] = own.start(rows.writeStream.queryName(name).foreachBatch(write), checkpoint)
    return started
