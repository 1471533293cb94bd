"""Python clients as programs of their own, each in an environment with its library alone.

    PROGRAM send ADDRESS TOPIC SIZE SECONDS       single messages, as fast as they are taken
    PROGRAM receive ADDRESS TOPIC COUNT SECONDS   a backlog from its start; each body is read, and
                                                  progress is committed as the client does it

Each prints how many messages and in how many seconds. Connecting and joining a group come before
the clock; waiting for all acknowledgements is within it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, NamedTuple

from bench.peers.installation import Installation, Skipped, reason
from bench.peers.peer import run_tool

Way = Literal["send", "receive"]

_PROGRAMS = Path(__file__).parent / "programs"


class Client(NamedTuple):
    name: str
    peer: str
    tools: dict[Way, str]
    program: str
    # Nothing: our own, which is installed.
    requirements: tuple[str, ...] = ()

    def python(self, installation: Installation) -> Path:
        if not self.requirements:
            return Path(sys.executable)
        return installation.python(self.name, *self.requirements)


CLIENTS = (
    Client(
        "mq",
        "mq",
        {"send": "Producer.send_async", "receive": "Consumer.poll"},
        "with_mq.py",
    ),
    Client(
        "mq, in bulk",
        "mq",
        {"receive": "Consumer.poll_batch"},
        "with_mq_bulk.py",
    ),
    Client(
        "mq, Arrow",
        "mq",
        {"send": "Producer.send_arrow", "receive": "PullConsumer.read_arrow, without a group"},
        "with_mq_arrow.py",
    ),
    Client(
        "confluent-kafka",
        "kafka",
        {"send": "produce, in C", "receive": "consume of 1,000, in C"},
        "with_confluent_kafka.py",
        ("confluent-kafka==2.16.1",),
    ),
    Client(
        "aiokafka",
        "kafka",
        {"send": "send", "receive": "getmany"},
        "with_aiokafka.py",
        ("aiokafka==0.14.0",),
    ),
    Client(
        "nats.py",
        "nats",
        {"send": "publish_async", "receive": "fetch of 500, one ack each"},
        "with_nats.py",
        ("nats-py==2.16.0",),
    ),
)


def run(
    python: Path, client: Client, way: Way, address: str, topic: str, amount: int, seconds: float
) -> float:
    """Messages a second. `amount` is the size to send, or how many messages there are."""
    program = str(_PROGRAMS / client.program)
    command = [str(python), program, way, address, topic, str(amount), str(seconds)]
    return rate(run_tool(command))


def rate(output: str) -> float:
    lines = output.splitlines()
    try:
        messages, seconds = lines[-1].split()
        return int(messages) / float(seconds)
    except (IndexError, ValueError):
        raise Skipped(f"no figure in the output of its program: {reason(output)}") from None
