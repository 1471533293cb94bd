"""Reads of queues from followers of a set, where the leader redirects them.

`FollowerReads` serves the redirected queues of one Subscribe stream, `QueuePulls` single pulls. A
follower is believed in the messages that it shows and nothing else: at any failure, and whenever it
has none to show, the leader is asked again. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from mq.client.cluster.connection import Connection, SetConnection
from mq.client.cluster.retry import CALL_TIMEOUT_S, back_off_s, cancelled, now_s
from mq.client.consumer.reports import Signal, position
from mq.client.decode import Page, Runs, parse_page, parse_pull_response
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

if TYPE_CHECKING:
    from mq.client.consumer.group_session import GroupSession

log = logging.getLogger(__name__)

# One response of a follower to a stream, as one delivery of the leader.
_BYTES_MAX = 1 << 20
# The longest wait of a follower for messages, and the time-out of its answer after that.
_WAIT_MS = 1_000
_ANSWER_S_MAX = 5.0
# A single pull asks the leader sooner, and follows so many responses that have no messages but name
# another broker.
_PULL_ANSWER_S_MAX = 2.0
_HOPS_MAX = 3


class FollowerReads:
    """The redirected queues of one stream.

    The leader keeps everything but the messages: assignment, progress, seeks. A read begins with a
    Redirect, delivers under the epoch of that, and asks for no more than the cache has room for. It
    ends with a Resume, from the next message that is wanted, when the follower sends it back, fails
    or gives an unexpected response; and silently when the queue is no longer assigned under that
    epoch.
    """

    def __init__(self, broker_set: SetConnection, session: GroupSession, signal: Signal) -> None:
        """`signal` is told when there is a Resume to send."""
        self._broker_set = broker_set
        self._session = session
        self._signal = signal
        self._reads: dict[QueueRef, _QueueRead] = {}
        self._resumes: list[QueuePosition] = []
        # Failed attempts in a row: the leader may not know yet that the follower is gone.
        self._failures: dict[QueueRef, int] = {}
        self._progress = asyncio.Event()

    # From the stream

    def begin(self, redirect: Redirect) -> None:
        ref = QueueRef(redirect.topic, redirect.queue_id, self._broker_set.name)
        self._stop(ref)
        read = self._reads[ref] = _QueueRead(ref, redirect, self._session)
        log.debug("queue %s is read from %s, from %d on", ref, read.address, read.queue_offset)
        read.task = asyncio.create_task(self._run(read))

    def follow(self, assignment: Assignment) -> None:
        """Ends the reads of queues that are no longer assigned under their epoch."""
        epochs = {(one.topic, one.queue_id): one.epoch for one in assignment.queues}
        for ref, read in list(self._reads.items()):
            if epochs.get(ref[:2]) != read.epoch:
                self._stop(ref)

    def progressed(self) -> None:
        """There may be room in the cache."""
        self._progress.set()

    def outgoing(self) -> list[SubscribeRequest]:
        resumes, self._resumes = self._resumes, []
        return [SubscribeRequest(resume=wire.Resume(positions=resumes))] if resumes else []

    async def close(self) -> None:
        """With the stream: on the next one the leader redirects anew."""
        reads, self._reads, self._resumes = self._reads, {}, []
        await cancelled(*(read.task for read in reads.values() if read.task is not None))

    def _stop(self, ref: QueueRef) -> None:
        read = self._reads.pop(ref, None)
        if read is not None and read.task is not None:
            read.task.cancel()
        self._resumes = [one for one in self._resumes if (one.topic, one.queue_id) != ref[:2]]

    # One queue

    async def _run(self, read: _QueueRead) -> None:
        try:
            while await self._has_room(read):
                timeout_s = _WAIT_MS / 1000 + _ANSWER_S_MAX
                data = await self._broker_set.ask(
                    read.address, read.request(), timeout_s, raw_response=True
                )
                response, runs = parse_pull_response(data)
                is_wanted = read.deliver(response, runs)
                self._failures.pop(read.ref, None)
                if not is_wanted:
                    return
                if response.read_from or read.is_unexpected(response):
                    break
            else:
                return
        except MqError as error:
            await self._failed(read, error)
        except Exception as error:
            # A bug of this client must not stop the queue.
            log.exception("queue %s cannot be read from %s", read.ref, read.address)
            await self._failed(read, Internal(repr(error)))
        self._resume(read)

    async def _has_room(self, read: _QueueRead) -> bool:
        """Waits for half of the cache to be free: single messages are not worth a call. Returns
        False when the queue is no longer wanted.
        """
        while True:
            self._progress.clear()
            has_room = read.has_room()
            if has_room is None or has_room:
                return bool(has_room)
            await self._progress.wait()

    async def _failed(self, read: _QueueRead, error: MqError) -> None:
        failures = self._failures.get(read.ref, 0)
        self._failures[read.ref] = failures + 1
        log.info("queue %s is no longer read from %s: %s", read.ref, read.address, error)
        if failures:
            await asyncio.sleep(back_off_s(failures))

    def _resume(self, read: _QueueRead) -> None:
        del self._reads[read.ref]
        self._resumes.append(position(read.ref, read.queue_offset, read.epoch))
        self._signal.tell(is_urgent=True)


class _QueueRead:
    """The state of one redirected queue."""

    def __init__(self, ref: QueueRef, redirect: Redirect, session: GroupSession) -> None:
        self.task: asyncio.Task[None] | None = None
        self.ref = ref
        self.epoch = redirect.epoch
        self.address = redirect.address
        # The next message that is wanted.
        self.queue_offset = redirect.queue_offset
        self._options, self._buffer = session.options, session.buffer
        # Of each delivery that is not done: the queue offset behind it, and its bytes.
        self._delivered: deque[tuple[int, int]] = deque()
        self._messages_left = self._bytes_left = 0

    def has_room(self) -> bool | None:
        """Whether half of the cache is free; None: the queue is no longer wanted."""
        backlog = self._buffer.backlog(self.ref, self.epoch)
        if backlog is None:
            return None
        while self._delivered and self._delivered[0][0] <= backlog.done_to:
            self._delivered.popleft()
        self._messages_left = self._options.cache_messages - backlog.messages
        self._bytes_left = self._options.cache_bytes - sum(size for _, size in self._delivered)
        return (
            self._messages_left * 2 >= self._options.cache_messages
            and self._bytes_left * 2 >= self._options.cache_bytes
        )

    def request(self) -> PullRequest:
        topic, queue_id, _ = self.ref
        return PullRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=self.queue_offset,
            # The retry topic has no filter: its messages have passed it at their first attempt.
            filter=wire_filter(self._options.filters.get(topic)),
            messages_max=self._messages_left,
            bytes_max=min(self._bytes_left, _BYTES_MAX),
            wait_ms=_WAIT_MS,
            any_replica=True,
            zone=self._options.zone,
        )

    def is_unexpected(self, response: PullResponse) -> bool:
        """The leader knows better what to make of the response."""
        return not _is_usual(response.status) or response.next_offset < self.queue_offset

    def deliver(self, response: PullResponse, runs: Runs) -> bool:
        """Returns False if the queue is no longer wanted."""
        is_empty = not runs.count and response.next_offset == self.queue_offset
        if is_empty or self.is_unexpected(response):
            return True
        delivery = Delivery(
            topic=self.ref.topic,
            queue_id=self.ref.queue_id,
            epoch=self.epoch,
            next_offset=response.next_offset,
            start=response.start,
            end=response.end,
        )
        size_bytes = runs.frame_bytes(0, runs.count)
        if not self._buffer.deliver(delivery, runs, self.ref.broker_set):
            return False
        self.queue_offset = response.next_offset
        self._delivered.append((response.next_offset, size_bytes))
        return True


# Single pulls


class QueuePulls:
    """The pulls of one client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Addresses of the followers from which queues are read; all others at the leader.
        self._addresses: dict[QueueRef, str] = {}

    async def pull(self, ref: QueueRef, request: PullRequest) -> Page:
        """The response of a follower, or of the leader if it has no messages."""
        deadline_s = now_s() + request.wait_ms / 1000
        for _ in range(_HOPS_MAX if request.any_replica else 0):
            address = self._addresses.get(ref, "")
            try:
                answer = await self._ask(ref, request, address)
            except MqError:
                if not address:
                    raise
                self._addresses.pop(ref, None)
                continue
            self._remember(ref, answer.read_from or address)
            if answer.has_messages:
                return answer
            if not answer.read_from and (not address or _is_usual(answer.status)):
                return answer
            if not answer.read_from:
                self._addresses.pop(ref, None)
            request.wait_ms = max(0, round((deadline_s - now_s()) * 1000))
        request.any_replica = False
        return await self._ask(ref, request)

    def _remember(self, ref: QueueRef, address: str) -> None:
        """The address for the next pull of the queue."""
        if address and address != self._connection.of(ref.broker_set).known_leader:
            self._addresses[ref] = address
        else:
            self._addresses.pop(ref, None)

    async def _ask(self, ref: QueueRef, request: PullRequest, address: str = "") -> Page:
        """One attempt at the address; without one, the leader of the set."""
        broker_set = self._connection.of(ref.broker_set)
        wait_s = request.wait_ms / 1000
        if address:
            timeout_s = wait_s + _PULL_ANSWER_S_MAX
            data: bytes = await broker_set.ask(address, request, timeout_s, raw_response=True)
        else:
            data = await broker_set.call(request, wait_s + CALL_TIMEOUT_S, raw_response=True)
        return parse_page(data)


def _is_usual(status: int) -> bool:
    """Messages, or none yet. Only the leader can say that a position is outside of the queue."""
    return status in (wire.PULL_FOUND, wire.PULL_END)
