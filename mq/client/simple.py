"""The consumer that receives and acknowledges message by message, for programs with asyncio.

Any number of members share every queue. A received message is this member's for its invisible time:
acknowledged it is done, otherwise it comes again, here or elsewhere.

A call whose answer is lost is made again. An acknowledgement may then have been carried out by the
first attempt, and its handle be spent by it: a handle that is refused after an attempt without an
answer therefore counts as done. It may also have been refused because somebody else has the message
by now; but then it was worked on twice whatever this member is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import DecodeError

from mq.client.decode import Decoder, parse_receive_response
from mq.client.model import QueueRef, ReceivedMessage, wire_filter
from mq.client.subscription import Start, Subscriptions, Wanted, start_position
from mq.client.wiring import CALL_TIMEOUT_S, Connection, back_off_s
from mq.errors import IllegalConfig, IllegalHandle, Internal, MqError
from mq.names import retry_topic
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.status_pb2 import SEND_OK

log = logging.getLogger(__name__)

_SERVICE = "ConsumerService"
_HANDLES_MAX = 2_000
# As long as a broker keeps a call.
_WAIT_S_MAX = 60.0
_LEAVE_S = 1.0
# How often it is looked whether the group has retries.
_RETRIES_EVERY_S = 30.0
# How long a call is made again while brokers fail over.
_SETTLE_S = 15.0

T = TypeVar("T")
Messages = ReceivedMessage | Iterable[ReceivedMessage]
# Handles in, the answer to them out.
_Ask = Callable[[Sequence[wire.Handle]], Awaitable[wire.HandleResponse]]


class _Attempts(Connection):
    """Counts attempts that had no answer: the broker may have carried them out."""

    def __init__(self, servers: str | Sequence[str], zone: str) -> None:
        super().__init__(servers, zone)
        self.unanswered = 0

    def failed(self, address: str) -> None:
        self.unanswered += 1
        super().failed(address)


class SimpleConsumer:
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

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        subscriptions: Subscriptions,
        *,
        start: Start = "latest",
        is_ordered: bool = False,
        zone: str = "",
        member_id: str | None = None,
    ) -> None:
        self._wanted = Wanted(
            group, subscriptions, start=start, zone=zone, member_id=member_id or ""
        )
        self._is_ordered = is_ordered
        self._connection = _Attempts(servers, zone)
        self._decoder = Decoder(self._wanted.wanted_tags())
        self._broker_sets: dict[str, str] = {}
        self._receives = 0
        self._retry_topic = retry_topic(group)
        self._has_retries = False
        self._look_at_s = 0.0
        self._is_closed = False

    # -- receiving --------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = 32, wait_s: float = 20.0, invisible_s: float = 60.0
    ) -> list[ReceivedMessage]:
        """Messages that are this member's for the invisible time, 10 s to 12 h; when there are
        none, waits for the first so long. Raises SubscriptionMismatch and what else the broker
        refuses; Unreachable when none answers.
        """
        if max_messages < 1 or wait_s < 0:
            raise IllegalConfig("max_messages: at least 1; wait_s: not less than 0")
        self._check_open()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        topics = await self._topics()
        first = self._receives % len(topics)
        self._receives += 1
        topics = topics[first:] + topics[:first]
        found = await self._look(topics, max_messages, invisible_s) if len(topics) > 1 else []
        while not found:
            left_s = min(max(0.0, deadline_s - loop.time()), _WAIT_S_MAX)
            found = await self._wait(topics, max_messages, left_s, invisible_s)
            if loop.time() >= deadline_s:
                break
        return found

    async def _topics(self) -> list[str]:
        """Those that are wanted, and the group's retries once it has some: dead letters that an
        operator has resent come there.
        """
        now_s = asyncio.get_running_loop().time()
        if not self._has_retries and now_s >= self._look_at_s:
            self._look_at_s = now_s + _RETRIES_EVERY_S
            known = await self._connection.brokers([self._retry_topic])
            self._has_retries = any(one.topic == self._retry_topic for one in known.topics)
        return [*self._wanted.topics, *([self._retry_topic] if self._has_retries else [])]

    async def _look(
        self, topics: Sequence[str], max_messages: int, invisible_s: float
    ) -> list[ReceivedMessage]:
        """What is there now, of one topic after the other."""
        found: list[ReceivedMessage] = []
        for topic in topics:
            if len(found) < max_messages:
                left = max_messages - len(found)
                found += await self._receive(topic, left, 0.0, invisible_s)
        return found

    async def _wait(
        self, topics: Sequence[str], max_messages: int, wait_s: float, invisible_s: float
    ) -> list[ReceivedMessage]:
        """What comes first, of any topic."""
        if len(topics) == 1:
            return await self._receive(topics[0], max_messages, wait_s, invisible_s)
        # Each may bring its share, so that together they are not too many; who has none this time
        # is first in line another time.
        topics = topics[:max_messages]
        share = max_messages // len(topics)
        calls = [
            asyncio.ensure_future(self._receive(topic, share, wait_s, invisible_s))
            for topic in topics
        ]
        try:
            pending: set[asyncio.Future[list[ReceivedMessage]]] = set(calls)
            while pending and not any(_brought(one) for one in calls):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The broker takes back what it gave to a call that is cancelled.
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        found: list[ReceivedMessage] = []
        for one in calls:
            if not one.cancelled() and one.exception() is None:
                found += one.result()
        if not found:
            for one in calls:
                if not one.cancelled():
                    one.result()  # raises why
        return found

    async def _receive(
        self, topic: str, max_messages: int, wait_s: float, invisible_s: float
    ) -> list[ReceivedMessage]:
        start = "earliest" if topic == self._retry_topic else self._wanted.start
        position, start_at_ms = start_position(start)
        request = wire.ReceiveRequest(
            group=self._wanted.group,
            topic=topic,
            filter=wire_filter(self._wanted.filters.get(topic)),
            messages_max=max_messages,
            invisible_ms=_milliseconds(invisible_s, "invisible_s"),
            wait_ms=_milliseconds(wait_s, "wait_s"),
            is_ordered=self._is_ordered,
            start_position=position,
            start_at_ms=start_at_ms,
            member_id=self._wanted.member_id,
        )
        data: bytes = await self._call("Receive", request, wait_s + CALL_TIMEOUT_S)
        try:
            runs = parse_receive_response(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None
        return await self._messages(topic, runs) if runs else []

    async def _messages(self, topic: str, runs: Sequence[tuple[Any, Any]]) -> list[ReceivedMessage]:
        broker_set = await self._broker_set(topic)
        found: list[ReceivedMessage] = []
        passed_over: list[wire.Handle] = []
        for received, frames in runs:
            queue = QueueRef(received.topic, received.queue_id)
            for one in self._decoder.messages(queue, [frames], broker_set):
                if one.message is None:
                    place = wire.Handle(lease=received.lease, queue_offset=one.queue_offset)
                    passed_over.append(place)
                    continue
                one.message.attempt = max(one.message.attempt, received.attempt)
                one.message.handle = received.lease
                found.append(one.message)
        if passed_over:
            # Nobody is to see them: they must not come again.
            await self._settle(self._acknowledge, passed_over)
        return found

    async def _broker_set(self, topic: str) -> str:
        if topic not in self._broker_sets:
            route = await self._connection.route(topic)
            self._broker_sets[topic] = route.parts[0].broker_set
        return self._broker_sets[topic]

    # -- what becomes of them ---------------------------------------------------------------------

    async def ack(self, messages: Messages) -> None:
        """Their work is done, durably when it returns: they do not come again.

        IllegalHandle: some of them are not this member's any more, because their time was over and
        somebody else was given them, or they were acknowledged before; the others are done.
        """
        await self._settle_messages(self._acknowledge, messages)

    async def nack(
        self, messages: Messages, delay_s: float | None = None, reason: str = ""
    ) -> None:
        """Their work has failed: they come again after so long, here or at another member, or when
        their attempt is due: 10 s after the first one, 30 s after the second, and so on. After too
        many attempts they are dead letters, with the reason. IllegalHandle as `ack`.
        """
        delay_ms = None if delay_s is None else _milliseconds(delay_s, "delay_s")

        async def ask(handles: Sequence[wire.Handle]) -> wire.HandleResponse:
            request = wire.NackRequest(
                group=self._wanted.group, handles=handles, delay_ms=delay_ms, reason=reason
            )
            return await self._settled("Nack", request)

        await self._settle_messages(ask, messages)

    async def change_invisible(self, messages: Messages, invisible_s: float) -> None:
        """They are this member's for so long from now on, 10 s to 12 h. IllegalHandle as `ack`."""
        invisible_ms = _milliseconds(invisible_s, "invisible_s")

        async def ask(handles: Sequence[wire.Handle]) -> wire.HandleResponse:
            request = wire.ChangeInvisibleRequest(
                group=self._wanted.group, handles=handles, invisible_ms=invisible_ms
            )
            return await self._settled("ChangeInvisible", request)

        await self._settle_messages(ask, messages)

    async def _acknowledge(self, handles: Sequence[wire.Handle]) -> wire.HandleResponse:
        request = wire.AckRequest(group=self._wanted.group, handles=handles)
        return await self._settled("Ack", request)

    async def _settled(self, method: str, request: Any) -> wire.HandleResponse:
        data = await self._call(method, request, _SETTLE_S)
        return wire.HandleResponse.FromString(data)

    async def _settle_messages(self, ask: _Ask, messages: Messages) -> None:
        self._check_open()
        given = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
        foreign = [one for one in given if not one.handle]
        if foreign:
            raise IllegalHandle(
                f"message {foreign[0].message_id} was not received by a SimpleConsumer"
            )
        refused = await self._settle(ask, _handles(given))
        if refused:
            raise IllegalHandle(
                f"{refused} of {len(given)} messages are not this member's any more: their time "
                "was over and somebody else has them, or they were acknowledged before. Receive "
                "with a longer invisible_s, or hold them longer by change_invisible"
            )

    async def _settle(self, ask: _Ask, handles: Sequence[wire.Handle]) -> int:
        """How many messages were refused."""
        refused = 0
        for at in range(0, len(handles), _HANDLES_MAX):
            part = handles[at : at + _HANDLES_MAX]
            unanswered = self._connection.unanswered
            response = await ask(part)
            is_repeated = self._connection.unanswered != unanswered
            bad = [
                handle for handle, code in zip(part, response.codes, strict=True) if code != SEND_OK
            ]
            if is_repeated:
                continue
            # Of several messages in one handle perhaps only some are not ours.
            single = [one for handle in bad if handle.count > 1 for one in _singles(handle)]
            refused += len([handle for handle in bad if handle.count <= 1])
            if single:
                refused += await self._settle(ask, single)
        return refused

    # -- calls ------------------------------------------------------------------------------------

    async def _call(self, method: str, request: Any, timeout_s: float) -> bytes:
        """Made again while nobody knows what came of it, or the broker has too much to do."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        attempt = 0
        while True:
            try:
                answer: bytes = await self._connection.call_first(
                    _SERVICE, method, request, deadline_s - loop.time(), raw_response=True
                )
            except MqError as error:
                pause_s = back_off_s(attempt)
                attempt += 1
                if not error.retryable or loop.time() + pause_s >= deadline_s:
                    raise
                self._connection.unanswered += 1
                await asyncio.sleep(pause_s)
            else:
                return answer

    # -- ending -----------------------------------------------------------------------------------

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._decoder.unreadable_messages

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the consumer is closed")

    async def close(self) -> None:
        """Leaves the group. What was received and not acknowledged comes again when its time is
        over.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._receives:
            request = wire.LeaveRequest(group=self._wanted.group, member_id=self._wanted.member_id)
            # Otherwise the broker finds out by itself.
            with contextlib.suppress(MqError):
                await self._connection.call_first(_SERVICE, "Leave", request, _LEAVE_S)
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _brought(call: asyncio.Future[list[ReceivedMessage]]) -> bool:
    """Whether it is over and has messages, or a failure to tell of."""
    return call.done() and (call.exception() is not None or bool(call.result()))


def _handles(messages: Iterable[ReceivedMessage]) -> list[wire.Handle]:
    """Neighbours of one lease are one handle."""
    handles: list[wire.Handle] = []
    for lease, queue_offset in sorted({(one.handle, one.queue_offset) for one in messages}):
        last = handles[-1] if handles else None
        if last and last.lease == lease and last.queue_offset + last.count == queue_offset:
            last.count += 1
        else:
            handles.append(wire.Handle(lease=lease, queue_offset=queue_offset, count=1))
    return handles


def _singles(handle: wire.Handle) -> list[wire.Handle]:
    return [
        wire.Handle(lease=handle.lease, queue_offset=handle.queue_offset + at, count=1)
        for at in range(handle.count)
    ]


def _milliseconds(seconds: float, name: str) -> int:
    if not 0 <= seconds <= 1_000_000:
        raise IllegalConfig(f"{name} = {seconds}: give seconds, not less than 0")
    return round(seconds * 1000)
