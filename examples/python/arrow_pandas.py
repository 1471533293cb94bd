"""python arrow_pandas.py TOPIC     a data frame to a topic, and the topic as a data frame

Needs the extra mq[arrow], and pandas.
"""

import json
import os
import sys

import pandas as pd

from mq.client import MqError, Producer, PullConsumer

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")

ORDERS = pd.DataFrame(
    {"customer": ["ann", "bob", "ann"], "status": ["paid", "paid", "open"], "amount": [30, 12, 5]}
)


def main(topic: str) -> None:
    # One row is one message: its body is JSON, its tag the status, and orders of one customer stay
    # in their order.
    bodies = [json.dumps(row) for row in ORDERS.to_dict("records")]
    with Producer(SERVER) as producer:
        sent = producer.send_arrow(
            topic, ORDERS.assign(body=bodies), tag="status", ordering_key="customer"
        )
        print(f"{sent.rows} rows sent")
    with PullConsumer(SERVER) as consumer:
        paid = consumer.to_arrow(topic, filter="paid").to_pandas()
    amounts = paid["body"].map(lambda body: json.loads(body)["amount"])
    for customer, amount in amounts.groupby(paid["ordering_key"]).sum().items():
        print(f"{customer} paid {amount}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python arrow_pandas.py TOPIC")
    try:
        main(sys.argv[1])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
