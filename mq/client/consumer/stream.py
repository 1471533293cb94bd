"""One Subscribe stream, from its start to its end: deliveries in, reports out.

It knows neither how the stream was opened nor what follows its end. Nothing but the start is sent
before the first assignment came: epochs are counted anew on each stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mq.client.consumer.detours import Detours
from mq.client.consumer.holdings import Holdings
from mq.client.decode import parse_subscribe_response
from mq.errors import Internal, Unreachable
from mq.wire.v1.consumer_pb2 import Alive, Assignment, SubscribeRequest, SubscribeStart

# Progress that is not urgent waits so long for more of it.
REPORT_S = 0.1
# A broker answers a start at once.
ANSWER_S_MAX = 5.0


class Call(Protocol):
    """What is used of grpc.aio.StreamStreamCall; requests are messages, answers are bytes."""

    async def write(self, request: SubscribeRequest) -> None: ...
    async def read(self) -> bytes: ...
    async def done_writing(self) -> None: ...


class News:
    """That there is something to tell the broker, soon or at once. `tell` is for any thread once
    `attach` was called.
    """

    def __init__(self) -> None:
        self._some, self._urgent = asyncio.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()

    def tell(self, *, is_urgent: bool) -> None:
        if self._loop is not None:
            # The loop may be closed: then there is nobody to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._set_urgent if is_urgent else self._some.set)

    def _set_urgent(self) -> None:
        self._some.set()
        self._urgent.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether there is something, after all that belongs to it had time to come."""
        if not await _is_set(self._some, timeout_s):
            return False
        await _is_set(self._urgent, REPORT_S)
        self._some.clear()
        self._urgent.clear()
        return True


class Watch(NamedTuple):
    """Over a broker that is silent: `check` raises when it is not the one to talk to any more. The
    first check comes after `patience_s_min` of silence, so that a consumer whose messages stop
    soon knows why; the longer the silence, the longer the time to the next, up to `patience_s_max`
    or the time between two signs of life: a consumer that has nothing to do asks seldom.
    """

    check: Callable[[], Awaitable[None]]
    patience_s_min: float
    patience_s_max: float

    def pause_s(self, silence_s: float, heartbeat_s: float) -> float:
        """Until the next check, when the broker has been silent for so long."""
        longest_s = min(heartbeat_s, self.patience_s_max)
        return min(max(silence_s / 2, self.patience_s_min), longest_s)


class Stream:
    def __init__(
        self,
        call: Call,
        holdings: Holdings,
        detours: Detours,
        news: News,
        closing: asyncio.Event,
        *,
        on_assignment: Callable[[Assignment], None],
        watch: Watch,
    ) -> None:
        """When `closing` is set, all that is done is reported and the stream ends in good order."""
        self._call = call
        self._holdings = holdings
        self._news = news
        self._closing = closing
        self._broker_set = detours.broker_set
        self._detours = detours
        detours.on_resume = lambda: news.tell(is_urgent=True)
        self._on_assignment = on_assignment
        self._silence = watch
        self._heartbeat_s = 10.0
        self._heard_s = time.monotonic()

    async def run(self, start: SubscribeStart) -> None:
        """Until the broker ends it, or the consumer does. Failures are grpc.aio.AioRpcError or
        ours.
        """
        # A call that is over already tells the reader why.
        with contextlib.suppress(asyncio.InvalidStateError):
            await self._call.write(SubscribeRequest(start=start))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                is_open = await self._read(is_first=True)
        except TimeoutError:
            raise Unreachable(f"no answer to a subscription within {ANSWER_S_MAX:g} s") from None
        if not is_open:
            return
        others = [asyncio.create_task(self._write()), asyncio.create_task(self._watch())]
        reading = asyncio.create_task(self._read_all())
        try:
            # Who writes ends when the consumer closes; the broker's answer to it is to come.
            await asyncio.wait([reading, others[1]], return_when=asyncio.FIRST_COMPLETED)
            if others[1].done():
                await others[1]
            await reading
        finally:
            for task in (*others, reading):
                task.cancel()
            await asyncio.gather(*others, reading, return_exceptions=True)
            await self._detours.close()

    # Reading

    async def _read_all(self) -> None:
        while await self._read():
            pass

    async def _read(self, *, is_first: bool = False) -> bool:
        """Whether the stream goes on."""
        data = await self._call.read()
        if data is grpc.aio.EOF:
            return False
        self._heard_s = time.monotonic()
        try:
            response, runs = parse_subscribe_response(data)
        except DecodeError as error:
            raise Internal(f"what the broker sends cannot be read: {error}") from None
        match response.WhichOneof("kind"):
            case "assignment":
                assignment = response.assignment
                self._heartbeat_s = (assignment.heartbeat_ms or 10_000) / 1000
                self._holdings.assign(assignment, self._broker_set, is_first=is_first)
                self._detours.follow(assignment)
                self._on_assignment(assignment)
            case "delivery":
                self._holdings.deliver(response.delivery, runs, self._broker_set)
            case "redirect":
                self._detours.begin(response.redirect)
        return True

    async def _watch(self) -> None:
        """A broker that has nothing to deliver says nothing, and so does one that is frozen, cut
        off, or deposed and does not know it.
        """
        while True:
            heard_s = self._heard_s
            silence_s = time.monotonic() - heard_s
            await asyncio.sleep(self._silence.pause_s(silence_s, self._heartbeat_s))
            if self._heard_s == heard_s:
                await self._silence.check()

    # Writing

    async def _write(self) -> None:
        # Whoever reads learns why the stream is broken.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while not self._closing.is_set():
                if await self._news.wait(self._heartbeat_s):
                    await self._report()
                else:
                    await self._call.write(SubscribeRequest(alive=Alive()))
            await self._report()
            await self._call.done_writing()

    async def _report(self) -> None:
        for request in self._holdings.outgoing(self._broker_set):
            await self._call.write(request)
        # After the progress: it may go further than the stream has delivered.
        for request in self._detours.outgoing():
            await self._call.write(request)
        self._detours.progressed()


async def _is_set(event: asyncio.Event, timeout_s: float) -> bool:
    # Not wait_for: it forgets that it was cancelled when the event is set at the same moment.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
