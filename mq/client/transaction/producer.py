"""The transaction producer, on one event loop: half messages go to a broker set of their topic,
ends to the set of their transaction, and the checks of all sets come in.

There is a stream to every set of the cluster from the start on, also to those that it has sent
nothing to: only so can it be asked about transactions that an earlier run, or another producer of
its group, has left open. A request without an answer goes again on the next stream of its set;
halves are numbered, and the broker remembers ends, so that each happens once.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mq import names
from mq.client.cluster.connection import SLOW_S, Avoidance, SetConnection
from mq.client.cluster.errors import (
    REFUSALS,
    ResultAction,
    action_for,
    error_of,
    is_in_doubt,
    retry_after_s,
    reworded,
    unanswered,
)
from mq.client.cluster.leader_stream import BrokerStream, LeaderStream, Patience
from mq.client.cluster.retry import Retry, Throttle, back_off_s, cancelled, now_s
from mq.client.cluster.topology import Route, is_writable
from mq.client.encode import Encoded, encode_message
from mq.client.lifecycle import AsyncClient
from mq.client.messages import Message
from mq.client.producer.queues import BatchKind, QueueBuffer, Sequences, TopicQueues
from mq.client.public import arguments_of
from mq.client.transaction.checks import (
    CheckAnswers,
    Checks,
    HalfMessage,
    Resolution,
    TransactionOptions,
    TransactionResult,
    end_request,
    resolution_of,
)
from mq.errors import (
    ClientClosed,
    IllegalRequest,
    IllegalSequence,
    MqError,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
)
from mq.wire import varint
from mq.wire.v1.cluster_pb2 import RouteResponse
from mq.wire.v1.message_pb2 import Half, RawBatch
from mq.wire.v1.status_pb2 import Status
from mq.wire.v1.transaction_pb2 import TransactRequest, TransactResponse, TransactStart

log = logging.getLogger(__name__)

# A leader that owes an answer for so long may be frozen; one that owes none is asked less often.
_PATIENCE = Patience(owed_s=1.0, idle_s_min=5.0, idle_s_max=5.0, search_s=1.0)
# Requests are written together: so many bytes, and requests, of which a broker takes ten times as
# many.
_WRITE_BYTES, _WRITE_REQUESTS = 256 << 10, 1_000
# Sets are added while it runs, and topics get queues and lose some.
_ROUTES_AGE_S_MAX = 5.0
# A set that is unknown to all brokers, and without a stream for this time, was removed.
_GONE_S = 60.0
_CLOSED = "the producer is closed: make another one"


class TransactionProducer(AsyncClient):
    """Sends messages that are seen when a local transaction has succeeded, and only then.

    >>> import asyncio
    >>> from mq.client.aio import TransactionProducer
    >>> orders = {}
    >>> async def execute(message, arg):
    ...     orders[message.transaction_id] = arg
    ...     return "COMMIT"
    >>> async def check(message):
    ...     return "COMMIT" if message.transaction_id in orders else "UNKNOWN"
    >>> async def main():
    ...     async with TransactionProducer("127.0.0.1:8081", "shop", execute, check) as producer:
    ...         print((await producer.send_in_transaction("orders", b"order 7", 7)).state)
    >>> asyncio.run(main())
    COMMIT

    `producer_group`: producers that know the same local transactions, such as the processes of one
    service. When a transaction stays open, the broker asks any living one of them.
    `execute(message, arg)`: runs when the half message is stored, and returns "COMMIT", "ROLLBACK"
    or "UNKNOWN". An exception is UNKNOWN: it is logged, and `check` decides.
    `check(message)`: what became of the transaction `message.transaction_id`? It may run in another
    process than `execute` did, and while `execute` is at work there: a transaction that it does not
    find is UNKNOWN, not ROLLBACK, as long as it may still come.
    `timeout_s`: how long the half message, and the end, may each wait for an answer.
    `first_check_s`, `check_interval_s`, `checks_max`: when and how often the broker asks; None: as
    it is configured. Each message may have its own.
    `in_flight_max`: half messages without an answer; a send beyond that waits.

    A transaction belongs to one broker set of its topic. All sets of the cluster can ask, from
    `start` on.

    It belongs to the event loop on which it is used first.
    """

    @arguments_of(TransactionOptions)
    def __init__(self, options: TransactionOptions) -> None:
        self._options = options
        self._connection = options.connect()
        self._checks = CheckAnswers(self._answer)
        self._free = asyncio.Semaphore(options.in_flight_max)
        self._sets: dict[str, SetTransactions] = {}
        self._avoidance = Avoidance()
        self._topics: dict[str, TopicQueues] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._is_closed = False
        self._connection.topology.subscribe(self._route_changed)

    async def start(self) -> None:
        """From now on the broker can ask."""
        if self._is_closed:
            raise ClientClosed(_CLOSED)
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_sets())

    async def _enter(self) -> None:
        await self.start()

    async def send_in_transaction(  # noqa: PLR0913 # settings, all of them by name
        self,
        topic: str,
        message: Message | bytes | str,
        arg: Any = None,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        first_check_s: float | None = None,
        check_interval_s: float | None = None,
        checks_max: int | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Stores the half message, runs `execute`, and ends the transaction as that says. Raises
        when the half message is not stored, and then `execute` did not run; or when the broker
        refuses the end, because the transaction has ended otherwise or its topic is gone.
        """
        await self.start()
        checks = Checks(first_check_s, check_interval_s, checks_max).validate()
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        half = await self._begin(topic, message, checks, queue_id, broker_set, timeout_s)
        try:
            resolution = await self._executed(half, arg)
            return await self._end(half, resolution, timeout_s)
        finally:
            # From now on its checks are passed on.
            self._checks.left(half)

    async def _executed(self, half: HalfMessage, arg: Any) -> Resolution:
        try:
            return resolution_of(await self._options.execute(half, arg), "execute")
        except Exception:
            log.exception("execute failed for transaction %s: check decides", half.transaction_id)
            return Resolution.UNKNOWN

    async def _answer(self, half: HalfMessage) -> Resolution:
        try:
            return resolution_of(await self._options.check(half), "check")
        except Exception:
            log.exception("check failed for transaction %s", half.transaction_id)
            return Resolution.UNKNOWN

    async def close(self) -> None:
        """Transactions that are open stay so: others of the group are asked about them."""
        self._is_closed = True
        if self._keeping is not None:
            await cancelled(self._keeping)
        sets = self._sets.values()
        await asyncio.gather(*(one.close(self._options.timeout_s) for one in sets))
        await self._checks.close()
        await self._connection.close()

    # Half messages

    async def _begin(
        self,
        topic: str,
        message: Message | bytes | str,
        checks: Checks,
        queue_id: int | None,
        broker_set: str,
        timeout_s: float,
    ) -> HalfMessage:
        """The half message is stored when this returns, and its transaction open."""
        options, born_at_ms = self._options, time.time_ns() // 1_000_000
        encoded = encode_message(message, born_at_ms, options.compress_above_bytes)
        if encoded[4]:
            raise IllegalRequest("a message of a transaction cannot be delayed as well")
        async with self._free:
            deadline_s = now_s() + timeout_s
            terms = _encode_terms(options.producer_group, checks.merged(options.checks))
            wanted = _Half(topic, encoded, terms, queue_id, broker_set)
            response, used_queue = await self._store(wanted, deadline_s)
        sent = message if isinstance(message, Message) else Message(_body(message))
        half = HalfMessage(
            transaction_id=response.half.transaction_id,
            topic=topic,
            queue_id=used_queue,
            stored_at_ms=response.half.stored_at_ms,
            born_at_ms=born_at_ms,
            body=_body(sent.body),
            tag=sent.tag,
            keys=(sent.keys,) if isinstance(sent.keys, str) else tuple(sent.keys),
            properties=dict(sent.properties),
            ordering_key=sent.ordering_key,
        )
        self._checks.begun(half)
        return half

    async def _store(self, half: _Half, deadline_s: float) -> tuple[TransactResponse, int]:
        """The answer of a set, and the queue that the half message is for."""
        refused_by: set[str] = set()
        queues = await self._queues(half.topic, deadline_s)
        while True:
            queue, others = self._choose(queues, half)
            has_others = functools.partial(self._is_any_healthy, others) if others else None
            try:
                response = await self._set(queue.broker_set).send_half(
                    half, queue.queue_id, deadline_s, has_others
                )
            except Elsewhere:
                continue
            except (TopicNotFound, QueueNotFound, PermissionDenied) as error:
                # The topic is not as it was believed to be: its route is asked for, once a set.
                if queue.broker_set in refused_by:
                    raise
                refused_by.add(queue.broker_set)
                left_s = deadline_s - now_s()
                topology = self._connection.topology
                route = await topology.locate_writable(half.topic, left_s, queue.broker_set)
                if isinstance(error, PermissionDenied) and queue.broker_set in route.writable_sets:
                    # Not the state of the topic: the producer may not send to it.
                    raise
                queues.set_parts(route.parts)
            else:
                return response, queue.queue_id

    def _choose(self, queues: TopicQueues, half: _Half) -> tuple[QueueBuffer, frozenset[str]]:
        """A queue, and the other sets that may take it instead."""
        queue, kind, priority = queues.choose_buffer(half.encoded, half.queue_id, half.broker_set)
        if kind is not BatchKind.ANY:
            return queue, frozenset()
        candidates = queues.by_priority[priority]
        sets = candidates.sets & self._healthy() or candidates.sets
        chosen = candidates.next_queue(sets, is_idle=False) or candidates.queues[0]
        return chosen, candidates.sets - {chosen.broker_set}

    async def _queues(self, topic: str, deadline_s: float) -> TopicQueues:
        queues = self._topics.get(topic)
        if queues is None:
            left_s = max(deadline_s - now_s(), 0.001)
            route = await self._connection.topology.locate_writable(topic, left_s)
            turn = random.randrange(1 << 16)  # noqa: S311 # spreads load only
            # Two may ask at once; all go by the same.
            queues = self._topics.setdefault(topic, TopicQueues(topic, turn))
            queues.set_parts(route.parts)
        return queues

    def _route_changed(self, route: Route) -> None:
        queues = self._topics.get(route.topic)
        if queues is not None and any(map(is_writable, route.parts)):
            queues.set_parts(route.parts)

    # Ends

    async def _end(
        self, half: HalfMessage, resolution: Resolution, timeout_s: float
    ) -> TransactionResult:
        """Returns the confirmed end. Raises the refusal of the broker: the transaction is over by
        another end, or its topic is gone.
        """
        transaction_id, topic = half.transaction_id, half.topic
        unknown = TransactionResult(transaction_id, Resolution.UNKNOWN.value, topic)
        if resolution is Resolution.UNKNOWN:
            return unknown
        try:
            owner, deadline_s = self._set(half.broker_set), now_s() + timeout_s
            response = await owner.send_end(transaction_id, resolution, deadline_s)
        except MqError as error:
            # Closed meanwhile: the broker asks another producer of the group.
            if not error.retryable and not isinstance(error, ClientClosed):
                raise
            return unknown._replace(reason=str(error))
        ended = response.ended
        if resolution is Resolution.ROLLBACK or ended.log_offset < 0:
            return TransactionResult(transaction_id, resolution.value, topic)
        message_id = names.message_id(half.broker_set, ended.log_offset)
        return TransactionResult(
            transaction_id, resolution.value, topic, message_id, ended.queue_id, ended.queue_offset
        )

    # Broker sets

    def _set(self, name: str) -> SetTransactions:
        found = self._sets.get(name)
        if found is None:
            group, connection = self._options.producer_group, self._connection.of(name)
            found = SetTransactions(connection, group, self._checks, self._avoidance, self._sets)
            self._sets[name] = found
        return found

    def _healthy(self) -> frozenset[str]:
        """The sets for half messages that may go to any."""
        return frozenset(
            name
            for name, one in self._sets.items()
            if one.is_started
            and not one.is_silent(SLOW_S)
            and not self._avoidance.is_avoided(name, now_s())
        )

    def _is_any_healthy(self, sets: frozenset[str]) -> bool:
        return bool(sets & self._healthy())

    async def _keep_sets(self) -> None:
        """A stream to each set that there is. What is known of topics is kept fresh by the way."""
        retry = Retry()
        while True:
            try:
                response = await self._connection.brokers(list(self._topics), _PATIENCE.search_s)
            except REFUSALS:
                # Told by each send. Another key may come.
                await asyncio.sleep(_ROUTES_AGE_S_MAX)
                continue
            except MqError:
                await retry.pause()
                continue
            for broker_set in response.broker_sets:
                self._set(broker_set.name)
            await self._drop_sets(response)
            retry = Retry()
            await asyncio.sleep(_ROUTES_AGE_S_MAX)

    async def _drop_sets(self, response: RouteResponse) -> None:
        known = {one.name for one in response.broker_sets}
        for name, one in list(self._sets.items()):
            if name not in known and one.is_unused(_GONE_S):
                del self._sets[name]
                await one.close(0.0)


