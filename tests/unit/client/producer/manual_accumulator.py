"""An accumulator with one topic and a manual clock."""

from __future__ import annotations

from typing import Any

from mq.client.encode import Encoded, encode_message, prepare
from mq.client.messages import Message
from mq.client.producer.batching import Accumulator, AddResult
from mq.client.producer.queues import MESSAGE_OVERHEAD_BYTES, Batch
from mq.wire.v1.cluster_pb2 import TopicRoute
from mq.wire.v1.message_pb2 import Batch as WireBatch

ROOM = 1 << 20
LINGER_S = 0.002
TIMEOUT_S = 3.0
SET = "set-0"
SIZE = len(encode_message(b"x" * 10, 1_700_000_000_000, 4096)[0]) + MESSAGE_OVERHEAD_BYTES


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def encoded(text: str = "x" * 10, key: str = "", **fields: Any) -> Encoded:
    message = Message(text.encode(), ordering_key=key, **fields)
    return encode_message(message, 1_700_000_000_000, 4096)


def bodies(batch: Batch) -> list[str]:
    prepared = batch.prepared or prepare(batch.runs)
    return [one.body.decode() for one in WireBatch.FromString(prepared.columns).messages]


def part(
    queues: int,
    broker_set: str = SET,
    *,
    topic: str = "t",
    priorities: int = 0,
    is_writable: bool = True,
) -> TopicRoute:
    return TopicRoute(
        topic=topic,
        broker_set=broker_set,
        write_queues=queues,
        read_queues=queues,
        is_writable=is_writable,
        priorities=priorities,
    )


class ManualAccumulator:
    """`free` and `healthy`: the broker sets that `take` may use."""

    def __init__(
        self, queues: int = 4, *, batch_bytes: int = 10 * SIZE, buffer_bytes: int = 1 << 30
    ) -> None:
        self.clock = Clock()
        self.free = self.healthy = [SET]
        self.accumulator = Accumulator(
            "p",
            linger_s=LINGER_S,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            clock=self.clock,
        )
        self.accumulator.set_route("t", [part(queues)])

    def add(
        self,
        text: str = "x" * 10,
        key: str = "",
        queue_id: int | None = None,
        *,
        is_urgent: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> AddResult:
        return self.accumulator.add(
            "t", encoded(text, key), queue_id, None, timeout_s, is_urgent=is_urgent
        )

    def take(self, room: int = ROOM) -> list[Batch]:
        return self.accumulator.take(room, self.free, self.healthy)[0]

    def take_lingered(self) -> list[Batch]:
        self.clock.now_s += LINGER_S
        return self.take()

    def next_poll_s(self) -> float:
        return self.accumulator.take(ROOM, self.free, self.healthy)[1]

    def done(self, batch: Batch, *, is_stored: bool = True) -> None:
        self.accumulator.release(batch, is_stored=is_stored)
