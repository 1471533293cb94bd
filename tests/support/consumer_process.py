"""A consumer in a process of its own, for tests that kill it: `python -m
tests.support.consumer_process ADDRESS GROUP TOPIC MODE`. It prints the body of each message that it
has handled, a line each, and leaves its group when its input ends.
"""

from __future__ import annotations

import sys
from typing import Any

from mq.client import PushConsumer, ReceivedMessage


def main() -> None:
    address, group, topic, mode = sys.argv[1:]

    def handle(message: ReceivedMessage) -> None:
        sys.stdout.write(message.body.decode() + "\n")
        sys.stdout.flush()

    options: dict[str, Any] = {"mode": mode, "start": "earliest", "threads": 4}
    with PushConsumer(address, group, topic, handle, **options):
        sys.stdin.read()


if __name__ == "__main__":
    main()