class _Half(NamedTuple):
    """A half message that is to be stored."""

    topic: str
    encoded: Encoded
    # The field `half` of its batch.
    terms: bytes
    queue_id: int | None
    broker_set: str


class Elsewhere(Exception):
    """The half message is not stored in this set, and another one may take it now."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request without an answer. `has_others`: whether another set could take it now."""

    data: bytes
    future: asyncio.Future[TransactResponse]
    has_others: Callable[[], bool] | None = None
    attempts: int = 0
    in_doubt: bool = False
    sent_s: float = math.inf

    @property
    def doubt(self) -> str:
        return "it may have been stored" if self.in_doubt else "it was not sent"

    def leaves(self) -> bool:
        """Whether it goes to another set, which its sender is told."""
        if self.future.done() or self.in_doubt or not (self.has_others and self.has_others()):
            return False
        self.future.set_exception(Elsewhere())
        return True


class SetTransactions:
    """The requests of a transaction producer to one broker set, over a stream to its leader that
    is kept for as long as the producer lives.
    """

    def __init__(
        self,
        broker_set: SetConnection,
        producer_group: str,
        checks: CheckAnswers,
        avoidance: Avoidance,
        sets: Mapping[str, SetTransactions],
    ) -> None:
        """`sets`: all of the producer, this one included."""
        self.broker_set = broker_set
        self.name = broker_set.name
        self.is_started = False
        self._producer_group = producer_group
        self._checks = checks
        self._avoidance = avoidance
        self._sets = sets
        self._loop = asyncio.get_running_loop()
        self._ended_s = self._loop.time()
        self._sequences = Sequences(None)
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        # Requests for the current stream; None ends it.
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_closing = False
        self._throttle = Throttle()
        self._streams = LeaderStream(broker_set, TransactRequest, self, _PATIENCE)
        self._streams.open()

    # Requests

    async def send_half(
        self, half: _Half, queue_id: int, deadline_s: float, has_others: Callable[[], bool] | None
    ) -> TransactResponse:
        """Elsewhere, only with `has_others`."""
        await self._throttle.wait()
        while True:
            producer_id, sequence = self._sequences.take()
            request_id = next(self._ids)
            data = _half_request(request_id, half, queue_id, producer_id, sequence)
            pending = _Pending(data, self._loop.create_future(), has_others)
            try:
                what = f"a half message to {half.topic}"
                return await self._ask(request_id, pending, deadline_s, what)
            except IllegalSequence:
                if not self._sequences.start_over(producer_id):
                    raise
            except BaseException:
                # Its number is free for another one only if it was certainly not stored.
                if not pending.in_doubt:
                    self._sequences.give_back(producer_id, sequence)
                raise

    async def send_end(
        self, transaction_id: str, resolution: Resolution, deadline_s: float
    ) -> TransactResponse:
        request_id = next(self._ids)
        end = end_request(transaction_id, resolution)
        data = TransactRequest(request_id=request_id, end=end).SerializeToString()
        pending = _Pending(data, self._loop.create_future())
        what = f"the end of transaction {transaction_id}"
        return await self._ask(request_id, pending, deadline_s, what)

    def reply(self, data: bytes) -> None:
        """The answer to a check. Without a stream it is dropped: the broker asks again."""
        if self.is_started:
            self._out.put_nowait(data)

    def is_silent(self, patience_s: float) -> bool:
        """Whether an answer has been due for so long and nothing at all was heard."""
        stream = self._streams.current
        heard_s = 0.0 if stream is None else stream.heard_s
        return self._loop.time() - max(self._owed_since_s(), heard_s) > patience_s

    def is_unused(self, seconds: float) -> bool:
        """Whether there was no stream for so long, and no request waits for one."""
        is_idle = not self.is_started and not self._pending
        return is_idle and self._loop.time() - self._ended_s > seconds

    def release(self) -> None:
        """Another set is there now: requests that were not sent yet may go there."""
        if not self.is_started:
            for pending in list(self._pending.values()):
                pending.leaves()

    async def _ask(
        self, request_id: int, pending: _Pending, deadline_s: float, what: str
    ) -> TransactResponse:
        """Sends until there is an answer, or no time left."""
        if self._is_closing:
            raise ClientClosed(_CLOSED)
        self._pending[request_id] = pending
        self._streams.open()
        self._write(pending)
        timer = self._loop.call_at(deadline_s, self._expire, pending, what)
        try:
            return await pending.future
        finally:
            timer.cancel()
            del self._pending[request_id]

    def _expire(self, pending: _Pending, what: str) -> None:
        if not pending.future.done():
            text = f"no answer for {what} from broker set {self.name} in time; {pending.doubt}"
            pending.future.set_exception(
                unanswered(text, self._streams.trouble, self.broker_set.servers)
            )

    def _write(self, pending: _Pending) -> None:
        if self.is_started and not pending.future.done():
            pending.in_doubt = True
            pending.sent_s = self._loop.time()
            self._out.put_nowait(pending.data)

    # Answers

    def _received(self, stream: BrokerStream, response: TransactResponse) -> None:
        kind = response.WhichOneof("kind")
        if kind == "check":
            self._checks.asked(response.check, self.reply)
            return
        pending = self._pending.get(response.request_id)
        if pending is None or pending.future.done():
            return
        sent_s, pending.sent_s = pending.sent_s, math.inf
        if kind == "failed":
            self._failed(stream, pending, response.failed)
        else:
            at_s = self._loop.time()
            self._avoidance.answered(self.name, max(0.0, at_s - sent_s), at_s)
            if response.half.throttle_ms:
                pause_s = self._throttle.asked(response.half.throttle_ms)
                self._avoidance.is_busy(self.name, at_s, pause_s)
            pending.future.set_result(response)

    def _failed(self, stream: BrokerStream, pending: _Pending, status: Status) -> None:
        error = error_of(status.code, status.text, status.leader_address, status.retry_after_ms)
        # This attempt left nothing behind, unless it says so; an earlier one may have.
        pending.in_doubt = is_in_doubt(status.code) or pending.attempts > 0
        action = action_for(status.code)
        if action is ResultAction.FOLLOW:
            self.is_started = False
            if not pending.leaves():
                pending.attempts += 1
            stream.cancel(error)
        elif action in (ResultAction.WAIT, ResultAction.RETRY):
            self._streams.trouble = error
            pause_s = retry_after_s(error) or back_off_s(pending.attempts)
            self._avoidance.is_busy(self.name, self._loop.time(), pause_s)
            if not pending.leaves():
                pending.attempts += 1
                self._loop.call_later(pause_s, self._write, pending)
        else:
            pending.future.set_exception(error)

    # Called by the stream

    def wants_stream(self) -> bool:
        return not self._is_closing

    async def serve(self, stream: BrokerStream) -> None:
        start = TransactStart(
            producer_group=self._producer_group,
            producer_id=self._sequences.producer_id,
            answers_checks=True,
            reads_more=True,
        )
        out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._out = out
        data = await stream.start(TransactRequest(start=start).SerializeToString())
        writing = self._loop.create_task(_write_out(stream, out))
        try:
            if data is not None:
                self._started()
            while data is not None:
                self._received_all(stream, data)
                data = await stream.read()
        finally:
            self.is_started = False
            self._ended_s = self._loop.time()
            await cancelled(writing)

    def _started(self) -> None:
        """Requests that have no answer yet go again, in their order."""
        self.is_started = True
        for pending in list(self._pending.values()):
            pending.attempts += pending.in_doubt
            self._write(pending)
        for other in [one for one in self._sets.values() if one is not self]:
            other.release()

    def _received_all(self, stream: BrokerStream, data: bytes) -> None:
        try:
            response = TransactResponse.FromString(data)
        except DecodeError as error:
            # A check of a message that an older version stored unread, and that is none.
            log.error("%s sent what cannot be read: %s", stream.address, error)  # noqa: TRY400
            return
        for one in response.more or (response,):
            self._received(stream, one)

    def owed_since_s(self, stream: BrokerStream) -> float:  # noqa: ARG002 # requests go again
        return self._owed_since_s()

    def _owed_since_s(self) -> float:
        return min((one.sent_s for one in self._pending.values()), default=math.inf)

    def stream_failed(self, error: MqError, address: str) -> None:  # noqa: ARG002
        is_refused = isinstance(error, REFUSALS)
        for pending in list(self._pending.values()):
            if not pending.leaves() and is_refused and not pending.future.done():
                pending.future.set_exception(reworded(error, f"{error}; {pending.doubt}"))

    async def close(self, timeout_s: float) -> None:
        self._is_closing = True
        self._out.put_nowait(None)
        await self._streams.finish(timeout_s if self.is_started else 0.0)
        for pending in self._pending.values():
            if not pending.future.done():
                text = f"the producer was closed before an answer came; {pending.doubt}"
                pending.future.set_exception(ClientClosed(text))


