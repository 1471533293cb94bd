"""Server reflection of gRPC, by which tools such as grpcurl learn the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from mq.http2.calls import CallAborted
from mq.http2.status import Status
from mq.rpc.context import Context, StreamHandler

NAME = reflection.SERVICE_NAME


class Reflection:
    def __init__(self, names: Iterable[str]) -> None:
        self._servicer = reflection.aio.ReflectionServicer([*names, NAME])

    def handlers(self) -> Mapping[str, StreamHandler]:
        return {f"/{NAME}/ServerReflectionInfo": StreamHandler(self._serve)}

    async def _serve(self, context: Context) -> None:
        async for answer in self._servicer.ServerReflectionInfo(_requests(context), context):
            await context.write(answer.SerializeToString())


async def _requests(context: Context) -> AsyncIterator[Any]:
    while (data := await context.read()) is not None:
        try:
            yield reflection_pb2.ServerReflectionRequest.FromString(data)
        except DecodeError as error:
            raise CallAborted(Status.INVALID_ARGUMENT, f"not a request: {error}") from None
