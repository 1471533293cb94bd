"""A pull consumer over queues in memory, for scans and tails: what the real one promises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mq.client.aio import PullConsumer, PullResult, PullStatus, QueueRef, ReceivedMessage
from mq.errors import Unreachable


def message(ref: QueueRef, queue_offset: int, at_ms: int, body: bytes = b"", **fields: Any) -> Any:
    return ReceivedMessage(
        ref.topic,
        ref.queue_id,
        queue_offset,
        f"{ref.broker_set}:{ref.queue_id * 1_000_000 + queue_offset}",
        at_ms,
        at_ms,
        body,
        fields.get("tag", ""),
        tuple(fields.get("keys", ())),
        fields.get("properties", {}),
        "",
    )


class MemoryQueues:
    """Queues by their refs. `is_away()` says whether the next call finds no leader."""

    def __init__(self, *refs: QueueRef, pull_max: int = 1_000) -> None:
        self.stored: dict[QueueRef, list[ReceivedMessage]] = {ref: [] for ref in refs}
        self.pulls = 0
        self.is_away: Callable[[], bool] = lambda: False
        self._pull_max = pull_max

    def put(self, ref: QueueRef, at_ms: int, body: bytes = b"", **fields: Any) -> ReceivedMessage:
        made: ReceivedMessage = message(ref, len(self.stored[ref]), at_ms, body, **fields)
        self.stored[ref].append(made)
        return made

    @property
    def client(self) -> PullConsumer:
        return cast("PullConsumer", self)

    async def find_offsets(self, topic: str, to: str) -> dict[QueueRef, int]:
        assert to == "latest"
        if self.is_away():
            raise Unreachable("nobody leads")
        return {ref: len(found) for ref, found in self.stored.items() if ref.topic == topic}

    async def pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        broker_set: str,
        filter: object,  # noqa: A002 # the signature of the client
        max_messages: int,
        max_bytes: int,
    ) -> PullResult:
        assert max_bytes > 0
        self.pulls += 1
        if self.is_away():
            raise Unreachable("nobody leads")
        found = self.stored[QueueRef(topic, queue_id, broker_set)]
        stretch = found[queue_offset : queue_offset + min(max_messages, self._pull_max)]
        passed = [one for one in stretch if filter in (None, one.tag)]
        next_offset = queue_offset + len(stretch)
        status = PullStatus.FOUND if passed else PullStatus.END
        return PullResult(status, passed, next_offset, 0, len(found))
