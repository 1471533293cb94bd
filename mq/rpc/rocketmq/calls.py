"""The frame of every call of a RocketMQ client: its caller, the node that serves it, its errors.

As `mq.rpc.methods`, but with errors inside of the answers, and a call that only the leader can
serve is passed on to it (`forwarding`) instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, cast

from google.protobuf.message import Message

from mq import names
from mq.access.secrets import parse_signed
from mq.broker.broker import Broker
from mq.broker.security.audit import CALLER
from mq.broker.security.gate import LiveStream, Principal
from mq.errors import FlowControl, MqError, NotLeader, OutcomeUnknown, Unauthenticated
from mq.http2.calls import CallAborted, CallEnded
from mq.http2.status import Status as GrpcStatus
from mq.rpc import limits, listeners
from mq.rpc.access import LIVE
from mq.rpc.context import Context, StreamHandler, UnaryHandler
from mq.rpc.methods import UNARY_S_MAX, Observer, peer_address
from mq.rpc.rocketmq.codes import Refused, status_of
from mq.rpc.rocketmq.forwarding import PASSED_ON, Forwarder, Gone
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq.definition_pb2 import Code

NAME = "apache.rocketmq.v2.MessagingService"
CLIENT_ID_CHARACTERS_MAX = 255
# Between two looks for a leader, and how long a call without a deadline waits for one.
_LOOK_S, _WAIT_S = 0.05, 10.0
# How long a follower waits for a change before it refuses a caller that it does not know.
_NEWS_S = 1.0
# An answer has to be on its way before its client stops waiting.
_ANSWER_S = 0.25

# Elements of a field in one request, in all messages of it together. As `mq.rpc.limits.LIMITS`.
LIMITS = {
    "AckMessageRequest.entries": 2_000,
    "CustomizedBackoff.next": 1_000,
    "Endpoints.addresses": 1_000,
    "Message.user_properties": 20_000,
    "MessageQueue.accept_message_types": 100,
    "Publishing.topics": 1_000,
    "SendMessageRequest.messages": 1_000,
    "Subscription.subscriptions": 1_000,
    "SyncLiteSubscriptionRequest.lite_topic_set": 1_000,
    "SystemProperties.keys": 8_000,
}


class Call:
    """A call with its caller. Names inside are full ones."""

    __slots__ = ("context", "principal")

    def __init__(self, context: Context, principal: Principal) -> None:
        self.context = context
        self.principal = principal

    @property
    def client_id(self) -> str:
        return self.context.header("x-mq-client-id") or ""

    def check_client(self) -> str:
        client_id = self.client_id
        if not client_id:
            raise Refused(Code.CLIENT_ID_REQUIRED, "x-mq-client-id is missing in the metadata")
        if len(client_id) > CLIENT_ID_CHARACTERS_MAX or not client_id.isprintable():
            raise Refused(
                Code.BAD_REQUEST,
                f"x-mq-client-id has at most {CLIENT_ID_CHARACTERS_MAX} printable characters",
            )
        return client_id

    def topic(self, resource: pb.Resource) -> str:
        """Raises IllegalTopic, IllegalRequest."""
        if not resource.resource_namespace and not self.principal.namespace:
            names.check_topic(resource.name)
            return resource.name
        namespace = self._namespace(resource)
        topic = names.full_topic(namespace, resource.name)
        names.check_topic(topic)
        return topic

    def group(self, resource: pb.Resource) -> str:
        """Raises IllegalGroup, IllegalRequest."""
        namespace = self._namespace(resource)
        group = names.full_group(namespace, resource.name) if namespace else resource.name
        names.check_group(group)
        return group

    def _namespace(self, resource: pb.Resource) -> str:
        namespace = resource.resource_namespace or self.principal.namespace
        if namespace:
            names.check_namespace(namespace)
        return namespace

    def resource(self, topic: str, like: pb.Resource) -> pb.Resource:
        """Of a full name, as the client names it that asked for `like`."""
        namespace = like.resource_namespace or self.principal.namespace
        local = names.local_name(namespace, topic) if namespace else topic
        return pb.Resource(resource_namespace=like.resource_namespace, name=local or topic)

    def time_left_s(self) -> float:
        left_s = self.context.time_remaining()
        return float("inf") if left_s is None else max(0.0, left_s - _ANSWER_S)


# Called once, with the encoded answer, or with what is wrong.
Answer = Callable[[bytes | BaseException], None]


class Calls:
    """Makes handlers of methods."""

    def __init__(self, broker: Broker, observe: Observer, forwarder: Forwarder) -> None:
        self.broker = broker
        self.observe = observe
        self.forwarder = forwarder
        # The node stops: it waits for no messages any longer.
        self.is_draining = False

    # -- callers ----------------------------------------------------------------------------------

    def call(self, context: Context, resource: pb.Resource | None = None) -> Call:
        """Raises Unauthenticated, PermissionDenied. A user of several namespaces is in the one of
        the resource.
        """
        principal = cast("Principal | None", context.caller)
        if principal is None or not self.broker.gate.is_current(principal):
            principal = context.caller = self._identified(context, None)
        if principal.namespaces and resource is not None:
            wanted = resource.resource_namespace
            if wanted and wanted != principal.namespace and wanted in principal.namespaces:
                principal = self._identified(context, wanted)
        return Call(context, principal)

    async def known_call(self, context: Context, resource: pb.Resource | None = None) -> Call:
        """As `call`; a follower waits for news of the leader first: it may not have heard of a user
        or a key that was just made.
        """
        try:
            return self.call(context, resource)
        except Unauthenticated:
            broker = self.broker
            if broker.leadership.is_serving or not await broker.gate.changes_within(_NEWS_S):
                raise
        return self.call(context, resource)

    def _identified(self, context: Context, namespace: str | None) -> Principal:
        gate = self.broker.gate
        if gate.is_off:
            return gate.identify(None, (), "", namespace)
        address = peer_address(context.peer())
        authorization = context.header("authorization")
        signed = parse_signed(authorization) if authorization is not None else None
        if signed is not None:
            date_time = context.header("x-mq-date-time") or ""
            return gate.identify_signed(signed, date_time, address, namespace)
        if authorization is not None and "Credential=," in authorization:
            # Some clients without an access key sign with an empty one.
            authorization = None
        return gate.identify(authorization, context.certificate_names(), address, namespace)

    # -- handlers ---------------------------------------------------------------------------------

    def unary(
        self,
        method: Method,
        serve: Callable[[Any, Call], Awaitable[Message]],
        *,
        anywhere: bool = False,
        repeats: bool = False,
        set_of: Callable[[Any], str] | None = None,
        begin: Callable[[Any, int, Call, Answer], bool] | None = None,
    ) -> UnaryHandler:
        """`anywhere`: every node serves it itself. `set_of` says which broker set a request is for.
        `repeats`: what a change of the leader leaves in doubt is done again under the next one, as
        the client would do.
        `begin` is asked first, on a node that leads: it gets the request, its size and a callback,
        and needs no task. It returns False for what it leaves to `serve`.
        """
        made = _Unary(self, method, serve, anywhere=anywhere, repeats=repeats, set_of=set_of)
        if begin is None:
            return UnaryHandler(made.answered)
        return UnaryHandler(functools.partial(made.begun, begin))

    def server_stream(
        self, method: Method, serve: Callable[[Any, Call], Awaitable[None]]
    ) -> StreamHandler:
        """A refusal is the only message of the stream. `serve` writes, and raises NotLeader before
        it has written anything.
        """
        return StreamHandler(_ServerStream(self, method, serve).answered)

    async def leaders(self, context: Context, broker_set: str = "") -> AsyncIterator[str]:
        """The address of the leader, empty if it is this node, as often as that may have changed
        and for as long as the client waits. At last raises NotLeader. `broker_set`: not of this
        node's own.
        """
        is_own = broker_set in ("", self.broker.directory.own_name)
        left_s = context.time_remaining()
        wait_s = _WAIT_S if left_s is None else left_s - _ANSWER_S
        loop, leadership = asyncio.get_running_loop(), self.broker.leadership
        deadline_s = loop.time() + wait_s
        is_passed_on = context.header(PASSED_ON) is not None
        while True:
            if is_own:
                with contextlib.suppress(NotLeader):
                    await leadership.settled()
            if is_own and leadership.is_serving:
                yield ""
            elif is_passed_on:
                break
            elif address := self.forwarder.leader(broker_set):
                yield address
            if loop.time() + _LOOK_S >= deadline_s:
                break
            await asyncio.sleep(_LOOK_S)
        raise leadership.refusal()

    async def passed_on(self, broker_set: str, name: str, request: Message, call: Call) -> bytes:
        """The answer of another set's leader. Raises NotLeader."""
        address = self.forwarder.leader(broker_set)
        if not address or call.context.header(PASSED_ON) is not None:
            raise NotLeader(None, None)
        data = request.SerializeToString()
        try:
            return await self.forwarder.unary(address, f"/{NAME}/{name}", data, call.context)
        except Gone:
            raise NotLeader(None, None) from None

    def live_stream(
        self, name: str, serve: Callable[[Call], Awaitable[None]], *, is_external: bool
    ) -> StreamHandler:
        """A stream in both directions, which fails as a whole: with a status of gRPC."""

        async def answered(context: Context) -> None:
            listeners.IS_EXTERNAL.set(is_external)
            began_s, code = time.perf_counter(), "OK"
            gate, stream, ended = self.broker.gate, None, None
            task = asyncio.current_task()

            def end(error: MqError) -> None:
                nonlocal ended
                ended = error
                if task is not None:
                    task.cancel()

            try:
                call = await self.known_call(context)
                stream = gate.enter(call.principal, end)
                LIVE.set(stream)
                await serve(call)
            except asyncio.CancelledError:
                code = "CANCELLED"
                if ended is None:
                    raise
                if task is not None:
                    task.uncancel()
                raise _aborted(ended) from None
            except CallEnded:
                code = "CANCELLED"
            except Exception as error:  # noqa: BLE001 - `status_of` logs what it does not know
                code = Code.Name(status_of(error).code)
                raise _aborted(error) from None
            finally:
                if stream is not None:
                    gate.leave(stream)
                self.observe(f"MessagingService/{name}", time.perf_counter() - began_s, code)

        return StreamHandler(answered)


