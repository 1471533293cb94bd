"""A PrefetchBuffer on a manual clock, for tests that play both the broker and the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.client.consumer.prefetch import PrefetchBuffer
from mq.client.decode import Decoder
from tests.unit.client.consumer.deliveries import SET, assignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.client.consumer.prefetch_queue import InFlight
    from mq.wire.v1.consumer_pb2 import SubscribeRequest


class _Signal:
    def __init__(self, buffered: ManualBuffer, broker_set: str) -> None:
        self._buffered = buffered
        self._broker_set = broker_set

    def tell(self, *, is_urgent: bool) -> None:
        self._buffered.reports.append(is_urgent)
        self._buffered.asked.append(self._broker_set)


class ManualBuffer:
    def __init__(self, *, is_ordered: bool = False, cache_messages: int = 1_000) -> None:
        self.now_s = 0.0
        # Of each signal: whether it was urgent, and its broker set.
        self.reports: list[bool] = []
        self.asked: list[str] = []
        self.ready = 0
        self._sets: set[str] = set()
        self.buffer = PrefetchBuffer(
            Decoder({"tagged": frozenset({"a"})}),
            is_ordered=is_ordered,
            cache_messages=cache_messages,
            cache_bytes=cache_messages * 1_000,
            on_ready=self._on_ready,
            clock=lambda: self.now_s,
        )

    def _on_ready(self) -> None:
        self.ready += 1

    def open_set(self, broker_set: str = SET) -> None:
        self.buffer.open_set(broker_set, _Signal(self, broker_set))
        self._sets.add(broker_set)

    def assign(
        self,
        *queues: tuple[int, int] | tuple[int, int, int],
        first: bool = False,
        broker_set: str = SET,
    ) -> None:
        if broker_set not in self._sets:
            self.open_set(broker_set)
        self.buffer.assign(assignment(*queues), broker_set, is_first=first)

    def take(self, count: int = 1) -> list[InFlight]:
        """Each message by itself."""
        return [single for one in self.buffer.take(count) for single in one.singles]

    def told(self, broker_set: str = SET) -> list[tuple[str, list[tuple[int, ...]]]]:
        """What goes to the broker, in short."""
        self.reports.clear()
        return [summary(request) for request in self.buffer.outgoing(broker_set)]


def summary(request: SubscribeRequest) -> tuple[str, list[tuple[int, ...]]]:
    match request.WhichOneof("kind"):
        case "progress":
            places = request.progress.positions
            return "progress", [(one.queue_id, one.queue_offset, one.epoch) for one in places]
        case "seek":
            return "seek", [(one.queue_id, one.queue_offset) for one in request.seek.positions]
        case "released":
            return "released", [(one.queue_id, one.epoch) for one in request.released.queues]
    raise AssertionError(request)


def offsets(taken: Sequence[InFlight]) -> list[int]:
    return [message.queue_offset for one in taken for message in one.messages]
