"""python send.py TOPIC TEXT...     sends each text as a message"""

import os
import sys

from mq.client import Message, MqError, Producer

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")


def send(topic: str, *texts: str) -> None:
    with Producer(SERVER) as producer:
        for text in texts:
            # Returns when a majority of the nodes has it on disk. The tag is what consumers filter
            # by; `mq message query` finds the message again by a key.
            message = Message(text.encode(), tag="example", keys=[text.partition(" ")[0]])
            result = producer.send(topic, message)
            print(f"sent {result.message_id} queue {result.queue_id} offset {result.queue_offset}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python send.py TOPIC TEXT...")
    try:
        send(*sys.argv[1:])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
