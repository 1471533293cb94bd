"""python arrow_duckdb.py TOPIC     SQL over a topic, batch by batch

Needs the extra mq[arrow], and duckdb.
"""

import os
import sys

import duckdb

from mq.client import MqError, Producer, PullConsumer

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")


def main(topic: str) -> None:
    made = duckdb.sql(
        "SELECT 'user-' || (n % 3) AS ordering_key, (n * 10)::VARCHAR AS body FROM range(9) t(n)"
    )
    with Producer(SERVER) as producer:
        print(f"{producer.send_arrow(topic, made).rows} rows sent")
    with PullConsumer(SERVER) as consumer:
        # DuckDB finds the reader by the name of the variable, and reads as it goes: the topic need
        # not fit into memory.
        messages = consumer.read_arrow(topic)  # noqa: F841 # named in the query
        found = duckdb.sql("""
            SELECT ordering_key, count(*), sum(decode(body)::INT)
            FROM messages GROUP BY ordering_key ORDER BY ordering_key
        """).fetchall()
    for user, count, total in found:
        print(f"{user}: {count} messages, {total} in all")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python arrow_duckdb.py TOPIC")
    try:
        main(sys.argv[1])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
