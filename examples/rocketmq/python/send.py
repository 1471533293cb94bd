"""python send.py TOPIC TEXT...     sends each text as a message"""

import os
import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
CREDENTIALS = Credentials(os.environ.get("MQ_ACCESS_KEY"), os.environ.get("MQ_SECRET_KEY"))


def send(topic: str, *texts: str) -> None:
    producer = Producer(ClientConfiguration(SERVER, CREDENTIALS), (topic,))
    producer.startup()
    try:
        for text in texts:
            message = Message()
            message.topic = topic
            message.body = text.encode()
            message.tag = "example"
            print(f"sent {producer.send(message).message_id}")
    finally:
        producer.shutdown()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python send.py TOPIC TEXT...")
    send(*sys.argv[1:])