class Method(NamedTuple):
    """One row of the table of methods."""

    name: str
    request: type[Message]
    response: type[Any]
    # For the listener of clients that cannot use the other addresses.
    is_external: bool

    @property
    def path(self) -> str:
        return f"/{NAME}/{self.name}"

    @property
    def label(self) -> str:
        return f"MessagingService/{self.name}"


class _Served:
    """A method, with what is made once for all of its calls."""

    def __init__(self, calls: Calls, method: Method, serve: Callable[..., Awaitable[Any]]) -> None:
        self._calls = calls
        self._method = method
        self._serve = serve
        self._read = limits.Reader(method.request, LIMITS)
        self._resource_of = _resource_of(method.request)

    def _begin(self, data: bytes, context: Context) -> tuple[Any, Call]:
        request = self._read(data)
        call = self._calls.call(context, self._resource_of(request))
        return request, call

    async def _local(self, data: bytes, context: Context) -> Any:
        request = self._read(data)
        call = await self._calls.known_call(context, self._resource_of(request))
        CALLER.set(call.principal)
        return await self._serve(request, call)

    def _failed(self, error: BaseException) -> tuple[bytes, str]:
        """The answer, and the name of its code."""
        status = status_of(error)
        return self._method.response(status=status).SerializeToString(), Code.Name(status.code)

    def _observe(self, began_s: float, code: str) -> None:
        self._calls.observe(self._method.label, time.perf_counter() - began_s, code)


