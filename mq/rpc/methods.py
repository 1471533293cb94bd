"""Serving of a method: bytes in, bytes out, every error a typed status.

A `Method` is one row of the table of services (`mq.rpc.services`). Requests are decoded here and
not by the transport, so that bytes which are no request get the same kind of answer as any other
mistake, and the methods that move messages see the bytes as they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from google.protobuf.message import Message

from mq.broker.leading import Leadership
from mq.broker.security.audit import CALLER
from mq.broker.security.gate import ANYBODY, Gate, LiveStream, Principal
from mq.errors import FlowControl, MqError, Unauthenticated
from mq.http2.calls import CallAborted, CallEnded
from mq.rpc import limits, listeners, namespaces, status
from mq.rpc.access import LIVE, Rule, any_caller, open_to_all
from mq.rpc.context import Context, StreamHandler, UnaryHandler, UnaryServe

M = TypeVar("M", bound=Message)
# However long a client is ready to wait.
UNARY_S_MAX = 90.0
# How long a follower waits for a change before it refuses a caller that it does not know.
_NEWS_S = 1.0


class Method(NamedTuple):
    """Made by `unary` and `stream`."""

    name: str
    # None: a stream, which reads its requests itself.
    request: type[Message] | None
    serve: Callable[..., Awaitable[Any]]
    rule: Rule
    leader_only: bool
    begin: Callable[..., bool] | None = None
    waits: bool = False


# Called once, with the response or with what is wrong.
Answer: TypeAlias = Callable[[bytes | BaseException], None]


def unary(
    name: str,
    request: type[M],
    serve: Callable[[M, Context], Awaitable[Message | bytes]],
    rule: Rule,
    *,
    leader_only: bool = True,
    begin: Callable[[bytes, Context, Answer], bool] | None = None,
    waits: bool = False,
) -> Method:
    """`request` may be another message of the same wire format. With `leader_only`, a node that
    does not lead refuses the call with the address of the one that does, after the request was
    found to be legal, and before `rule` is asked: a follower may not have heard of the newest
    users and policies.

    `begin` is asked first, on a node that leads: it gets the request as it came, the call, and a
    callback for the answer, and needs no task. It returns False for what it leaves to `serve`.

    `waits`: it may wait long for messages, so `rule` is asked again before they go out.
    """
    return Method(name, request, serve, rule, leader_only, begin, waits)


def stream(
    name: str,
    serve: Callable[[Context], Awaitable[None]],
    *,
    leader_only: bool = True,
) -> Method:
    """As `unary`; a node that does not lead refuses before it reads a request. The stream checks
    the resources of its requests itself.
    """
    return Method(name, None, serve, any_caller, leader_only)


class _InFlight:
    """Calls of one method that wait for their answer without a task. Those that take longer than
    `UNARY_S_MAX` are refused, by one timer for all.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        # When each began, the oldest first. The dispatcher removes a call when it answers it.
        self.calls: dict[Context, tuple[float, Answer]] = {}
        self.is_watched = False

    def watch(self) -> None:
        """Unless `is_watched`."""
        self.is_watched = True
        asyncio.get_running_loop().call_later(UNARY_S_MAX, self._sweep)

    def _sweep(self) -> None:
        self.is_watched = False
        began_by_s = time.perf_counter() - UNARY_S_MAX
        while self.calls:
            began_s, answer = next(iter(self.calls.values()))
            if began_s > began_by_s:
                self.is_watched = True
                asyncio.get_running_loop().call_later(began_s - began_by_s, self._sweep)
                return
            answer(_late(self._method))


def _late(method: str) -> FlowControl:
    return FlowControl(f"{method} took longer than {UNARY_S_MAX} s")


class Observer(Protocol):
    def __call__(self, method: str, seconds: float, code: str) -> None: ...


class Explainer(Protocol):
    def __call__(self, error: MqError, caller: Principal, /) -> MqError: ...


