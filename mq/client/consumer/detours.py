"""Queues whose messages come from another broker than the one of the stream, because that said so.

The stream keeps everything else: assignment, progress, seeks. A detour pulls one queue from one
place on, hands what comes to `Holdings` under the epoch that it began with, and asks for no more
than the cache has room for. It ends with a Resume when the other broker sends it back, fails, or
answers something odd: the stream goes on from the next message that is wanted. It ends without a
word when the queue is not ours under that epoch any more. Everything runs on the stream's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from mq.client.cluster.retry import back_off_s
from mq.client.consumer.holdings import Holdings
from mq.client.consumer.subscription import Wanted
from mq.client.decode import Frames, parse_pull_response
from mq.client.messages import QueueRef, wire_filter
from mq.errors import Internal, MqError
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.consumer_pb2 import (
    Assignment,
    Delivery,
    PullRequest,
    PullResponse,
    QueuePosition,
    Redirect,
    SubscribeRequest,
)

log = logging.getLogger(__name__)

# One answer, as one delivery of a stream.
_BYTES_MAX = 1 << 20
# How long the other broker may wait for messages, and then take to answer.
_WAIT_MS = 1_000
_ANSWER_S_MAX = 5.0

# One attempt at this address: the answer as it came over the wire, or an MqError.
Pull = Callable[[str, PullRequest, float], Awaitable[bytes]]


class _Way(NamedTuple):
    """Of one queue, where it goes."""

    ref: QueueRef
    epoch: int
    address: str


class Detours:
    """Of one stream. `on_resume` is called when there is something to tell the broker."""

    def __init__(self, pull: Pull, holdings: Holdings, wanted: Wanted, broker_set: str) -> None:
        self.on_resume: Callable[[], None] = lambda: None
        self._pull = pull
        self._holdings = holdings
        self._wanted = wanted
        self.broker_set = broker_set
        self._tasks: dict[QueueRef, tuple[_Way, asyncio.Task[None]]] = {}
        self._resumes: list[QueuePosition] = []
        # Attempts in a row that brought nothing: who sends us there may not know yet that the other
        # one is gone.
        self._failures: dict[QueueRef, int] = {}
        self._progress = asyncio.Event()

    # From the stream

    def begin(self, redirect: Redirect) -> None:
        ref = QueueRef(redirect.topic, redirect.queue_id, self.broker_set)
        self._stop(ref)
        way = _Way(ref, redirect.epoch, redirect.address)
        log.debug("queue %s goes on at %s, from %d on", ref, way.address, redirect.queue_offset)
        task = asyncio.create_task(self._go(way, redirect.queue_offset))
        self._tasks[ref] = way, task

    def follow(self, assignment: Assignment) -> None:
        """What is not assigned under its epoch any more is not read any more."""
        epochs = {(one.topic, one.queue_id): one.epoch for one in assignment.queues}
        for ref, (way, _) in list(self._tasks.items()):
            if epochs.get(ref[:2]) != way.epoch:
                self._stop(ref)

    def progressed(self) -> None:
        """There may be room in the cache."""
        self._progress.set()

    def outgoing(self) -> list[SubscribeRequest]:
        """What the broker has to hear."""
        resumes, self._resumes = self._resumes, []
        return [SubscribeRequest(resume=wire.Resume(positions=resumes))] if resumes else []

    async def close(self) -> None:
        """With the stream: on the next one the broker decides anew."""
        tasks = [task for _, task in self._tasks.values()]
        for ref in list(self._tasks):
            self._stop(ref)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, ref: QueueRef) -> None:
        found = self._tasks.pop(ref, None)
        if found is not None:
            found[1].cancel()
        self._resumes = [one for one in self._resumes if (one.topic, one.queue_id) != ref[:2]]

    # One queue

    async def _go(self, way: _Way, queue_offset: int) -> None:
        """From there on, until it is over; then the stream goes on."""
        reader = _Reader(way, queue_offset, self._wanted, self._holdings)
        try:
            while await self._has_room(reader):
                response, runs = await self._ask(reader)
                is_wanted = reader.bring(response, runs)
                self._failures.pop(way.ref, None)
                if not is_wanted:
                    return
                if response.read_from or reader.is_odd(response):
                    break
            else:
                return
        except MqError as error:
            await self._failed(way, error)
        except Exception as error:
            # A mistake of ours. The queue must not stand still for it.
            log.exception("queue %s cannot be read from %s", way.ref, way.address)
            await self._failed(way, Internal(repr(error)))
        self._resume(way, reader.queue_offset)

    async def _has_room(self, reader: _Reader) -> bool:
        """Waits until it has; False: nothing is wanted any more. Not for single messages: who works
        on them has the other half of the cache meanwhile.
        """
        while True:
            self._progress.clear()
            room = reader.look()
            if room is None or room:
                return bool(room)
            await self._progress.wait()

    async def _ask(self, reader: _Reader) -> tuple[PullResponse, list[Frames]]:
        data = await self._pull(
            reader.way.address, reader.request(), _WAIT_MS / 1000 + _ANSWER_S_MAX
        )
        try:
            return parse_pull_response(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None

    async def _failed(self, way: _Way, error: MqError) -> None:
        failures = self._failures.get(way.ref, 0)
        self._failures[way.ref] = failures + 1
        log.info("queue %s is not read from %s any more: %s", way.ref, way.address, error)
        if failures:
            await asyncio.sleep(back_off_s(failures))

    def _resume(self, way: _Way, queue_offset: int) -> None:
        topic, queue_id, _ = way.ref
        del self._tasks[way.ref]
        self._resumes.append(
            QueuePosition(
                topic=topic, queue_id=queue_id, queue_offset=queue_offset, epoch=way.epoch
            )
        )
        self.on_resume()


class _Reader:
    """How far one detour has come, and what of it is in the cache."""

    def __init__(self, way: _Way, queue_offset: int, wanted: Wanted, holdings: Holdings) -> None:
        self.way = way
        # What is wanted next.
        self.queue_offset = queue_offset
        self._wanted = wanted
        self._holdings = holdings
        # What came: the queue offset behind it, and its bytes; until it is done.
        self._brought: deque[tuple[int, int]] = deque()
        self._messages_left = self._bytes_left = 0

    def look(self) -> bool | None:
        """Whether the cache has room; None: nothing is wanted any more."""
        found = self._holdings.in_hand(self.way.ref, self.way.epoch)
        if found is None:
            return None
        while self._brought and self._brought[0][0] <= found.done_to:
            self._brought.popleft()
        in_hand_bytes = sum(size for _, size in self._brought)
        self._messages_left = self._wanted.cache_messages - found.messages
        self._bytes_left = self._wanted.cache_bytes - in_hand_bytes
        return (
            self._messages_left * 2 >= self._wanted.cache_messages
            and self._bytes_left * 2 >= self._wanted.cache_bytes
        )

    def request(self) -> PullRequest:
        topic, queue_id, _ = self.way.ref
        return PullRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=self.queue_offset,
            # What failed once has passed the filter then: of the retry topic everything is wanted.
            filter=wire_filter(self._wanted.filters.get(topic)),
            messages_max=self._messages_left,
            bytes_max=min(self._bytes_left, _BYTES_MAX),
            wait_ms=_WAIT_MS,
            any_replica=True,
            zone=self._wanted.zone,
        )

    def is_odd(self, response: PullResponse) -> bool:
        """The leader knows better what to make of it."""
        is_usual = response.status in (wire.PULL_FOUND, wire.PULL_END)
        return not is_usual or response.next_offset < self.queue_offset

    def bring(self, response: PullResponse, runs: list[Frames]) -> bool:
        """To whom it may concern. False: nothing is wanted any more."""
        if self.is_odd(response) or (not runs and response.next_offset == self.queue_offset):
            return True
        topic, queue_id, broker_set = self.way.ref
        delivery = Delivery(
            topic=topic,
            queue_id=queue_id,
            epoch=self.way.epoch,
            next_offset=response.next_offset,
            start=response.start,
            end=response.end,
        )
        if not self._holdings.deliver(delivery, runs, broker_set):
            return False
        self.queue_offset = response.next_offset
        self._brought.append((response.next_offset, sum(sum(run.frame_sizes) for run in runs)))
        return True
