"""The core of a producer, on one event loop: batches go to the leaders of the broker sets, answers
come back, and a batch that was not stored goes again, with the same number, until its time is over.

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
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from mq.client import encode
from mq.client.cluster.connection import Connection, SetConnection
from mq.client.cluster.errors import error_of, retry_after_s
from mq.client.cluster.leader_stream import BrokerStream, LeaderStream, Patience
from mq.client.cluster.retry import back_off_s
from mq.client.cluster.topology import Route, is_writable
from mq.client.producer.batching import Accumulator
from mq.client.producer.options import ACKS, ProducerOptions
from mq.client.producer.outcomes import SLOW_S, Avoidance, Verdict, is_in_doubt, verdict
from mq.client.producer.queues import Batch, Kind
from mq.errors import ClientClosed, Internal, MqError, Unreachable
from mq.wire.v1.producer_pb2 import ACK_NONE, BatchResult, PublishResponse

log = logging.getLogger(__name__)

# A leader that owes an answer for so long may be frozen, and the others have another one by now.
_PATIENCE = Patience(owed_s=1.0, search_s=1.0)


class Request(NamedTuple):
    batches: Sequence[Batch]
    sent_s: float


class SetSender:
    """`progress_s` is when a batch was stored last."""

    def __init__(
        self, broker_set: SetConnection, ack: int, in_flight_max: int, owner: Sender
    ) -> None:
        self.broker_set = broker_set
        self.name = broker_set.name
        self.streams = LeaderStream(broker_set, "ProducerService", "Publish", self, _PATIENCE)
        self._loop = asyncio.get_running_loop()
        self.progress_s = self._loop.time()
        self._ack = ack
        self._in_flight_max = in_flight_max
        self._owner = owner
        self._ids = itertools.count(1)
        # Requests without an answer, oldest first, by the stream on which they were sent.
        self._in_flight: dict[BrokerStream, dict[int, Request]] = {}
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self.streams.current in self._in_flight

    @property
    def is_free(self) -> bool:
        """Whether one more request can be sent now."""
        stream = self.streams.current
        if self._writing is not None or stream is None or stream not in self._in_flight:
            return False
        return len(self._in_flight[stream]) < self._in_flight_max

    @property
    def in_flight(self) -> Iterable[Request]:
        return itertools.chain.from_iterable(one.values() for one in self._in_flight.values())

    def is_silent(self, now_s: float, patience_s: float) -> bool:
        """Whether an answer has been due for so long and nothing at all was heard."""
        stream = self.streams.current
        if stream is None:
            return False
        return now_s - max(self.owed_since_s(stream), stream.heard_s) > patience_s

    def send(self, batches: Sequence[Batch]) -> None:
        """One request. Only when the sender is free."""
        self._writing = self._loop.create_task(self._write(self.streams.current, batches))

    async def _write(self, stream: BrokerStream | None, batches: Sequence[Batch]) -> None:
        try:
            requests = self._in_flight.get(stream) if stream is not None else None
            if stream is None or requests is None or self.streams.current is not stream:
                # It has ended meanwhile: a request that comes after the end would be forgotten.
                self._owner.unwritten(batches)
                return
            request_id = next(self._ids)
            data = encode.request(request_id, self._ack, [batch.encoded() for batch in batches])
            requests[request_id] = Request(batches, self._loop.time())
            if not await stream.write(data):
                await stream.wait_ended()
            if self._ack == ACK_NONE and requests.pop(request_id, None) is not None:
                self._owner.handed_over(self, batches)
        except Exception:
            log.exception("the producer stops: a mistake of its own")
            self._owner.mistaken()
        finally:
            self._writing = None
            self._owner.wake()

    async def close(self, timeout_s: float) -> None:
        """Ends the streams and waits until the brokers have seen it: what was written before was
        received. Takes no longer than that.
        """
        await self.streams.close(timeout_s)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

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

    def stream_failed(self, error: MqError, address: str) -> None:
        """What could not be sent waits, or goes to another set, at the next turn."""


# Batches that leave together cost the broker less than one by one.
REQUEST_BYTES = 1 << 20
_LOOK_S = 0.1
# While messages are sent: queues are added, and closed.
ROUTES_AGE_S_MAX = 5.0
# So often at most because of what does not fit them.
_DOUBT_S = 1.0


class Sender:
    """Make and use it on its loop; only `accumulator` may be used from other threads."""

    def __init__(self, connection: Connection, settings: ProducerOptions) -> None:
        self.settings = settings
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.accumulator = Accumulator(
            settings.producer_id if settings.idempotent else "",
            linger_s=settings.linger_ms / 1000,
            batch_bytes=settings.batch_bytes,
            buffer_bytes=settings.buffer_bytes,
            clock=self.loop.time,
        )
        self._senders: dict[str, SetSender] = {}
        self._avoidance = Avoidance()
        connection.topology.subscribe(self._route_changed)
        self._routed_s = self.loop.time()
        self._doubting: asyncio.Task[None] | None = None
        self._doubted_s = -_DOUBT_S
        self._woken = asyncio.Event()
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._running = self.start(self._run())

    # For the faces

    async def prepare(self, topic: str, timeout_s: float) -> None:
        """Learns the queues of a topic, and creates it where the broker allows that. Only then can
        messages for it be added. ClientClosed.
        """
        if self._closing is not None:
            raise ClientClosed("the producer is closed: make another one")
        self._set_route(await self.connection.topology.locate_writable(topic, timeout_s))

    async def is_route_newer(self) -> bool:
        """After a message was refused by what is known of its topic: asks the brokers once more,
        unless that was done a moment ago. Whether it is worth another attempt.
        """
        if self._doubting is None or self._doubting.done():
            if self.loop.time() - self._doubted_s < _DOUBT_S:
                return False
            self._doubting = self.start(self._refresh_routes())
        await asyncio.wait([self._doubting])
        self._doubted_s = self.loop.time()
        return True

    def wake(self) -> None:
        """Something was added that does not wait."""
        self._woken.set()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was added before is stored, or has failed.

        With ack "none": when it was handed over. Unreachable when that takes too long.
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
        """Sends everything that was added, then ends the streams and waits until the broker has
        seen their end: what was written before was received. Takes no longer than messages may.
        """
        if self._closing is None:
            self._closing = self.loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.accumulator.close()
        await self.flush()
        senders = self._senders.values()
        await asyncio.gather(*(sender.close(self.settings.timeout_s) for sender in senders))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.connection.close()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sending

    async def _run(self) -> None:
        try:
            await self._send_on()
        except Exception:
            log.exception("the producer stops: a mistake of its own")
            self.mistaken()

    def mistaken(self) -> None:
        """Nobody waits for ever because of an error that nobody thought of."""
        self.accumulator.close()
        for batch in self.accumulator.expedite():
            self._failed(batch, Internal("the producer made a mistake; its log says more"))

    async def _send_on(self) -> None:
        while True:
            self._woken.clear()
            look_s = self._turn()
            if look_s <= self.loop.time() or self._woken.is_set():
                await asyncio.sleep(0)
                continue
            timer = None if look_s == float("inf") else self.loop.call_at(look_s, self.wake)
            await self._woken.wait()
            if timer is not None:
                timer.cancel()

    def _turn(self) -> float:
        """Sends what is due, a request to each set that can take one; when to look again."""
        free = []
        for name, sender in self._senders.items():
            if sender.is_free:
                free.append(name)
            elif sender.streams.current is None and self.needs(sender):
                sender.streams.open()
        if not free:
            if not self.accumulator.rest():
                self._watch()
            return float("inf")
        batches, look_s = self.accumulator.take(REQUEST_BYTES, free, self._well())
        if not self.accumulator.is_empty:
            self._watch()
        now_s = self.loop.time()
        requests: dict[str, list[Batch]] = {}
        for batch in batches:
            batch.sent_s = batch.sent_s or now_s
            requests.setdefault(batch.broker_set, []).append(batch)
        for name, request in requests.items():
            self._senders[name].send(request)
        return look_s

    def _well(self) -> list[str]:
        """The sets for messages that may go to any."""
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
                self._bounce(batch, 0.0)

    def handed_over(self, sender: SetSender, batches: Sequence[Batch]) -> None:
        """No answer will come."""
        sender.progress_s = self.loop.time()
        for batch in batches:
            if not batch.is_done:
                nowhere = BatchResult(queue_id=batch.queue_id, queue_offset=-1, log_offset=-1)
                self._stored(batch, nowhere, "SENT")

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
            sender.broker_set.succeeded(stream.address, now_s - request.sent_s)
            self._avoidance.answered(sender.name, now_s - request.sent_s, now_s)
        for at, batch in enumerate(request.batches):
            if not batch.is_done:
                self._settle(sender, stream, batch, results[at] if at < len(results) else missing)
        self.wake()

    def lost(self, requests: Iterable[Request], error: MqError) -> None:
        """The stream is broken: whatever was under way may be stored, or not."""
        for request in requests:
            for batch in request.batches:
                if not batch.is_done:
                    batch.in_doubt = True
                    batch.error = error
                    self._bounce(batch, 0.0 if not batch.bounces else None)
        self.wake()

    # Answers

    def _settle(
        self, sender: SetSender, stream: BrokerStream, batch: Batch, result: BatchResult
    ) -> None:
        if is_in_doubt(result.code):
            batch.in_doubt = True
        found = verdict(result.code)
        if found is Verdict.STORED:
            self._stored(batch, result)
            return
        batch.error = error = error_of(
            result.code, result.text, result.leader_address, result.retry_after_ms
        )
        now_s = self.loop.time()
        if found is Verdict.FOLLOW:
            believed = sender.broker_set.not_leader(stream.address, result.leader_address)
            sender.streams.leave(stream)
            is_hint = bool(result.leader_address) and believed != stream.address
            self._bounce(batch, 0.0 if is_hint and not batch.bounces else None)
        elif found is Verdict.WAIT:
            self._avoidance.is_busy(sender.name, now_s, retry_after_s(error))
            self._bounce(batch, retry_after_s(error) or None)
        elif found is Verdict.AGAIN and batch.attempts < self.settings.retries:
            self._avoidance.refused(sender.name, now_s)
            pause_s = back_off_s(batch.attempts)
            batch.attempts += 1
            self.accumulator.retry(batch, now_s + pause_s, elsewhere=True)
        elif found is Verdict.REROUTE and _may_reroute(batch):
            batch.refused_by += (sender.name,)
            self.start(self._reroute(batch))
        elif found is Verdict.RENUMBER and self.accumulator.renumber(batch):
            self._bounce(batch, 0.0)
        else:
            self._failed(batch, error)

    def _bounce(self, batch: Batch, pause_s: float | None) -> None:
        """Once more, without counting; None: after a pause that grows."""
        pause_s = back_off_s(batch.bounces) if pause_s is None else pause_s
        batch.bounces += 1
        self.accumulator.retry(batch, self.loop.time() + pause_s)

    # Ends of batches

    def _stored(self, batch: Batch, result: BatchResult, status: str = "SEND_OK") -> None:
        batch.succeed(result, status)
        self._finish(batch, is_stored=True)

    def _failed(self, batch: Batch, error: MqError) -> None:
        lost = batch.fail(error)
        if lost:
            log.warning("%d one-way messages to %s were not sent: %s", lost, batch.topic, error)
        self._finish(batch, is_stored=False)

    def _finish(self, batch: Batch, *, is_stored: bool) -> None:
        batch.is_done = True
        self.accumulator.release(batch, is_stored=is_stored)
        for unfinished, done in self._flushes:
            unfinished.discard(batch)
            if not unfinished and not done.done():
                done.set_result(None)

    # Time

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self.start(self._look_at_times())

    async def _look_at_times(self) -> None:
        while not self.accumulator.is_empty:
            await asyncio.sleep(_LOOK_S)
            now_s = self.loop.time()
            self._expire(now_s)
            if now_s - self._routed_s > ROUTES_AGE_S_MAX:
                self._routed_s = now_s
                self.start(self._refresh_routes())

    def _expire(self, now_s: float) -> None:
        senders = self._senders.values()
        progress_s = max((sender.progress_s for sender in senders), default=now_s)
        under_way = [
            batch for sender in senders for one in sender.in_flight for batch in one.batches
        ]
        for batch in (*under_way, *self.accumulator.unsent()):
            sender = self._senders.get(batch.broker_set)
            # What waits for one set waits in vain while only others answer.
            seen_s = progress_s if sender is None else sender.progress_s
            if not batch.is_done and now_s >= batch.expires_s(seen_s):
                batch.in_doubt = batch.in_doubt or batch.is_out
                self._failed(batch, self._overdue(batch, sender))
                self.wake()

    def _overdue(self, batch: Batch, sender: SetSender | None) -> MqError:
        if sender is not None:
            return batch.overdue(sender.streams.trouble, sender.broker_set.servers)
        troubles = [
            sender.streams.trouble
            for sender in self._senders.values()
            if sender.streams.trouble is not None
        ]
        return batch.overdue(troubles[0] if troubles else None, self.connection.servers)

    # Topics

    def _route_changed(self, route: Route) -> None:
        """Topics get more queues while a producer runs, and lose some."""
        is_used = self.accumulator.topic(route.topic) is not None
        if is_used and any(map(is_writable, route.parts)):
            self._set_route(route)
            self.wake()

    def _set_route(self, route: Route) -> None:
        for part in route.parts:
            if part.broker_set not in self._senders:
                self._senders[part.broker_set] = SetSender(
                    self.connection.of(part.broker_set),
                    ACKS[self.settings.ack],
                    self.settings.in_flight_max,
                    self,
                )
        turn = random.randrange(1 << 16)  # noqa: S311 # spreads load only
        self.accumulator.set_route(route.topic, route.parts, turn)

    async def _reroute(self, batch: Batch) -> None:
        """The broker does not know its topic or its queue, or takes nothing for it: asks again, and
        goes by the answer.
        """
        try:
            topology = self.connection.topology
            self._set_route(
                await topology.locate_writable(batch.topic, batch.timeout_s, batch.broker_set)
            )
        except MqError as error:
            if not batch.is_done:
                self._failed(batch, error)
            return
        if batch.is_done:
            return
        for gone, instead in self.accumulator.split(batch).items():
            gone.is_done = True
            for unfinished, _ in self._flushes:
                if gone in unfinished:
                    unfinished.update(instead)
                    unfinished.discard(gone)
        self.wake()

    async def _refresh_routes(self) -> None:
        with contextlib.suppress(MqError):
            await self.connection.brokers(self.accumulator.topics())


def _may_reroute(batch: Batch) -> bool:
    """Each set is asked once what it has against it; a queue that the user chose is not changed."""
    return batch.kind is not Kind.FIXED and batch.broker_set not in batch.refused_by
