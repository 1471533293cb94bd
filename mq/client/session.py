"""A consumer's life in its group: one stream after the other, always to the leader.

A stream that breaks is opened again, with the positions of all queues in hand, so that nothing is
lost and nothing in hand comes twice. What a retry cannot mend ends the consumer: whoever takes the
next message gets the error. Everything here runs on one event loop; the messages are in `Holdings`,
which other threads share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence

import grpc.aio

from mq.client import offset_calls
from mq.client.broadcast_offsets import BroadcastOffsets
from mq.client.decode import Decoder
from mq.client.failures import error_of_call
from mq.client.held_queue import Taken
from mq.client.holdings import Holdings
from mq.client.model import QueueRef
from mq.client.retries import Retries
from mq.client.stream import News, Stream, Watch
from mq.client.subscription import Start, Wanted
from mq.client.wiring import Connection
from mq.errors import Code, IllegalOffset, Internal, MqError, NotLeader, UnknownMember, Unreachable
from mq.wire.v1.consumer_pb2 import Assignment, LeaveRequest

log = logging.getLogger(__name__)

_SERVICE = "ConsumerService"
BACK_OFF_S, BACK_OFF_S_MAX = 0.05, 1.0
# A broker waits some seconds for a member whose stream broke, then others get its queues.
ALONE_S_MAX = 4.0
# How long a leader may be silent until others are asked who leads. A new one waits a little longer
# than that for the members of its groups, and gives nothing of theirs to others meanwhile.
CHECK_S = 2.0
# How long calls that need an assignment wait for the first one.
JOIN_S = 10.0
_SAVE_S = 1.0
_COMMIT_S_MAX = 10.0
_GOODBYE_S_MAX = 5.0

# The consumer asked for something that it will not get by asking again.
_FATAL = frozenset(
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


class Session:
    """Made anywhere; started and closed on the loop where it lives, and its connection with it.
    Close it when nobody works on messages any more.
    """

    def __init__(
        self, connection: Connection, wanted: Wanted, *, commits_at_end: bool = True
    ) -> None:
        """`commits_at_end` False: somebody else commits what is done, with what was made of it."""
        self.wanted = wanted
        self._commits_at_end = commits_at_end
        self.decoder = Decoder(wanted.wanted_tags())
        self._news = News()
        self.holdings = Holdings(
            self.decoder,
            is_ordered=wanted.is_ordered,
            cache_messages=wanted.cache_messages,
            cache_bytes=wanted.cache_bytes,
            on_report=self._news.tell,
        )
        self._connection = connection
        self.retries = Retries(connection, wanted, self.holdings)
        self._offsets = BroadcastOffsets(wanted.group, wanted.offsets_file)
        self._broker_set = ""
        # The newest in which a broker was known to lead.
        self._term = 0
        self._running: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._joined, self._closing = asyncio.Event(), asyncio.Event()
        self._ready = asyncio.Event()
        self._is_connected = False
        self._alone_s_max = ALONE_S_MAX
        # The stream has ended in good order, so the broker knows that we are gone.
        self._has_left = False
        self._fence: asyncio.TimerHandle | None = None
        self._is_failure_told = False

    # Beginning

    async def start(self) -> None:
        """Joins the group, as soon as a broker answers. Once is enough, more do no harm."""
        if self._running is None:
            self._news.attach()
            self.retries.attach()
            self._running = asyncio.create_task(self._run())
            if self.wanted.is_broadcast:
                self._saving = asyncio.create_task(self._keep_offsets())

    @property
    def is_started(self) -> bool:
        return self._running is not None

    async def joined(self, timeout_s: float) -> None:
        """The first assignment has come. Unreachable when it does not come in time; raises what
        ended the consumer instead.
        """
        await self.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._joined.wait()
        except TimeoutError:
            raise Unreachable(
                f"no broker let {self.wanted.member_id} into group {self.wanted.group} within "
                f"{timeout_s:g} s; tried {', '.join(self._connection.servers)}"
            ) from None
        if self.holdings.failure is not None:
            self.told()
            raise self.holdings.failure

    def check_open(self) -> None:
        if self.holdings.is_stopped:
            raise RuntimeError("the consumer is closed")

    def told(self) -> None:
        """The user knows what ended the consumer."""
        self._is_failure_told = True

    def raise_untold(self) -> None:
        """What ended the consumer, if the user does not know it yet."""
        if self.holdings.failure is not None and not self._is_failure_told:
            self.told()
            raise self.holdings.failure

    # Messages, for coroutines; threads have `Holdings.wait_take`

    async def take(self, messages_max: int, timeout_s: float | None) -> list[Taken]:
        """Waits for the first message. Empty: out of time, or closed. Raises what ended the
        consumer.
        """
        self.holdings.on_ready = self._ready.set
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._ready.clear()
            found = self.holdings.take(messages_max)
            if found or self.holdings.is_stopped:
                return found
            ends = [one for one in (deadline_s, self.holdings.next_retry_s()) if one is not None]
            left_s = min(ends) - time.monotonic() if ends else None
            if deadline_s is not None and deadline_s <= time.monotonic():
                return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._ready.wait()

    # Streams

    async def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                await self._stream()
                error: MqError = Unreachable("the broker has ended the stream")
                self._has_left = self._closing.is_set()
            except MqError as failure:
                error = failure
            except Exception as failure:
                # A mistake of ours. Who waits for messages must not wait for ever.
                log.exception("consumer %s cannot go on", self.wanted.member_id)
                self._fail(Internal(f"the client has failed: {failure!r}"))
                return
            if self._closing.is_set():
                return
            if error.code in _FATAL:
                self._fail(error)
                return
            if self._is_connected:
                failures = 0
                self._disconnected()
            pause_s = min(BACK_OFF_S * 2 ** min(failures, 10), BACK_OFF_S_MAX)
            failures += 1
            log.log(
                logging.WARNING if failures > 3 else logging.INFO,
                "consumer %s of group %s has no broker, next attempt in %.2f s: %s",
                self.wanted.member_id,
                self.wanted.group,
                pause_s,
                error,
            )
            # Not all at the same moment: a whole group has lost its leader.
            pause_s *= random.uniform(0.5, 1.0)  # noqa: S311
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()

    def _fail(self, error: MqError) -> None:
        self.holdings.fail(error)
        self._joined.set()

    async def _stream(self) -> None:
        """Opens one and serves it to its end."""
        address = await self._find_leader()
        call = self._connection.stream(address, _SERVICE, "Subscribe", raw_responses=True)
        stream = Stream(
            call,
            self.holdings,
            self._news,
            self._closing,
            broker_set=self._broker_set,
            on_assignment=self._assigned,
            watch=Watch(
                lambda: self._check_leader(address),
                CHECK_S if len(set(self._connection.servers)) > 1 else math.inf,
            ),
        )
        start = self.wanted.wire_start()
        start.positions.extend(offset_calls.to_positions(self._positions()))
        try:
            await stream.run(start)
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure, address)
            if isinstance(error, NotLeader):
                self._connection.of(self._broker_set).not_leader(address, error.address or "")
            elif isinstance(error, Unreachable):
                self._connection.of(self._broker_set).failed(address)
            raise error from None
        except Unreachable:
            self._connection.of(self._broker_set).failed(address)
            raise
        finally:
            call.cancel()

    async def _find_leader(self) -> str:
        if not self._broker_set:
            response = await self._connection.brokers(self.wanted.topics)
            names = [one.broker_set for one in response.topics]
            names += [one.name for one in response.broker_sets]
            self._broker_set = names[0] if names else ""
            self._term = max((one.term for one in response.broker_sets), default=0)
        return await self._connection.of(self._broker_set).leader()

    async def _check_leader(self, address: str) -> None:
        """Somebody else may lead by now, and the one whose stream this is may not know it. A broker
        that is asked may know even less: only an answer that is newer than the last one counts.
        """
        response = await self._connection.brokers()
        for broker_set in response.broker_sets:
            leaders = [one for one in broker_set.nodes if one.node_id == broker_set.leader_id]
            if leaders and broker_set.term > self._term:
                self._term = broker_set.term
                if leaders[0].address != address:
                    raise Unreachable(f"{leaders[0].address} leads now, not {address}")

    def _positions(self) -> dict[QueueRef, int]:
        """What is wanted next."""
        kept = self._offsets.offsets if self.wanted.is_broadcast else {}
        return {**kept, **self.holdings.positions()}

    def _assigned(self, assignment: Assignment) -> None:
        self._alone_s_max = min(ALONE_S_MAX, assignment.expires_ms / 2000 or ALONE_S_MAX)
        if not self._is_connected:
            self._is_connected = True
            if self._fence is not None:
                self._fence.cancel()
            log.info(
                "consumer %s of group %s has joined, with %d queues",
                self.wanted.member_id,
                self.wanted.group,
                len(assignment.queues),
            )
        self._joined.set()

    def _disconnected(self) -> None:
        self._is_connected = False
        if not self.wanted.is_broadcast:
            loop = asyncio.get_running_loop()
            self._fence = loop.call_later(self._alone_s_max, self.holdings.suspend)

    # Offsets

    async def commit(self, timeout_s: float = _COMMIT_S_MAX) -> None:
        """What is done is durable when this returns, in broadcast mode in the file; so is what
        failed and goes back to the broker. NotAssigned when another member has one of the queues by
        now: nothing was committed.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        await self.retries.flush(timeout_s)
        offsets = self.holdings.done_offsets()
        if self.wanted.is_broadcast:
            await self._save(offsets)
            return
        while offsets:
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                await offset_calls.commit_offsets(
                    self._connection,
                    self.wanted.group,
                    offsets,
                    member_id=self.wanted.member_id,
                    timeout_s=max(left_s, 0.0),
                )
            except UnknownMember:
                # A new leader knows of it as soon as there is a stream again.
                if left_s <= 0 or self.holdings.failure is not None:
                    raise
                await asyncio.sleep(BACK_OFF_S)
            else:
                return

    async def seek(self, positions: Mapping[QueueRef, int]) -> None:
        """NotAssigned, or IllegalOffset behind the end of a queue: nothing was moved."""
        for topic in {ref.topic for ref in positions}:
            queue_ids = [ref.queue_id for ref in positions if ref.topic == topic]
            ends = await self.find_offsets(topic, "latest", queue_ids)
            for ref, end in ends.items():
                if positions[ref] > end:
                    raise IllegalOffset(
                        f"{positions[ref]} is behind the end of queue {ref.queue_id} of topic "
                        f"{topic}, which is {end}"
                    )
        self.holdings.seek(positions)

    async def seek_to(self, to: Start, topic: str | None) -> None:
        """All queues that are assigned, or those of one topic. What failed stays where it is unless
        its topic is named: it waits there for its next attempt, whatever else is read again.
        """
        topics = self.wanted.topics if topic is None else [topic]
        refs = [ref for ref in self.holdings.assignment if ref.topic in topics]
        positions: dict[QueueRef, int] = {}
        for name in sorted({ref.topic for ref in refs}):
            queue_ids = [ref.queue_id for ref in refs if ref.topic == name]
            positions |= await self.find_offsets(name, to, queue_ids)
        still = self.holdings.assignment
        self.holdings.seek({ref: at for ref, at in positions.items() if ref in still})

    async def find_offsets(
        self, topic: str, to: Start, queue_ids: Sequence[int]
    ) -> dict[QueueRef, int]:
        return await offset_calls.find_offsets(self._connection, topic, to, queue_ids)

    async def _keep_offsets(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            try:
                await self._save(self.holdings.done_offsets())
            except OSError:
                log.exception("offsets of group %s are not saved", self.wanted.group)

    async def _save(self, offsets: Mapping[QueueRef, int]) -> None:
        if self._offsets.note(offsets):
            await asyncio.to_thread(self._offsets.save)

    # Ending

    async def close(self) -> None:
        """Commits what is done, leaves the group, and closes the connection. Without a broker it
        gives up after some seconds: the group will see some messages again.
        """
        self.holdings.stop()
        if self._running is not None and not self._closing.is_set():
            await self._leave(self._running)
        await self._connection.close()

    async def _leave(self, running: asyncio.Task[None]) -> None:
        try:
            is_to_commit = self._commits_at_end and self._joined.is_set()
            if is_to_commit and self.holdings.failure is None:
                await self.commit(_GOODBYE_S_MAX)
        except (MqError, OSError) as error:
            log.warning(
                "consumer %s of group %s could not commit at its end: %s",
                self.wanted.member_id,
                self.wanted.group,
                error,
            )
        await self.retries.close()
        self._closing.set()
        self._news.tell(is_urgent=True)
        if self._is_connected:
            await asyncio.wait([running], timeout=_GOODBYE_S_MAX)
        tasks = [task for task in (running, self._saving) if task is not None]
        if self._fence is not None:
            self._fence.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._has_left and self._joined.is_set() and self.holdings.failure is None:
            request = LeaveRequest(group=self.wanted.group, member_id=self.wanted.member_id)
            with contextlib.suppress(MqError):
                await self._connection.call_first(_SERVICE, "Leave", request, timeout_s=1.0)
