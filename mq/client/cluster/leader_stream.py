"""A stream that is kept to the leader of a broker set: opened there, watched for silence, moved
when another broker leads, and opened again after a back-off when it breaks.

`BrokerStream` is one stream to one broker, bytes in both directions. A `LeaderStream` opens one
after the other for its user, and runs the user's `serve` on each from the first byte to the last.
What the bytes mean, and what becomes of requests that a stream has left without an answer, is
known to the user alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message as WireMessage

from mq.client.cluster.connection import SetConnection
from mq.client.cluster.errors import REFUSALS, error_of_call, mistake
from mq.client.cluster.retry import CALL_TIMEOUT_S, back_off_s, cancelled, is_being_cancelled
from mq.errors import ClientClosed, MqError, NotLeader, Unauthenticated, Unreachable

log = logging.getLogger(__name__)

_CONNECT_S_MAX = 2.0
# A broker answers the first request of a stream at once.
START_S_MAX = 5.0
# The end of a stream that lasted so long begins a new series of failures.
_STEADY_S = 5.0


class Patience(NamedTuple):
    """The silence of a broker after which others are asked which one leads."""

    # ... while it owes an answer.
    owed_s: float = math.inf
    # ... while it owes none: at first, and in the long run. The longer the silence, the longer the
    # time to the next check, so that an idle client asks seldom.
    idle_s_min: float = math.inf
    idle_s_max: float = math.inf
    # ... while it owes none and is the only known broker of its set.
    alone_s: float = math.inf
    # The time-out of the others, and of a search for the leader altogether.
    search_s: float = CALL_TIMEOUT_S
    # Whether the stream breaks when none of the others answers either.
    needs_answer: bool = False


class _Renewed(Unreachable):
    """The credentials of the client have changed since the stream was opened."""


class StreamUser(Protocol):
    """The owner of a `LeaderStream`. All of it is called on the event loop."""

    def wants_stream(self) -> bool:
        """Whether a stream is to be opened now. When it is wanted again, call `open`."""
        ...

    async def serve(self, stream: BrokerStream) -> None:
        """Uses one stream until it ends. Raises why it ended; returns when the broker has ended it
        in good order. Until then requests on it may still be answered.
        """
        ...

    def owed_since_s(self, stream: BrokerStream) -> float:
        """The time at which the oldest request without an answer was sent; infinite without one."""
        ...

    def stream_failed(self, error: MqError, address: str) -> None:
        """There is no stream, and the next attempt is made after a pause. An empty address: no
        leader was found. After one of `REFUSALS` there is no next attempt before `open`.
        """
        ...


class BrokerStream:
    """One stream to one broker. Failures are errors of `mq.errors`."""

    def __init__(
        self, broker_set: SetConnection, address: str, request_class: type[WireMessage]
    ) -> None:
        self.address = address
        # The newest term in which this broker may lead.
        self.term = broker_set.term
        self._loop = asyncio.get_running_loop()
        self.opened_s = self.heard_s = self._loop.time()
        self._channels = broker_set.channels
        self._metadata = self._channels.credentials.metadata
        self._call = self._channels.stream(address, request_class)
        self._generation = self._channels.generation
        self._cancelled_by: MqError | None = None
        self._ended = asyncio.Event()

    @property
    def is_outdated(self) -> bool:
        """Whether the credentials of the client have changed since it was opened."""
        return self._generation != self._channels.generation

    def _error_of(self, failure: grpc.aio.AioRpcError) -> MqError:
        error = error_of_call(failure, self.address)
        is_refused = isinstance(error, Unauthenticated)
        if is_refused and self._channels.credentials.is_replaced(self._metadata):
            return _Renewed(f"{self.address}: {error}; there is another key by now")
        return error

    async def connect(self) -> None:
        """Raises why there is no connection; then nothing is left to be closed."""
        try:
            async with asyncio.timeout(_CONNECT_S_MAX):
                await self._call.wait_for_connection()
        except grpc.aio.AioRpcError as failure:
            raise self._error_of(failure) from None
        except TimeoutError:
            self._call.cancel()
            raise Unreachable(
                f"{self.address}: no connection within {_CONNECT_S_MAX:g} s"
            ) from None
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        self.opened_s = self.heard_s = self._loop.time()

    async def start(self, request: bytes) -> bytes | None:
        """The first request, and the answer to it, as of `read`."""
        await self.write(request)
        try:
            async with asyncio.timeout(START_S_MAX):
                return await self.read()
        except TimeoutError:
            raise Unreachable(
                f"{self.address}: no answer to a start within {START_S_MAX:g} s"
            ) from None

    async def write(self, data: bytes) -> bool:
        """Returns when gRPC has taken the request. False: the stream has ended; `read` says why."""
        try:
            await self._call.write(data)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            return False
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            return False
        return True

    async def read(self) -> bytes | None:
        """The next response; None: the broker has ended the stream in good order."""
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as failure:
            raise self._error_of(failure) from None
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            silent = Unreachable(f"{self.address} no longer answers")
            raise self._cancelled_by or silent from None
        except grpc.aio.UsageError:
            raise ClientClosed("the client is closed") from None
        if data is grpc.aio.EOF:
            return None
        self.heard_s = self._loop.time()
        found: bytes = data
        return found

    async def half_close(self) -> None:
        """Nothing more is written; the broker answers what it has, and ends the stream."""
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass  # it has ended
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise

    def cancel(self, why: MqError | None = None) -> None:
        """Breaks the stream off: `read` raises this error, or that the broker is silent."""
        self._cancelled_by = why
        self._call.cancel()

    async def wait_ended(self) -> None:
        """Until `serve` is done with it."""
        await self._ended.wait()

    def ended(self) -> None:
        self._call.cancel()
        self._ended.set()


class LeaderStream:
    """`current` is the stream for new requests. A former one may still bring answers."""

    def __init__(
        self,
        broker_set: SetConnection,
        request_class: type[WireMessage],
        user: StreamUser,
        patience: Patience,
        *,
        overlaps: bool = False,
    ) -> None:
        """`overlaps`: when the credentials have changed, a stream is opened before the former one
        has ended; otherwise that is broken off first.
        """
        self.broker_set = broker_set
        self.current: BrokerStream | None = None
        # The error of the last attempt at a stream.
        self.trouble: MqError | None = None
        # In a row; read by the user to judge how bad it is.
        self.failures = 0
        # May be replaced at any time.
        self.patience = patience
        self._request_class = request_class
        self._user = user
        self._overlaps = overlaps
        self._loop = asyncio.get_running_loop()
        self._serving: dict[BrokerStream, asyncio.Task[None]] = {}
        self._half_closing: set[asyncio.Task[None]] = set()
        self._searching: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._next_attempt_s = 0.0

    # Opening

    def open(self) -> None:
        """Looks for the leader until there is a stream, or the user wants none."""
        is_searching = self._searching is not None and not self._searching.done()
        if self.current is None and not is_searching and not self._is_stopped:
            self._searching = self._loop.create_task(self._search())

    async def _search(self) -> None:
        while self._user.wants_stream() and not self._is_stopped:
            await asyncio.sleep(max(0.0, self._next_attempt_s - self._loop.time()))
            address = ""
            try:
                address = await self.broker_set.leader(self.patience.search_s)
                stream = BrokerStream(self.broker_set, address, self._request_class)
                await stream.connect()
            except MqError as error:
                log.debug("no stream to %s: %s", address or "a leader", error)
                self._failed(error, address)
                if isinstance(error, REFUSALS):
                    return
            except Exception as failure:
                log.exception("a mistake of this client, which goes on")
                self._failed(mistake(failure), address)
            else:
                self.current, self.trouble = stream, None
                self._serving[stream] = self._loop.create_task(self._serve(stream))
                return

    async def _serve(self, stream: BrokerStream) -> None:
        watching = self._loop.create_task(self._watch(stream))
        error: MqError = Unreachable(f"{stream.address} ended the stream")
        try:
            await self._user.serve(stream)
        except MqError as failure:
            error = failure
        except Exception as failure:
            log.exception("a mistake of this client ends the stream to %s", stream.address)
            error = mistake(failure)
        finally:
            watching.cancel()
            stream.ended()
            del self._serving[stream]
            is_current = self.current is stream
            if is_current:
                self.current = None
        if is_current and not self._is_stopped:
            log.debug("the stream to %s ended: %s", stream.address, error)
            if self._loop.time() - stream.opened_s >= _STEADY_S:
                self.failures = 0
            self._failed(error, stream.address)
            if not isinstance(error, REFUSALS):
                self.open()

    def _failed(self, error: MqError, address: str) -> None:
        if isinstance(error, _Renewed):
            return
        self.trouble = error
        if isinstance(error, REFUSALS):
            log.error("broker set %s refuses this client: %s", self.broker_set.name, error)
        if isinstance(error, ClientClosed):
            self._is_stopped = True
        elif address and isinstance(error, NotLeader):
            self.broker_set.not_leader(address, error.address or "")
        elif address and error.retryable:
            self.broker_set.failed(address)
        # Not all clients at the same moment: all of them have lost the same leader.
        jitter = random.uniform(0.5, 1.0)  # noqa: S311
        self._next_attempt_s = self._loop.time() + jitter * back_off_s(self.failures)
        self.failures += 1
        self._user.stream_failed(error, address)

    # Following the leader

    def leave(self, stream: BrokerStream) -> None:
        """Its broker leads no more: new requests go to another stream, which is opened at once;
        what this one owes is still answered.
        """
        if self.current is stream:
            self.current = None
            self._half_close(stream)
            self.open()

    def _half_close(self, stream: BrokerStream) -> None:
        task = self._loop.create_task(stream.half_close())
        self._half_closing.add(task)
        task.add_done_callback(self._half_closing.discard)

    async def _watch(self, stream: BrokerStream) -> None:
        """A broker that has nothing to say is silent, and so is one that is frozen, cut off, or
        deposed and does not know it.
        """
        checked_s = stream.heard_s
        while True:
            if stream is self.current and stream.is_outdated:
                self._renew(stream)
            owed_s, idle_s = self._check_times_s(stream, checked_s)
            # A request that is sent meanwhile is owed an answer.
            wait_s = min(owed_s, idle_s, self._loop.time() + self.patience.owed_s)
            if math.isinf(wait_s):
                return
            if wait_s > self._loop.time():
                await asyncio.sleep(wait_s - self._loop.time())
                continue
            checked_s, is_owed = self._loop.time(), owed_s <= self._loop.time()
            if stream is self.current:
                await self._check_leader(stream, is_owed=is_owed)
            elif is_owed:
                stream.cancel()

    def _renew(self, stream: BrokerStream) -> None:
        """Opens another one, by the credentials of now."""
        if self._overlaps:
            self.leave(stream)
        else:
            stream.cancel(_Renewed(f"{stream.address}: the credentials of the client have changed"))

    def _check_times_s(self, stream: BrokerStream, checked_s: float) -> tuple[float, float]:
        """The time at which the broker is suspect by an answer that it owes, and by its silence."""
        patience, last_s = self.patience, max(stream.heard_s, checked_s)
        owed_s = max(self._user.owed_since_s(stream), last_s) + patience.owed_s
        has_others = any(one != stream.address for one in self.broker_set.servers)
        longest_s = patience.idle_s_max if has_others else patience.alone_s
        if math.isinf(longest_s):
            return owed_s, math.inf
        silent_s = max(checked_s - stream.heard_s, 0.0)
        return owed_s, last_s + min(max(silent_s / 2, patience.idle_s_min), longest_s)

    async def _check_leader(self, stream: BrokerStream, *, is_owed: bool) -> None:
        """Breaks the stream off if another broker leads. An answer of the same term may be older
        than the stream: it counts only against a broker that owes an answer.
        """
        try:
            response = await self.broker_set.brokers(self.patience.search_s, last=stream.address)
        except MqError as error:
            if self.patience.needs_answer:
                stream.cancel(error)
            return
        for told in response.broker_sets:
            leaders = [node.address for node in told.nodes if node.node_id == told.leader_id]
            is_newer = told.term > stream.term or (is_owed and told.term == stream.term)
            if told.name == self.broker_set.name and leaders and is_newer:
                stream.term = told.term
                if leaders[0] != stream.address:
                    why = f"{leaders[0]} leads {told.name} now, not {stream.address}"
                    stream.cancel(Unreachable(why))

    # The end

    def stop(self) -> None:
        """No further stream is opened."""
        self._is_stopped = True
        if self._searching is not None:
            self._searching.cancel()

    def cancel(self) -> None:
        """Breaks all streams off, and does not wait for that."""
        self.stop()
        for task in self._serving.values():
            task.cancel()

    async def close(self, timeout_s: float) -> None:
        """Writes nothing more, and waits as `finish` does until the brokers have answered."""
        for stream in self._serving:
            self._half_close(stream)
        await self.finish(timeout_s)

    async def finish(self, timeout_s: float) -> None:
        """Waits for so long until the streams have ended; then breaks them off."""
        self.stop()
        tasks = [*self._serving.values(), *self._half_closing]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        if self._searching is not None:
            tasks.append(self._searching)
        await cancelled(*tasks)
