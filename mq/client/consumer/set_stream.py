"""A consumer's life in one broker set: one stream after the other, always to the leader.

A stream that breaks is opened again, with the positions of all queues in hand, so that nothing is
lost and nothing in hand comes twice. What a retry cannot mend is for the session to judge, which
knows of the other sets. Everything here runs on one event loop; the messages are in
`PrefetchBuffer`,
which other threads share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mq.client.cluster.connection import SetConnection
from mq.client.cluster.errors import error_of_call
from mq.client.cluster.retry import UnaryCall
from mq.client.consumer.follower_reads import FollowerReads
from mq.client.consumer.offsets import commit_in, to_positions
from mq.client.consumer.options import ConsumerOptions, Start
from mq.client.consumer.prefetch import PrefetchBuffer
from mq.client.consumer.reports import ReportSignal
from mq.client.decode import parse_subscribe_response
from mq.client.messages import QueueRef
from mq.errors import Code, Internal, MqError, NotLeader, UnknownMember, Unreachable
from mq.wire.v1.consumer_pb2 import (
    Alive,
    Assignment,
    LeaveRequest,
    PullRequest,
    SubscribeRequest,
    SubscribeStart,
)

log = logging.getLogger(__name__)

_SERVICE = "ConsumerService"
BACK_OFF_S, BACK_OFF_S_MAX = 0.05, 1.0
# After a stream that lasted so long, the next one is opened without much of a pause.
STEADY_S = 5.0
# A broker waits some seconds for a member whose stream broke, then others get its queues.
ALONE_S_MAX = 4.0
# How long a leader may be silent until others are asked who leads: at first, and in the long run. A
# new one waits a little longer than that for the members of its groups, and gives nothing of theirs
# to others meanwhile.
CHECK_S_MIN, CHECK_S_MAX = 0.5, 2.0
GOODBYE_S_MAX = 5.0

# The consumer asked for something that it will not get by asking again.
_REFUSALS = frozenset(
    {
        Code.ILLEGAL_REQUEST,
        Code.ILLEGAL_TOPIC,
        Code.ILLEGAL_GROUP,
        Code.ILLEGAL_FILTER,
        Code.ILLEGAL_CONFIG,
        Code.PERMISSION_DENIED,
        Code.TOPIC_NOT_FOUND,
        Code.SUBSCRIPTION_MISMATCH,
    }
)


class MembershipCallbacks(NamedTuple):
    """Whom an membership tells of itself."""

    # It was refused: whether to go on all the same, after a pause.
    refused: Callable[[SetMembership, MqError], Awaitable[bool]]
    # It has joined, or is connected no more.
    changed: Callable[[], None]
    # Of broadcast consumers: the offsets that are kept, by the set.
    kept: Callable[[str], Mapping[QueueRef, int]]


class SetMembership:
    """Made, started and left on one loop."""

    def __init__(
        self,
        broker_set: SetConnection,
        options: ConsumerOptions,
        buffer: PrefetchBuffer,
        callbacks: MembershipCallbacks,
        start: Start,
    ) -> None:
        """`start`: where to begin in queues of which the group has no offset."""
        self.name = broker_set.name
        self._report_signal = ReportSignal()
        # Has had an assignment.
        self.is_joined = False
        # Why no leader was found the last time, after it was looked for as long as a call may take.
        self.trouble: Unreachable | None = None
        # Those who wait until the consumer has joined wait for this set, too.
        self.is_awaited = True
        self._broker_set = broker_set
        self._options = options
        self._buffer = buffer
        self._callbacks = callbacks
        self._start = start
        # The newest in which a broker was known to lead.
        self._term = 0
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.is_connected = False
        self._connected_at_s = 0.0
        self._alone_s_max = ALONE_S_MAX
        # The stream has ended in good order, so the broker knows that we are gone.
        self._has_left = False
        self._fence: asyncio.TimerHandle | None = None
        # When there was no stream any more.
        self._alone_since_s = asyncio.get_running_loop().time()

    def start(self) -> None:
        self._buffer.open_set(self.name, self._report_signal)
        self._running = asyncio.create_task(self._run())

    @property
    def alone_s(self) -> float:
        """For how long the set was not heard."""
        if self.is_connected:
            return 0.0
        return asyncio.get_running_loop().time() - self._alone_since_s

    # Streams

    async def _run(self) -> None:
        try:
            await self._attend()
        except Exception as failure:
            # A mistake of ours. Who waits for messages must not wait for ever.
            log.exception("consumer %s cannot go on", self._options.member_id)
            await self._callbacks.refused(self, Internal(f"the client has failed: {failure!r}"))

    async def _attend(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                await self._stream()
                error: MqError = Unreachable("the broker has ended the stream")
                self._has_left = self._closing.is_set()
            except MqError as failure:
                error = failure
            if self._closing.is_set():
                return
            if error.code in _REFUSALS and not await self._callbacks.refused(self, error):
                return
            if self.is_connected:
                # A stream that ends again and again right after it began is a failure each time.
                lasted_s = asyncio.get_running_loop().time() - self._connected_at_s
                failures = 0 if lasted_s >= STEADY_S else failures
                self._disconnected()
            failures += 1
            await self._pause(failures, error)

    async def _pause(self, failures: int, error: MqError) -> None:
        pause_s = min(BACK_OFF_S * 2 ** min(failures - 1, 10), BACK_OFF_S_MAX)
        log.log(
            # That no broker or no leader is found the connection logs, once.
            logging.WARNING
            if failures > 3 and not isinstance(error, Unreachable)
            else logging.INFO,
            "consumer %s of group %s has no broker in %s, next attempt in %.2f s: %s",
            self._options.member_id,
            self._options.group,
            self.name,
            pause_s,
            error,
        )
        # Not all at the same moment: a whole group has lost its leader.
        pause_s *= random.uniform(0.5, 1.0)  # noqa: S311
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._closing.wait()

    async def _stream(self) -> None:
        """Opens one and serves it to its end."""
        try:
            address = await self._broker_set.leader()
        except Unreachable as trouble:
            self.trouble = trouble
            self._callbacks.changed()
            raise
        self.trouble = None
        self._term = max(self._term, self._broker_set.term)
        call = self._broker_set.stream(address, _SERVICE, "Subscribe", raw_responses=True)
        stream = SubscribeStream(
            call,
            self.name,
            self._buffer,
            FollowerReads(self._pull, self._buffer, self._options, self.name, self._report_signal),
            self._report_signal,
            self._closing,
            on_assignment=self._assigned,
            watch=SilenceWatch(
                lambda: self._check_leader(address),
                CHECK_S_MIN,
                CHECK_S_MAX if len(set(self._broker_set.servers)) > 1 else math.inf,
            ),
        )
        start = self._options.wire_start(self._start)
        self._buffer.reclaim(self.name)
        positions = {**self._callbacks.kept(self.name), **self._buffer.positions(self.name)}
        start.positions.extend(to_positions(positions))
        try:
            await stream.run(start)
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure, address)
            if isinstance(error, NotLeader):
                self._broker_set.not_leader(address, error.address or "")
            elif isinstance(error, Unreachable):
                self._broker_set.failed(address)
            raise error from None
        except Unreachable:
            self._broker_set.failed(address)
            raise
        finally:
            call.cancel()

    async def _pull(self, address: str, request: PullRequest, timeout_s: float) -> bytes:
        """From any broker of the set; one attempt."""
        call = UnaryCall(_SERVICE, "Pull", request, timeout_s, raw_response=True)
        answer: bytes = await self._broker_set.ask(address, call, timeout_s)
        return answer

    async def _check_leader(self, address: str) -> None:
        """Somebody else may lead by now, and the one whose stream this is may not know it. A broker
        that is asked may know even less: only an answer that is newer than the last one counts.
        """
        response = await self._broker_set.brokers(last=address)
        for broker_set in response.broker_sets:
            leaders = [one for one in broker_set.nodes if one.node_id == broker_set.leader_id]
            if broker_set.name == self.name and leaders and broker_set.term > self._term:
                self._term = broker_set.term
                if leaders[0].address != address:
                    raise Unreachable(f"{leaders[0].address} leads now, not {address}")

    def _assigned(self, assignment: Assignment) -> None:
        self._alone_s_max = min(ALONE_S_MAX, assignment.expires_ms / 2000 or ALONE_S_MAX)
        if not self.is_connected:
            self.is_connected = True
            self._connected_at_s = asyncio.get_running_loop().time()
            if self._fence is not None:
                self._fence.cancel()
            log.info(
                "consumer %s of group %s has joined in %s, with %d queues",
                self._options.member_id,
                self._options.group,
                self.name,
                len(assignment.queues),
            )
        self.is_joined = True
        self._callbacks.changed()

    def _disconnected(self) -> None:
        self.is_connected = False
        loop = asyncio.get_running_loop()
        self._alone_since_s = loop.time()
        if not self._options.is_broadcast:
            self._fence = loop.call_later(self._alone_s_max, self._buffer.suspend, self.name)

    # Offsets

    async def commit(self, timeout_s: float) -> None:
        """What is done in this set is durable when it returns. NotAssigned: nothing of it is."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while done := self._buffer.to_commit(self.name):
            left_s = deadline_s - loop.time()
            try:
                await commit_in(
                    self._broker_set,
                    self._options.group,
                    {one.queue.ref: one.queue_offset for one in done},
                    self._options.member_id,
                    max(left_s, 0.0),
                )
            except UnknownMember:
                # A new leader knows of it as soon as there is a stream again.
                if left_s <= 0 or self._buffer.failure is not None:
                    raise
                await asyncio.sleep(BACK_OFF_S)
            else:
                self._buffer.committed(done)
                return

    # Ending

    def end(self) -> None:
        """The stream reports what is done and ends in good order; nothing waits for that."""
        self._closing.set()
        self._report_signal.tell(is_urgent=True)

    def cancel(self) -> None:
        """At once, without a word."""
        if self._running is not None:
            self._running.cancel()
        if self._fence is not None:
            self._fence.cancel()

    async def leave(self) -> None:
        """As `end`, and the broker knows that we are gone, if it can be reached."""
        self.end()
        if self._running is not None:
            if self.is_connected:
                await asyncio.wait([self._running], timeout=GOODBYE_S_MAX)
            self.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if not self._has_left and self.is_joined and self._buffer.failure is None:
            request = LeaveRequest(group=self._options.group, member_id=self._options.member_id)
            with contextlib.suppress(MqError):
                await self._broker_set.call(_SERVICE, "Leave", request, timeout_s=1.0)


