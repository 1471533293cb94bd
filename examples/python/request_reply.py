"""python request_reply.py TOPIC ITEM...     asks for the prices of items, and prints the replies

A requester sends to a topic and waits. One of the repliers of the group that serves the topic gets
the request; its reply comes back by the topic REPLIES, and only to the requester.
"""

import os
import sys

from mq.client import MqError, ReceivedMessage, Replier, Requester

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
PRICES = {"tea": "3.20", "coffee": "4.50"}


def price(request: ReceivedMessage) -> str:
    # What is raised here is raised where it was asked.
    return PRICES[request.body.decode()]


def main(topic: str, *items: str) -> None:
    with Requester(SERVER, timeout_s=30) as requester:
        with Replier(SERVER, "example-prices", topic, price):
            for item in items:
                try:
                    print(item, requester.request(topic, item).body.decode())
                except MqError as error:
                    print(item, error.code.name, error)
        try:
            requester.request(topic, "tea", timeout_s=0.5)
        except MqError as error:
            print("no replier is left:", error.code.name)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python request_reply.py TOPIC ITEM...")
    try:
        main(*sys.argv[1:])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
