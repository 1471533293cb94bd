"""The health service of gRPC: whether this node serves, asked once or watched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from mq.http2.calls import CallAborted
from mq.http2.status import Status
from mq.rpc.context import Context, Handlers, StreamHandler, UnaryHandler

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_Response = health_pb2.HealthCheckResponse


class Health:
    def __init__(self, names: Iterable[str]) -> None:
        """Of these services, and of the node as a whole, whose name is empty."""
        self._names = frozenset(("", *names))
        self._is_serving = False
        self._is_stopping = False
        self._changed = asyncio.Event()

    def handlers(self) -> Handlers:
        return {
            f"/{NAME}/Check": UnaryHandler(self._check),
            f"/{NAME}/Watch": StreamHandler(self._watch),
        }

    def set(self, *, is_serving: bool) -> None:
        self._is_serving = is_serving and not self._is_stopping
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """The node serves nothing from now on."""
        self._is_stopping = True
        self.set(is_serving=False)

    def _status(self, name: str) -> int:
        if name not in self._names:
            return int(_Response.SERVICE_UNKNOWN)
        return int(_Response.SERVING if self._is_serving else _Response.NOT_SERVING)

    def _check(self, data: bytes, context: Context) -> bytes:
        status = self._status(_service_name(data))
        if status == _Response.SERVICE_UNKNOWN:
            raise CallAborted(Status.NOT_FOUND, "there is no such service")
        return _answer(status)

    async def _watch(self, context: Context) -> None:
        data = await context.read()
        if data is None:
            raise CallAborted(Status.INVALID_ARGUMENT, "the request is missing")
        name, told = _service_name(data), None
        while True:
            changed, status = self._changed, self._status(name)
            if status != told:
                await context.write(_answer(status))
                told = status
            await changed.wait()


def _service_name(data: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(data).service)
    except DecodeError as error:
        raise CallAborted(Status.INVALID_ARGUMENT, f"not a request: {error}") from None


def _answer(status: int) -> bytes:
    return bytes(_Response(status=status).SerializeToString())
