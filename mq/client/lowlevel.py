"""The low-level face of the client library, for programs that move whole batches as bytes, such as
the Spark connector: ranges of queues as pages, prepared batches under the caller's own numbers, and
offsets of queues.

These names do not change without notice, but ask for more care than those of `mq.client`: frames
are as proto/mq/v1 describes them. Everything runs on the `background` loop of the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.client.cluster.connection import Connection, parse_servers
from mq.client.consumer.offsets import find_offsets
from mq.client.consumer.options import Start, split_tags
from mq.client.consumer.scan import QueueScanner
from mq.client.decode import Page, Unreadable, decompressed
from mq.client.encode import MESSAGE_BYTES_MAX, PROPERTIES_BYTES_MAX, PROPERTIES_MAX, place
from mq.client.lifecycle import background
from mq.client.messages import QueueRef
from mq.client.producer.exact import ExactSender, Shipment, Stored

__all__ = [
    "MESSAGE_BYTES_MAX",
    "PROPERTIES_BYTES_MAX",
    "PROPERTIES_MAX",
    "ExactSender",
    "Page",
    "QueueOffsets",
    "QueueScanner",
    "Shipment",
    "Start",
    "Stored",
    "Unreadable",
    "background",
    "decompressed",
    "parse_servers",
    "place",
    "split_tags",
]


class QueueOffsets:
    """The first and last offsets of queues. For one event loop, that of `background`."""

    def __init__(self, servers: str | Sequence[str], *, zone: str = "") -> None:
        self._connection = Connection(servers, zone)

    async def check(self) -> None:
        """Returns when a broker has answered. Unreachable."""
        await self._connection.brokers()

    async def find(self, topic: str, to: Start) -> dict[QueueRef, int]:
        """As `PullConsumer.find_offsets`, of the queues that are known: see `forget`."""
        return await find_offsets(self._connection, topic, to)

    def forget(self, topic: str) -> None:
        """The next `find` asks the brokers again which queues the topic has."""
        self._connection.topology.forget(topic)

    async def close(self) -> None:
        await self._connection.close()
