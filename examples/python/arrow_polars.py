"""python arrow_polars.py TOPIC     a Polars data frame to a topic, and the topic as a data frame

Needs the extra mq[arrow], and polars.
"""

import os
import sys

import polars as pl

from mq.client import MqError, Producer, PullConsumer

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")

READINGS = pl.DataFrame(
    {"sensor": ["roof", "cellar", "roof", "cellar"], "celsius": [21.5, 12.0, 23.5, 12.5]}
)


def main(topic: str) -> None:
    bodies = pl.struct("sensor", "celsius").struct.json_encode()
    with Producer(SERVER) as producer:
        sent = producer.send_arrow(topic, READINGS.with_columns(body=bodies), keys="sensor")
        print(f"{sent.rows} rows sent")
    with PullConsumer(SERVER) as consumer:
        messages = pl.from_arrow(consumer.to_arrow(topic))
    fields = pl.Struct({"sensor": pl.String, "celsius": pl.Float64})
    readings = messages.select(
        pl.col("body").cast(pl.String).str.json_decode(fields).alias("reading")
    ).unnest("reading")
    for sensor, celsius in readings.group_by("sensor").mean().sort("sensor").rows():
        print(f"{sensor} {celsius}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python arrow_polars.py TOPIC")
    try:
        main(sys.argv[1])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
