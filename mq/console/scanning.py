"""Reading a topic in the order of time, forwards or backwards, within a budget.

Each queue is a lane with what was read of it and not handed out yet; the lane whose next message
is the oldest (or newest) comes next. Backwards a queue is not read before its newest message, whose
time brokers tell, is due: a page of the newest messages reads a few queues of thousands. A scan
that runs out of budget says where it was, and another one goes on from there, missing nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mq.client.aio import PullConsumer
from mq.client.messages import FilterLike, QueueRef, ReceivedMessage
from mq.errors import IllegalRequest

BUDGET_S = 2.0
BUDGET_MESSAGES = 20_000
QUEUES_MAX = 1_024

_AT_ONCE = 8
_CHUNK_MIN, _CHUNK_MAX = 4, 1_000
# All lanes together.
_BUFFER_BYTES = 16 << 20
_PULL_BYTES_MIN = 64 << 10

Predicate = Callable[[ReceivedMessage], bool]


@dataclass(slots=True)
class Budget:
    """The budget of a scan: time, and messages that brokers or the console look at."""

    seconds: float = BUDGET_S
    messages: int = BUDGET_MESSAGES
    began_s: float = field(default_factory=time.monotonic)

    def is_spent(self, looked_at: int) -> bool:
        return looked_at >= self.messages or self.elapsed_s >= self.seconds

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s


@dataclass(slots=True)
class Lane:
    """A queue: [low, high) is still to be read, behind (or before) what is in `waiting`."""

    ref: QueueRef
    low: int
    high: int
    # The time of its newest message, if known; a bound for what comes next.
    bound_ms: int = 0
    waiting: deque[ReceivedMessage] = field(default_factory=deque)
    chunk: int = _CHUNK_MIN

    @property
    def is_over(self) -> bool:
        return not self.waiting and self.low >= self.high


class Scan:
    """`messages` is iterated once; what was looked at and where it stopped is known after it."""

    def __init__(
        self,
        pull: PullConsumer,
        lanes: Sequence[Lane],
        *,
        is_backward: bool,
        wanted: FilterLike = None,
        predicate: Predicate | None = None,
        budget: Budget | None = None,
    ) -> None:
        if len(lanes) > QUEUES_MAX:
            raise IllegalRequest(
                f"the topic has {len(lanes):,} queues, and pages show messages of up to "
                f"{QUEUES_MAX:,} together: choose a queue"
            )
        self._pull = pull
        self._lanes = {one.ref: one for one in lanes}
        self._is_backward = is_backward
        self._wanted = wanted
        self._predicate = predicate
        self._budget = budget or Budget()
        self._bytes = max(_PULL_BYTES_MIN, _BUFFER_BYTES // max(1, len(lanes)))
        # Also those that a filter of the broker left out.
        self.looked_at = 0
        self.is_cut = False

    @property
    def elapsed_s(self) -> float:
        return self._budget.elapsed_s

    @property
    def left(self) -> int:
        """Messages that were not looked at yet."""
        return sum(one.high - one.low + len(one.waiting) for one in self._lanes.values())

    def positions(self) -> dict[QueueRef, int]:
        """Where another scan in the same direction goes on."""
        return {ref: self._position(one) for ref, one in self._lanes.items()}

    def _position(self, lane: Lane) -> int:
        if not lane.waiting:
            return lane.high if self._is_backward else lane.low
        return lane.waiting[0].queue_offset + (1 if self._is_backward else 0)

    async def page(self, count: int) -> list[ReceivedMessage]:
        """So many, if there are."""
        found: list[ReceivedMessage] = []
        async for message in self.messages(count):
            found.append(message)
            if len(found) >= count:
                break
        return found

    async def messages(self, expected: int) -> AsyncIterator[ReceivedMessage]:
        """In the order of time. Ends with the lanes, or with the budget: `is_cut`."""
        lanes = [one for one in self._lanes.values() if not one.is_over]
        for one in lanes:
            one.chunk = min(_CHUNK_MAX, max(_CHUNK_MIN, 2 * expected // len(lanes)))
        if not self._is_backward:
            await self._fill_all(lanes)
        heap = [(self._key(one), at, one) for at, one in enumerate(lanes) if not one.is_over]
        heapq.heapify(heap)
        has_passed = len(heap) < len(lanes)
        while heap:
            _, at, lane = heap[0]
            if lane.waiting:
                message = lane.waiting.popleft()
                has_passed = True
                lane.bound_ms = message.stored_at_ms
                self._replace(heap, at, lane)
                if self._predicate is None or self._predicate(message):
                    yield message
                continue
            # Not before something was passed: the next scan would do the same once more.
            if has_passed and self._budget.is_spent(self.looked_at):
                self.is_cut = True
                return
            await self._fill(lane)
            has_passed = has_passed or not lane.waiting
            self._replace(heap, at, lane)

    def _key(self, lane: Lane) -> int:
        at_ms = lane.waiting[0].stored_at_ms if lane.waiting else lane.bound_ms
        return -at_ms if self._is_backward else at_ms

    def _replace(self, heap: list[tuple[int, int, Lane]], at: int, lane: Lane) -> None:
        if lane.is_over:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (self._key(lane), at, lane))

    async def _fill_all(self, lanes: Sequence[Lane]) -> None:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def fill(lane: Lane) -> None:
            async with turn:
                await self._fill(lane)

        await asyncio.gather(*map(fill, lanes))

    async def _fill(self, lane: Lane) -> None:
        """Reads one stretch. It may hold nothing that passes the filter."""
        if self._is_backward:
            start, end = max(lane.low, lane.high - lane.chunk), lane.high
            found, _ = await self._read(lane, start, end)
            lane.waiting.extend(reversed(found))
            lane.high = start
        else:
            start, end = lane.low, min(lane.high, lane.low + lane.chunk)
            found, lane.low = await self._read(lane, start, end)
            lane.waiting.extend(found)
            if lane.low < end:
                # The broker that answered knows no more yet: the next page goes on here.
                lane.high = lane.low
        if self._wanted is not None or self._predicate is not None:
            lane.chunk = min(_CHUNK_MAX, 2 * lane.chunk)

    async def _read(self, lane: Lane, start: int, end: int) -> tuple[list[ReceivedMessage], int]:
        """The messages, and where they end."""
        found: list[ReceivedMessage] = []
        at = start
        while at < end:
            result = await self._pull.pull(
                lane.ref.topic,
                lane.ref.queue_id,
                at,
                broker_set=lane.ref.broker_set,
                filter=self._wanted,
                max_messages=end - at,
                max_bytes=self._bytes,
            )
            found += [one for one in result.messages if one.queue_offset < end]
            if result.next_offset <= at:
                break
            at = min(result.next_offset, end)
        self.looked_at += end - start
        return found, at


def contains(text: str) -> Predicate:
    """Whether a text, in whatever case, stands in the body, a key, the tag or a property."""
    wanted = text.casefold()
    as_bytes = wanted.encode()

    def is_in(message: ReceivedMessage) -> bool:
        body = message.body
        # Most bodies are ASCII: bytes are compared without decoding.
        if as_bytes in body or as_bytes in body.lower():
            return True
        if (
            not (wanted.isascii() and body.isascii())
            and wanted in body.decode(errors="replace").casefold()
        ):
            return True
        fields = [message.tag, message.ordering_key, *message.keys, *_texts(message.properties)]
        return any(wanted in one.casefold() for one in fields)

    return is_in


def _texts(properties: Mapping[str, str]) -> list[str]:
    return [*properties.keys(), *properties.values()]