class _Unary(_Served):
    def __init__(
        self,
        calls: Calls,
        method: Method,
        serve: Callable[[Any, Call], Awaitable[Message]],
        *,
        anywhere: bool,
        repeats: bool,
        set_of: Callable[[Any], str] | None,
    ) -> None:
        super().__init__(calls, method, serve)
        self._anywhere = anywhere
        # Outcomes that another leader may still turn into an answer.
        self._passing = (NotLeader, Gone, OutcomeUnknown) if repeats else (NotLeader, Gone)
        self._again: set[asyncio.Task[None]] = set()
        self._set_of = set_of

    def begun(
        self, begin: Callable[[Any, int, Call, Answer], bool], data: bytes, context: Context
    ) -> Coroutine[Any, Any, bytes] | bytes | None:
        if not self._calls.broker.leadership.is_serving:
            return self.answered(data, context)
        began_s = time.perf_counter()

        def answer(outcome: bytes | BaseException) -> None:
            if isinstance(outcome, self._passing):
                self._answer_later(data, context)
                return
            encoded, code = (outcome, "OK") if isinstance(outcome, bytes) else self._failed(outcome)
            self._observe(began_s, code)
            context.reply(encoded)

        try:
            request, call = self._begin(data, context)
            if begin(request, len(data), call, answer):
                return None
        except NotLeader:
            pass
        except Exception as error:  # noqa: BLE001 - `status_of` logs what it does not know
            encoded, code = self._failed(error)
            self._observe(began_s, code)
            return encoded
        return self.answered(data, context)

    def _answer_later(self, data: bytes, context: Context) -> None:
        """This node has stopped leading after the call had begun: the next leader serves it."""

        async def reply() -> None:
            context.reply(await self.answered(data, context))

        def stop() -> None:
            task.cancel()

        task = asyncio.get_running_loop().create_task(reply())
        self._again.add(task)
        task.add_done_callback(self._again.discard)
        context.add_done_callback(stop)

    async def answered(self, data: bytes, context: Context) -> bytes:
        listeners.IS_EXTERNAL.set(self._method.is_external)
        began_s, code = time.perf_counter(), "OK"
        try:
            async with asyncio.timeout(UNARY_S_MAX):
                return await self._answer(data, context)
        except TimeoutError:
            late = FlowControl(f"{self._method.name} took longer than {UNARY_S_MAX} s")
            answer, code = self._failed(late)
            return answer
        except Exception as error:  # noqa: BLE001 - `status_of` logs what it does not know
            answer, code = self._failed(error)
            return answer
        finally:
            self._observe(began_s, code)

    async def _answer(self, data: bytes, context: Context) -> bytes:
        """Of the leader, wherever it is."""
        if self._anywhere:
            return await self._encoded(data, context)
        broker_set = self._set_of(self._read(data)) if self._set_of is not None else ""
        async for address in self._calls.leaders(context, broker_set):
            try:
                if not address:
                    return await self._encoded(data, context)
                path = self._method.path
                answer = await self._calls.forwarder.unary(address, path, data, context)
            except self._passing:
                continue
            if self._method.response.FromString(answer).status.code != Code.HA_NOT_AVAILABLE:
                return answer
        raise NotLeader(None, None)

    async def _encoded(self, data: bytes, context: Context) -> bytes:
        response: Message = await self._local(data, context)
        return response.SerializeToString()


