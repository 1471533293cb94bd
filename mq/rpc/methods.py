"""How a method is served: bytes in, bytes out, every error a typed status.

Requests are decoded here and not by gRPC, so that bytes which are no request get the same kind of
answer as any other mistake, and the methods that move messages see the bytes as they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.message import Message

from mq.errors import FlowControl, MqError
from mq.rpc import listeners, status

Context: TypeAlias = grpc.aio.ServicerContext
# However long a client is ready to wait.
UNARY_S_MAX = 90.0


class Observer(Protocol):
    def __call__(self, method: str, seconds: float, code: str) -> None: ...


class Explainer(Protocol):
    def __call__(self, error: MqError, /) -> MqError: ...


def unary(
    name: str,
    request_type: Callable[[bytes], Any],
    method: Callable[[Any, Context], Awaitable[Message | bytes]],
    observe: Observer,
    *,
    explained: Explainer = lambda error: error,
    is_external: bool = False,
) -> grpc.RpcMethodHandler:
    async def serve(data: bytes, context: Context) -> bytes:
        listeners.IS_EXTERNAL.set(is_external)
        began_s = time.perf_counter()
        code = "OK"
        try:
            async with asyncio.timeout(UNARY_S_MAX):
                response = await method(request_type(data), context)
        except TimeoutError:
            code = FlowControl.code.name
            data = b""
            await status.abort(context, FlowControl(f"{name} took longer than {UNARY_S_MAX} s"))
            raise
        except Exception as error:
            known = explained(status.known_error(error))
            code = known.code.name
            data = b""
            await status.abort(context, known)
            raise
        finally:
            observe(name, time.perf_counter() - began_s, code)
        return response if isinstance(response, bytes) else response.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(serve)


def stream(
    name: str,
    method: Callable[[Context], Awaitable[None]],
    observe: Observer,
    *,
    explained: Explainer = lambda error: error,
    is_external: bool = False,
) -> grpc.RpcMethodHandler:
    async def serve(_: object, context: Context) -> None:
        listeners.IS_EXTERNAL.set(is_external)
        began_s = time.perf_counter()
        code = "OK"
        try:
            await method(context)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except grpc.aio.InternalError:
            # What is written to a client that is gone fails; nobody would hear why.
            code = "CANCELLED"
        except Exception as error:
            known = explained(status.known_error(error))
            code = known.code.name
            await status.abort(context, known)
            raise
        finally:
            observe(name, time.perf_counter() - began_s, code)

    return grpc.stream_stream_rpc_method_handler(serve)
