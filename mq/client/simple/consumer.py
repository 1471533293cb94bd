"""The consumer that receives and acknowledges message by message, for programs with asyncio.

Any number of members share every queue. A received message is this member's for its invisible time:
acknowledged it is done, otherwise it comes again, here or elsewhere. Messages come from all broker
sets that have the topics, see `gatherer`; what becomes of them is told to the set of each, see
`settling`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from mq.client.closing import AsyncClosing
from mq.client.cluster.connection import CALL_TIMEOUT_S, Connection
from mq.client.cluster.retry import call_repeatedly, now_s
from mq.client.consumer.options import ConsumerOptions, Start, Subscriptions, start_position
from mq.client.consumer.topic_locations import TopicLocations
from mq.client.decode import Decoder, parse_receive_response
from mq.client.messages import QueueRef, ReceivedMessage, wire_filter
from mq.client.simple import handles as settling
from mq.client.simple.gather import Gatherer, Place
from mq.client.simple.handles import HandleCall, HandleCalls
from mq.errors import ClientClosed, IllegalConfig, IllegalHandle, Internal, MqError, TopicNotFound
from mq.names import retry_topic
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.cluster_pb2 import RouteResponse, TopicRoute

log = logging.getLogger(__name__)

_SERVICE = "ConsumerService"
_LEAVE_S = 1.0
# How often it is looked which sets have the topics, and whether the group has retries.
_LOOK_EVERY_S, _LOOK_SOON_S = 5.0, 1.0
# A set that nobody has told of for so long is gone.
_UNHEARD_S_MAX = 30.0

Messages = ReceivedMessage | Iterable[ReceivedMessage]


class SimpleConsumer(AsyncClosing):
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
        self._options = ConsumerOptions(
            group, subscriptions, start=start, zone=zone, member_id=member_id or ""
        )
        self._connection = Connection(servers, zone)
        self._reception = _Reception(self._connection, self._options, is_ordered=is_ordered)
        self._gatherer = Gatherer(self._reception)
        self._handle_calls = self._reception.handle_calls
        self._receives = 0
        self._is_closed = False

    # -- receiving --------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = 32, wait_s: float = 20.0, invisible_s: float = 60.0
    ) -> list[ReceivedMessage]:
        """Messages that are this member's for the invisible time, 10 s to 12 h; when there are
        none, waits for the first so long. Raises SubscriptionMismatch and what else the broker
        refuses; Unreachable when no broker set answers. One that does not answer is no reason to
        wait for the others.
        """
        if max_messages < 1 or wait_s < 0:
            raise IllegalConfig("max_messages: at least 1; wait_s: not less than 0")
        _milliseconds(invisible_s, "invisible_s")
        self._check_open()
        began_s = now_s()
        await self._reception.begin()
        turn = self._receives
        self._receives += 1
        left_s = max(0.0, began_s + wait_s - now_s())
        return await self._gatherer.receive(
            lambda: self._reception.places(turn), max_messages, left_s, invisible_s
        )

    # -- what becomes of them ---------------------------------------------------------------------

    async def ack(self, messages: Messages) -> None:
        """Their work is done, durably when it returns: they do not come again.

        IllegalHandle: some of them are not this member's any more, because their time was over and
        somebody else was given them, or they were acknowledged before; the others are done.
        """
        await self._settle(messages, settling.acknowledged(self._options.group))

    async def nack(
        self, messages: Messages, delay_s: float | None = None, reason: str = ""
    ) -> None:
        """Their work has failed: they come again after so long, here or at another member, or when
        their attempt is due: 10 s after the first one, 30 s after the second, and so on. After too
        many attempts they are dead letters, with the reason. IllegalHandle as `ack`.
        """
        delay_ms = None if delay_s is None else _milliseconds(delay_s, "delay_s")
        await self._settle(messages, settling.given_back(self._options.group, delay_ms, reason))

    async def change_invisible(self, messages: Messages, invisible_s: float) -> None:
        """They are this member's for so long from now on, 10 s to 12 h. IllegalHandle as `ack`."""
        invisible_ms = _milliseconds(invisible_s, "invisible_s")
        await self._settle(messages, settling.held_longer(self._options.group, invisible_ms))

    async def _settle(self, messages: Messages, verdict: HandleCall) -> None:
        self._check_open()
        given = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
        foreign = [one for one in given if not one.handle]
        if foreign:
            raise IllegalHandle(
                f"message {foreign[0].message_id} was not received by a SimpleConsumer"
            )
        refused = await self._handle_calls.settle(given, verdict)
        if refused:
            raise IllegalHandle(
                f"{refused} of {len(given)} messages are not this member's any more: their time "
                "was over and somebody else has them, or they were acknowledged before. Receive "
                "with a longer invisible_s, or hold them longer by change_invisible"
            )

    # -- ending -----------------------------------------------------------------------------------

    @property
    def unreadable_messages(self) -> int:
        """How many were passed over because they could not be read; the log names them."""
        return self._reception.decoder.unreadable_messages

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed: make another one")

    async def close(self) -> None:
        """Leaves the group. What was received and not acknowledged comes again when its time is
        over.
        """
        if self._is_closed:
            return
        self._is_closed = True
        never_given = await self._gatherer.close()
        if never_given:
            back = settling.given_back(self._options.group, 0, "")
            # Otherwise they come again when their time is over.
            with contextlib.suppress(MqError):
                await self._handle_calls.settle(never_given, back, _LEAVE_S)
        await self._reception.leave()
        await self._connection.close()


