"""The core of a producer, on one event loop: batches leave by a stream to the leader, answers come
back, and what was not stored goes again, with the same number, until its time is over.

A batch ends in exactly one way: stored, or failed with an error. It keeps its line until then, so
that order holds across retries and changes of the leader. The faces for users are in
`producer_aio` and `producer_sync`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from typing import Any

from mq import names
from mq.client.accumulator import Accumulator
from mq.client.failures import error_of, retry_after_s
from mq.client.lines import Batch, Kind
from mq.client.link import Link, Request
from mq.client.producer_settings import ACKS, Settings
from mq.client.sequences import Sequences
from mq.client.verdicts import Verdict, is_in_doubt, verdict
from mq.client.wiring import ROUTE_AGE_S_MAX, Connection, back_off_s
from mq.errors import Internal, MqError, NotLeader, PermissionDenied, Unreachable
from mq.wire.v1.producer_pb2 import ACK_NONE, BatchResult, PublishResponse

log = logging.getLogger(__name__)

# Batches that leave together cost the broker less than one by one.
REQUEST_BYTES = 1 << 20
_LOOK_S = 0.1
# A leader that answers nothing for so long may be frozen, and the others have another one by now.
_STALL_S = 1.0


class ProducerCore:
    """Make and use it on its loop; only `accumulator` may be used from other threads."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self.settings = settings
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.accumulator = Accumulator(
            Sequences(settings.producer_id if settings.idempotent else ""),
            linger_s=settings.linger_ms / 1000,
            batch_bytes=settings.batch_bytes,
            buffer_bytes=settings.buffer_bytes,
            clock=self.loop.time,
        )
        self._ack = ACKS[settings.ack]
        self._broker_sets: dict[str, str] = {}
        self._line = connection.of("")
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._link: Link | None = None
        # Streams to former leaders, which still answer what they were asked.
        self._leaving: set[Link] = set()
        self._woken = asyncio.Event()
        self._progress_s = self.loop.time()
        self._routed_s = self.loop.time()
        self._trouble: MqError | None = None
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._running = self._start(self._run())

    # For the faces

    async def prepare(self, topic: str, timeout_s: float) -> None:
        """Learns the queues of a topic, and creates it where the broker allows that. Only then can
        messages for it be added.
        """
        task = self._preparing.get(topic)
        if task is None:
            task = self._preparing[topic] = self._start(self._learn(topic, timeout_s))
            task.add_done_callback(lambda _: self._preparing.pop(topic, None))
        await asyncio.shield(task)

    def wake(self) -> None:
        """Something was added that does not wait."""
        self._woken.set()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was added before is stored, or has failed.

        With ack "none": when it was handed over. Unreachable when that takes too long.
        """
        unfinished = self.accumulator.ripen()
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
        links = [link for link in (self._link, *self._leaving) if link is not None]
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                for link in links:
                    await link.half_close()
                for link in links:
                    await link.wait_ended()
        except TimeoutError:
            for link in links:
                link.cancel()
                await link.wait_ended()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.connection.close()

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
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
            self.accumulator.close()
            for batch in self.accumulator.ripen():
                self._failed(batch, Internal("the producer made a mistake; its log says more"))

    async def _send_on(self) -> None:
        while True:
            self._woken.clear()
            look_s = await self._turn()
            if look_s <= self.loop.time() or self._woken.is_set():
                continue
            timer = None if look_s == float("inf") else self.loop.call_at(look_s, self.wake)
            await self._woken.wait()
            if timer is not None:
                timer.cancel()

    async def _turn(self) -> float:
        """Sends what is due, one request; when to look again."""
        link = self._link
        if link is None or len(link.requests) >= self.settings.in_flight_max:
            if not self.accumulator.rest():
                self._watch()
                if link is None:
                    self._connect()
            return float("inf")
        batches, look_s = self.accumulator.take(REQUEST_BYTES)
        if not batches:
            return look_s
        self._watch()
        now_s = self.loop.time()
        for batch in batches:
            batch.sent_s = batch.sent_s or now_s
        request_id = await link.write(batches)
        if self._ack == ACK_NONE and link.requests.pop(request_id, None) is not None:
            self._handed_over(batches)
        return 0.0

    def _handed_over(self, batches: Sequence[Batch]) -> None:
        """No answer will come."""
        self._progress_s = self.loop.time()
        for batch in batches:
            if not batch.is_done:
                nowhere = BatchResult(queue_id=batch.queue_id, queue_offset=-1, log_offset=-1)
                self._stored(batch, nowhere, "SENT")

    def _connect(self) -> None:
        if self._connecting is None or self._connecting.done():
            self._connecting = self._start(self._open_link())

    async def _open_link(self) -> None:
        attempt = 0
        while not self.accumulator.is_empty:
            address = ""
            try:
                address = await self._line.leader(_STALL_S)
                link = Link(self.connection, address, self._ack, self)
                await link.open()
            except MqError as error:
                self._trouble = error
                log.debug("no stream to %s: %s", address or "a leader", error)
                if address:
                    self._learn_end(address, error)
                await asyncio.sleep(back_off_s(attempt))
                attempt += 1
            else:
                self._link, self._trouble = link, None
                break
        self.wake()

    def _learn_end(self, address: str, error: MqError) -> None:
        if isinstance(error, NotLeader):
            self._line.not_leader(address, error.address or "")
        else:
            self._line.failed(address)

    def _leave(self, link: Link) -> None:
        """It leads no more: the next request goes to another one, answers still come from here."""
        if self._link is link:
            self._link = None
            self._leaving.add(link)
            self._start(link.half_close())

    # Answers; called by the link

    def answered(self, link: Link, request: Request, response: PublishResponse) -> None:
        now_s = self.loop.time()
        missing = BatchResult(code="INTERNAL", text=f"{link.address} gave no result for the batch")
        results: Sequence[BatchResult] = response.results
        for at, batch in enumerate(request.batches):
            if not batch.is_done:
                self._settle(link, batch, results[at] if at < len(results) else missing)
        if any(result.code == 0 for result in results):
            self._progress_s = now_s
            self._line.succeeded(link.address, now_s - request.sent_s)
        self.wake()

    def _settle(self, link: Link, batch: Batch, result: BatchResult) -> None:
        if is_in_doubt(result.code):
            batch.in_doubt = True
        found = verdict(result.code)
        if found is Verdict.STORED:
            self._stored(batch, result)
            return
        batch.error = error = error_of(
            result.code, result.text, result.leader_address, result.retry_after_ms
        )
        if found is Verdict.FOLLOW:
            believed = self._line.not_leader(link.address, result.leader_address)
            self._leave(link)
            is_hint = bool(result.leader_address) and believed != link.address
            self._bounce(batch, 0.0 if is_hint and not batch.bounces else None)
        elif found is Verdict.WAIT:
            self._bounce(batch, retry_after_s(error) or None)
        elif found is Verdict.AGAIN and batch.attempts < self.settings.retries:
            pause_s = back_off_s(batch.attempts)
            batch.attempts += 1
            self.accumulator.retry(batch, self.loop.time() + pause_s, elsewhere=True)
        elif found is Verdict.REROUTE and batch.kind is not Kind.FIXED and not batch.is_rerouted:
            batch.is_rerouted = True
            self._start(self._reroute(batch))
        elif found is Verdict.RENUMBER and self.accumulator.renumber(batch):
            self._bounce(batch, 0.0)
        else:
            self._failed(batch, error)

    def _bounce(self, batch: Batch, pause_s: float | None) -> None:
        """Once more, without counting; None: after a pause that grows."""
        pause_s = back_off_s(batch.bounces) if pause_s is None else pause_s
        batch.bounces += 1
        self.accumulator.retry(batch, self.loop.time() + pause_s)

    def ended(self, link: Link, error: MqError) -> None:
        self._leaving.discard(link)
        if self._link is link:
            self._link = None
            if self._closing is None:
                log.debug("the stream to %s ended: %s", link.address, error)
                self._trouble = error
                self._learn_end(link.address, error)
        requests, link.requests = list(link.requests.values()), {}
        for request in requests:
            for batch in request.batches:
                if not batch.is_done:
                    batch.in_doubt = True
                    batch.error = error
                    self._bounce(batch, 0.0 if not batch.bounces else None)
        self.wake()

    # Ends of batches

    def _stored(self, batch: Batch, result: BatchResult, status: str = "SEND_OK") -> None:
        batch.succeed(self._broker_sets[batch.topic], result, status)
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
            self._watching = self._start(self._look_at_times())

    async def _look_at_times(self) -> None:
        while not self.accumulator.is_empty:
            await asyncio.sleep(_LOOK_S)
            now_s = self.loop.time()
            self._expire(now_s)
            is_asking = self._asking is not None and not self._asking.done()
            if self._link is not None and self._link.is_silent(now_s, _STALL_S) and not is_asking:
                self._asking = self._start(self._ask_who_leads(self._link))
            for leaving in self._leaving:
                if leaving.is_silent(now_s, _STALL_S):
                    leaving.cancel()
            if now_s - self._routed_s > ROUTE_AGE_S_MAX:
                self._routed_s = now_s
                self._start(self._refresh_routes())

    def _expire(self, now_s: float) -> None:
        links = (self._link, *self._leaving)
        requests = [one for link in links if link for one in link.requests.values()]
        under_way = [batch for request in requests for batch in request.batches]
        for batch in (*under_way, *self.accumulator.unsent()):
            if not batch.is_done and now_s >= batch.expires_s(self._progress_s):
                batch.in_doubt = batch.in_doubt or batch.is_out
                self._failed(batch, batch.overdue(self._trouble, self._line.servers))
                self.wake()

    async def _ask_who_leads(self, link: Link) -> None:
        """It is silent. If others say that somebody else leads by now, it is left for good."""
        self._line.failed(link.address)
        try:
            leader = await self._line.leader(_STALL_S)
        except MqError:
            return
        if leader != link.address:
            link.cancel()

    # Topics

    async def _learn(self, topic: str, timeout_s: float) -> None:
        names.check_topic(topic)
        if names.is_internal_topic(topic):
            raise PermissionDenied(f"topic {topic} is written by the broker alone")
        route = (await self.connection.route(topic, create=True, timeout_s=timeout_s)).parts[0]
        if not route.is_writable or not route.write_queues:
            raise PermissionDenied(f"topic {topic} takes no messages: it is not writable")
        self._broker_sets[topic] = route.broker_set
        self._line = self.connection.of(route.broker_set)
        first_queue = random.randrange(route.write_queues)  # noqa: S311 # spreads load only
        self.accumulator.set_route(topic, route.write_queues, first_queue, route.priorities)

    async def _reroute(self, batch: Batch) -> None:
        """The broker does not know its topic or its queue: asks again, and goes by the answer."""
        self.connection.forget_route(batch.topic)
        try:
            await self.prepare(batch.topic, batch.timeout_s)
        except MqError as error:
            if not batch.is_done:
                self._failed(batch, error)
            return
        if batch.is_done:
            return
        parts = self.accumulator.split(batch)
        batch.is_done = True
        for unfinished, _ in self._flushes:
            if batch in unfinished:
                unfinished.update(parts)
                unfinished.discard(batch)
        self.wake()

    async def _refresh_routes(self) -> None:
        """Topics get more queues while a producer runs."""
        try:
            response = await self.connection.brokers(self.accumulator.topics())
        except MqError:
            return
        for route in response.topics:
            if route.write_queues:
                self.accumulator.set_route(
                    route.topic, route.write_queues, priorities=route.priorities
                )
