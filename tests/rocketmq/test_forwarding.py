"""Calls that are passed on to a node that refuses them for good, or is not there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import grpc
import pytest

from mq.rpc.rocketmq.codes import Refused
from mq.rpc.rocketmq.forwarding import Forwarder, Gone
from mq.rpc.tls import BrokerChannel
from mq.wire.rocketmq.definition_pb2 import Code
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.rpc.context import Context

PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"


class Caller:
    """What a forwarder asks of a call."""

    def header(self, _name: str) -> str | None:
        return None

    def time_remaining(self) -> float:
        return 30.0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:50000"


async def pass_on(address: str, *, is_stream: bool) -> None:
    forwarder = Forwarder(cast("Broker", None), BrokerChannel)
    context = cast("Context", Caller())
    try:
        if is_stream:
            async for _ in forwarder.server_stream(address, PATH, b"", context):
                pass
        else:
            await forwarder.unary(address, PATH, b"", context)
    finally:
        await forwarder.close()


async def pass_on_to_server(status: grpc.StatusCode, *, is_stream: bool) -> None:
    """To one that refuses everything with this status."""

    async def refuse(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(status, "because")
        raise AssertionError("abort raises")

    kind = "unary_stream" if is_stream else "unary_unary"
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(refuse)
    service, method = PATH.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await pass_on(f"127.0.0.1:{port}", is_stream=is_stream)
    finally:
        await server.stop(None)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, Code.UNSUPPORTED),
        (grpc.StatusCode.UNAUTHENTICATED, Code.UNAUTHORIZED),
        (grpc.StatusCode.PERMISSION_DENIED, Code.FORBIDDEN),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Code.TOO_MANY_REQUESTS),
        (grpc.StatusCode.INVALID_ARGUMENT, Code.BAD_REQUEST),
    ],
)
def test_a_refusal_for_good_is_answered_at_once_with_its_reason(
    status: grpc.StatusCode, code: int, is_stream: bool
) -> None:
    with pytest.raises(Refused, match=r"the leader at .* refuses the call: because") as found:
        asyncio.run(pass_on_to_server(status, is_stream=is_stream))
    assert found.value.code == code


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_node_that_is_not_there_is_no_refusal(is_stream: bool) -> None:
    with pytest.raises(Gone):
        asyncio.run(pass_on(f"127.0.0.1:{free_port()}", is_stream=is_stream))
    with pytest.raises(Gone):
        asyncio.run(pass_on_to_server(grpc.StatusCode.UNAVAILABLE, is_stream=is_stream))
