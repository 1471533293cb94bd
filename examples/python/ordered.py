"""python ordered.py TOPIC     steps of three orders, which must not overtake each other

Messages of one ordering key stand in one queue, in the order they were sent. In mode "ordered" one
handler at a time works on a queue; a message that fails holds up its queue until it succeeds.
"""

import os
import queue
import sys

from mq.client import Message, MqError, Producer, PushConsumer, ReceivedMessage

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
ORDERS = ("order-1", "order-2", "order-3")
STEPS = ("created", "paid", "shipped")


def send(topic: str) -> None:
    with Producer(SERVER) as producer:
        futures = [
            # Does not wait: messages travel in batches, and keep their order all the same.
            producer.send_async(topic, Message(step.encode(), ordering_key=order))
            for step in STEPS
            for order in ORDERS
        ]
        for future in futures:
            future.result()


def main(topic: str) -> None:
    send(topic)
    done: queue.Queue[str] = queue.Queue()
    failed: set[str] = set()

    def handle(message: ReceivedMessage) -> None:
        step = message.body.decode()
        if step == "paid" and message.ordering_key not in failed:
            failed.add(message.ordering_key)
            # Logged by the client, and tried again after `retry_delay_s`.
            raise ConnectionError("the bank does not answer")
        done.put(f"{message.ordering_key} {step}")

    with PushConsumer(
        SERVER,
        "example-ordered",
        topic,
        handle,
        mode="ordered",
        start="earliest",
        retry_delay_s=0.1,
    ):
        for _ in range(len(ORDERS) * len(STEPS)):
            print(done.get(timeout=30))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python ordered.py TOPIC")
    try:
        main(sys.argv[1])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
