"""python consume.py TOPIC [GROUP]     prints messages as they come, until Ctrl-C"""

import os
import signal
import sys
import threading

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    PushConsumer,
)

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
CREDENTIALS = Credentials(os.environ.get("MQ_ACCESS_KEY"), os.environ.get("MQ_SECRET_KEY"))


class Printer(MessageListener):
    def consume(self, message: Message) -> ConsumeResult:
        # FAILURE: it comes again later, and is a dead letter when it fails too often.
        line = f"received {message.message_id} tag {message.tag}: {message.body.decode()}\n"
        # Line and end in one piece: several messages are consumed at the same time.
        print(line, end="", flush=True)
        return ConsumeResult.SUCCESS


def consume(topic: str, group: str = "example") -> None:
    configuration = ClientConfiguration(SERVER, CREDENTIALS)
    consumer = PushConsumer(configuration, group, Printer(), {topic: FilterExpression("*")})
    consumer.startup()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    consumer.shutdown()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python consume.py TOPIC [GROUP]")
    consume(*sys.argv[1:])
