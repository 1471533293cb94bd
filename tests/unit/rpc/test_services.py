"""The table of services is the protocol, and what it says of a method holds for every call."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest
from google.protobuf.descriptor_pb2 import MethodDescriptorProto

from mq.admin.control import Control
from mq.errors import IllegalTopic, MqError
from mq.http2.calls import CallAborted
from mq.http2.status import Status
from mq.rpc import methods, services
from mq.rpc.access import Rules, any_caller
from mq.rpc.clients import Clients
from mq.rpc.context import StreamHandler, UnaryHandler
from mq.rpc.methods import Answer, Dispatcher, Method, stream, unary
from mq.rpc.producer import ProducerService
from mq.rpc.status import CODE_KEY
from mq.store.identity import Identity
from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    producer_pb2,
    security_pb2,
    transaction_pb2,
)
from mq.wire.v1.consumer_pb2 import JoinRequest, LeaveRequest, LeaveResponse
from tests.support.consensus import Node, on_loop, soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import MethodDescriptor

    from mq.broker.security.gate import Principal
    from mq.rpc.context import Context

FILES = (admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, security_pb2, transaction_pb2)


def table(node: Node) -> list[services.Service]:
    control = Control(node.broker, cast("Any", None), cast("Any", None))
    rules = Rules(node.broker)
    producer = ProducerService(node.broker, "set-0", rules)
    identity = Identity("mq", "set-0", "node-0")
    return services.table(node.broker, identity, control, rules, producer, Clients(node.broker, []))


def fields(message: Any) -> set[tuple[str, int]]:
    return {(one.name, one.number) for one in message.fields}


def fits(row: Method, method: MethodDescriptor) -> bool:
    wire = MethodDescriptorProto()
    method.CopyToProto(wire)
    if row.request is None:
        return wire.client_streaming and wire.server_streaming
    return not wire.client_streaming and fields(row.request.DESCRIPTOR) == fields(method.input_type)


@on_loop
async def test_every_method_of_the_protocol_is_served_with_its_own_request() -> None:
    found = {one.descriptor.full_name: one for one in table(Node())}
    declared = {
        one.full_name: one for file in FILES for one in file.DESCRIPTOR.services_by_name.values()
    }
    assert found.keys() == declared.keys()
    for name, descriptor in declared.items():
        rows = {row.name: row for row in found[name].methods}
        assert list(rows) == [method.name for method in descriptor.methods]
        assert len(rows) == len(found[name].methods)
        for method in descriptor.methods:
            assert fits(rows[method.name], method), method.full_name


async def called(method: Method, data: bytes = b"") -> tuple[str, list[str]]:
    """By a client, on a node that follows: what it is answered, and what was observed."""
    node = Node()
    node.consensus.depose()
    observed: list[str] = []

    def observe(method: str, seconds: float, code: str) -> None:
        assert seconds >= 0
        observed.append(f"{method} {code}")

    def explained(error: MqError, _: object) -> MqError:
        return error

    dispatcher = Dispatcher(node.broker.leadership, node.broker.gate, observe, explained)
    handler = dispatcher.handler("S", method)
    context = cast("Context", FakeCall())
    try:
        if isinstance(handler, StreamHandler):
            await handler.serve(context)
            return "", observed
        answer = handler.serve(data, context)
        assert inspect.isawaitable(answer)
        return repr(await answer), observed
    except CallAborted as aborted:
        return str(dict(aborted.metadata)[CODE_KEY]), observed


async def leave(*_: object) -> LeaveResponse:
    return LeaveResponse()


async def fail(*_: object) -> LeaveResponse:
    raise IllegalTopic("no")


async def reach(*_: object) -> Any:
    pytest.fail("the service was called")


@on_loop
async def test_only_the_leader_serves_what_is_for_the_leader() -> None:
    assert await called(unary("M", LeaveRequest, reach, any_caller)) == (
        "NOT_LEADER",
        ["S/M NOT_LEADER"],
    )
    assert await called(stream("M", reach)) == ("NOT_LEADER", ["S/M NOT_LEADER"])


@on_loop
async def test_any_node_serves_the_rest_and_errors_are_typed() -> None:
    assert await called(unary("M", LeaveRequest, leave, any_caller, leader_only=False)) == (
        "b''",
        ["S/M OK"],
    )
    assert await called(unary("M", LeaveRequest, fail, any_caller, leader_only=False)) == (
        *("ILLEGAL_TOPIC", ["S/M ILLEGAL_TOPIC"]),
    )


@on_loop
async def test_malformed_requests_are_refused_before_leadership_is_checked() -> None:
    method = unary("M", JoinRequest, reach, any_caller)
    assert await called(method, b"\xff\xff") == ("ILLEGAL_REQUEST", ["S/M ILLEGAL_REQUEST"])


class FakeCall:
    """What a method that answers by callback does to its call."""

    def __init__(self) -> None:
        self.caller: Principal | None = None
        self.ended: asyncio.Future[bytes | Status] = asyncio.get_running_loop().create_future()

    def header(self, _: str) -> None:
        return None

    def reply(self, message: bytes) -> None:
        self.ended.set_result(message)

    def finish(self, code: Status, *_: object) -> None:
        self.ended.set_result(code)


def begun(begin: Callable[..., bool]) -> tuple[asyncio.Future[bytes | Status], list[str]]:
    """Of a call on a node that leads: its end, and what is observed."""
    observed: list[str] = []
    broker = Node().broker
    dispatcher = Dispatcher(
        broker.leadership,
        broker.gate,
        lambda *one: observed.append(one[2]),
        lambda error, _: error,
    )
    handler = dispatcher.handler("S", unary("M", LeaveRequest, reach, any_caller, begin=begin))
    assert isinstance(handler, UnaryHandler)
    call = FakeCall()
    assert handler.serve(b"x", cast("Context", call)) is None
    return call.ended, observed


@on_loop
async def test_an_answer_by_callback_counts_once() -> None:
    def begin(data: bytes, _: object, answer: Answer) -> bool:
        answer(b"as it came: " + data)
        answer(b"again")
        return True

    ended, observed = begun(begin)
    assert (await ended, observed) == (b"as it came: x", ["OK"])


@on_loop
async def test_a_call_without_a_task_is_refused_when_it_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "UNARY_S_MAX", 0.01)
    late: list[Answer] = []

    def begin(*begun: Any) -> bool:
        answer: Answer = begun[-1]
        late.append(answer)
        return True

    ended, observed = begun(begin)
    assert await soon(ended) == Status.RESOURCE_EXHAUSTED
    late[0](b"too late")
    assert observed == ["FLOW_CONTROL"]
