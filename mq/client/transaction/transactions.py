"""The core of a transaction producer, on one event loop: half messages go to a broker set of their
topic, ends to the set of their transaction, and the questions of all sets come in.

There is a stream to every set of the cluster from the start on, also to those that it has sent
nothing to: only so can it be asked about what an earlier run, or another producer of its group, has
left open. A question about a transaction that is at work here is not passed on: its end is on the
way. The face for users is in `transactions_aio`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from mq import names
from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import back_off_s
from mq.client.decode import Decoder, Frames
from mq.client.encode import Encoded, delay_field, encode_message
from mq.client.messages import Message, QueueRef
from mq.client.producer.avoidance import SLOW_S, Avoidance
from mq.client.producer.lines import Kind, Line, TopicLines
from mq.client.producer.producer_routes import ProducerRoutes
from mq.client.transaction.transaction_encode import end_request, half_batch, half_request
from mq.client.transaction.transaction_lane import STALL_S, Elsewhere, TransactLane
from mq.client.transaction.transaction_model import (
    Checks,
    HalfMessage,
    Resolution,
    TransactionResult,
    TransactionSettings,
)
from mq.errors import (
    ClientClosed,
    IllegalRequest,
    MqError,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
)
from mq.wire.v1.cluster_pb2 import RouteResponse
from mq.wire.v1.transaction_pb2 import (
    CheckTransaction,
    EndTransactionRequest,
    TransactRequest,
    TransactResponse,
)

log = logging.getLogger(__name__)

_CHECKS_AT_ONCE = 20
# Sets are added while it runs, and topics get queues and lose some.
_ROUTES_AGE_S_MAX = 5.0
# A set that nobody knows any more, and that is not there, was removed.
_GONE_S = 60.0

Answering = Callable[[HalfMessage], Awaitable[Resolution]]


class _Wanted(NamedTuple):
    """A half message that is to be stored."""

    topic: str
    encoded: Encoded
    checks: Checks
    queue_id: int | None
    broker_set: str
    priority: int


class TransactionCore:
    """Make and use it on its loop. `answer` is asked what became of a transaction."""

    def __init__(
        self, connection: Connection, settings: TransactionSettings, answer: Answering
    ) -> None:
        self.settings = settings
        self.connection = connection
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(settings.in_flight_max)
        self._answering_free = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._lanes: dict[str, TransactLane] = {}
        self._avoidance = Avoidance()
        self._routes = ProducerRoutes(connection)
        self._topics: dict[str, TopicLines] = {}
        # Transactions that are at work here, for as long as somebody has them in hand, and those
        # whose question is being answered.
        self._at_work: WeakValueDictionary[str, HalfMessage] = WeakValueDictionary()
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._decoder = Decoder()
        self._is_closing = False
        self._keeping = self._loop.create_task(self._keep_lanes())

    # For the faces

    async def begin(
        self,
        topic: str,
        message: Message | bytes | str,
        checks: Checks,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """The half message is stored when this returns, and its transaction open: call `end` or
        `leave` for it.
        """
        if self._is_closing:
            raise ClientClosed("the producer is closed: make another one")
        timeout_s = self.settings.timeout_s if timeout_s is None else timeout_s
        born_at_ms = time.time_ns() // 1_000_000
        encoded = encode_message(message, born_at_ms, self.settings.compress_above_bytes)
        if delay_field(message):
            raise IllegalRequest("a message of a transaction cannot be delayed as well")
        async with self._free:
            deadline_s = self._loop.time() + timeout_s
            priority = message.priority if isinstance(message, Message) else 0
            wanted = _Wanted(topic, encoded, checks, queue_id, broker_set, priority)
            response, used_queue = await self._begin(wanted, deadline_s)
        stored = response.half
        sent = message if isinstance(message, Message) else Message(_body(message))
        half = HalfMessage(
            transaction_id=stored.transaction_id,
            topic=topic,
            queue_id=used_queue,
            stored_at_ms=stored.stored_at_ms,
            born_at_ms=born_at_ms,
            body=_body(sent.body),
            tag=sent.tag,
            keys=(sent.keys,) if isinstance(sent.keys, str) else tuple(sent.keys),
            properties=dict(sent.properties),
            ordering_key=sent.ordering_key,
        )
        self._at_work[half.transaction_id] = half
        return half

    async def end(
        self, half: HalfMessage, resolution: Resolution, timeout_s: float | None = None
    ) -> TransactionResult:
        """What is confirmed. Raises what the broker has against it: the transaction is over by
        another end, or its topic is gone.
        """
        transaction_id, topic = half.transaction_id, half.topic
        unknown = TransactionResult(transaction_id, Resolution.UNKNOWN.value, topic)
        try:
            if resolution is Resolution.UNKNOWN:
                return unknown
            timeout_s = self.settings.timeout_s if timeout_s is None else timeout_s
            lane = self._lane(names.parse_message_id(transaction_id)[0])
            try:
                response = await lane.send_end(
                    lambda request_id: end_request(request_id, transaction_id, resolution),
                    self._loop.time() + timeout_s,
                    f"the end of transaction {transaction_id}",
                )
            except MqError as error:
                # Closed meanwhile: the broker asks another producer of the group.
                if not error.retryable and not isinstance(error, ClientClosed):
                    raise
                return unknown._replace(reason=str(error))
        finally:
            self.leave(half)
        ended = response.ended
        if resolution is Resolution.ROLLBACK or ended.log_offset < 0:
            return TransactionResult(transaction_id, resolution.value, topic)
        broker_set, _ = names.parse_message_id(transaction_id)
        message_id = names.message_id(broker_set, ended.log_offset)
        return TransactionResult(
            transaction_id, resolution.value, topic, message_id, ended.queue_id, ended.queue_offset
        )

    def leave(self, half: HalfMessage) -> None:
        """It is not at work here any more: the broker's questions about it are passed on."""
        self._at_work.pop(half.transaction_id, None)

    async def close(self) -> None:
        """Ends the streams. Transactions that are open stay so: others of the group are asked."""
        self._is_closing = True
        tasks = [self._keeping, *self._answering.values()]
        self._keeping.cancel()
        lanes = self._lanes.values()
        await asyncio.gather(*(lane.close(self.settings.timeout_s) for lane in lanes))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connection.close()

    # Halves

    async def _begin(self, wanted: _Wanted, deadline_s: float) -> tuple[TransactResponse, int]:
        refused_by: set[str] = set()
        lines = await self._lines(wanted.topic, deadline_s)
        while True:
            line, others = self._choose(lines, wanted)
            lane = self._lane(line.broker_set)
            try:
                response = await lane.send_half(
                    self._half_maker(wanted, line.queue_id),
                    deadline_s,
                    f"a half message to {wanted.topic}",
                    functools.partial(self._is_any_well, others) if others else None,
                )
            except Elsewhere:
                continue
            except (TopicNotFound, QueueNotFound, PermissionDenied):
                # The topic is not what we think: asks for its route, once a set.
                if lane.name in refused_by:
                    raise
                refused_by.add(lane.name)
                left_s = deadline_s - self._loop.time()
                parts = await self._routes.ask_again(wanted.topic, left_s, lane.name)
                lines.set_parts(parts)
            else:
                return response, line.queue_id

    def _choose(self, lines: TopicLines, wanted: _Wanted) -> tuple[Line, frozenset[str]]:
        """A queue, and the other sets that may take it instead."""
        line, kind, priority = lines.wait_for(
            wanted.encoded[3], wanted.queue_id, wanted.broker_set, b"", wanted.priority
        )
        if kind is not Kind.ANY:
            return line, frozenset()
        choice = lines.choices[priority]
        sets = choice.sets & self._well() or choice.sets
        chosen = choice.next_line(sets, is_idle=False) or choice.lines[0]
        return chosen, choice.sets - {chosen.broker_set}

    def _half_maker(self, wanted: _Wanted, queue_id: int) -> Callable[[int, str, int], bytes]:
        def make(request_id: int, producer_id: str, sequence: int) -> bytes:
            batch = half_batch(
                wanted.topic,
                queue_id,
                producer_id,
                sequence,
                self.settings.producer_group,
                _merged(wanted.checks, self.settings.checks),
                wanted.encoded,
            )
            return half_request(request_id, batch)

        return make

    async def _lines(self, topic: str, deadline_s: float) -> TopicLines:
        lines = self._topics.get(topic)
        if lines is None:
            parts = await self._routes.find(topic, max(deadline_s - self._loop.time(), 0.001))
            lines = TopicLines(topic, random.randrange(1 << 16))  # noqa: S311 # spreads load only
            lines.set_parts(parts)
            # Two may ask at once; all go by the same.
            lines = self._topics.setdefault(topic, lines)
        return lines

    # Broker sets

    def _lane(self, broker_set: str) -> TransactLane:
        lane = self._lanes.get(broker_set)
        if lane is None:
            line = self.connection.of(broker_set)
            lane = TransactLane(line, self.settings.producer_group, self)
            self._lanes[broker_set] = lane
        return lane

    def _well(self) -> frozenset[str]:
        """Those for half messages that may go to any."""
        now_s = self._loop.time()
        return frozenset(
            name
            for name, lane in self._lanes.items()
            if lane.is_started
            and not lane.is_silent(SLOW_S)
            and not self._avoidance.is_avoided(name, now_s)
        )

    def _is_any_well(self, sets: frozenset[str]) -> bool:
        return bool(sets & self._well())

    async def _keep_lanes(self) -> None:
        """To whatever sets there are. What is known of topics serves until there is news."""
        attempt = 0
        while True:
            try:
                response, found = await self._routes.refresh(list(self._topics), STALL_S)
            except MqError:
                await asyncio.sleep(back_off_s(attempt))
                attempt += 1
                continue
            for topic, parts in found.items():
                self._topics[topic].set_parts(parts)
            for broker_set in response.broker_sets:
                self._lane(broker_set.name)
            await self._drop_lanes(response)
            attempt = 0
            await asyncio.sleep(_ROUTES_AGE_S_MAX)

    async def _drop_lanes(self, response: RouteResponse) -> None:
        known = {one.name for one in response.broker_sets}
        for name, lane in list(self._lanes.items()):
            if name not in known and lane.is_unused(_GONE_S):
                del self._lanes[name]
                await lane.close(0.0)

    # Called by the lanes

    def started(self, lane: TransactLane) -> None:
        for other in list(self._lanes.values()):
            if other is not lane:
                other.let_go()

    def is_busy(self, lane: TransactLane, pause_s: float) -> None:
        self._avoidance.is_busy(lane.name, self._loop.time(), pause_s)

    def answered(self, lane: TransactLane, latency_s: float) -> None:
        self._avoidance.answered(lane.name, latency_s, self._loop.time())

    # Questions

    def asked(self, lane: TransactLane, check: CheckTransaction) -> None:
        name = check.transaction_id
        if name not in self._at_work and name not in self._answering and check.messages:
            self._answering[name] = task = self._loop.create_task(self._reply(lane, check))
            task.add_done_callback(lambda _: self._answering.pop(name, None))

    async def _reply(self, lane: TransactLane, check: CheckTransaction) -> None:
        try:
            half = self._half_of(check)
        except MqError as error:
            log.error("a question that makes no sense: %s", error)  # noqa: TRY400
            return
        if half is None:
            return
        async with self._answering_free:
            resolution = await self._answer(half)
        end = EndTransactionRequest(
            transaction_id=check.transaction_id, resolution=_wire_resolution(resolution)
        )
        lane.reply(TransactRequest(checked=end).SerializeToString())

    def _half_of(self, check: CheckTransaction) -> HalfMessage | None:
        """None: its message cannot be read, which was logged."""
        broker_set, log_offset = names.parse_message_id(check.transaction_id)
        frames = Frames(-1, log_offset, check.stored_at_ms, [0], check.messages[:1])
        queue = QueueRef(check.topic, check.queue_id, broker_set)
        ((_, _, received),) = self._decoder.messages(queue, [frames], broker_set)
        if received is None:
            return None
        return HalfMessage(
            transaction_id=check.transaction_id,
            topic=check.topic,
            queue_id=check.queue_id,
            stored_at_ms=check.stored_at_ms,
            born_at_ms=received.born_at_ms,
            body=received.body,
            tag=received.tag,
            keys=received.keys,
            properties=received.properties,
            ordering_key=received.ordering_key,
            check=check.check,
        )


def _wire_resolution(resolution: Resolution) -> Any:
    return f"RESOLUTION_{resolution.value}"


def _merged(wanted: Checks, default: Checks) -> Checks:
    return Checks._make(b if a is None else a for a, b in zip(wanted, default, strict=True))


def _body(body: Any) -> bytes:
    """As `encode_message` takes it, which has checked it before."""
    return body.encode() if isinstance(body, str) else bytes(body)
