"""A replier in a process of its own, for tests that kill it: `python -m
tests.support.replier_process SERVERS GROUP TOPIC`. It replies with what it was asked, and prints a
line when it serves. It takes half a second for a request that says so.
"""

from __future__ import annotations

import sys
import time

from mq.client import ReceivedMessage, Replier


def main() -> None:
    servers, group, topic = sys.argv[1:]

    def echo(request: ReceivedMessage) -> bytes:
        if request.body.startswith(b"slow"):
            sys.stdout.write("works\n")
            sys.stdout.flush()
            time.sleep(0.5)
        return request.body

    with Replier(servers, group, topic, echo, start="earliest"):
        sys.stdout.write("serves\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
