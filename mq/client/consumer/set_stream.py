"""The membership of a consumer in one broker set, over a Subscribe stream to its leader.

A stream begins with the positions of all queues in the buffer, so that after a break nothing is
lost and nothing in the buffer is delivered twice. Then deliveries and assignments come in, and
reports go out. `FollowerReads` are those of queues that the leader redirects to a follower, which
is believed in the messages that it shows and nothing else: at any failure, and whenever it has none
to show, the leader goes on. Errors that a retry cannot mend are judged by the session, which knows
the other sets. Everything here runs on one event loop; other threads share the messages by the
buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

from mq.client.cluster.connection import SetConnection
from mq.client.cluster.errors import REFUSALS, mistake
from mq.client.cluster.leader_stream import BrokerStream, LeaderStream, Patience
from mq.client.cluster.retry import Retry, back_off_s, cancelled, is_set, now_s
from mq.client.consumer.offsets import commit_in, position, to_positions
from mq.client.consumer.options import Start
from mq.client.consumer.prefetch_queue import Signal
from mq.client.consumer.pull import is_usual
from mq.client.decode import Runs, parse_pull_response, parse_subscribe_response
from mq.client.messages import QueueRef, wire_filter
from mq.errors import Code, Internal, MqError, UnknownMember, Unreachable
from mq.wire.v1 import consumer_pb2 as wire

if TYPE_CHECKING:
    from mq.client.consumer.group_session import GroupSession

log = logging.getLogger(__name__)

_ALIVE = wire.SubscribeRequest(alive=wire.Alive()).SerializeToString()
# The broker tells its own with the first assignment.
_HEARTBEAT_S = 10.0
# A broker waits some seconds for a member whose stream broke, then others get its queues.
ALONE_S_MAX = 4.0
# The silence of a leader after which others are asked which one leads: at first, and in the long
# run. A new leader waits a little longer than that for the members of its groups, and gives none of
# their queues to others meanwhile.
CHECK_S_MIN, CHECK_S_MAX = 0.5, 2.0
# A report that is not urgent waits so long for more progress.
REPORT_S = 0.1
_GOODBYE_S_MAX = 5.0
_LEAVE_S = 1.0
# One response of a follower, as one delivery of the leader; its longest wait for messages, and the
# time-out of its answer after that.
_BYTES_MAX = 1 << 20
_WAIT_MS = 1_000
_ANSWER_S_MAX = 5.0
# A stream that cannot be opened is a warning after so many attempts.
_QUIET_FAILURES = 3

# Errors that will be the same at the next attempt.
_REFUSALS = frozenset(
    {
        Code.ILLEGAL_REQUEST,
        Code.ILLEGAL_TOPIC,
        Code.ILLEGAL_GROUP,
        Code.ILLEGAL_FILTER,
        Code.ILLEGAL_CONFIG,
        Code.PERMISSION_DENIED,
        Code.QUOTA_EXCEEDED,
        Code.UNAUTHENTICATED,
        Code.TOPIC_NOT_FOUND,
        Code.SUBSCRIPTION_MISMATCH,
    }
)


def patience(heartbeat_s: float = _HEARTBEAT_S) -> Patience:
    """With a silent broker. No pause between two checks is longer than that between two heartbeats;
    a set of one node has no other to ask, but it may be restarted.
    """
    return Patience(
        idle_s_min=CHECK_S_MIN,
        idle_s_max=min(CHECK_S_MAX, heartbeat_s),
        alone_s=heartbeat_s,
        needs_answer=True,
    )


class ReportSignal:
    """Wakes the writer of a stream, soon or at once. Made on the loop of the stream; `tell` may be
    called on any thread.
    """

    def __init__(self) -> None:
        self._some, self._urgent = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def tell(self, *, is_urgent: bool) -> None:
        # A closed loop has no stream to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_urgent if is_urgent else self._some.set)

    def _set_urgent(self) -> None:
        self._some.set()
        self._urgent.set()

    async def wait(self, timeout_s: float) -> bool:
        """Returns True when a report is due, after more progress had its time to arrive; False
        after the time-out.
        """
        if not await is_set(self._some, timeout_s):
            return False
        await is_set(self._urgent, REPORT_S)
        self._some.clear()
        self._urgent.clear()
        return True


class SetMembership:
    """Made, started and left on one loop."""

    def __init__(self, broker_set: SetConnection, session: GroupSession, start: Start) -> None:
        """`start`: the position in queues of which the group has no offset."""
        self.name = broker_set.name
        # Has had an assignment, on any stream.
        self.is_joined = False
        # Has had one on the current stream.
        self.is_connected = False
        # The error of the search for a leader, since one was found last.
        self.trouble: Unreachable | None = None
        # Written by the session: calls that wait for all sets wait for this one.
        self.is_awaited = True
        self._broker_set = broker_set
        self._session = session
        self._options = session.options
        self._buffer = session.buffer
        self._start = start
        self._streams = LeaderStream(broker_set, wire.SubscribeRequest, self, patience())
        self._report_signal = ReportSignal()
        self._heartbeat_s = _HEARTBEAT_S
        self._closing = asyncio.Event()
        # The last stream has ended in good order: the broker knows that the member is gone.
        self._has_left = False
        # The end of the last stream; meaningless while there is one.
        self._alone_since_s = now_s()
        self._alone_s_max = ALONE_S_MAX
        # Suspends the queues of the set when the consumer is alone for too long.
        self._fence: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._buffer.open_set(self.name, self._report_signal)
        self._streams.open()

    @property
    def alone_s(self) -> float:
        """For how long the set was not heard."""
        return 0.0 if self.is_connected else now_s() - self._alone_since_s

    # Called by the leader stream

    def wants_stream(self) -> bool:
        return not self._closing.is_set()

    def owed_since_s(self, _: BrokerStream) -> float:
        """A broker owes no answers but the first assignment, which has a time-out of its own."""
        return math.inf

    def stream_failed(self, error: MqError, address: str) -> None:
        if isinstance(error, REFUSALS):
            self._session.fail(error)
            return
        if not address and isinstance(error, Unreachable):
            self.trouble = error
            self._session.changed.set()
        is_new = self._streams.failures > _QUIET_FAILURES and not isinstance(error, Unreachable)
        log.log(
            # That no broker or no leader is found the connection logs, once.
            logging.WARNING if is_new else logging.INFO,
            "consumer %s of group %s has no broker in %s, it tries again: %s",
            self._options.member,
            self._options.group,
            self.name,
            error,
        )

    async def serve(self, stream: BrokerStream) -> None:
        self.trouble = None
        try:
            await self._subscribe(stream)
            self._has_left = self._closing.is_set()
        except MqError as error:
            if error.code in _REFUSALS:
                await self._refused(error)
            raise
        except Exception as failure:
            # A bug of this client must not let a caller of poll wait for ever.
            log.exception("consumer %s cannot go on", self._options.member)
            internal = mistake(failure)
            await self._refused(internal)
            raise internal from failure
        finally:
            if self.is_connected:
                self._disconnected()

    async def _refused(self, error: MqError) -> None:
        if not self._closing.is_set() and not await self._session.refused(self, error):
            self._streams.stop()

    # One stream

    async def _subscribe(self, stream: BrokerStream) -> None:
        """Nothing but the start is sent before the first assignment: epochs are counted anew on
        each stream.
        """
        start = self._options.wire_start(self._start)
        self._buffer.reclaim(self.name)
        positions = {**self._session.kept_offsets(self.name), **self._buffer.positions(self.name)}
        start.positions.extend(to_positions(positions))
        data = await stream.start(wire.SubscribeRequest(start=start).SerializeToString())
        if data is None:
            return
        follower_reads = FollowerReads(self._broker_set, self._session, self._report_signal)
        self._receive(data, follower_reads, is_first=True)
        writing = asyncio.create_task(self._write(stream, follower_reads))
        try:
            while (data := await stream.read()) is not None:
                self._receive(data, follower_reads)
        finally:
            await cancelled(writing)
            await follower_reads.close()

    def _receive(
        self, data: bytes, follower_reads: FollowerReads, *, is_first: bool = False
    ) -> None:
        response, runs = parse_subscribe_response(data)
        match response.WhichOneof("kind"):
            case "assignment":
                self._buffer.assign(response.assignment, self.name, is_first=is_first)
                follower_reads.follow(response.assignment)
                self._assigned(response.assignment)
            case "delivery":
                self._buffer.deliver(response.delivery, runs, self.name)
            case "redirect":
                follower_reads.begin(response.redirect)

    async def _write(self, stream: BrokerStream, follower_reads: FollowerReads) -> None:
        """Until the stream ends, or the consumer closes it: the reader sees the end."""
        is_open = True
        while is_open and not self._closing.is_set():
            if await self._report_signal.wait(self._heartbeat_s):
                is_open = await self._report(stream, follower_reads)
            else:
                is_open = await stream.write(_ALIVE)
        if is_open:
            await self._report(stream, follower_reads)
            await stream.half_close()

    async def _report(self, stream: BrokerStream, follower_reads: FollowerReads) -> bool:
        """Returns False if the stream has ended."""
        requests = self._buffer.outgoing(self.name)
        # After the progress: a Resume may be ahead of what the stream has delivered.
        for request in [*requests, *follower_reads.outgoing()]:
            if not await stream.write(request.SerializeToString()):
                return False
        follower_reads.progressed()
        return True

    def _assigned(self, assignment: wire.Assignment) -> None:
        self._heartbeat_s = assignment.heartbeat_ms / 1000 or _HEARTBEAT_S
        self._streams.patience = patience(self._heartbeat_s)
        self._alone_s_max = min(ALONE_S_MAX, assignment.expires_ms / 2000 or ALONE_S_MAX)
        if not self.is_connected:
            self.is_connected = True
            self._cancel_fence()
            log.info(
                "consumer %s of group %s has joined in %s, with %d queues",
                self._options.member,
                self._options.group,
                self.name,
                len(assignment.queues),
            )
        self.is_joined = True
        self._session.changed.set()

    def _disconnected(self) -> None:
        self.is_connected = False
        self._alone_since_s = now_s()
        if not self._options.is_broadcast and not self._closing.is_set():
            self._fence = asyncio.get_running_loop().call_later(
                self._alone_s_max, self._buffer.suspend, self.name
            )

    def _cancel_fence(self) -> None:
        if self._fence is not None:
            self._fence.cancel()

    # Offsets

    async def commit(self, timeout_s: float) -> None:
        """The progress in this set is durable when it returns. NotAssigned: nothing of it is."""
        retry = Retry(timeout_s)
        while done := self._buffer.to_commit(self.name):
            try:
                await commit_in(
                    self._broker_set,
                    self._options.group,
                    {one.queue.ref: one.queue_offset for one in done},
                    self._options.member,
                    max(retry.left_s, 0.0),
                )
            except UnknownMember:
                # A new leader knows the member as soon as there is a stream again.
                if self._buffer.failure is not None or not await retry.pause():
                    raise
            else:
                self._buffer.committed(done)
                return

    # Ending

    def end(self) -> None:
        """The stream reports all progress and ends in good order; returns at once."""
        self._closing.set()
        self._streams.stop()
        self._report_signal.tell(is_urgent=True)

    def cancel(self) -> None:
        """Breaks the stream off."""
        self._streams.cancel()
        self._cancel_fence()

    async def leave(self) -> None:
        """As `end`; when it returns the broker knows that the member is gone, if it was reached."""
        self.end()
        await self._streams.finish(_GOODBYE_S_MAX if self.is_connected else 0.0)
        self._cancel_fence()
        if not self._has_left and self.is_joined and self._buffer.failure is None:
            request = wire.LeaveRequest(group=self._options.group, member_id=self._options.member)
            with contextlib.suppress(MqError):
                await self._broker_set.call(request, _LEAVE_S)


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
        self._resumes: list[wire.QueuePosition] = []
        # Failed attempts in a row: the leader may not know yet that the follower is gone.
        self._failures: dict[QueueRef, int] = {}
        self._progress = asyncio.Event()

    # From the stream

    def begin(self, redirect: wire.Redirect) -> None:
        ref = QueueRef(redirect.topic, redirect.queue_id, self._broker_set.name)
        self._stop(ref)
        read = self._reads[ref] = _QueueRead(ref, redirect, self._session)
        log.debug("queue %s is read from %s, from %d on", ref, read.address, read.queue_offset)
        read.task = asyncio.create_task(self._run(read))

    def follow(self, assignment: wire.Assignment) -> None:
        """Ends the reads of queues that are no longer assigned under their epoch."""
        epochs = {(one.topic, one.queue_id): one.epoch for one in assignment.queues}
        for ref, read in list(self._reads.items()):
            if epochs.get(ref[:2]) != read.epoch:
                self._stop(ref)

    def progressed(self) -> None:
        """There may be room in the cache."""
        self._progress.set()

    def outgoing(self) -> list[wire.SubscribeRequest]:
        resumes, self._resumes = self._resumes, []
        return [wire.SubscribeRequest(resume=wire.Resume(positions=resumes))] if resumes else []

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

    def __init__(self, ref: QueueRef, redirect: wire.Redirect, session: GroupSession) -> None:
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

    def request(self) -> wire.PullRequest:
        topic, queue_id, _ = self.ref
        return wire.PullRequest(
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

    def is_unexpected(self, response: wire.PullResponse) -> bool:
        """The leader knows better what to make of the response."""
        return not is_usual(response.status) or response.next_offset < self.queue_offset

    def deliver(self, response: wire.PullResponse, runs: Runs) -> bool:
        """Returns False if the queue is no longer wanted."""
        is_empty = not runs.count and response.next_offset == self.queue_offset
        if is_empty or self.is_unexpected(response):
            return True
        delivery = wire.Delivery(
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