class _ServerStream(_Served):
    async def answered(self, context: Context) -> None:
        listeners.IS_EXTERNAL.set(self._method.is_external)
        began_s, code = time.perf_counter(), "OK"
        try:
            data = await context.read()
            # Nothing at all is as good as an empty request: which is refused.
            await self._answer(data or b"", context)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except CallEnded:
            code = "CANCELLED"
        except Exception as error:  # noqa: BLE001 - `status_of` logs what it does not know
            answer, code = self._failed(error)
            with contextlib.suppress(CallEnded):
                await context.write(answer)
        finally:
            self._observe(began_s, code)

    async def _answer(self, data: bytes, context: Context) -> None:
        async for address in self._calls.leaders(context):
            try:
                if not address:
                    await self._local(data, context)
                    return
                if await self._passed_on(address, data, context):
                    return
            # What was received in an entry in doubt is taken back by its attempt, or comes again
            # when its time is over: the client could do no better.
            except (NotLeader, Gone, OutcomeUnknown):
                if self._calls.is_draining:
                    raise NotLeader(None, None) from None

    async def _passed_on(self, address: str, data: bytes, context: Context) -> bool:
        """False: nothing came, since that node does not lead. Raises Gone."""
        is_begun = False
        path = self._method.path
        stream = self._calls.forwarder.server_stream(address, path, data, context)
        try:
            async with contextlib.aclosing(stream):
                async for one in stream:
                    if not is_begun and _is_unavailable(self._method.response.FromString(one)):
                        return False
                    is_begun = True
                    await context.write(one)
        except Gone:
            if not is_begun:
                raise
            # The client has some of it, and asks again.
        return True


def live_principal() -> Principal:
    """Of the stream of this task, as it is now."""
    stream: LiveStream = LIVE.get()
    return stream.principal


def _aborted(error: BaseException) -> CallAborted:
    status = status_of(error)
    if isinstance(error, Unauthenticated):
        code = GrpcStatus.UNAUTHENTICATED
    elif status.code >= Code.INTERNAL_ERROR:
        code = GrpcStatus.UNAVAILABLE
    elif status.code == Code.FORBIDDEN:
        code = GrpcStatus.PERMISSION_DENIED
    else:
        code = GrpcStatus.INVALID_ARGUMENT
    return CallAborted(code, status.message, ())


def _is_unavailable(response: Any) -> bool:
    is_status = response.WhichOneof("content") == "status"
    return bool(is_status and response.status.code == Code.HA_NOT_AVAILABLE)


def _resource_of(request_type: type[Message]) -> Callable[[Any], pb.Resource | None]:
    """The first resource that a request is about: it says the namespace of all."""
    fields = request_type.DESCRIPTOR.fields_by_name
    if "topic" in fields:
        return lambda request: request.topic
    if "message_queue" in fields:
        return lambda request: request.message_queue.topic
    if "group" in fields:
        return lambda request: request.group
    if "messages" in fields:
        return lambda request: request.messages[0].topic if request.messages else None
    return lambda _: None
