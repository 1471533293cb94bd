"""The consumer that receives and acknowledges message by message, for programs with asyncio.

Any number of members share every queue. A received message belongs to this member for its invisible
time: if it is not acknowledged by then, it is delivered again, here or elsewhere. `gather` receives
from all broker sets that have the topics.

Calls about received messages (acknowledge, give back, hold longer) go by their handles, each to the
broker set of its message, and a call without an answer is repeated. The first attempt at an
acknowledgement may have spent the handle, so a handle that is refused after an attempt without an
answer counts as done. It may also be refused because another member has the message now; then it
was worked on twice, whatever this member is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import CALL_TIMEOUT_S, call_repeatedly, now_s
from mq.client.consumer.offsets import in_sets
from mq.client.consumer.options import (
    GroupOptions,
    Start,
    new_member_id,
    start_position,
    wanted_tags,
)
from mq.client.consumer.subscribed_sets import SubscribedSets
from mq.client.decode import Decoder, Runs, parse_receive_response
from mq.client.lifecycle import AsyncClient
from mq.client.messages import Lease, QueueRef, ReceivedMessage, shared_of, wire_filter
from mq.client.public import arguments_of
from mq.client.simple.batch import LeasedMessages, ReceivedBatch, ReceivedMessages
from mq.client.simple.gather import Gatherer, Source
from mq.errors import ClientClosed, IllegalConfig, IllegalHandle, MqError, TopicNotFound
from mq.names import retry_topic
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.status_pb2 import SEND_OK

log = logging.getLogger(__name__)

_LEAVE_S = 1.0
# The interval of looking up the sets of the topics; sooner while a topic is missing.
_LOOK_EVERY_S, _LOOK_SOON_S = 5.0, 1.0

# Of one receive_batch, unless more or fewer are asked for.
BATCH_MESSAGES = 256

_HANDLES_MAX = 2_000
# The time for which a call about handles is repeated while brokers fail over.
RETRY_S = 15.0

Messages = ReceivedMessage | Iterable[ReceivedMessage]
# About messages that this member has; their handles are filled in.
HandleRequest = wire.AckRequest | wire.NackRequest | wire.ChangeInvisibleRequest
# The lease and queue offset of a message.
Held = tuple[bytes, int]


@dataclass(frozen=True, kw_only=True)
class SimpleOptions(GroupOptions):
    is_ordered: bool = False
    member_id: str | None = None
    # The member id as brokers see it.
    member: str = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "member", self.member_id or new_member_id())


class SimpleConsumer(AsyncClient):
    """Receives when it is asked to; there is nothing to join.

    >>> async def work() -> None:
    ...     async with SimpleConsumer(servers, "crew", "greetings", start="earliest") as consumer:
    ...         for message in await consumer.receive(wait_s=10):
    ...             print(message.attempt, message.body)
    ...             await consumer.ack(message)
    >>> asyncio.run(work())
    1 b'hello'
    1 b'world'

    `subscriptions`, `start` and `zone` are those of `Consumer`; all members of a group must have
    the same. With `is_ordered`, of the messages with the same ordering key one is given out at a
    time, in their order: the next one when the one before it is done.
    """

    @arguments_of(SimpleOptions)
    def __init__(self, options: SimpleOptions) -> None:
        self._options = options
        self._connection = options.connect()
        self._receiver = _GroupReceiver(self._connection, options)
        self._gatherer = Gatherer(self._receiver)
        self._receives = 0
        self._is_closed = False

    # Receiving

    async def receive(
        self, max_messages: int = 32, wait_s: float = 20.0, invisible_s: float = 60.0
    ) -> list[ReceivedMessage]:
        """Messages that belong to this member for the invisible time, 10 s to 12 h; waits `wait_s`
        for the first. Raises SubscriptionMismatch and other refusals of a broker; Unreachable if no
        broker set answers. A set that does not answer delays no other.
        """
        found = await self._receive(max_messages, wait_s, invisible_s)
        return ReceivedMessages(found).messages

    async def receive_batch(
        self, max_messages: int = BATCH_MESSAGES, wait_s: float = 20.0, invisible_s: float = 60.0
    ) -> ReceivedBatch:
        """As `receive`, but all messages as one object, which makes no object for each of them
        until that is asked for: see `ReceivedBatch`. `await batch.ack()` acknowledges all of them.
        """
        return ReceivedBatch(await self._receive(max_messages, wait_s, invisible_s), self.ack)

    async def _receive(
        self, max_messages: int, wait_s: float, invisible_s: float
    ) -> list[LeasedMessages]:
        if max_messages < 1 or wait_s < 0:
            raise IllegalConfig("max_messages: at least 1; wait_s: not less than 0")
        _milliseconds(invisible_s, "invisible_s")
        self._check_open()
        began_s = now_s()
        await self._receiver.begin()
        turn = self._receives
        self._receives += 1
        left_s = max(0.0, began_s + wait_s - now_s())
        return await self._gatherer.receive(
            lambda: self._receiver.sources(turn), max_messages, left_s, invisible_s
        )

    # Handles

    async def ack(self, messages: Messages) -> None:
        """The messages are done, durably when it returns: they are not delivered again.

        Raises IllegalHandle if some of them no longer belong to this member, because their time
        was over and another member has them, or they were acknowledged before; the others are done.
        """
        await self._send(messages, wire.AckRequest(group=self._options.group))

    async def nack(
        self, messages: Messages, delay_s: float | None = None, reason: str = ""
    ) -> None:
        """The messages have failed: they are delivered again, to any member, after `delay_s` or
        when their next attempt is due: 10 s after the first one, 30 s after the second, and so on.
        After too many attempts they are dead letters, with the reason. IllegalHandle as `ack`.
        """
        delay_ms = None if delay_s is None else _milliseconds(delay_s, "delay_s")
        group = self._options.group
        await self._send(messages, wire.NackRequest(group=group, delay_ms=delay_ms, reason=reason))

    async def change_invisible(self, messages: Messages, invisible_s: float) -> None:
        """They belong to this member for `invisible_s` from now, 10 s to 12 h. Errors as `ack`."""
        await self._send(messages, _change_invisible(self._options.group, invisible_s))

    async def _send(self, messages: Messages, request: HandleRequest) -> None:
        self._check_open()
        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        if not isinstance(given, ReceivedMessages):
            given = list(given)
        refused = await send_handles(self._connection, _leases(given), request)
        if refused:
            raise IllegalHandle(
                f"{len(refused)} of {len(given)} messages do not belong to this member: their time "
                "was over and another member has them, or they were acknowledged before. Receive "
                "with a longer invisible_s, or hold them longer by change_invisible"
            )

    # Ending

    @property
    def unreadable_messages(self) -> int:
        """The number of messages that could not be read and were skipped; the log names them."""
        return self._receiver.decoder.unreadable_messages

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed: make another one")

    async def close(self) -> None:
        """Leaves the group. Messages that are not acknowledged are delivered again when their time
        is over.
        """
        if self._is_closed:
            return
        self._is_closed = True
        never_given = await self._gatherer.close()
        if never_given:
            back = wire.NackRequest(group=self._options.group, delay_ms=0)
            # Without this they come again when their time is over.
            with contextlib.suppress(MqError):
                leases = [one.lease for one in never_given]
                await send_handles(self._connection, leases, back, _LEAVE_S)
        await self._receiver.leave()
        await self._connection.close()


class _GroupReceiver:
    """The sources of a group's messages, and single receives from them."""

    def __init__(self, connection: Connection, options: SimpleOptions) -> None:
        self.decoder = Decoder(wanted_tags(options.filters))
        self._connection = connection
        self._options = options
        self._retry_topic = retry_topic(options.group)
        self._sources: list[Source] = []
        self._subscribed = SubscribedSets(connection, options)
        self._look_at_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._asked: set[str] = set()

    # Sources

    async def begin(self) -> None:
        """Idempotent."""
        if not self._sources:
            await self._look()

    def sources(self, turn: int) -> list[Source]:
        """The topics in all sets that have them, and the retry topic of the group, where dead
        letters come that an operator has resent. Each source is the first one in its turn.
        """
        if now_s() >= self._look_at_s and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_again())
        first = turn % len(self._sources)
        return self._sources[first:] + self._sources[:first]

    async def _look_again(self) -> None:
        try:
            await self._look()
        except MqError as error:
            log.info("what is known of topics is kept: %s", error)

    async def _look(self) -> None:
        self._look_at_s = now_s() + _LOOK_EVERY_S
        await self._subscribed.look()
        if self._subscribed.is_waiting:
            self._look_at_s = now_s() + _LOOK_SOON_S
        topology = self._connection.topology
        sources: list[Source] = []
        for topic in self._options.topics:
            route = topology.believed(topic)
            before = [one.broker_set for one in self._sources if one.topic == topic]
            # A set that has the topic, had it, or would create it says what is wrong.
            sets = route.readable_sets or route.sets or before
            if not sets:
                sets = [(await topology.home(topic)).name]
            sources += [Source(topic, name) for name in sets]
        retries = topology.believed(self._retry_topic).readable_sets
        self._sources = sources + [Source(self._retry_topic, name) for name in retries]

    def _start(self, source: Source) -> Start:
        is_retry = source.topic == self._retry_topic
        return (
            "earliest" if is_retry else self._subscribed.start_in(source.broker_set, source.topic)
        )

    # Calls

    async def receive(
        self, source: Source, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[LeasedMessages]:
        position, start_at_ms = start_position(self._start(source))
        request = wire.ReceiveRequest(
            group=self._options.group,
            topic=source.topic,
            filter=wire_filter(self._options.filters.get(source.topic)),
            messages_max=messages_max,
            invisible_ms=_milliseconds(invisible_s, "invisible_s"),
            wait_ms=_milliseconds(wait_s, "wait_s"),
            is_ordered=self._options.is_ordered,
            start_position=position,
            start_at_ms=start_at_ms,
            member_id=self._options.member,
        )
        broker_set = self._connection.of(source.broker_set)
        self._asked.add(source.broker_set)
        try:
            answer = await call_repeatedly(broker_set, request, wait_s + CALL_TIMEOUT_S)
            runs = parse_receive_response(answer.data)
        except TopicNotFound:
            self._look_at_s = 0.0
            if source.topic == self._retry_topic:
                return []  # the group was deleted
            raise
        return await self._batches(source, runs) if runs else []

    async def _batches(
        self, source: Source, received: Sequence[tuple[wire.ReceivedRun, Runs]]
    ) -> list[LeasedMessages]:
        """Acknowledges messages that are filtered or unreadable: they are never given out."""
        found: list[LeasedMessages] = []
        passed_over: list[Lease] = []
        for run, runs in received:
            queue = QueueRef(run.topic, run.queue_id, source.broker_set)
            batch = LeasedMessages(queue, runs, self.decoder, run.lease, max(1, run.attempt))
            if batch:
                found.append(batch)
            if len(batch) < runs.count:
                offsets = sorted(set(runs.queue_offsets(0, runs.count)).difference(batch.offsets))
                passed_over.append(Lease(source.broker_set, run.lease, offsets))
        if passed_over:
            request = wire.AckRequest(group=self._options.group)
            await send_handles(self._connection, passed_over, request)
        return found

    async def hold(
        self, batches: Sequence[LeasedMessages], invisible_s: float
    ) -> list[LeasedMessages]:
        request = _change_invisible(self._options.group, invisible_s)
        leases = [one.lease for one in batches]
        refused = await send_handles(self._connection, leases, request, CALL_TIMEOUT_S)
        if not refused:
            return list(batches)
        kept = [
            one.without({offset for handle, offset in refused if handle == lease.handle})
            for one, lease in zip(batches, leases, strict=True)
        ]
        return [one for one in kept if one]

    async def leave(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        request = wire.LeaveRequest(group=self._options.group, member_id=self._options.member)
        leaving = [self._connection.of(name).call(request, _LEAVE_S) for name in self._asked]
        # Without this the brokers find out by themselves.
        await asyncio.gather(*leaving, return_exceptions=True)


def _leases(messages: Sequence[ReceivedMessage]) -> list[Lease]:
    if isinstance(messages, ReceivedMessages):
        return messages.leases
    found = leases_of(messages)
    if any(not one.handle for one in found):
        foreign = next(one for one in messages if not one.handle)
        raise IllegalHandle(f"message {foreign.message_id} was not received by a SimpleConsumer")
    return found


def _change_invisible(group: str, invisible_s: float) -> wire.ChangeInvisibleRequest:
    invisible_ms = _milliseconds(invisible_s, "invisible_s")
    return wire.ChangeInvisibleRequest(group=group, invisible_ms=invisible_ms)


def _milliseconds(seconds: float, name: str) -> int:
    if not 0 <= seconds <= 1_000_000:
        raise IllegalConfig(f"{name} = {seconds}: give seconds, not less than 0")
    return round(seconds * 1000)


# Handles


def leases_of(messages: Iterable[ReceivedMessage]) -> list[Lease]:
    """Messages of one receive have the same `Shared`, and are not looked at one by one."""
    offsets: dict[tuple[str, bytes], list[int]] = {}
    for shared, own in groupby(messages, key=shared_of):
        found = offsets.setdefault((shared.queue.broker_set, shared.handle), [])
        found += [one.queue_offset for one in own]
    return [Lease(*lease, sorted(set(found))) for lease, found in offsets.items()]


async def send_handles(
    connection: Connection,
    leases: Iterable[Lease],
    request: HandleRequest,
    timeout_s: float = RETRY_S,
) -> list[Held]:
    """Returns the messages that were refused. Asks all sets even if one fails, and raises the error
    of that one with its name.
    """
    by_set: dict[str, list[wire.Handle]] = {}
    for one in leases:
        by_set.setdefault(one.broker_set, []).extend(handles_of(one))
    refused = await in_sets(
        {
            name: _send_to_set(connection, name, handles, request, timeout_s)
            for name, handles in by_set.items()
        }
    )
    return [one for own in refused.values() for one in own]


async def _send_to_set(
    connection: Connection,
    broker_set: str,
    handles: Sequence[wire.Handle],
    request: HandleRequest,
    timeout_s: float,
) -> set[Held]:
    """Returns the messages that were refused."""
    is_final = not isinstance(request, wire.ChangeInvisibleRequest)
    refused: set[Held] = set()
    asked = await connection.named(broker_set)
    for at in range(0, len(handles), _HANDLES_MAX):
        part = handles[at : at + _HANDLES_MAX]
        filled = deepcopy(request)
        filled.handles.extend(part)
        answer = await call_repeatedly(asked, filled, timeout_s)
        if answer.is_repeated and is_final:
            continue
        codes = wire.HandleResponse.FromString(answer.data).codes
        bad = [handle for handle, code in zip(part, codes, strict=True) if code != SEND_OK]
        refused |= {(one.lease, one.queue_offset) for one in bad if one.count <= 1}
        # Of several messages in one handle perhaps only some belong to another member.
        single = [one for handle in bad if handle.count > 1 for one in _singles(handle)]
        if single:
            refused |= await _send_to_set(connection, broker_set, single, request, timeout_s)
    return refused


def handles_of(lease: Lease) -> list[wire.Handle]:
    """Neighbours share one."""
    offsets = lease.queue_offsets
    if not offsets:
        return []
    gaps: list[int] = []
    if offsets[-1] - offsets[0] >= len(offsets):
        gaps = [at for at, (one, after) in enumerate(pairwise(offsets), 1) if after > one + 1]
    return [
        wire.Handle(lease=lease.handle, queue_offset=offsets[start], count=end - start)
        for start, end in pairwise([0, *gaps, len(offsets)])
    ]


def _singles(handle: wire.Handle) -> list[wire.Handle]:
    return [
        wire.Handle(lease=handle.lease, queue_offset=handle.queue_offset + at, count=1)
        for at in range(handle.count)
    ]