# A broker answers a start at once.
ANSWER_S_MAX = 5.0


class Call(Protocol):
    """What is used of grpc.aio.StreamStreamCall; requests are messages, answers are bytes."""

    async def write(self, request: SubscribeRequest) -> None: ...
    async def read(self) -> bytes: ...
    async def done_writing(self) -> None: ...


class SilenceWatch(NamedTuple):
    """Over a broker that is silent: `check` raises when it is not the one to talk to any more. The
    first check comes after `patience_s_min` of silence, so that a consumer whose messages stop
    soon knows why; the longer the silence, the longer the time to the next, up to `patience_s_max`
    or the time between two signs of life: a consumer that has nothing to do asks seldom.
    """

    check: Callable[[], Awaitable[None]]
    patience_s_min: float
    patience_s_max: float

    def pause_s(self, silence_s: float, heartbeat_s: float) -> float:
        """Until the next check, when the broker has been silent for so long."""
        longest_s = min(heartbeat_s, self.patience_s_max)
        return min(max(silence_s / 2, self.patience_s_min), longest_s)


class SubscribeStream:
    def __init__(  # noqa: PLR0913
        self,
        call: Call,
        broker_set: str,
        buffer: PrefetchBuffer,
        follower_reads: FollowerReads,
        report_signal: ReportSignal,
        closing: asyncio.Event,
        *,
        on_assignment: Callable[[Assignment], None],
        watch: SilenceWatch,
    ) -> None:
        """When `closing` is set, all that is done is reported and the stream ends in good order."""
        self._call = call
        self._buffer = buffer
        self._report_signal = report_signal
        self._closing = closing
        self._broker_set = broker_set
        self._follower_reads = follower_reads
        self._on_assignment = on_assignment
        self._silence = watch
        self._heartbeat_s = 10.0
        self._heard_s = time.monotonic()

    async def run(self, start: SubscribeStart) -> None:
        """Until the broker ends it, or the consumer does. Failures are grpc.aio.AioRpcError or
        ours.
        """
        # A call that is over already tells the reader why.
        with contextlib.suppress(asyncio.InvalidStateError):
            await self._call.write(SubscribeRequest(start=start))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                is_open = await self._read(is_first=True)
        except TimeoutError:
            raise Unreachable(f"no answer to a subscription within {ANSWER_S_MAX:g} s") from None
        if not is_open:
            return
        others = [asyncio.create_task(self._write()), asyncio.create_task(self._watch())]
        reading = asyncio.create_task(self._read_all())
        try:
            # Who writes ends when the consumer closes; the broker's answer to it is to come.
            await asyncio.wait([reading, others[1]], return_when=asyncio.FIRST_COMPLETED)
            if others[1].done():
                await others[1]
            await reading
        finally:
            for task in (*others, reading):
                task.cancel()
            await asyncio.gather(*others, reading, return_exceptions=True)
            await self._follower_reads.close()

    # Reading

    async def _read_all(self) -> None:
        while await self._read():
            pass

    async def _read(self, *, is_first: bool = False) -> bool:
        """Whether the stream goes on."""
        data = await self._call.read()
        if data is grpc.aio.EOF:
            return False
        self._heard_s = time.monotonic()
        try:
            response, runs = parse_subscribe_response(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None
        match response.WhichOneof("kind"):
            case "assignment":
                assignment = response.assignment
                self._heartbeat_s = (assignment.heartbeat_ms or 10_000) / 1000
                self._buffer.assign(assignment, self._broker_set, is_first=is_first)
                self._follower_reads.follow(assignment)
                self._on_assignment(assignment)
            case "delivery":
                self._buffer.deliver(response.delivery, runs, self._broker_set)
            case "redirect":
                self._follower_reads.begin(response.redirect)
        return True

    async def _watch(self) -> None:
        """A broker that has nothing to deliver says nothing, and so does one that is frozen, cut
        off, or deposed and does not know it.
        """
        while True:
            heard_s = self._heard_s
            silence_s = time.monotonic() - heard_s
            await asyncio.sleep(self._silence.pause_s(silence_s, self._heartbeat_s))
            if self._heard_s == heard_s:
                await self._silence.check()

    # Writing

    async def _write(self) -> None:
        # Whoever reads learns why the stream is broken.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while not self._closing.is_set():
                if await self._report_signal.wait(self._heartbeat_s):
                    await self._report()
                else:
                    await self._call.write(SubscribeRequest(alive=Alive()))
            await self._report()
            await self._call.done_writing()

    async def _report(self) -> None:
        for request in self._buffer.outgoing(self._broker_set):
            await self._call.write(request)
        # After the progress: it may go further than the stream has delivered.
        for request in self._follower_reads.outgoing():
            await self._call.write(request)
        self._follower_reads.progressed()