async def _write_out(stream: BrokerStream, out: asyncio.Queue[bytes | None]) -> None:
    """Writes what waits, several requests at once: that costs less than one by one."""
    while (data := await out.get()) is not None:
        requests, size = [data], len(data)
        while size < _WRITE_BYTES and len(requests) < _WRITE_REQUESTS and not out.empty():
            following = out.get_nowait()
            if following is None:
                out.put_nowait(None)  # the last one
                break
            requests.append(following)
            size += len(following)
        if not await stream.write(_bundle(requests)):
            return
    await stream.half_close()


# Requests as bytes


def _half_request(
    request_id: int, half: _Half, queue_id: int, producer_id: str, sequence: int
) -> bytes:
    """The batch is a prepared one of one message; `half` is field 3 of a TransactRequest."""
    frame, tag_hash, key_hashes, *_ = half.encoded
    head = RawBatch(
        topic=half.topic,
        queue_id=queue_id,
        producer_id=producer_id,
        sequence=sequence,
        tag_hashes=struct.pack("<Q", tag_hash),
        frame_sizes=struct.pack("<I", len(frame)),
        key_hashes=struct.pack(f"<{len(key_hashes)}Q", *key_hashes),
        key_counts=struct.pack("<I", len(key_hashes)) if key_hashes else b"",
        half=half.terms,
    ).SerializeToString()
    size = varint.encode(len(head) + len(frame))
    return b"".join((b"\x08", varint.encode(request_id), b"\x1a", size, head, frame))


@functools.lru_cache(maxsize=256)
def _encode_terms(producer_group: str, checks: Checks) -> bytes:
    """Half messages of a producer mostly have the same."""
    return Half(
        producer_group=producer_group,
        first_check_ms=_ms(checks.first_check_s),
        check_interval_ms=_ms(checks.check_interval_s),
        checks_max=checks.checks_max or 0,
    ).SerializeToString()


def _bundle(requests: Sequence[bytes]) -> bytes:
    """These as one: `more` is field 15 of a TransactRequest."""
    if len(requests) == 1:
        return requests[0]
    return b"".join(part for one in requests for part in (b"\x7a", varint.encode(len(one)), one))


def _ms(seconds: float | None) -> int:
    """0: as the broker is configured."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


def _body(body: Any) -> bytes:
    """As `encode_message` takes it, which has checked it before."""
    return body.encode() if isinstance(body, str) else bytes(body)
