"""Queues whose messages come from another broker than the one of the stream, because that said so.

The stream keeps everything else: assignment, progress, seeks. A detour pulls one queue from one
place on, hands what comes to `PrefetchBuffer` under the epoch that it began with, and asks for no
more
than the cache has room for. It ends with a Resume when the other broker sends it back, fails, or
answers something odd: the stream goes on from the next message that is options. It ends without a
word when the queue is not ours under that epoch any more. Everything runs on the stream's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from mq.client.cluster.connection import CALL_TIMEOUT_S, Connection
from mq.client.cluster.retry import UnaryCall, back_off_s, now_s
from mq.client.consumer.options import ConsumerOptions
from mq.client.consumer.prefetch import PrefetchBuffer
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


class FollowerReads:
    """Of one stream. `on_resume` is called when there is something to tell the broker."""

    def __init__(
        self, pull: Pull, buffer: PrefetchBuffer, options: ConsumerOptions, broker_set: str
    ) -> None:
        self.on_resume: Callable[[], None] = lambda: None
        self._pull = pull
        self._buffer = buffer
        self._options = options
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
        reader = _Reader(way, queue_offset, self._options, self._buffer)
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

    def __init__(
        self, way: _Way, queue_offset: int, options: ConsumerOptions, buffer: PrefetchBuffer
    ) -> None:
        self.way = way
        # What is wanted next.
        self.queue_offset = queue_offset
        self._options = options
        self._buffer = buffer
        # What came: the queue offset behind it, and its bytes; until it is done.
        self._brought: deque[tuple[int, int]] = deque()
        self._messages_left = self._bytes_left = 0

    def look(self) -> bool | None:
        """Whether the cache has room; None: nothing is wanted any more."""
        found = self._buffer.in_hand(self.way.ref, self.way.epoch)
        if found is None:
            return None
        while self._brought and self._brought[0][0] <= found.done_to:
            self._brought.popleft()
        in_hand_bytes = sum(size for _, size in self._brought)
        self._messages_left = self._options.cache_messages - found.messages
        self._bytes_left = self._options.cache_bytes - in_hand_bytes
        return (
            self._messages_left * 2 >= self._options.cache_messages
            and self._bytes_left * 2 >= self._options.cache_bytes
        )

    def request(self) -> PullRequest:
        topic, queue_id, _ = self.way.ref
        return PullRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=self.queue_offset,
            # What failed once has passed the filter then: of the retry topic everything is options.
            filter=wire_filter(self._options.filters.get(topic)),
            messages_max=self._messages_left,
            bytes_max=min(self._bytes_left, _BYTES_MAX),
            wait_ms=_WAIT_MS,
            any_replica=True,
            zone=self._options.zone,
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
        if not self._buffer.deliver(delivery, runs, broker_set):
            return False
        self.queue_offset = response.next_offset
        self._brought.append((response.next_offset, sum(sum(run.frame_sizes) for run in runs)))
        return True


_SERVICE = "ConsumerService"
# What a broker that does not lead may take beyond the wait, before the leader is asked.
_FOLLOWER_S = 2.0
# How often an answer without messages may name somebody else.
_HOPS_MAX = 3


class Answer(Protocol):
    """As much of an answer as decides where to read on."""

    @property
    def status(self) -> int: ...
    @property
    def read_from(self) -> str: ...
    @property
    def has_messages(self) -> bool: ...


A = TypeVar("A", bound=Answer)


class QueuePulls(Generic[A]):
    def __init__(self, connection: Connection, parse: Callable[[bytes], A]) -> None:
        """`parse` raises DecodeError for what is no answer to a pull."""
        self._connection = connection
        self._parse = parse
        # Where a queue is read, if not at the leader.
        self._addresses: dict[QueueRef, str] = {}

    async def pull(self, ref: QueueRef, request: wire.PullRequest) -> A:
        """Of whoever should be asked; what has no messages is the leader's to say."""
        deadline_s = now_s() + request.wait_ms / 1000
        for _ in range(_HOPS_MAX if request.any_replica else 0):
            address = self._addresses.get(ref, "")
            try:
                answer = await self._ask(ref, request, address)
            except MqError:
                if not address:
                    raise
                # Dead, or of no use any more.
                self._addresses.pop(ref, None)
                continue
            self._remember(ref, answer.read_from or address)
            if answer.has_messages:
                return answer
            if not answer.read_from and (not address or _is_plain(answer)):
                return answer
            if not answer.read_from:
                self._addresses.pop(ref, None)
            request.wait_ms = max(0, round((deadline_s - now_s()) * 1000))
        request.any_replica = False
        return await self._ask(ref, request)

    def _remember(self, ref: QueueRef, address: str) -> None:
        """Where to read from now on."""
        if address and address != self._connection.of(ref.broker_set).known_leader:
            self._addresses[ref] = address
        else:
            self._addresses.pop(ref, None)

    async def _ask(self, ref: QueueRef, request: wire.PullRequest, address: str = "") -> A:
        """One attempt at the address; without one, the leader of the set."""
        broker_set = self._connection.of(ref.broker_set)
        wait_s = request.wait_ms / 1000
        if address:
            call = UnaryCall(_SERVICE, "Pull", request, 0.0, raw_response=True)
            data: bytes = await broker_set.ask(address, call, wait_s + _FOLLOWER_S)
        else:
            data = await broker_set.call(
                _SERVICE, "Pull", request, wait_s + CALL_TIMEOUT_S, raw_response=True
            )
        try:
            return self._parse(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None


def _is_plain(answer: Answer) -> bool:
    """Nothing there, as it should be: what is gone, or not there yet, the leader has to say."""
    return answer.status in (wire.PULL_FOUND, wire.PULL_END)
