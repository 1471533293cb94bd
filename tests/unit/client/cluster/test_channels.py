"""A channel that stays without a connection: its name is looked up by a new one, which takes its
place. gRPC is a script here; what it does with names is shown by tests/cluster/test_pods.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from mq.client.cluster.channels import UNCONNECTED_S_MAX, Channels, Credentials
from mq.errors import Unreachable
from mq.wire.v1.cluster_pb2 import RouteRequest, RouteResponse
from tests.unit.client.virtual_time import run

IDLE, CONNECTING, READY, FAILING = (
    grpc.ChannelConnectivity.IDLE,
    grpc.ChannelConnectivity.CONNECTING,
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
)


class FakeChannel:
    """In the state that the test says. Calls fail at once while there is no connection."""

    def __init__(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        self._changed = asyncio.Event()
        self.is_closed = False
        self.calls = 0

    def become(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        self._changed.set()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: FBT002
        if self.is_closed:
            raise grpc.aio.UsageError
        if try_to_connect and self._state is IDLE:
            self._state = CONNECTING
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        assert last is self._state
        await self._changed.wait()

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        async def ask(*_: Any, **__: Any) -> RouteResponse:
            self.calls += 1
            if self._state is READY:
                return RouteResponse()
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "no host")

        return ask

    async def close(self) -> None:
        self.is_closed = True
        self._changed.set()


class Opened(Credentials):
    """The first channel has lost its broker, the others have not connected yet."""

    def __init__(self) -> None:
        super().__init__()
        self.channels: list[FakeChannel] = []

    def open(self, address: str) -> Any:  # noqa: ARG002
        self.channels.append(FakeChannel(IDLE if self.channels else FAILING))
        return self.channels[-1]


class Brokers(Channels):
    def __init__(self) -> None:
        super().__init__(Opened())

    @property
    def opened(self) -> list[FakeChannel]:
        assert isinstance(self.credentials, Opened)
        return self.credentials.channels

    async def fail(self, address: str = "broker:1") -> None:
        with pytest.raises(Unreachable):
            await self.ask(address, RouteRequest(), 1.0)

    async def fail_for_long(self, address: str = "broker:1") -> None:
        await self.fail(address)
        await asyncio.sleep(UNCONNECTED_S_MAX)
        await self.fail(address)
        await asyncio.sleep(0)


def test_a_channel_without_a_connection_is_replaced_by_one_that_looks_its_name_up() -> None:
    async def work() -> None:
        brokers = Brokers()
        await brokers.fail_for_long()
        old, fresh = brokers.opened
        # Not before it has connected: calls on it would wait, and these fail at once.
        await brokers.fail()
        assert (old.calls, fresh.calls) == (3, 0)
        fresh.become(READY)
        await asyncio.sleep(0.1)
        await brokers.ask("broker:1", RouteRequest(), 1.0)
        assert (old.is_closed, fresh.calls) == (True, 1)
        await brokers.close()
        assert fresh.is_closed

    run(work())


def test_names_are_looked_up_again_and_again() -> None:
    async def work() -> None:
        brokers = Brokers()
        for _ in range(3):
            await brokers.fail_for_long()
            brokers.opened[-1].become(FAILING)
            await asyncio.sleep(0.1)
        assert [one.is_closed for one in brokers.opened] == [True, True, True, False]
        await brokers.close()

    run(work())


def test_a_fail_over_opens_no_channel() -> None:
    async def work() -> None:
        brokers = Brokers()
        await brokers.fail()
        brokers.opened[0].become(READY)
        await brokers.ask("broker:1", RouteRequest(), 1.0)
        await asyncio.sleep(UNCONNECTED_S_MAX)
        # Another one: it is not the time since the first that counts.
        brokers.opened[0].become(FAILING)
        await brokers.fail()
        assert len(brokers.opened) == 1
        await brokers.close()

    run(work())


def test_a_channel_that_has_connected_meanwhile_stays() -> None:
    async def work() -> None:
        brokers = Brokers()
        await brokers.fail_for_long()
        old, fresh = brokers.opened
        old.become(READY)
        fresh.become(FAILING)
        await asyncio.sleep(0.1)
        await brokers.ask("broker:1", RouteRequest(), 1.0)
        assert (old.is_closed, fresh.is_closed, fresh.calls) == (False, True, 0)
        await brokers.close()

    run(work())


@pytest.mark.parametrize("address", ["10.0.0.1:1", "[::1]:1"])
def test_an_address_without_a_name_has_nothing_to_look_up(address: str) -> None:
    async def work() -> None:
        brokers = Brokers()
        await brokers.fail_for_long(address)
        assert len(brokers.opened) == 1
        await brokers.close()

    run(work())


def test_closing_does_not_wait_for_a_name() -> None:
    async def work() -> None:
        brokers = Brokers()
        await brokers.fail_for_long()
        await brokers.close()
        assert [one.is_closed for one in brokers.opened] == [True, True]

    run(work())
