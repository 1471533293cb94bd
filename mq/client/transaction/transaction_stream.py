"""One Transact stream to one broker, from its start to its end: bytes out, responses in.

What is written waits in order until gRPC takes it. It knows neither what requests mean nor what
follows the stream's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mq.client.cluster.connection import SetConnection
from mq.client.cluster.errors import error_of_call
from mq.client.transaction.transaction_encode import more_request
from mq.errors import ClientClosed, MqError, Unreachable
from mq.wire.v1.transaction_pb2 import TransactRequest, TransactResponse, TransactStart

log = logging.getLogger(__name__)

# A broker answers a start at once.
_START_S_MAX = 5.0
# What is written as one: so many bytes, and requests, of which a broker takes ten times as many.
_WRITE_BYTES, _WRITE_REQUESTS = 256 << 10, 1_000


class TransactStream:
    def __init__(
        self,
        connection: SetConnection,
        address: str,
        on_started: Callable[[], None],
        on_response: Callable[[TransactResponse], None],
    ) -> None:
        self.address = address
        self._on_started = on_started
        self._on_response = on_response
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        self._call = connection.stream(
            address, "TransactionService", "Transact", raw_requests=True, raw_responses=True
        )
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()

    def write(self, data: bytes) -> None:
        self._out.put_nowait(data)

    def half_close(self) -> None:
        """Nothing more is written; the broker answers what it has, and ends the stream."""
        self._out.put_nowait(None)

    def break_off(self) -> None:
        self._call.cancel()

    async def run(self, start: TransactStart) -> MqError:
        """Why it ended. The requests that have no answer then may have been carried out."""
        self.write(TransactRequest(start=start).SerializeToString())
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
        except grpc.aio.AioRpcError as failure:
            return error_of_call(failure, self.address)
        except TimeoutError:
            return Unreachable(f"{self.address}: no answer to a start in {_START_S_MAX:g} s")
        except asyncio.CancelledError:
            # The call may be what was cancelled, and says it the same.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Unreachable(f"{self.address} did not answer any more")
        except grpc.aio.UsageError:
            return ClientClosed("the client is closed")
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._call.cancel()
        return Unreachable(f"{self.address} ended the stream")

    async def _read(self) -> None:
        async with asyncio.timeout(_START_S_MAX):
            data = await self._call.read()
        if data is grpc.aio.EOF:
            return
        self._on_started()
        while data is not grpc.aio.EOF:
            self.heard_s = self._loop.time()
            try:
                response = TransactResponse.FromString(data)
            except DecodeError as error:
                # A question about a message that an older version stored unread, and that is none.
                log.error("%s sent what cannot be read: %s", self.address, error)  # noqa: TRY400
            else:
                for one in response.more or (response,):
                    self._on_response(one)
            data = await self._call.read()

    async def _write(self) -> None:
        # Whoever reads learns why the stream is broken.
        with contextlib.suppress(
            grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError
        ):
            while (requests := await self._next()) is not None:
                await self._call.write(more_request(requests))
            await self._call.done_writing()

    async def _next(self) -> list[bytes] | None:
        """What waits, up to a bound: several at once cost less than one by one."""
        data = await self._out.get()
        if data is None:
            return None
        requests, size = [data], len(data)
        while size < _WRITE_BYTES and len(requests) < _WRITE_REQUESTS and not self._out.empty():
            data = self._out.get_nowait()
            if data is None:
                self._out.put_nowait(None)  # the last one
                break
            requests.append(data)
            size += len(data)
        return requests