class Dispatcher(NamedTuple):
    """Makes handlers of methods, with what surrounds every call."""

    leadership: Leadership
    gate: Gate
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
        read = limits.Reader(method.request)
        served = self._unary(name, method, read, is_external=is_external)
        if method.begin is None:
            return served
        if self.gate.is_off:
            begin = self._unchecked_begin(method.begin)
        else:
            begin = self._checked_begin(method, read, method.begin)
        return UnaryHandler(self._begun(name, begin, served.serve, is_external))

    # -- callers ----------------------------------------------------------------------------------

    def _caller(self, context: Context) -> Principal:
        """Unauthenticated."""
        caller = cast("Principal | None", context.caller)
        if caller is None or not self.gate.is_current(caller):
            caller = context.caller = self.gate.identify(
                context.header("authorization"),
                context.certificate_names(),
                peer_address(context.peer()),
                context.header(namespaces.HEADER),
            )
        return caller

    def _anybody(self, context: Context) -> Principal:
        """A caller that need not be known: all that counts, while authentication is off, is its
        namespace.
        """
        if not self.gate.is_off:
            context.caller = ANYBODY
        elif cast("Principal | None", context.caller) is None:
            context.caller = self.gate.identify(None, (), "", context.header(namespaces.HEADER))
        return context.caller

    async def _known_caller(self, context: Context) -> Principal:
        """As `_caller`; a follower waits for news of the leader first: it may not have heard of a
        user or a key that was just made.
        """
        try:
            return self._caller(context)
        except Unauthenticated:
            if self.leadership.is_serving or not await self.gate.changes_within(_NEWS_S):
                raise
        return self._caller(context)

    def for_callers(self, handler: StreamHandler) -> StreamHandler:
        """A handler that is not one of our methods, for callers that are known."""

        async def serve(context: Context) -> None:
            try:
                await self._known_caller(context)
            except Unauthenticated as error:
                raise status.aborted(error) from None
            await handler.serve(context)

        return StreamHandler(serve)

    def _explained(self, error: BaseException, context: Context) -> MqError:
        """The error as the caller is told of it, which may not be known yet."""
        caller = cast("Principal | None", context.caller)
        caller = ANYBODY if caller is None else caller
        known = self.explained(status.known_error(error), caller)
        return namespaces.explained(known, caller.namespace) if caller.namespace else known

    def _checked_begin(
        self, method: Method, read: limits.Reader[Message], begin: Callable[..., bool]
    ) -> Callable[..., bool]:
        rule = method.rule

        def checked(data: bytes, context: Context, answer: Answer) -> bool:
            caller = self._caller(context)
            if caller.namespace:
                return False
            if not caller.is_superuser:
                rule(caller, read(data))
            return begin(data, context, answer)

        def checked_twice(data: bytes, context: Context, answer: Answer) -> bool:
            caller = self._caller(context)

            def answer_checked(response: bytes | BaseException) -> None:
                if isinstance(response, bytes) and not self.gate.is_current(caller):
                    try:
                        rule(self._caller(context), read(data))
                    except MqError as error:
                        response = error
                answer(response)

            return checked(data, context, answer_checked)

        return checked_twice if method.waits else checked

    def _unchecked_begin(self, begin: Callable[..., bool]) -> Callable[..., bool]:
        def unchecked(data: bytes, context: Context, answer: Answer) -> bool:
            caller: Principal | None = context.caller
            if caller is None:
                caller = self._anybody(context)
            return not caller.namespace and begin(data, context, answer)

        return unchecked

    # -- calls ------------------------------------------------------------------------------------

    def _begun(  # noqa: C901 - of one call, without a step for each part
        self,
        name: str,
        begin: Callable[..., bool],
        serve: UnaryServe,
        is_external: bool,  # noqa: FBT001
    ) -> UnaryServe:
        leadership, _, observe, _ = self
        now_s = time.perf_counter
        in_flight = _InFlight(name)
        calls = in_flight.calls

        def begun(data: bytes, context: Context) -> Coroutine[Any, Any, bytes] | bytes | None:
            if not leadership.is_serving:
                return serve(data, context)
            began_s = now_s()

            def answer(answer: bytes | BaseException) -> None:
                if calls.pop(context, None) is None:
                    return  # it took too long, and was refused
                if isinstance(answer, bytes):
                    observe(name, now_s() - began_s, "OK")
                    context.reply(answer)
                elif isinstance(answer, CallEnded):
                    # There is no receiver for an answer.
                    observe(name, now_s() - began_s, "CANCELLED")
                else:
                    refusal = refused(answer, began_s, context)
                    context.finish(refusal.code, refusal.text, refusal.metadata)

            try:
                calls[context] = began_s, answer
                if not in_flight.is_watched:
                    in_flight.watch()
                is_begun = begin(data, context, answer)
            except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
                calls.pop(context, None)
                raise refused(error, began_s, context) from None
            if is_begun:
                return None
            calls.pop(context, None)
            return serve(data, context)

        def refused(error: BaseException, began_s: float, context: Context) -> CallAborted:
            # Not in a task of its own: addresses in the refusal are those of this listener.
            token = listeners.IS_EXTERNAL.set(is_external)
            known = self._explained(error, context)
            observe(name, now_s() - began_s, known.code.name)
            refusal = status.aborted(known)
            listeners.IS_EXTERNAL.reset(token)
            return refusal

        return begun

    def _unary(
        self, name: str, method: Method, read: limits.Reader[Message], *, is_external: bool
    ) -> UnaryHandler:
        async def serve(data: bytes, context: Context) -> bytes:
            listeners.IS_EXTERNAL.set(is_external)
            began_s = time.perf_counter()
            code = "OK"
            try:
                async with asyncio.timeout(UNARY_S_MAX):
                    return await self._answer(name, method, read, data, context)
            except TimeoutError:
                code = FlowControl.code.name
                raise status.aborted(_late(name)) from None
            except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
                known = self._explained(error, context)
                code = known.code.name
                raise status.aborted(known) from None
            finally:
                self.observe(name, time.perf_counter() - began_s, code)

        return UnaryHandler(serve)

    async def _answer(
        self, name: str, method: Method, read: limits.Reader[Message], data: bytes, context: Context
    ) -> bytes:
        leadership, gate, _, _ = self
        is_open = gate.is_off or method.rule is open_to_all
        if not is_open and (not method.leader_only or leadership.term):
            await self._known_caller(context)
        request = read(data)
        if method.leader_only:
            await leadership.settled()
        caller = self._anybody(context) if is_open else self._caller(context)
        names = None
        if caller.namespace:
            names = namespaces.NamespacedCall(name, caller.namespace)
            request = read(await names.request(data))
        if not is_open:
            method.rule(caller, request)
        CALLER.set(caller)
        response = await method.serve(request, context)
        if method.waits and not is_open and not gate.is_current(caller):
            method.rule(self._caller(context), request)
        answer = response if isinstance(response, bytes) else response.SerializeToString()
        return answer if names is None else await names.answer(answer)

    def _stream(self, name: str, method: Method, *, is_external: bool) -> StreamHandler:
        leadership, gate, observe, _ = self

        async def serve(context: Context) -> None:
            listeners.IS_EXTERNAL.set(is_external)
            began_s = time.perf_counter()
            code = "OK"
            stream: LiveStream | None = None
            ended: MqError | None = None
            task = cast("asyncio.Task[None]", asyncio.current_task())

            def end(error: MqError) -> None:
                nonlocal ended
                ended = error
                task.cancel()

            try:
                if method.leader_only:
                    await leadership.settled()
                stream = gate.enter(await self._known_caller(context), end)
                LIVE.set(stream)
                CALLER.set(stream.principal)
                if stream.principal.namespace:
                    names = namespaces.NamespacedCall(name, stream.principal.namespace)
                    await method.serve(namespaces.NamespacedContext(context, names))
                else:
                    await method.serve(context)
            except asyncio.CancelledError:
                if ended is None:
                    code = "CANCELLED"
                    raise
                task.uncancel()
                code = ended.code.name
                raise status.aborted(self._explained(ended, context)) from None
            except CallEnded:
                # There is no receiver for a status.
                code = "CANCELLED"
            except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
                known = self._explained(error, context)
                code = known.code.name
                raise status.aborted(known) from None
            finally:
                if stream is not None:
                    gate.leave(stream)
                observe(name, time.perf_counter() - began_s, code)

        return StreamHandler(serve)


def peer_address(peer: str) -> str:
    """The IP address in a peer as gRPC writes it: ipv4:127.0.0.1:50000, ipv6:[::1]:50000, which
    may be percent-encoded.
    """
    host = peer.partition(":")[2].rpartition(":")[0]
    return host.replace("%5B", "").replace("%5D", "").strip("[]")
