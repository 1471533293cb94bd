"""One Publish stream to one broker: requests that are under way there, and their answers.

Answers and the end of the stream are told to whoever opened it, on the event loop; the end comes
once, and last. What becomes of requests that are under way then is not decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import grpc
import grpc.aio

from mq.client import encode
from mq.client.cluster.connection import SetConnection
from mq.client.cluster.errors import error_of_call
from mq.client.producer.lines import Batch
from mq.errors import ClientClosed, MqError, Unreachable
from mq.wire.v1.producer_pb2 import PublishResponse

_CONNECT_TIMEOUT_S = 2.0


class Request(NamedTuple):
    batches: Sequence[Batch]
    sent_s: float


class Owner(Protocol):
    def answered(self, link: Link, request: Request, response: PublishResponse) -> None: ...
    def ended(self, link: Link, error: MqError) -> None: ...


class Link:
    """Write only after `open`. `requests` are the ones without an answer, oldest first."""

    def __init__(self, connection: SetConnection, address: str, ack: int, owner: Owner) -> None:
        self.address = address
        self.requests: dict[int, Request] = {}
        self.heard_s = 0.0
        self._ack = ack
        self._owner = owner
        self._call = connection.stream(address, "ProducerService", "Publish", raw_requests=True)
        self._next_id = 1
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises why it cannot be opened; then there is nothing to close."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._call.wait_for_connection()
        except grpc.aio.AioRpcError as failure:
            raise error_of_call(failure, self.address) from None
        except TimeoutError:
            self._call.cancel()
            raise Unreachable(
                f"{self.address}: no connection within {_CONNECT_TIMEOUT_S:g} s"
            ) from None
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        self.heard_s = self._loop.time()
        self._reader = asyncio.create_task(self._read())

    async def write(self, batches: Sequence[Batch]) -> int:
        """Returns the request's id when gRPC has taken it. When the stream breaks on the way the
        request is among `requests` and the owner is told of the end, as ever.
        """
        request_id = self._next_id
        self._next_id += 1
        data = encode.request(request_id, self._ack, [batch.encoded() for batch in batches])
        self.requests[request_id] = Request(batches, self._loop.time())
        try:
            await self._call.write(data)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await self.wait_ended()
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            await self.wait_ended()
        return request_id

    async def half_close(self) -> None:
        """Nothing more is written; the broker answers what it has, and ends the stream."""
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass  # it has ended
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise

    async def wait_ended(self) -> None:
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def is_silent(self, now_s: float, patience_s: float) -> bool:
        """Whether an answer has been due for so long and nothing at all was heard."""
        if not self.requests:
            return False
        oldest_s = next(iter(self.requests.values())).sent_s
        return now_s - max(oldest_s, self.heard_s) > patience_s

    def cancel(self) -> None:
        """Breaks it off; the owner is told soon."""
        self._call.cancel()

    async def _read(self) -> None:
        error: MqError = Unreachable(f"{self.address} ended the stream")
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self.heard_s = self._loop.time()
                request = self.requests.pop(response.request_id, None)
                if request is not None:
                    self._owner.answered(self, request, response)
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure, self.address)
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            error = Unreachable(f"{self.address} did not answer any more")
        except grpc.aio.UsageError:
            error = ClientClosed("the client is closed")
        self._owner.ended(self, error)


def _is_being_cancelled() -> bool:
    """Whether this task is; otherwise it was the call that was cancelled, and says it the same."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
