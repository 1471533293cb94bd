"""A producer that brokers do not accept, or whose messages they do not take: it hears of it at
once, and sends nothing again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest

from mq.client.messages import Message
from mq.errors import PermissionDenied, Unauthenticated
from mq.wire.v1 import status_pb2 as wire
from tests.unit.client.producer.scripted_brokers import ScriptedBrokers, Silence, cluster, refusal
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from mq.wire.v1.message_pb2 import Batch
    from mq.wire.v1.producer_pb2 import BatchResult


def revocation() -> grpc.aio.AioRpcError:
    status = wire.Status(code=wire.UNAUTHENTICATED, text="the key was revoked")
    trailing = grpc.aio.Metadata(("mq-status-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, grpc.aio.Metadata(), trailing)


def revoke(brokers: ScriptedBrokers) -> None:
    for call in brokers.calls:
        call._end(revocation())


def test_a_revoked_producer_fails_what_is_in_flight_and_says_that_it_may_be_stored() -> None:
    def silent(*_: object) -> BatchResult | None:
        raise Silence

    async def scenario() -> None:
        [brokers] = cluster("a")
        async with brokers.producer() as producer:
            await producer.send("t", b"before")
            brokers.script = silent
            future = await producer.send_async("t", b"in flight")
            await asyncio.sleep(0.1)
            revoke(brokers)
            with pytest.raises(Unauthenticated, match="was revoked; it may have been stored"):
                await future
            assert len(brokers.requests) == 2, "it is not sent again"

    run(scenario())


def test_a_revoked_producer_opens_no_stream_until_it_has_something_to_send() -> None:
    async def scenario() -> None:
        [brokers] = cluster("a")
        async with brokers.producer() as producer:
            await producer.send("t", b"before")
            revoke(brokers)
            await asyncio.sleep(60)
            assert len(brokers.calls) == 1
            await producer.send("t", b"accepted again")
            assert len(brokers.calls) == 2

    run(scenario())


def test_messages_that_may_go_anywhere_go_to_a_set_that_accepts_the_producer() -> None:
    async def scenario() -> None:
        a, b = cluster("a", "b")
        async with a.producer() as producer:
            for _ in range(20):
                await producer.send("t", b"x")
            revoke(a)
            a.open = lambda _: _Refused()  # type: ignore[assignment,method-assign,return-value]
            before = len(b.stored)
            for _ in range(20):
                await producer.send("t", b"y")
            assert len(b.stored) >= before + 20
            with pytest.raises(Unauthenticated):
                await producer.send("t", b"z", queue_id=0, broker_set="a")

    run(scenario())


class _Refused:
    """A stream that the broker refuses."""

    async def wait_for_connection(self) -> None:
        raise revocation()

    def cancel(self) -> bool:
        return True


@pytest.mark.parametrize("key", ["", "k"])
def test_a_message_that_may_not_be_sent_is_sent_once(key: str) -> None:
    """The topic takes messages, only not from this producer."""

    def deny(_: ScriptedBrokers, __: Batch) -> BatchResult | None:
        return refusal(wire.PERMISSION_DENIED)

    async def scenario() -> None:
        [brokers] = cluster("a")
        brokers.script = deny
        async with brokers.producer() as producer:
            with pytest.raises(PermissionDenied):
                await producer.send("t", Message(b"x", ordering_key=key))
        assert len(brokers.requests) == 1

    run(scenario())
