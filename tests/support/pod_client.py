"""A client in a pod of its own: sends numbers one by one until its stdin ends, then reads them all.

Arguments: servers, topic, file of an API key. A line of JSON on stdout when the first number is
stored, and one in the end: how many were stored, which sends failed, which stored numbers a
consumer did not get, and whether it got each number once, in order.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time

from mq.client import Consumer, Message, Producer
from mq.errors import MqError, Unreachable

_READ_S = 120.0
# More than a shared disk stands still for, and less than gRPC would keep a stale address.
_SEND_S = 20.0
_PAUSE_S = 0.005


def send(servers: str, topic: str, key: str) -> tuple[list[int], list[str]]:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    stored, failed = list[int](), list[str]()
    with Producer(servers, api_key_file=key, timeout_s=_SEND_S) as producer:
        for number in itertools.count():
            # A pause: the brokers are to be busy, not the machine.
            if ended.wait(_PAUSE_S):
                break
            try:
                # One queue, so that the order is that of the sends.
                producer.send(topic, Message(b"%d" % number, ordering_key="all"))
            except MqError as error:
                failed.append(f"{number}: {error!r}")
                continue
            stored.append(number)
            if len(stored) == 1:
                say({"stored": 1})
    return stored, failed


def read(servers: str, topic: str, key: str, last: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + _READ_S
    with Consumer(servers, "readers", topic, start="earliest", api_key_file=key) as consumer:
        # A later number may be there, of a send that failed and was stored all the same.
        while (not found or found[-1] < last) and time.monotonic() < deadline:
            try:
                found += [int(message.body) for message in consumer.poll(timeout_s=1.0)]
            except Unreachable as error:  # all of them may share a disk that stands still
                print(error, file=sys.stderr)  # noqa: T201 - shown with a failure
    return found


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - the test reads it


def main(servers: str, topic: str, key: str) -> None:
    stored, failed = send(servers, topic, key)
    found = read(servers, topic, key, stored[-1])
    say(
        {
            "stored": len(stored),
            "failed": failed,
            "lost": sorted(set(stored) - set(found)),
            "is_in_order": found == sorted(set(found)),
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
