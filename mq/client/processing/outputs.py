"""What a processor sends: messages for any topics, as batches that go out together, in the broker
set of what they were made of.

Messages without an ordering key stay together, in one queue of their topic and priority; the queue
changes from one time to the next. A topic that no set has is created where it is needed, if the
broker does that; one that others have is not: its operator decides where it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from mq.client import encode
from mq.client.cluster.connection import ROUTE_AGE_S_MAX, Connection, topic_not_found
from mq.client.cluster.retry import now_s
from mq.client.messages import Message
from mq.client.producer.priorities import queue_for
from mq.errors import IllegalDelay, MessageTooLarge, MqError, PermissionDenied, TopicNotFound
from mq.names import check_topic
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse, TopicRoute
from mq.wire.v1.message_pb2 import Batch

# All of it is one entry of the broker's log.
ENTRY_BYTES_MAX = 4 << 20
# Brokers may lag behind what an operator has just done.
_LOOKS, _LOOK_EVERY_S = 3, 0.5


class NowhereToGo(Exception):
    """The topic has no queue that takes messages where the input is: only an operator can help."""

    def __init__(self, reason: MqError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Outputs:
    def __init__(self, connection: Connection, compress_above_bytes: int) -> None:
        self._connection = connection
        self._compress_above_bytes = compress_above_bytes
        # By topic and broker set: the part, and when it was asked for.
        self._parts: dict[tuple[str, str], tuple[TopicRoute, float]] = {}

    async def batches(
        self,
        outputs: Iterable[tuple[str, Message | bytes | str]],
        broker_set: str,
        producer_id: str,
        sequence: int,
        turn: int,
    ) -> list[Batch]:
        """Prepared, and numbered from `sequence` on. TopicNotFound, MessageTooLarge,
        IllegalRequest; NowhereToGo.
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
            part = self._known_part(topic, broker_set) or await self._part(topic, broker_set)
            key_hash = encoded[3]
            queue_id = queue_for(
                turn if key_hash is None else key_hash,
                message.priority if isinstance(message, Message) else 0,
                part.priorities,
                part.write_queues,
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
        changed = {batch.topic for batch in batches}
        self._parts = {key: part for key, part in self._parts.items() if key[0] not in changed}

    # Where a topic is in a set

    def _known_part(self, topic: str, broker_set: str) -> TopicRoute | None:
        known = self._parts.get((topic, broker_set))
        return known[0] if known and now_s() - known[1] <= ROUTE_AGE_S_MAX else None

    async def _part(self, topic: str, broker_set: str) -> TopicRoute:
        """Asked of the set itself, which knows best."""
        check_topic(topic)
        request = RouteRequest(topics=[topic], create_missing=True)
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_LOOK_EVERY_S)
            response: RouteResponse = await self._connection.of(broker_set).call(
                "ClusterService", "Route", request
            )
            own = [one for one in response.topics if one.broker_set == broker_set]
            if own and own[0].is_writable and own[0].write_queues:
                self._parts[topic, broker_set] = own[0], now_s()
                return own[0]
        if not response.topics:
            raise topic_not_found(topic, response)
        raise NowhereToGo(_why_nowhere(topic, broker_set, is_there=bool(own)))


def _why_nowhere(topic: str, broker_set: str, *, is_there: bool) -> MqError:
    why = (
        f"broker set {broker_set}, where the messages come from that are processed: what is made "
        "of them is written there, in one step with their offsets"
    )
    if is_there:
        return PermissionDenied(
            f"topic {topic} takes no messages in {why}. Make it writable there, or let this group "
            "finish before the topic is drained"
        )
    return TopicNotFound(
        f"topic {topic} has no queues in {why}. Extend the topic to that set: "
        f"mq topic extend {topic} --set {broker_set} --queues 4"
    )
