"""python consume.py TOPIC [GROUP]     prints messages as they come, until Ctrl-C

Start it twice: both are members of one group, and each message goes to one of them.
"""

import contextlib
import os
import sys

from mq.client import Consumer, MqError

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")


def consume(topic: str, group: str = "example-python") -> None:
    # "earliest" is for a group that is new to the topic; later runs go on where the last one ended.
    with Consumer(SERVER, group, topic, start="earliest") as consumer:
        for message in consumer:
            # A message is done when the next one is asked for: what ends in between comes again.
            text = message.body.decode()
            place = f"queue {message.queue_id} offset {message.queue_offset}"
            print(f"received {place} tag {message.tag}: {text}", flush=True)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python consume.py TOPIC [GROUP]")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            consume(*sys.argv[1:])
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
