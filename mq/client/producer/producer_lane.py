"""The way of a producer to one broker set: a stream to its leader, opened when it is needed and
again when it breaks, and those to former leaders, which still answer what they were asked.

One request is written at a time, so that what cannot be sent stays where it may still go elsewhere.
What an answer means for a batch, and which batches leave, the owner decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from mq.client.cluster.connection import SetConnection
from mq.client.cluster.retry import back_off_s
from mq.client.producer.lines import Batch
from mq.client.producer.link import Link, Request
from mq.errors import MqError, NotLeader
from mq.wire.v1.producer_pb2 import ACK_NONE, PublishResponse

log = logging.getLogger(__name__)

# A leader that answers nothing for so long may be frozen, and the others have another one by now.
STALL_S = 1.0


class Owner(Protocol):
    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...
    def wake(self) -> None: ...
    def needs(self, lane: Lane) -> bool: ...
    def handed_over(self, lane: Lane, batches: Sequence[Batch]) -> None: ...
    def unwritten(self, batches: Sequence[Batch]) -> None: ...
    def mistaken(self) -> None: ...
    def answered(
        self, lane: Lane, link: Link, request: Request, response: PublishResponse
    ) -> None: ...
    def lost(self, requests: Sequence[Request], error: MqError) -> None: ...


class Lane:
    """`progress_s` is when a batch was stored last; `trouble` why there is no stream."""

    def __init__(self, line: SetConnection, ack: int, in_flight_max: int, owner: Owner) -> None:
        self.line = line
        self.name = line.name
        self.link: Link | None = None
        self.trouble: MqError | None = None
        self._loop = asyncio.get_running_loop()
        self.progress_s = self._loop.time()
        self._ack = ack
        self._in_flight_max = in_flight_max
        self._owner = owner
        self._is_writing = False
        self._is_closing = False
        self._leaving: set[Link] = set()
        self._attempt = 0
        self._connecting: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether one more request can be sent now."""
        link = self.link
        return (
            link is not None and not self._is_writing and len(link.requests) < self._in_flight_max
        )

    @property
    def links(self) -> list[Link]:
        return [link for link in (self.link, *self._leaving) if link is not None]

    def is_silent(self, now_s: float, patience_s: float) -> bool:
        return self.link is not None and self.link.is_silent(now_s, patience_s)

    # Sending

    def send(self, batches: Sequence[Batch]) -> None:
        """One request. Only when it is free."""
        self._is_writing = True
        self._owner.start(self._write(self.link, batches))

    async def _write(self, link: Link | None, batches: Sequence[Batch]) -> None:
        try:
            if link is None or self.link is not link:
                # It ended meanwhile, and nobody would tell of a request that comes after the end.
                self._owner.unwritten(batches)
                return
            request_id = await link.write(batches)
            if self._ack == ACK_NONE and link.requests.pop(request_id, None) is not None:
                self._owner.handed_over(self, batches)
        except Exception:
            log.exception("the producer stops: a mistake of its own")
            self._owner.mistaken()
        finally:
            self._is_writing = False
            self._owner.wake()

    # The stream

    def connect(self) -> None:
        """Until there is a stream, or nothing to be sent."""
        if self._connecting is None or self._connecting.done():
            self._connecting = self._owner.start(self._open_link())

    async def _open_link(self) -> None:
        while self._owner.needs(self):
            address = ""
            try:
                address = await self.line.leader(STALL_S)
                link = Link(self.line, address, self._ack, self)
                await link.open()
            except MqError as error:
                self.trouble = error
                log.debug("no stream to %s: %s", address or "a leader", error)
                if address:
                    self._learn_end(address, error)
                self._attempt += 1
                await asyncio.sleep(back_off_s(self._attempt - 1))
            else:
                self.link, self.trouble, self._attempt = link, None, 0
                break
        self._owner.wake()

    def _learn_end(self, address: str, error: MqError) -> None:
        if isinstance(error, NotLeader):
            self.line.not_leader(address, error.address or "")
        else:
            self.line.failed(address)

    def leave(self, link: Link) -> None:
        """It leads no more: the next request goes to another one, answers still come from here."""
        if self.link is link:
            self.link = None
            self._leaving.add(link)
            self._owner.start(link.half_close())

    def look(self, now_s: float) -> None:
        """From time to time: who is silent may be frozen, or cut off."""
        link = self.link
        is_asking = self._asking is not None and not self._asking.done()
        if link is not None and link.is_silent(now_s, STALL_S) and not is_asking:
            self._asking = self._owner.start(self._ask_who_leads(link))
        for leaving in self._leaving:
            if leaving.is_silent(now_s, STALL_S):
                leaving.cancel()

    async def _ask_who_leads(self, link: Link) -> None:
        """If others say that somebody else leads by now, it is left for good."""
        self.line.failed(link.address)
        try:
            leader = await self.line.leader(STALL_S)
        except MqError:
            return
        if leader != link.address:
            link.cancel()

    # Called by the link

    def answered(self, link: Link, request: Request, response: PublishResponse) -> None:
        self._owner.answered(self, link, request, response)

    def ended(self, link: Link, error: MqError) -> None:
        self._leaving.discard(link)
        if self.link is link:
            self.link = None
            if not self._is_closing:
                log.debug("the stream to %s ended: %s", link.address, error)
                self.trouble = error
                self._learn_end(link.address, error)
        requests, link.requests = list(link.requests.values()), {}
        self._owner.lost(requests, error)

    # The end

    async def close(self, timeout_s: float) -> None:
        """Ends the streams and waits until the brokers have seen it: what was written before was
        received. Takes no longer than that.
        """
        self._is_closing = True
        links = self.links
        try:
            async with asyncio.timeout(timeout_s):
                for link in links:
                    await link.half_close()
                for link in links:
                    await link.wait_ended()
        except TimeoutError:
            for link in links:
                link.cancel()
                await link.wait_ended()