class _Reception:
    """Where the messages of a group are, and single receives of it."""

    def __init__(
        self, connection: Connection, options: ConsumerOptions, *, is_ordered: bool
    ) -> None:
        self.decoder = Decoder(options.wanted_tags())
        self.handle_calls = HandleCalls(connection)
        self._connection = connection
        self._options = options
        self._is_ordered = is_ordered
        self._retry_topic = retry_topic(options.group)
        self._places: list[Place] = []
        self._locations = TopicLocations(connection, options)
        self._look_at_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._listed_at_s: dict[str, float] = {}
        self._asked: set[str] = set()

    # Places

    async def begin(self) -> None:
        """Once is enough, more do no harm."""
        if not self._places:
            await self._locations.look()
            await self._look()

    def places(self, turn: int) -> list[Place]:
        """The topics in all sets that have them, and the group's retries where it has some: dead
        letters that an operator has resent come there. Each is the first one in its turn.
        """
        if now_s() >= self._look_at_s and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_again())
        first = turn % len(self._places)
        return self._places[first:] + self._places[:first]

    async def _look_again(self) -> None:
        try:
            await self._look()
        except MqError as error:
            log.info("what is known of topics is kept: %s", error)

    async def _look(self) -> None:
        self._look_at_s = now_s() + _LOOK_EVERY_S
        known = await self._connection.brokers([*self._options.topics, self._retry_topic])
        self._listed_at_s |= dict.fromkeys((one.name for one in known.broker_sets), now_s())
        self._locations.learn_missing(known)
        places: list[Place] = []
        for topic in self._options.topics:
            parts = [part for part in known.topics if part.topic == topic]
            before = [one.broker_set for one in self._places if one.topic == topic]
            sets = [part.broker_set for part in _readable(parts)]
            # Who has just started has not heard of all sets.
            sets += [name for name in before if self._is_unheard_of(name, known)]
            # Who has it, had it, or would create it says what is wrong.
            sets = sets or [part.broker_set for part in parts] or before
            if not sets:
                sets = [(await self._connection.home(topic)).name]
            places += [Place(topic, name) for name in sets]
        if self._locations.is_waiting:
            self._look_at_s = now_s() + _LOOK_SOON_S
        retries = _readable(part for part in known.topics if part.topic == self._retry_topic)
        places += [Place(self._retry_topic, part.broker_set) for part in retries]
        self._places = places

    def _is_unheard_of(self, name: str, known: RouteResponse) -> bool:
        """By who answered; others have told of it not long ago."""
        if any(one.name == name for one in known.broker_sets):
            return False
        return now_s() - self._listed_at_s.get(name, 0.0) < _UNHEARD_S_MAX

    def _start(self, place: Place) -> Start:
        is_retry = place.topic == self._retry_topic
        return "earliest" if is_retry else self._locations.start_in(place.broker_set, place.topic)

    # Calls

    async def receive(
        self, place: Place, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[ReceivedMessage]:
        position, start_at_ms = start_position(self._start(place))
        request = wire.ReceiveRequest(
            group=self._options.group,
            topic=place.topic,
            filter=wire_filter(self._options.filters.get(place.topic)),
            messages_max=messages_max,
            invisible_ms=_milliseconds(invisible_s, "invisible_s"),
            wait_ms=_milliseconds(wait_s, "wait_s"),
            is_ordered=self._is_ordered,
            start_position=position,
            start_at_ms=start_at_ms,
            member_id=self._options.member_id,
        )
        broker_set = self._connection.of(place.broker_set)
        self._asked.add(place.broker_set)
        try:
            answer = await call_repeatedly(
                broker_set, _SERVICE, "Receive", request, wait_s + CALL_TIMEOUT_S
            )
            runs = parse_receive_response(answer.data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None
        except TopicNotFound:
            self._look_at_s = 0.0
            if place.topic == self._retry_topic:
                return []  # its group was deleted
            raise
        return await self._messages(place, runs) if runs else []

    async def _messages(
        self, place: Place, runs: Sequence[tuple[Any, Any]]
    ) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        passed_over: list[wire.Handle] = []
        for received, frames in runs:
            queue = QueueRef(received.topic, received.queue_id, place.broker_set)
            for one in self.decoder.messages(queue, [frames], place.broker_set):
                if one.message is None:
                    handle = wire.Handle(lease=received.lease, queue_offset=one.queue_offset)
                    passed_over.append(handle)
                    continue
                one.message.attempt = max(one.message.attempt, received.attempt)
                one.message.handle = received.lease
                found.append(one.message)
        if passed_over:
            await self.handle_calls.pass_over(place.broker_set, self._options.group, passed_over)
        return found

    async def hold(
        self, messages: Sequence[ReceivedMessage], invisible_s: float
    ) -> list[ReceivedMessage]:
        invisible_ms = _milliseconds(invisible_s, "invisible_s")
        verdict = settling.held_longer(self._options.group, invisible_ms)
        return await self.handle_calls.still_held(messages, verdict, CALL_TIMEOUT_S)

    async def leave(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        request = wire.LeaveRequest(group=self._options.group, member_id=self._options.member_id)
        leaving = [
            self._connection.of(name).call(_SERVICE, "Leave", request, _LEAVE_S)
            for name in self._asked
        ]
        # Otherwise the brokers find out by themselves.
        await asyncio.gather(*leaving, return_exceptions=True)


def _readable(parts: Iterable[TopicRoute]) -> list[TopicRoute]:
    return [part for part in parts if part.is_readable and part.read_queues]


def _milliseconds(seconds: float, name: str) -> int:
    if not 0 <= seconds <= 1_000_000:
        raise IllegalConfig(f"{name} = {seconds}: give seconds, not less than 0")
    return round(seconds * 1000)
