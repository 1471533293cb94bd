"""The way of a transaction producer to one broker set: a stream to its leader, open for as long as
the producer lives, and the requests that have no answer.

What has no answer when a stream breaks goes again on the next one; halves have numbers, of this
set, and ends are remembered by the broker, so that each happens once. Half messages that may go to
any set, and are certainly not stored in this one, are handed back by `Elsewhere`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable
from typing import Protocol

from mq.client.cluster.connection import SetConnection
from mq.client.cluster.errors import error_of, fresh, retry_after_s
from mq.client.cluster.retry import back_off_s
from mq.client.producer.sequences import Sequences
from mq.client.producer.verdicts import Verdict, is_in_doubt, verdict
from mq.client.transaction.transaction_stream import TransactStream
from mq.errors import ClientClosed, IllegalSequence, MqError, NoLeader, NotLeader, Unreachable
from mq.wire.v1.status_pb2 import Status
from mq.wire.v1.transaction_pb2 import CheckTransaction, TransactResponse, TransactStart

log = logging.getLogger(__name__)

# A leader that owes an answer for so long may be frozen; one that owes none is asked less often.
STALL_S, _IDLE_S = 1.0, 5.0
_LOOK_S = 0.25

# The request of this id; a half message also has a producer id and a sequence.
MakeHalf = Callable[[int, str, int], bytes]
MakeEnd = Callable[[int], bytes]


class Elsewhere(Exception):
    """The half message is not stored here, and another set may take it now."""


class Owner(Protocol):
    def asked(self, lane: TransactLane, check: CheckTransaction) -> None: ...
    def started(self, lane: TransactLane) -> None: ...
    def is_busy(self, lane: TransactLane, pause_s: float) -> None: ...
    def answered(self, lane: TransactLane, latency_s: float) -> None: ...


class _Pending:
    """A request without an answer. `has_others`: whether another set could take it now."""

    __slots__ = ("attempts", "data", "future", "has_others", "in_doubt", "sent_s")

    def __init__(
        self,
        data: bytes,
        future: asyncio.Future[TransactResponse],
        has_others: Callable[[], bool] | None,
    ) -> None:
        self.data = data
        self.future = future
        self.has_others = has_others
        self.attempts = 0
        self.in_doubt = False
        self.sent_s = math.inf

    def leaves(self) -> bool:
        """Whether it goes elsewhere, and who waits for it knows."""
        if self.future.done() or self.in_doubt or not (self.has_others and self.has_others()):
            return False
        self.future.set_exception(Elsewhere())
        return True


class TransactLane:
    """Make and use it on its loop."""

    def __init__(self, line: SetConnection, producer_group: str, owner: Owner) -> None:
        self.line = line
        self.name = line.name
        self.is_started = False
        self.trouble: MqError | None = None
        self._producer_group = producer_group
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.started_s = self._ended_s = self._loop.time()
        self._sequences = Sequences(None)
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._stream: TransactStream | None = None
        self._term = 0
        self._is_closing = False
        self._tasks = [
            self._loop.create_task(self._keep_stream()),
            self._loop.create_task(self._watch()),
        ]

    # Requests

    async def send_half(
        self, make: MakeHalf, deadline_s: float, what: str, has_others: Callable[[], bool] | None
    ) -> TransactResponse:
        """Elsewhere, only with `has_others`."""
        while True:
            producer_id, sequence = self._sequences.take()
            request_id = next(self._ids)
            data = make(request_id, producer_id, sequence)
            pending = _Pending(data, self._loop.create_future(), has_others)
            try:
                return await self._ask(request_id, pending, deadline_s, what)
            except IllegalSequence:
                if not self._sequences.start_over(producer_id):
                    raise
            except BaseException:
                # Its number is free for another one only if it was certainly not stored.
                if not pending.in_doubt:
                    self._sequences.give_back(producer_id, sequence)
                raise

    async def send_end(self, make: MakeEnd, deadline_s: float, what: str) -> TransactResponse:
        request_id = next(self._ids)
        pending = _Pending(make(request_id), self._loop.create_future(), None)
        return await self._ask(request_id, pending, deadline_s, what)

    def reply(self, data: bytes) -> None:
        """The answer to a question. Without a stream nobody waits for it: the broker asks again."""
        if self._stream is not None and self.is_started:
            self._stream.write(data)

    def is_silent(self, patience_s: float) -> bool:
        """Whether an answer has been due for so long and nothing at all was heard."""
        heard_s = 0.0 if self._stream is None else self._stream.heard_s
        return self._loop.time() - max(self._owes_s(), heard_s) > patience_s

    def is_unused(self, seconds: float) -> bool:
        """No stream for so long, and nobody waits for one."""
        return (
            not self.is_started
            and not self._pending
            and self._loop.time() - self._ended_s > seconds
        )

    def let_go(self) -> None:
        """Another set is there now: what was not sent yet may go there."""
        if not self.is_started:
            for pending in list(self._pending.values()):
                pending.leaves()

    async def _ask(
        self, request_id: int, pending: _Pending, deadline_s: float, what: str
    ) -> TransactResponse:
        """Sends until there is an answer, or no time left."""
        if self._is_closing:
            raise ClientClosed("the producer is closed: make another one")
        self._pending[request_id] = pending
        self._write(pending)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await pending.future
        except TimeoutError:
            raise self._overdue(what, pending) from None
        finally:
            del self._pending[request_id]

    def _overdue(self, what: str, pending: _Pending) -> Unreachable:
        doubt = "it may have been stored" if pending.in_doubt else "it was not sent"
        unanswered = f"no answer for {what} from broker set {self.name} in time; {doubt}"
        if isinstance(self.trouble, NoLeader):
            found = fresh(self.trouble)
            found.args = (f"{unanswered}: {self.trouble}",)
            return found
        why = str(self.trouble or f"brokers: {', '.join(self.line.servers)}")
        return Unreachable(f"{unanswered}: {why}")

    def _write(self, pending: _Pending) -> None:
        if self._stream is not None and self.is_started and not pending.future.done():
            pending.in_doubt = True
            pending.sent_s = self._loop.time()
            self._stream.write(pending.data)

    def _received(self, response: TransactResponse) -> None:
        kind = response.WhichOneof("kind")
        if kind == "check":
            self._owner.asked(self, response.check)
            return
        pending = self._pending.get(response.request_id)
        if pending is None or pending.future.done():
            return
        sent_s, pending.sent_s = pending.sent_s, math.inf
        if kind == "failed":
            self._failed(pending, response.failed)
        else:
            self._owner.answered(self, max(0.0, self._loop.time() - sent_s))
            pending.future.set_result(response)

    def _failed(self, pending: _Pending, status: Status) -> None:
        error = error_of(status.code, status.text, status.leader_address, status.retry_after_ms)
        # This attempt left nothing behind, unless it says so; an earlier one may have.
        pending.in_doubt = is_in_doubt(status.code) or pending.attempts > 0
        found = verdict(status.code)
        if found is Verdict.FOLLOW and self._stream is not None:
            self.trouble = error
            self.is_started = False
            if not pending.leaves():
                pending.attempts += 1
            self.line.not_leader(self._stream.address, status.leader_address)
            self._stream.break_off()
        elif found in (Verdict.WAIT, Verdict.AGAIN):
            self.trouble = error
            pause_s = retry_after_s(error) or back_off_s(pending.attempts)
            self._owner.is_busy(self, pause_s)
            if not pending.leaves():
                pending.attempts += 1
                self._loop.call_later(pause_s, self._write, pending)
        else:
            pending.future.set_exception(error)

    # The stream

    async def _keep_stream(self) -> None:
        attempt = 0
        while not self._is_closing:
            was_started = False
            try:
                was_started = await self._serve(await self.line.leader(STALL_S))
            except MqError as error:
                self.trouble = error
            except Exception:
                log.exception("a mistake of the producer's own; it goes on")
            attempt = 0 if was_started else attempt + 1
            if not self._is_closing:
                await asyncio.sleep(back_off_s(attempt))

    async def _serve(self, address: str) -> bool:
        """Until the stream ends; whether it was one at all."""
        start = TransactStart(
            producer_group=self._producer_group,
            producer_id=self._sequences.producer_id,
            answers_checks=True,
            reads_more=True,
        )
        began_s = self._loop.time()
        stream = TransactStream(self.line, address, self._started, self._received)
        self._stream = stream
        try:
            error = await stream.run(start)
        finally:
            self._stream = None
            self.is_started = False
            self._ended_s = self._loop.time()
        self.trouble = error
        if not self._is_closing:
            log.debug("the stream to %s ended: %s", address, error)
            if isinstance(error, NotLeader):
                self.line.not_leader(address, error.address or "")
            else:
                self.line.failed(address)
            for pending in list(self._pending.values()):
                pending.leaves()
        return self.started_s >= began_s

    def _started(self) -> None:
        """What has no answer yet goes again, in its order."""
        self.is_started = True
        self.started_s = self._loop.time()
        for pending in list(self._pending.values()):
            pending.attempts += pending.in_doubt
            self._write(pending)
        self._owner.started(self)

    async def _watch(self) -> None:
        """A leader that is silent may be frozen, cut off, or deposed and not know it."""
        checked_s = self._loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            stream, now_s = self._stream, self._loop.time()
            if stream is None or not self.is_started:
                continue
            is_stalled = now_s - max(self._owes_s(), stream.heard_s, checked_s) > STALL_S
            is_idle = now_s - max(stream.heard_s, checked_s) > _IDLE_S
            if is_stalled or (is_idle and len(set(self.line.servers)) > 1):
                checked_s = now_s
                with contextlib.suppress(MqError):
                    await self._check_leader(stream)

    def _owes_s(self) -> float:
        return min((one.sent_s for one in self._pending.values()), default=math.inf)

    async def _check_leader(self, stream: TransactStream) -> None:
        """Only what is newer than the last answer counts: who is asked may know even less."""
        others = [one for one in self.line.servers if one != stream.address]
        response = await self.line.cluster.brokers((), STALL_S, first=others)
        for broker_set in response.broker_sets:
            leaders = [one for one in broker_set.nodes if one.node_id == broker_set.leader_id]
            if broker_set.name == self.name and leaders and broker_set.term >= self._term:
                self._term = broker_set.term
                if leaders[0].address != stream.address:
                    stream.break_off()

    # The end

    async def close(self, timeout_s: float) -> None:
        self._is_closing = True
        if self._stream is not None and self.is_started:
            self._stream.half_close()
            await asyncio.wait([self._tasks[0]], timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pending in self._pending.values():
            if not pending.future.done():
                doubt = "it may have been stored" if pending.in_doubt else "it was not sent"
                pending.future.set_exception(
                    ClientClosed(f"the producer was closed before an answer came; {doubt}")
                )
