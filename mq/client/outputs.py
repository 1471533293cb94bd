"""What a processor sends: messages for any topics, as batches that go out together.

Messages without an ordering key stay together, in one queue of their topic and priority; the queue
changes from one time to the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from mq.client import encode
from mq.client.model import Message
from mq.client.priorities import queue_for
from mq.client.wiring import Connection
from mq.errors import IllegalDelay, MessageTooLarge
from mq.wire.v1.message_pb2 import Batch

# All of it is one entry of the broker's log.
ENTRY_BYTES_MAX = 4 << 20


class Outputs:
    def __init__(self, connection: Connection, compress_above_bytes: int) -> None:
        self._connection = connection
        self._compress_above_bytes = compress_above_bytes

    async def batches(
        self,
        outputs: Iterable[tuple[str, Message | bytes | str]],
        producer_id: str,
        sequence: int,
        turn: int,
    ) -> list[Batch]:
        """Prepared, and numbered from `sequence` on. TopicNotFound, MessageTooLarge,
        IllegalRequest.
        """
        born_at_ms = time.time_ns() // 1_000_000
        queues: dict[tuple[str, int], list[encode.Encoded]] = {}
        size_bytes = 0
        for at, (topic, message) in enumerate(outputs):
            if encode.delay_field(message):
                raise IllegalDelay("what a processor sends is delivered at once")
            encoded = encode.encode_message(message, born_at_ms, self._compress_above_bytes)
            size_bytes += len(encoded[0])
            if at > 0 and size_bytes > ENTRY_BYTES_MAX:
                raise MessageTooLarge(
                    f"more than {ENTRY_BYTES_MAX} bytes are to be sent at once, which do not fit "
                    "an entry of the broker's log"
                )
            route = (await self._connection.route(topic, create=True)).parts[0]
            key_hash = encoded[3]
            queue_id = queue_for(
                turn if key_hash is None else key_hash,
                message.priority if isinstance(message, Message) else 0,
                route.priorities,
                route.write_queues,
            )
            queues.setdefault((topic, queue_id), []).append(encoded)
        return [
            Batch.FromString(
                encode.place(topic, queue_id, producer_id, sequence + at) + encode.columns(messages)
            )
            for at, ((topic, queue_id), messages) in enumerate(queues.items())
        ]

    def forget_routes(self, batches: Iterable[Batch]) -> None:
        """The broker did not take them: topics may have changed."""
        for topic in {batch.topic for batch in batches}:
            self._connection.forget_route(topic)
