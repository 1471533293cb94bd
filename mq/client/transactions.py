"""The core of a transaction producer, on one event loop: half messages and ends go out by a stream
to the leader, the broker's questions come in by it.

The stream is open for as long as the producer lives, also when it is idle: only so can it be asked.
What has no answer when a stream breaks goes again on the next one; halves have numbers and ends
are remembered by the broker, so that each happens once. A question about a transaction that is at
work here is not passed on: its end is on the way. The faces for users are in `transactions_aio` and
`transactions_sync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from mq import names
from mq.client.decode import Decoder, Frames
from mq.client.encode import Encoded, delay_field, encode_message
from mq.client.failures import error_of, retry_after_s
from mq.client.model import Message, QueueRef
from mq.client.priorities import queue_for
from mq.client.sequences import Sequences
from mq.client.set_connection import SetConnection
from mq.client.transaction_encode import end_request, half_batch, half_request
from mq.client.transaction_model import (
    Checks,
    HalfMessage,
    Resolution,
    TransactionResult,
    TransactionSettings,
)
from mq.client.transaction_stream import TransactStream
from mq.client.verdicts import Verdict, is_in_doubt, verdict
from mq.client.wiring import Connection, back_off_s
from mq.errors import (
    IllegalRequest,
    IllegalSequence,
    MqError,
    NotLeader,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1.status_pb2 import Status
from mq.wire.v1.transaction_pb2 import (
    CheckTransaction,
    EndTransactionRequest,
    TransactRequest,
    TransactResponse,
    TransactStart,
)

log = logging.getLogger(__name__)

# A leader that owes an answer for so long may be frozen; one that owes none is asked less often.
_STALL_S, _IDLE_S = 1.0, 5.0
_LOOK_S = 0.25
_CHECKS_AT_ONCE = 20

Answering = Callable[[HalfMessage], Awaitable[Resolution]]


class _Wanted(NamedTuple):
    """A half message that is to be stored."""

    topic: str
    encoded: Encoded
    checks: Checks
    queue_id: int | None
    priority: int


class _Pending:
    """A request without an answer."""

    __slots__ = ("attempts", "data", "future", "in_doubt", "sent_s")

    def __init__(self, data: bytes, future: asyncio.Future[TransactResponse]) -> None:
        self.data = data
        self.future = future
        self.attempts = 0
        self.in_doubt = False
        self.sent_s = math.inf


class TransactionCore:
    """Make and use it on its loop. `answer` is asked what became of a transaction."""

    def __init__(
        self, connection: Connection, settings: TransactionSettings, answer: Answering
    ) -> None:
        self.settings = settings
        self.connection = connection
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._sequences = Sequences(None)
        self._turn = itertools.count()
        self._ids = itertools.count(1)
        self._free = asyncio.Semaphore(settings.in_flight_max)
        self._answering_free = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._pending: dict[int, _Pending] = {}
        # Transactions that are at work here, for as long as somebody has them in hand, and those
        # whose question is being answered.
        self._at_work: WeakValueDictionary[str, HalfMessage] = WeakValueDictionary()
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._decoder = Decoder()
        self._stream: TransactStream | None = None
        self._is_started = False
        self._term = 0
        self._trouble: MqError | None = None
        self._is_closing = False
        self._tasks = [
            self._loop.create_task(self._keep_stream()),
            self._loop.create_task(self._watch()),
        ]

    # For the faces

    async def begin(
        self,
        topic: str,
        message: Message | bytes | str,
        checks: Checks,
        *,
        queue_id: int | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """The half message is stored when this returns, and its transaction open: call `end` or
        `leave` for it.
        """
        timeout_s = self.settings.timeout_s if timeout_s is None else timeout_s
        born_at_ms = time.time_ns() // 1_000_000
        encoded = encode_message(message, born_at_ms, self.settings.compress_above_bytes)
        if delay_field(message):
            raise IllegalRequest("a message of a transaction cannot be delayed as well")
        async with self._free:
            deadline_s = self._loop.time() + timeout_s
            priority = message.priority if isinstance(message, Message) else 0
            wanted = _Wanted(topic, encoded, checks, queue_id, priority)
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
            request_id = next(self._ids)
            data = end_request(request_id, transaction_id, resolution)
            what = f"the end of transaction {transaction_id}"
            try:
                pending = _Pending(data, self._loop.create_future())
                response = await self._ask(request_id, pending, self._loop.time() + timeout_s, what)
            except MqError as error:
                if not error.retryable:
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
        """Ends the stream. Transactions that are open stay so: others of the group are asked."""
        self._is_closing = True
        if self._stream is not None and self._is_started:
            self._stream.half_close()
            await asyncio.wait([self._tasks[0]], timeout=self.settings.timeout_s)
        tasks = [*self._tasks, *self._answering.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(Unreachable("the client is closed"))
        await self.connection.close()

    # Halves

    async def _begin(self, wanted: _Wanted, deadline_s: float) -> tuple[TransactResponse, int]:
        is_rerouted = False
        while True:
            queue_id = await self._queue(wanted, deadline_s)
            try:
                return await self._send_half(wanted, queue_id, deadline_s), queue_id
            except (TopicNotFound, QueueNotFound):
                # The topic is not what we think: asks for its route, once.
                if is_rerouted:
                    raise
                is_rerouted = True
                self.connection.forget_route(wanted.topic)

    async def _queue(self, wanted: _Wanted, deadline_s: float) -> int:
        topic = wanted.topic
        names.check_topic(topic)
        if names.is_internal_topic(topic):
            raise PermissionDenied(f"topic {topic} is written by the broker alone")
        left_s = max(deadline_s - self._loop.time(), 0.001)
        route = (await self.connection.route(topic, create=True, timeout_s=left_s)).parts[0]
        if not route.is_writable or not route.write_queues:
            raise PermissionDenied(f"topic {topic} takes no messages: it is not writable")
        if wanted.queue_id is not None:
            return wanted.queue_id
        ordering_hash = wanted.encoded[3]
        turn = next(self._turn) if ordering_hash is None else ordering_hash
        return queue_for(turn, wanted.priority, route.priorities, route.write_queues)

    async def _send_half(
        self, wanted: _Wanted, queue_id: int, deadline_s: float
    ) -> TransactResponse:
        while True:
            producer_id, sequence = self._sequences.take()
            batch = half_batch(
                wanted.topic,
                queue_id,
                producer_id,
                sequence,
                self.settings.producer_group,
                _merged(wanted.checks, self.settings.checks),
                wanted.encoded,
            )
            request_id = next(self._ids)
            data = half_request(request_id, batch)
            pending = _Pending(data, self._loop.create_future())
            try:
                what = f"a half message to {wanted.topic}"
                return await self._ask(request_id, pending, deadline_s, what)
            except IllegalSequence:
                if not self._sequences.start_over(producer_id):
                    raise
            except BaseException:
                # Its number is free for another one only if it was certainly not stored.
                if not pending.in_doubt:
                    self._sequences.give_back(producer_id, sequence)
                raise

    # Requests

    async def _ask(
        self, request_id: int, pending: _Pending, deadline_s: float, what: str
    ) -> TransactResponse:
        """Sends until there is an answer, or no time left."""
        if self._is_closing:
            raise Unreachable("the client is closed")
        self._pending[request_id] = pending
        self._write(pending)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await pending.future
        except TimeoutError:
            doubt = "it may have been stored" if pending.in_doubt else "it was not sent"
            raise Unreachable(
                f"no answer for {what} in time; {doubt}; brokers: "
                f"{', '.join(self.connection.servers)}; the last trouble: {self._trouble or 'none'}"
            ) from None
        finally:
            del self._pending[request_id]

    def _write(self, pending: _Pending) -> None:
        if self._stream is not None and self._is_started and not pending.future.done():
            pending.in_doubt = True
            pending.sent_s = self._loop.time()
            self._stream.write(pending.data)

    def _received(self, response: TransactResponse) -> None:
        kind = response.WhichOneof("kind")
        if kind == "check":
            self._question(response.check)
            return
        pending = self._pending.get(response.request_id)
        if pending is None or pending.future.done():
            return
        pending.sent_s = math.inf
        if kind == "failed":
            self._failed(pending, response.failed)
        else:
            pending.future.set_result(response)

    def _failed(self, pending: _Pending, status: Status) -> None:
        error = error_of(status.code, status.text, status.leader_address, status.retry_after_ms)
        # This attempt left nothing behind, unless it says so; an earlier one may have.
        pending.in_doubt = is_in_doubt(status.code) or pending.attempts > 0
        found = verdict(status.code)
        if found is Verdict.FOLLOW and self._stream is not None:
            self._trouble = error
            pending.attempts += 1
            self._first().not_leader(self._stream.address, status.leader_address)
            self._stream.break_off()
        elif found in (Verdict.WAIT, Verdict.AGAIN):
            self._trouble = error
            pause_s = retry_after_s(error) or back_off_s(pending.attempts)
            pending.attempts += 1
            self._loop.call_later(pause_s, self._write, pending)
        else:
            pending.future.set_exception(error)

    # The stream

    async def _keep_stream(self) -> None:
        attempt = 0
        while not self._is_closing:
            try:
                address = await (await self.connection.sets(_STALL_S))[0].leader(_STALL_S)
                await self._serve(address)
            except MqError as error:
                self._trouble = error
            except Exception:
                log.exception("a mistake of the producer's own; it goes on")
            attempt = 0 if self._is_started else attempt + 1
            self._is_started = False
            if not self._is_closing:
                await asyncio.sleep(back_off_s(attempt))

    async def _serve(self, address: str) -> None:
        start = TransactStart(
            producer_group=self.settings.producer_group,
            producer_id=self._sequences.producer_id,
            answers_checks=True,
            reads_more=True,
        )
        stream = TransactStream(self.connection, address, self._started, self._received)
        self._stream = stream
        try:
            error = await stream.run(start)
        finally:
            self._stream = None
        self._trouble = error
        if self._is_closing:
            return
        log.debug("the stream to %s ended: %s", address, error)
        if isinstance(error, NotLeader):
            self._first().not_leader(address, error.address or "")
        else:
            self._first().failed(address)

    def _first(self) -> SetConnection:
        return self.connection.of(self.connection.known_sets[0])

    def _started(self) -> None:
        """What has no answer yet goes again, in its order."""
        self._is_started = True
        for pending in list(self._pending.values()):
            pending.attempts += pending.in_doubt
            self._write(pending)

    async def _watch(self) -> None:
        """A leader that is silent may be frozen, cut off, or deposed and not know it."""
        checked_s = self._loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            stream, now_s = self._stream, self._loop.time()
            if stream is None or not self._is_started:
                continue
            owes_s = min((one.sent_s for one in self._pending.values()), default=math.inf)
            is_stalled = now_s - max(owes_s, stream.heard_s, checked_s) > _STALL_S
            is_idle = now_s - max(stream.heard_s, checked_s) > _IDLE_S
            if is_stalled or (is_idle and len(set(self.connection.servers)) > 1):
                checked_s = now_s
                with contextlib.suppress(MqError):
                    await self._check_leader(stream)

    async def _check_leader(self, stream: TransactStream) -> None:
        """Only what is newer than the last answer counts: who is asked may know even less."""
        response = await self.connection.brokers(timeout_s=_STALL_S)
        for broker_set in response.broker_sets:
            leaders = [one for one in broker_set.nodes if one.node_id == broker_set.leader_id]
            if leaders and broker_set.term >= self._term:
                self._term = broker_set.term
                if leaders[0].address != stream.address:
                    stream.break_off()

    # Questions

    def _question(self, check: CheckTransaction) -> None:
        name = check.transaction_id
        if name not in self._at_work and name not in self._answering and check.messages:
            self._answering[name] = task = self._loop.create_task(self._reply(check))
            task.add_done_callback(lambda _: self._answering.pop(name, None))

    async def _reply(self, check: CheckTransaction) -> None:
        try:
            half = self._half_of(check)
        except MqError as error:
            log.error("a question that makes no sense: %s", error)  # noqa: TRY400
            return
        if half is None:
            return
        async with self._answering_free:
            resolution = await self._answer(half)
        if self._stream is not None and self._is_started:
            end = EndTransactionRequest(
                transaction_id=check.transaction_id, resolution=_wire_resolution(resolution)
            )
            self._stream.write(TransactRequest(checked=end).SerializeToString())

    def _half_of(self, check: CheckTransaction) -> HalfMessage | None:
        """None: its message cannot be read, which was logged."""
        broker_set, log_offset = names.parse_message_id(check.transaction_id)
        frames = Frames(-1, log_offset, check.stored_at_ms, [0], check.messages[:1])
        queue = QueueRef(check.topic, check.queue_id)
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
