"""A processor in a process of its own, for tests that kill it: `python -m
tests.support.processor_process SERVERS GROUP FROM TO`. It sends the body of each message on, with
where it came from, and prints a line for each batch that it has made something of. It leaves its
group when its input ends.
"""

from __future__ import annotations

import sys

from mq.client import Message, Processor, ReceivedMessage


def main() -> None:
    servers, group, source, target = sys.argv[1:]

    def handle(messages: list[ReceivedMessage]) -> list[tuple[str, Message]]:
        sys.stdout.write(f"{len(messages)}\n")
        sys.stdout.flush()
        return [
            (target, Message(f"{one.queue_id}/{one.queue_offset}".encode(), ordering_key=key))
            for one in messages
            # To more than one queue, so that an atom has more than one batch.
            for key in [str(one.queue_offset % 5)]
        ]

    with Processor(servers, group, source, handle, start="earliest", batch_messages=7):
        sys.stdin.read()


if __name__ == "__main__":
    main()
