"""The membership of a consumer in its group, in all broker sets that have its topics.

Each set has a `SetMembership`, which fills the one `PrefetchBuffer`. Sets that get a topic are
joined within seconds, sets that lose it are left, and a set that is down stops none of the others.
An error that a retry cannot mend ends the consumer: the next `take` raises it. Everything here runs
on one event loop; other threads share the messages by the buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from mq.client.cluster.connection import Connection
from mq.client.cluster.errors import REFUSALS, fresh, mistake
from mq.client.cluster.retry import Retry, back_off_s, cancelled, is_set, now_s
from mq.client.cluster.topology import in_several_sets
from mq.client.consumer.offsets import BroadcastOffsets, find_offsets, in_sets
from mq.client.consumer.options import ConsumerOptions, Start, wanted_tags
from mq.client.consumer.prefetch import PrefetchBuffer
from mq.client.consumer.prefetch_queue import InFlight
from mq.client.consumer.retries import RetrySender
from mq.client.consumer.set_stream import SetMembership
from mq.client.consumer.subscribed_sets import SubscribedSets
from mq.client.decode import Decoder
from mq.client.lifecycle import AsyncClient
from mq.client.messages import QueueRef
from mq.errors import ClientClosed, Code, IllegalOffset, MqError, Unreachable

log = logging.getLogger(__name__)

# The wait of calls that need an assignment for the first one, and then for those of other sets.
JOIN_S = 10.0
OTHERS_S = 2.0
# The interval at which a poll looks why the group is not joined.
LOOK_AT_TROUBLE_S = 0.25
# The interval of looking up the sets of the topics, and while a topic does not exist.
LOOK_S = 5.0
AWAIT_S = 1.0
# A set that no broker lists is left after so long without a stream. Brokers that are
# restarted while the set is down do not know it until it is back, and its messages would be
# delivered again.
FORGOTTEN_S = 300.0
_SAVE_S = 1.0
_COMMIT_S_MAX = 10.0
_GOODBYE_S_MAX = 5.0

# Other sets may have a topic that one set has lost, or does not let be read.
_OF_ONE_SET = frozenset({Code.TOPIC_NOT_FOUND, Code.PERMISSION_DENIED})


class GroupSession:
    """Made on any thread; started and closed on one loop, together with its connection. Closed
    after the last handler has finished.
    """

    def __init__(
        self,
        connection: Connection,
        options: ConsumerOptions,
        *,
        takes_ranges: bool = False,
        commits_at_end: bool = True,
    ) -> None:
        """`takes_ranges`: also in ordered mode the caller takes several messages of a queue, and
        handles them as one or in turn. `commits_at_end` False: it commits the progress itself, with
        its results.
        """
        self.options = options
        self._commits_at_end = commits_at_end
        self._ready = asyncio.Event()
        self.decoder = Decoder(wanted_tags(options.filters))
        self.buffer = PrefetchBuffer(
            self.decoder,
            is_ordered=options.is_ordered,
            takes_ranges=takes_ranges,
            cache_messages=options.cache_messages,
            cache_bytes=options.cache_bytes,
            on_ready=self._ready.set,
        )
        self._connection = connection
        self.retries = RetrySender(connection, options, self.buffer)
        self._offsets = BroadcastOffsets(options.group, options.offsets_file)
        self._subscribed = SubscribedSets(
            connection, options, self._offsets if options.is_broadcast else None
        )
        # By broker set. Replaced as a whole: other threads read it.
        self._memberships: Mapping[str, SetMembership] = {}
        self._running: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        # Broker sets that are being left, all of them still in `_memberships`.
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._look_now = asyncio.Event()
        # A membership has joined, or is in trouble.
        self.changed = asyncio.Event()
        self._has_looked = self._is_closing = self._has_left = False
        self._is_failure_told = False
        # The error of looking up the sets of the topics, before the first success.
        self._trouble: MqError | None = None

    # Beginning

    async def start(self) -> None:
        """Joins the group as soon as a broker answers. Idempotent."""
        if self._running is None:
            self.retries.attach()
            self._running = asyncio.create_task(self._follow_topics())
            if self.options.is_broadcast:
                self._saving = asyncio.create_task(self._keep_offsets())

    @property
    def is_started(self) -> bool:
        return self._running is not None

    async def joined(self, timeout_s: float) -> None:
        """Waits until all sets of the topics have sent an assignment, or one has and the others had
        `OTHERS_S`. Raises Unreachable or NoLeader when none comes in time, or the error that ended
        the consumer.
        """
        await self.start()
        is_first = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s) as limit:
                while not self._is_settled:
                    if is_first and self.is_joined:
                        # A set that is down does not delay the others for long.
                        is_first = False
                        moment_s = now_s() + OTHERS_S
                        limit.reschedule(min(limit.when() or moment_s, moment_s))
                    self.changed.clear()
                    await self.changed.wait()
        if self.buffer.failure is not None:
            self.told()
            raise self.buffer.failure
        missing = [one for one in self._memberships.values() if not one.is_joined]
        if not self.is_joined:
            self.raise_trouble()
            raise Unreachable(
                f"no broker let {self.options.member} into group {self.options.group} within "
                f"{timeout_s:g} s; tried {', '.join(self._connection.servers)}"
            )
        for one in missing:
            # The next call does not wait for it again.
            one.is_awaited = False

    @property
    def is_joined(self) -> bool:
        """Whether some set has ever sent an assignment."""
        return any(one.is_joined for one in self._memberships.values())

    def raise_trouble(self) -> None:
        """Raises why the group is not joined, if the attempt took as long as a call may take. The
        attempts go on, and the next one that fails is raised again.
        """
        if trouble := self._found_trouble():
            # Only new trouble counts.
            self._trouble = None
            for one in self._memberships.values():
                one.trouble = None
            raise fresh(trouble)

    def _found_trouble(self) -> MqError | None:
        if self.is_joined:
            return None
        troubles = [one.trouble for one in self._memberships.values() if one.trouble is not None]
        # A set without a leader may be the first, and the others not be asked yet.
        is_all = len(troubles) == len(self._memberships)
        return self._trouble or (troubles[0] if troubles and is_all else None)

    @property
    def _is_settled(self) -> bool:
        if self.buffer.failure is not None or self._found_trouble() is not None:
            return True
        if not self._has_looked or not self.is_joined:
            return False
        return all(one.is_joined or not one.is_awaited for one in self._memberships.values())

    def check_open(self) -> None:
        if self.buffer.is_stopped:
            raise ClientClosed("the consumer is closed: make another one")

    def told(self) -> None:
        """The user has seen the error that ended the consumer."""
        self._is_failure_told = True

    def raise_untold(self) -> None:
        """Raises the error that ended the consumer, unless the user has seen it."""
        if self.buffer.failure is not None and not self._is_failure_told:
            self.told()
            raise self.buffer.failure

    # Messages, for coroutines; threads call `PrefetchBuffer.wait_take`

    async def take(
        self, messages_max: int, timeout_s: float | None, ranges_max: int | None = None
    ) -> list[InFlight]:
        """Waits for the first message. Empty after the time-out, or when the consumer is closed.
        Raises the error that ended the consumer.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._ready.clear()
            found, wait_s = self.buffer.take_or_wait(messages_max, deadline_s, ranges_max)
            if wait_s is None:
                return found
            await is_set(self._ready, None if math.isinf(wait_s) else wait_s)

    # Broker sets

    async def _follow_topics(self) -> None:
        failures = 0
        while self.buffer.failure is None:
            pause_s = LOOK_S
            try:
                await self._update_sets()
            except REFUSALS as error:
                self.fail(error)
                return
            except MqError as error:
                if not self._has_looked:
                    pause_s = back_off_s(failures)
                    failures += 1
                    self._trouble = error
                    self.changed.set()
                log.log(
                    # The connection has logged already, once, that no broker answers.
                    logging.DEBUG if isinstance(error, Unreachable) else logging.WARNING,
                    "consumer %s of group %s finds no broker, next attempt in %.2f s: %s",
                    self.options.member,
                    self.options.group,
                    pause_s,
                    error,
                )
            except Exception as failure:
                # A bug of this client must not let a caller of poll wait for ever.
                log.exception("consumer %s cannot go on", self.options.member)
                self.fail(mistake(failure))
                return
            else:
                failures, self._trouble = 0, None
                if self._subscribed.is_waiting:
                    pause_s = AWAIT_S
            self._look_now.clear()
            await is_set(self._look_now, pause_s)

    async def _update_sets(self) -> None:
        subscribed = self._subscribed
        await subscribed.look()
        if self.buffer.failure is not None:
            return
        for name in sorted(subscribed.sets - self._memberships.keys()):
            self._join(name)
        self._has_looked = True
        self.changed.set()
        staying = sorted(self._memberships.keys() - self._leaving.keys())
        # One broker is not enough to leave a set: it may not have heard of the set yet.
        for name in await subscribed.lost(one for one in staying if one not in subscribed.told):
            self._leave_set(name)
        for name in staying:
            if name not in subscribed.listed and self._memberships[name].alone_s > FORGOTTEN_S:
                subscribed.forget(name)
                if subscribed.sets:
                    self._leave_set(name)

    def _join(self, name: str) -> None:
        start = self._subscribed.start_in(name)
        membership = SetMembership(self._connection.of(name), self, start)
        self._memberships = {**self._memberships, name: membership}
        membership.start()

    def kept_offsets(self, broker_set: str) -> Mapping[QueueRef, int]:
        """Those by which a broadcast consumer starts; of others none."""
        return self._offsets.of(broker_set) if self.options.is_broadcast else {}

    def _leave_set(self, name: str) -> None:
        """The set no longer has anything for the consumer."""
        if name in self._leaving:
            return
        log.info("consumer %s leaves broker set %s", self.options.member, name)
        self._leaving[name] = asyncio.create_task(self._finish_leaving(self._memberships[name]))

    async def _finish_leaving(self, membership: SetMembership) -> None:
        """Progress is reported; messages that are not done are void."""
        name = membership.name
        try:
            await membership.leave()
            if self.options.is_broadcast:
                await self._save(self.buffer.done_offsets())
        except OSError:
            log.exception("offsets of group %s are not saved", self.options.group)
        finally:
            await self.retries.drop(name)
            self.buffer.drop(name)
            self._memberships = {at: one for at, one in self._memberships.items() if at != name}
            del self._leaving[name]
            self.changed.set()

    async def refused(self, membership: SetMembership, error: MqError) -> bool:
        """A set has refused the consumer. Returns whether it tries again, after a pause."""
        if error.code in _OF_ONE_SET and not self._is_closing:
            subscribed = self._subscribed
            if await subscribed.lost([membership.name]):
                self._leave_set(membership.name)
                return False
            is_absent = error.code == Code.TOPIC_NOT_FOUND
            if is_absent and not await subscribed.is_missing(membership.name):
                self._look_now.set()
                return True
        self.fail(error)
        return False

    def fail(self, error: MqError) -> None:
        """Ends the consumer: the user sees the error at the next call."""
        if self.buffer.failure is None:
            log.error(
                "consumer %s of group %s has ended: %s",
                self.options.member,
                self.options.group,
                error,
            )
        self.buffer.fail(error)
        for one in self._memberships.values():
            one.end()
        self.changed.set()

    def resolve(self, topic: str, queue_id: int, broker_set: str = "") -> QueueRef:
        """A queue as users name it: the set may be left out if only one has the topic. Raises
        IllegalRequest if several have it; returns it without a set if none is known yet.
        """
        if broker_set:
            return QueueRef(topic, queue_id, broker_set)
        # The retry topic of the group is in every set.
        is_own = topic not in self.options.topics
        topology = self._connection.topology
        sets = sorted(self._memberships) if is_own else topology.sticky(topic).sets
        if len(sets) > 1:
            raise in_several_sets(topic, queue_id, sets)
        return QueueRef(topic, queue_id, sets[0] if sets else "")

    # Offsets

    async def commit(self, timeout_s: float = _COMMIT_S_MAX) -> None:
        """All progress is durable when this returns, in broadcast mode in the file, and failed
        messages are with the broker. Raises the first error of a set, and names the set if there
        are several; the progress in the others is durable. NotAssigned: another member has one of
        the queues, and nothing of that set was committed.
        """
        if self.options.is_broadcast:
            await self._save(self.buffer.done_offsets())
            return
        await in_sets(
            {name: self._commit_in(one, timeout_s) for name, one in self._memberships.items()}
        )

    async def _commit_in(self, membership: SetMembership, timeout_s: float) -> None:
        retry = Retry(timeout_s)
        await self.retries.flush(membership.name, timeout_s)
        await membership.commit(retry.left_s)

    async def seek(self, positions: Mapping[QueueRef, int]) -> None:
        """Raises NotAssigned, or IllegalOffset behind the end of a queue: then none was moved."""
        refs = self.buffer.assigned(self.resolve(*ref) for ref in positions)
        whole = dict(zip(refs, positions.values(), strict=True))
        for ref, end in (await self._places("latest", list(whole))).items():
            if whole[ref] > end:
                raise IllegalOffset(
                    f"{whole[ref]} is behind the end of queue {ref.queue_id} of topic "
                    f"{ref.topic}, which is {end}"
                )
        self.buffer.seek(whole)

    async def seek_to(self, to: Start, topic: str | None) -> None:
        """All assigned queues, or those of one topic. The retry topic is moved only when it is
        named: failed messages wait there for their next attempt.
        """
        topics = self.options.topics if topic is None else [topic]
        refs = [ref for ref in self.buffer.assignment if ref.topic in topics]
        positions = await self._places(to, refs)
        still = self.buffer.assignment
        self.buffer.seek({ref: at for ref, at in positions.items() if ref in still})

    async def _places(self, to: Start, refs: Sequence[QueueRef]) -> dict[QueueRef, int]:
        found: dict[QueueRef, int] = {}
        for topic in sorted({ref.topic for ref in refs}):
            queues = [ref for ref in refs if ref.topic == topic]
            found |= await find_offsets(self._connection, topic, to, queues)
        return found

    async def _keep_offsets(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            try:
                await self._save(self.buffer.done_offsets())
            except OSError:
                log.exception("offsets of group %s are not saved", self.options.group)

    async def _save(self, offsets: Mapping[QueueRef, int]) -> None:
        if self._offsets.note(offsets):
            await asyncio.to_thread(self._offsets.save)

    # Ending

    async def close(self) -> None:
        """Commits the progress, leaves the group, and closes the connection. Gives up after some
        seconds without a broker: the group gets some messages again.
        """
        self.buffer.stop()
        if self._running is not None and not self._has_left:
            self._is_closing = True
            try:
                await self._leave(self._running)
                self._has_left = True
            finally:
                # Also when this call is cancelled.
                for one in self._memberships.values():
                    one.cancel()
        await self._connection.close()

    async def _leave(self, running: asyncio.Task[None]) -> None:
        # From here on no set is joined.
        await cancelled(running)
        try:
            is_to_commit = self._commits_at_end and self.is_joined
            if is_to_commit and self.buffer.failure is None:
                await self.commit(_GOODBYE_S_MAX)
        except (MqError, OSError) as error:
            log.warning(
                "consumer %s of group %s could not commit at its end: %s",
                self.options.member,
                self.options.group,
                error,
            )
        await self.retries.close()
        leaving = [
            one.leave() for name, one in self._memberships.items() if name not in self._leaving
        ]
        await asyncio.gather(*leaving, *self._leaving.values())
        if self._saving is not None:
            await cancelled(self._saving)


class GroupClient(AsyncClient):
    """A client that works for its group in the background, from `start` until it is closed or the
    broker ends it.
    """

    _session: GroupSession
    _is_over: asyncio.Event

    @abstractmethod
    async def start(self) -> None: ...

    @property
    def assignment(self) -> set[QueueRef]:
        """The queues that this member has now; changes when members come and go."""
        return self._session.buffer.assignment

    async def join(self, timeout_s: float | None = None) -> bool:
        """Waits until it is closed, at most so long. Returns whether it is. Raises the error by
        which the broker has ended it.
        """
        is_over = await is_set(self._is_over, timeout_s)
        self._session.raise_untold()
        return is_over

    async def close(self) -> None:
        """Takes no more messages, and waits for the handlers at work. Raises the error that ended
        the client, unless it was raised before.
        """
        await self._exit(is_orderly=True)

    async def _enter(self) -> None:
        await self.start()

    async def _exit(self, *, is_orderly: bool) -> None:
        await self._close()
        if is_orderly:
            self._session.raise_untold()

    @abstractmethod
    async def _close(self) -> None: ...
