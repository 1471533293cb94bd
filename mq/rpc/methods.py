"""Serving of a method: bytes in, bytes out, every error a typed status.

A `Method` is one row of the table of services (`mq.rpc.services`). Requests are decoded here and
not by the transport, so that bytes which are no request get the same kind of answer as any other
mistake, and the methods that move messages see the bytes as they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from mq.errors import FlowControl, MqError
from mq.http2.calls import CallEnded
from mq.rpc import limits, listeners, status
from mq.rpc.context import Context, StreamHandler, UnaryHandler

M = TypeVar("M", bound=Message)
# However long a client is ready to wait.
UNARY_S_MAX = 90.0


class Method(NamedTuple):
    """Made by `unary` and `stream`."""

    name: str
    # None: a stream, which reads its requests itself.
    request: type[Message] | None
    serve: Callable[..., Awaitable[Any]]
    leader_only: bool


def unary(
    name: str,
    request: type[M],
    serve: Callable[[M, Context], Awaitable[Message | bytes]],
    *,
    leader_only: bool = True,
) -> Method:
    """`request` may be another message of the same wire format. With `leader_only`, a node that
    does not lead refuses the call with the address of the one that does, after the request was
    found to be legal.
    """
    return Method(name, request, serve, leader_only)


def stream(
    name: str, serve: Callable[[Context], Awaitable[None]], *, leader_only: bool = True
) -> Method:
    """As `unary`; a node that does not lead refuses before it reads a request."""
    return Method(name, None, serve, leader_only)


class Observer(Protocol):
    def __call__(self, method: str, seconds: float, code: str) -> None: ...


class Explainer(Protocol):
    def __call__(self, error: MqError, /) -> MqError: ...


class Dispatcher(NamedTuple):
    """Makes handlers of methods, with what surrounds every call."""

    # Returns when this node leads and serves; NotLeader.
    until_leading: Callable[[], Awaitable[None]]
    observe: Observer
    # The error as it is told to the client.
    explained: Explainer

    def handler(
        self, service: str, method: Method, *, is_external: bool = False
    ) -> UnaryHandler | StreamHandler:
        """`is_external`: for the listener of clients that cannot use the other addresses."""
        name = f"{service}/{method.name}"
        if method.request is None:
            return self._stream(name, method, is_external=is_external)
        return self._unary(name, method, limits.Reader(method.request), is_external=is_external)

    def _unary(
        self, name: str, method: Method, read: limits.Reader[Message], *, is_external: bool
    ) -> UnaryHandler:
        until_leading, observe, explained = self

        async def serve(data: bytes, context: Context) -> bytes:
            listeners.IS_EXTERNAL.set(is_external)
            began_s = time.perf_counter()
            code = "OK"
            try:
                async with asyncio.timeout(UNARY_S_MAX):
                    request = read(data)
                    if method.leader_only:
                        await until_leading()
                    response = await method.serve(request, context)
            except TimeoutError:
                code = FlowControl.code.name
                late = FlowControl(f"{name} took longer than {UNARY_S_MAX} s")
                raise status.aborted(late) from None
            except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
                known = explained(status.known_error(error))
                code = known.code.name
                raise status.aborted(known) from None
            finally:
                observe(name, time.perf_counter() - began_s, code)
            return response if isinstance(response, bytes) else response.SerializeToString()

        return UnaryHandler(serve)

    def _stream(self, name: str, method: Method, *, is_external: bool) -> StreamHandler:
        until_leading, observe, explained = self

        async def serve(context: Context) -> None:
            listeners.IS_EXTERNAL.set(is_external)
            began_s = time.perf_counter()
            code = "OK"
            try:
                if method.leader_only:
                    await until_leading()
                await method.serve(context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except CallEnded:
                # There is no receiver for a status.
                code = "CANCELLED"
            except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
                known = explained(status.known_error(error))
                code = known.code.name
                raise status.aborted(known) from None
            finally:
                observe(name, time.perf_counter() - began_s, code)

        return StreamHandler(serve)
