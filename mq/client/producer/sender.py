"""The sender of a producer, on one event loop: batches go to the leaders of the broker sets, and a
batch that was not stored is sent again, with the same sequence, until its time-out.

A batch ends in exactly one way: stored, or failed with an error. It keeps its queue until then, so
that order holds across retries and changes of the leader. A batch without a key leaves a set that
is in trouble for another one, if it is certainly not stored there. To each set one request is
written at a time, so that batches that cannot be sent yet may still go elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from mq import names
from mq.client import encode
from mq.client.cluster.connection import (
    SLOW_S,
    Avoidance,
    Connection,
    ConnectionOptions,
    SetConnection,
)
from mq.client.cluster.errors import (
    REFUSALS,
    ResultAction,
    action_for,
    error_of,
    is_in_doubt,
    retry_after_s,
    reworded,
)
from mq.client.cluster.leader_stream import BrokerStream, LeaderStream, Patience
from mq.client.cluster.retry import Throttle, back_off_s, cancelled
from mq.client.cluster.topology import Route, is_writable
from mq.client.messages import AckName, Message, QueueRef
from mq.client.producer.batching import Accumulator, AddResult
from mq.client.producer.queues import Batch, BatchKind, ResultFuture
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalRequest,
    Internal,
    MqError,
    PermissionDenied,
    Unreachable,
)
from mq.wire.v1.producer_pb2 import (
    ACK_LEADER,
    ACK_NONE,
    ACK_QUORUM,
    BatchResult,
    PublishRequest,
    PublishResponse,
)

log = logging.getLogger(__name__)

_ACKS: dict[str, int] = {"quorum": ACK_QUORUM, "leader": ACK_LEADER, "none": ACK_NONE}


@dataclass(frozen=True)
class ProducerOptions(ConnectionOptions):
    """Documented at `Producer`. Raises IllegalConfig for illegal options."""

    servers: str | Sequence[str] = "127.0.0.1:8081"
    _: KW_ONLY
    ack: AckName = "quorum"
    timeout_s: float = 3.0
    retries: int = 2
    linger_ms: float = 2
    batch_bytes: int = 256 << 10
    compress_above_bytes: int = 4096
    idempotent: bool = True
    producer_id: str | None = None
    buffer_bytes: int = 64 << 20
    in_flight_max: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ack not in _ACKS:
            raise IllegalConfig(f"ack {self.ack!r}: use one of {', '.join(_ACKS)}")
        for name in ("timeout_s", "batch_bytes", "buffer_bytes", "in_flight_max"):
            if getattr(self, name) <= 0:
                raise IllegalConfig(f"{name} is {getattr(self, name)}: it must be more than 0")
        for name in ("retries", "linger_ms", "compress_above_bytes"):
            if getattr(self, name) < 0:
                raise IllegalConfig(f"{name} is {getattr(self, name)}: it must not be negative")
        if self.producer_id is not None and not (
            0 < len(self.producer_id) <= names.NAME_CHARACTERS_MAX
            and self.producer_id.isprintable()
        ):
            raise IllegalConfig(
                f"producer_id {self.producer_id[:200]!r}: use 1 to {names.NAME_CHARACTERS_MAX} "
                "printable characters"
            )


# A leader that owes an answer for this time may be frozen, and replaced by another one.
_PATIENCE = Patience(owed_s=1.0, search_s=1.0)


class Request(NamedTuple):
    batches: Sequence[Batch]
    sent_s: float


class SetSender:
    """The requests to one broker set. `progress_s`: the time at which it stored a batch last."""

    def __init__(self, broker_set: SetConnection, owner: Sender) -> None:
        self.broker_set = broker_set
        self.name = broker_set.name
        self.streams = LeaderStream(broker_set, PublishRequest, self, _PATIENCE, overlaps=True)
        self._loop = asyncio.get_running_loop()
        self.progress_s = self._loop.time()
        self._ack = _ACKS[owner.options.ack]
        self._in_flight_max = owner.options.in_flight_max
        self._owner = owner
        self._ids = itertools.count(1)
        # Requests without an answer, oldest first, by the stream on which they were sent.
        self._in_flight: dict[BrokerStream, dict[int, Request]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._throttle = Throttle()

    @property
    def is_connected(self) -> bool:
        return self.streams.current in self._in_flight

    @property
    def is_free(self) -> bool:
        """Whether one more request can be sent now."""
        stream = self.streams.current
        if self._writing is not None or stream is None or stream not in self._in_flight:
            return False
        if self._throttle.is_on:
            return False
        return len(self._in_flight[stream]) < self._in_flight_max

    @property
    def in_flight(self) -> Iterable[Request]:
        return itertools.chain.from_iterable(one.values() for one in self._in_flight.values())

    def pause(self, throttle_ms: int) -> float:
        """By the word of the broker. Returns for how long."""
        pause_s = self._throttle.asked(throttle_ms)
        self._loop.call_later(pause_s, self._owner.wake)
        return pause_s

    def is_silent(self, now_s: float, patience_s: float) -> bool:
        """Whether an answer is overdue by `patience_s`, and nothing at all was received."""
        stream = self.streams.current
        if stream is None:
            return False
        return now_s - max(self.owed_since_s(stream), stream.heard_s) > patience_s

    def send(self, batches: Sequence[Batch]) -> None:
        """Sends one request. The sender must be free."""
        stream = self.streams.current
        assert stream is not None  # noqa: S101 # a free sender has one
        self._writing = self._loop.create_task(self._write(stream, batches))

    async def _write(self, stream: BrokerStream, batches: Sequence[Batch]) -> None:
        try:
            requests = self._in_flight.get(stream)
            if requests is None or self.streams.current is not stream:
                # The stream has ended: a request registered now would never be answered.
                self._owner.unwritten(batches)
                return
            request_id = next(self._ids)
            data = encode.request(request_id, self._ack, [one.request_parts() for one in batches])
            requests[request_id] = Request(batches, self._loop.time())
            if not await stream.write(data):
                await stream.wait_ended()
            if self._ack == ACK_NONE and requests.pop(request_id, None) is not None:
                self._owner.handed_over(self, batches)
        except Exception:
            log.exception("the producer stops: a mistake of its own")
            self._owner.crashed()
        finally:
            self._writing = None
            self._owner.wake()

    async def close(self, timeout_s: float) -> None:
        """Ends the streams and waits until the brokers have received everything before the end,
        for `timeout_s` at most.
        """
        await self.streams.close(timeout_s)
        if self._writing is not None:
            await cancelled(self._writing)

    # Called by the stream

    def wants_stream(self) -> bool:
        return self._owner.needs(self)

    async def serve(self, stream: BrokerStream) -> None:
        requests = self._in_flight[stream] = {}
        self._owner.wake()
        error: MqError = Unreachable(f"{stream.address} ended the stream")
        try:
            while (data := await stream.read()) is not None:
                response = PublishResponse.FromString(data)
                request = requests.pop(response.request_id, None)
                if request is not None:
                    self._owner.answered(self, stream, request, response)
        except MqError as failure:
            error = failure
            raise
        finally:
            del self._in_flight[stream]
            lost = list(requests.values())
            requests.clear()
            self._owner.lost(lost, error)

    def owed_since_s(self, stream: BrokerStream) -> float:
        for request in self._in_flight.get(stream, {}).values():
            return request.sent_s
        return math.inf

    def stream_failed(self, error: MqError, address: str) -> None:  # noqa: ARG002 # of all users
        """Unsent batches wait, or go to another set, with the next request; but not for a set that
        refuses the producer.
        """
        if isinstance(error, REFUSALS):
            self._owner.refused(self, error)


# Batches in one request cost the broker less than one by one.
REQUEST_BYTES = 1 << 20
_TIMEOUT_CHECK_S = 0.1
# While messages are sent, routes are refreshed: queues are added, and closed.
ROUTES_AGE_S_MAX = 5.0
# The least time between two refreshes that illegal requests cause.
_REFRESH_S_MIN = 1.0


class Sender:
    """Created and used on its loop; only `accumulator` may be used from other threads."""

    def __init__(self, connection: Connection, options: ProducerOptions) -> None:
        self.options = options
        self.connection = connection
        # Longer bodies are compressed, or refused, one by one.
        self.body_bytes_max = min(options.compress_above_bytes, encode.MESSAGE_BYTES_MAX)
        self.loop = asyncio.get_running_loop()
        self.accumulator = Accumulator(
            options.producer_id if options.idempotent else "",
            linger_s=options.linger_ms / 1000,
            batch_bytes=options.batch_bytes,
            buffer_bytes=options.buffer_bytes,
            clock=self.loop.time,
        )
        # By topic, while there are some: messages that cannot be added yet, in their order.
        self._adding: dict[str, deque[asyncio.Future[None]]] = {}
        self._senders: dict[str, SetSender] = {}
        self._avoidance = Avoidance()
        connection.topology.subscribe(self._route_changed)
        self._routed_s = self.loop.time()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = -_REFRESH_S_MIN
        self._woken = asyncio.Event()
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._running = self.start(self._run())

    # For the producers

    def encode(self, message: Message | bytes | str) -> encode.Encoded:
        born_at_ms = time.time_ns() // 1_000_000
        return encode.encode_message(message, born_at_ms, self.options.compress_above_bytes)

    def add_body(self, topic: str, body: bytes, future: ResultFuture | None) -> bool:
        """As `Accumulator.add_body`. No message overtakes those of its topic that wait."""
        if topic in self._adding or len(body) > self.body_bytes_max:
            return False
        born_at_ms = time.time_ns() // 1_000_000
        return self.accumulator.add_body(topic, body, born_at_ms, future, self.options.timeout_s)

    async def added(self, topic: str, add: Callable[[], AddResult], timeout_s: float) -> None:
        """Calls `add` until it succeeds. No message overtakes those of its topic that wait: an
        ordering key depends on it.
        """
        if topic not in self._adding and await self._try_adding(add) is None:
            return
        line = self._adding.setdefault(topic, deque())
        place: asyncio.Future[None] = self.loop.create_future()
        line.append(place)
        try:
            if self.accumulator.topic(topic) is None:
                # One look-up for all that wait: they go on together, in their order.
                await self._prepare(topic, timeout_s)
            while line[0] is not place:
                await asyncio.wait([line[0]])
            while (obstacle := await self._try_adding(add)) is not None:
                if obstacle is AddResult.UNROUTED:
                    await self._prepare(topic, timeout_s)
                else:
                    room = asyncio.Event()
                    self.accumulator.call_when_room(room.set)
                    await room.wait()
        finally:
            line.remove(place)
            place.set_result(None)
            if not line:
                del self._adding[topic]

    async def queues_of_keys(self, topic: str, timeout_s: float) -> list[QueueRef]:
        """The queues that messages without a priority go to: the hash of an ordering key modulo
        their number is the position of its queue. Creates the topic if the brokers allow it.
        Returns when no key has messages elsewhere any more, since a change of the queues.
        """
        while (known := self.accumulator.topic(topic)) is None:
            await self._prepare(topic, timeout_s)
        while known.leaving:
            released = asyncio.Event()
            self.accumulator.call_when_room(released.set)
            await released.wait()
        queues = known.of_priority(0).queues
        return [QueueRef(topic, one.queue_id, one.broker_set) for one in queues]

    async def _try_adding(self, add: Callable[[], AddResult]) -> AddResult | None:
        """Returns None if the message was added, else why it has to wait. Raises IllegalRequest if
        the newest route does not allow it.
        """
        while True:
            try:
                result = add()
            except IllegalRequest:
                if not await self._is_route_newer():
                    raise
                continue
            if result is AddResult.WAKE:
                self.wake()
            return None if result in (AddResult.ADDED, AddResult.WAKE) else result

    async def _prepare(self, topic: str, timeout_s: float) -> None:
        """Finds the queues of a topic, which the broker may create: messages for it can be added
        then. Raises ClientClosed.
        """
        if self._closing is not None:
            raise ClientClosed("the producer is closed: make another one")
        self._set_route(await self.connection.topology.locate_writable(topic, timeout_s))

    async def _is_route_newer(self) -> bool:
        """After a message was refused by the known route of its topic: refreshes the route.
        Returns False if that was done a moment ago, so that another attempt is useless.
        """
        if self._refreshing is None or self._refreshing.done():
            if self.loop.time() - self._refreshed_s < _REFRESH_S_MIN:
                return False
            self._refreshing = self.start(self._refresh_routes())
        await asyncio.wait([self._refreshing])
        self._refreshed_s = self.loop.time()
        return True

    def wake(self) -> None:
        """Sends ready batches now."""
        self._woken.set()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was added before is stored, or has failed; with ack "none",
        when it was written. Raises Unreachable after the time-out.
        """
        unfinished = self.accumulator.expedite()
        self.wake()
        if not unfinished:
            return
        done: asyncio.Future[None] = self.loop.create_future()
        flush = unfinished, done
        self._flushes.append(flush)
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError:
            raise Unreachable(
                f"{len(unfinished)} batches have no answer after {timeout_s:g} s; they are sent on"
            ) from None
        finally:
            if flush in self._flushes:
                self._flushes.remove(flush)

    async def close(self) -> None:
        """Sends everything that was added, ends the streams, and waits until the brokers have
        received everything before the end. Takes no longer than the time-out of a message.
        """
        if self._closing is None:
            self._closing = self.loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.accumulator.close()
        await self.flush()
        senders = self._senders.values()
        await asyncio.gather(*(sender.close(self.options.timeout_s) for sender in senders))
        await cancelled(*self._tasks)
        await self.connection.close()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sending

    async def _run(self) -> None:
        try:
            await self._send_loop()
        except Exception:
            log.exception("the producer stops: a mistake of its own")
            self.crashed()

    def crashed(self) -> None:
        """Fails all batches after an unexpected exception, so that no caller waits for ever."""
        self.accumulator.close()
        for batch in self.accumulator.expedite():
            self._failed(batch, Internal("the producer made a mistake; its log says more"))

    async def _send_loop(self) -> None:
        while True:
            self._woken.clear()
            next_poll_s = self._send_ready()
            if next_poll_s <= self.loop.time() or self._woken.is_set():
                await asyncio.sleep(0)
                continue
            is_timed = not math.isinf(next_poll_s)
            timer = self.loop.call_at(next_poll_s, self.wake) if is_timed else None
            await self._woken.wait()
            if timer is not None:
                timer.cancel()

    def _send_ready(self) -> float:
        """Sends ready batches, one request to each free set. Returns the time of the next call."""
        free = []
        for name, sender in self._senders.items():
            if sender.is_free:
                free.append(name)
            elif sender.streams.current is None and self.needs(sender):
                sender.streams.open()
        if not free:
            if not self.accumulator.suspend_wakeups():
                self._watch()
            return math.inf
        batches, next_poll_s = self.accumulator.take(REQUEST_BYTES, free, self._healthy())
        if not self.accumulator.is_empty:
            self._watch()
        now_s = self.loop.time()
        requests: dict[str, list[Batch]] = {}
        for batch in batches:
            batch.sent_s = batch.sent_s or now_s
            requests.setdefault(batch.broker_set, []).append(batch)
        for name, request in requests.items():
            self._senders[name].send(request)
        return next_poll_s

    def _healthy(self) -> list[str]:
        """The sets for messages of any queue."""
        now_s = self.loop.time()
        return [
            name
            for name, sender in self._senders.items()
            if sender.is_connected
            and not sender.is_silent(now_s, SLOW_S)
            and not self._avoidance.is_avoided(name, now_s)
        ]

    # Called by the senders

    def needs(self, sender: SetSender) -> bool:
        return not self.accumulator.is_empty and self.accumulator.needs(sender.name)

    def unwritten(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            if not batch.is_done:
                self._retry_free(batch, 0.0)

    def handed_over(self, sender: SetSender, batches: Sequence[Batch]) -> None:
        """With ack "none": the batches are finished, no answer will come."""
        sender.progress_s = self.loop.time()
        for batch in batches:
            if not batch.is_done:
                unplaced = BatchResult(queue_id=batch.queue_id, queue_offset=-1, log_offset=-1)
                self._stored(batch, unplaced, "SENT")

    def answered(
        self, sender: SetSender, stream: BrokerStream, request: Request, response: PublishResponse
    ) -> None:
        now_s = self.loop.time()
        missing = BatchResult(
            code="INTERNAL", text=f"{stream.address} gave no result for the batch"
        )
        results: Sequence[BatchResult] = response.results
        if any(result.code == 0 for result in results):
            sender.progress_s = now_s
            sender.broker_set.servers.succeeded(stream.address, now_s - request.sent_s)
            self._avoidance.answered(sender.name, now_s - request.sent_s, now_s)
        if response.throttle_ms:
            self._avoidance.is_busy(sender.name, now_s, sender.pause(response.throttle_ms))
        for at, batch in enumerate(request.batches):
            if not batch.is_done:
                self._settle(sender, stream, batch, results[at] if at < len(results) else missing)
        self.wake()

    def lost(self, requests: Iterable[Request], error: MqError) -> None:
        """The stream has broken: requests in flight may be stored, or not."""
        is_refused = isinstance(error, REFUSALS)
        for batch in [batch for request in requests for batch in request.batches]:
            if batch.is_done:
                continue
            batch.in_doubt = True
            batch.error = error
            if is_refused:
                self._failed(batch, reworded(error, f"{error}; it may have been stored"))
            else:
                self._retry_free(batch, 0.0 if not batch.free_retries else None)
        self.wake()

    def refused(self, sender: SetSender, error: MqError) -> None:
        """The set does not accept the producer: batches that no other set takes now have failed."""
        has_others = any(one.is_connected for one in self._senders.values() if one is not sender)
        for batch in self.accumulator.unsent():
            if batch.broker_set == sender.name or not (batch.broker_set or has_others):
                self._failed(batch, error)
        self.wake()

    # Answers

    def _settle(
        self, sender: SetSender, stream: BrokerStream, batch: Batch, result: BatchResult
    ) -> None:
        if is_in_doubt(result.code):
            batch.in_doubt = True
        action = action_for(result.code)
        if action is ResultAction.STORED:
            self._stored(batch, result)
            return
        batch.error = error = error_of(
            result.code, result.text, result.leader_address, result.retry_after_ms
        )
        now_s = self.loop.time()
        if action is ResultAction.FOLLOW:
            believed = sender.broker_set.not_leader(stream.address, result.leader_address)
            sender.streams.leave(stream)
            is_hint = bool(result.leader_address) and believed != stream.address
            self._retry_free(batch, 0.0 if is_hint and not batch.free_retries else None)
        elif action is ResultAction.WAIT:
            self._avoidance.is_busy(sender.name, now_s, retry_after_s(error))
            self._retry_free(batch, retry_after_s(error) or None)
        elif action is ResultAction.RETRY and batch.retries < self.options.retries:
            self._avoidance.refused(sender.name, now_s)
            pause_s = back_off_s(batch.retries)
            batch.retries += 1
            self.accumulator.retry(batch, now_s + pause_s, elsewhere=True)
        elif action is ResultAction.REROUTE and _may_reroute(batch):
            batch.refused_by += (sender.name,)
            self.start(self._reroute(batch))
        elif action is ResultAction.RENUMBER and self.accumulator.renumber(batch):
            self._retry_free(batch, 0.0)
        else:
            self._failed(batch, error)

    def _retry_free(self, batch: Batch, pause_s: float | None) -> None:
        """Retries without counting it; `pause_s` None: after a back-off."""
        pause_s = back_off_s(batch.free_retries) if pause_s is None else pause_s
        batch.free_retries += 1
        self.accumulator.retry(batch, self.loop.time() + pause_s)

    # Ends of batches

    def _stored(self, batch: Batch, result: BatchResult, status: str = "SEND_OK") -> None:
        batch.succeed(result, status)
        self._finish(batch, is_stored=True)

    def _failed(self, batch: Batch, error: MqError) -> None:
        batch.outcome.fail(error)
        if lost := len(batch.outcome.one_way):
            log.warning("%d one-way messages to %s were not sent: %s", lost, batch.topic, error)
        self._finish(batch, is_stored=False)

    def _finish(self, batch: Batch, *, is_stored: bool) -> None:
        batch.is_done = True
        dissolved = self.accumulator.release(batch, is_stored=is_stored)
        if dissolved:
            self._replace(dissolved)
        for unfinished, done in self._flushes:
            unfinished.discard(batch)
            if not unfinished and not done.done():
                done.set_result(None)

    def _replace(self, dissolved: Mapping[Batch, Iterable[Batch]]) -> None:
        """The messages of batches are in other ones."""
        for gone, instead in dissolved.items():
            gone.is_done = True
            for unfinished, _ in self._flushes:
                if gone in unfinished:
                    unfinished.update(instead)
                    unfinished.discard(gone)
        self.wake()

    # Time

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self.start(self._watch_timeouts())

    async def _watch_timeouts(self) -> None:
        while not self.accumulator.is_empty:
            await asyncio.sleep(_TIMEOUT_CHECK_S)
            now_s = self.loop.time()
            self._expire(now_s)
            if now_s - self._routed_s > ROUTES_AGE_S_MAX:
                self._routed_s = now_s
                self.start(self._refresh_routes())

    def _expire(self, now_s: float) -> None:
        senders = self._senders.values()
        progress_s = max((sender.progress_s for sender in senders), default=now_s)
        in_flight = [
            batch for sender in senders for one in sender.in_flight for batch in one.batches
        ]
        for batch in (*in_flight, *self.accumulator.unsent()):
            sender = self._senders.get(batch.broker_set)
            # Answers of other sets are no progress for a batch that is bound to one.
            seen_s = progress_s if sender is None else sender.progress_s
            if not batch.is_done and now_s >= batch.expires_s(seen_s):
                batch.in_doubt = batch.in_doubt or batch.is_in_flight
                self._failed(batch, self._overdue(batch, sender))
                self.wake()

    def _overdue(self, batch: Batch, sender: SetSender | None) -> MqError:
        if sender is not None:
            return batch.overdue(sender.streams.trouble, sender.broker_set.servers)
        troubles = [one.streams.trouble for one in self._senders.values() if one.streams.trouble]
        return batch.overdue(troubles[0] if troubles else None, self.connection.servers)

    # Topics

    def _route_changed(self, route: Route) -> None:
        """Queues are added to a topic, and closed, while a producer runs."""
        is_used = self.accumulator.topic(route.topic) is not None
        if is_used and any(map(is_writable, route.parts)):
            self._set_route(route)
            self.wake()

    def _set_route(self, route: Route) -> None:
        for part in route.parts:
            if part.broker_set not in self._senders:
                broker_set = self.connection.of(part.broker_set)
                self._senders[part.broker_set] = SetSender(broker_set, self)
        turn = random.randrange(1 << 16)  # noqa: S311 # spreads load only
        self.accumulator.set_route(route.topic, route.parts, turn)

    async def _reroute(self, batch: Batch) -> None:
        """After a broker refused the topic or the queue of the batch: refreshes the route, and
        distributes the messages by it.
        """
        try:
            locating = self.connection.topology.locate_writable(
                batch.topic, batch.timeout_s, batch.broker_set
            )
            route = await locating
            self._set_route(route)
            if (
                isinstance(batch.error, PermissionDenied)
                and batch.broker_set in route.writable_sets
            ):
                # Not the state of the topic: the producer may not send to it.
                raise batch.error
        except MqError as error:
            if not batch.is_done:
                self._failed(batch, error)
            return
        if batch.is_done:
            return
        self._replace(self.accumulator.split(batch))

    async def _refresh_routes(self) -> None:
        with contextlib.suppress(MqError):
            await self.connection.brokers(self.accumulator.topics())


def _may_reroute(batch: Batch) -> bool:
    """Once per set, and never for a queue that the user chose."""
    return batch.kind is not BatchKind.FIXED and batch.broker_set not in batch.refused_by
