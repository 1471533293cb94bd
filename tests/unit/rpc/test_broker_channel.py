"""A channel to another broker that finds no connection is opened anew, which looks its name up.
gRPC is a script here; with files of TLS, see tests/integration/test_listener_tls.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from mq.rpc.tls import BrokerChannel
from tests.unit.client.virtual_time import run

CONNECTING, READY, FAILING = (
    grpc.ChannelConnectivity.CONNECTING,
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
)


class FakeChannel:
    """In the state that the test says."""

    def __init__(self) -> None:
        self.state = CONNECTING
        self.is_closed = False

    def get_state(self) -> grpc.ChannelConnectivity:
        return self.state

    def unary_unary(self, _method: str) -> FakeChannel:
        assert not self.is_closed
        return self

    async def close(self, _grace_s: float | None = None) -> None:
        self.is_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeChannel]:
    channels: list[FakeChannel] = []

    def connect(_address: str, options: Any) -> FakeChannel:  # noqa: ARG001
        channels.append(FakeChannel())
        return channels[-1]

    monkeypatch.setattr(grpc.aio, "insecure_channel", connect)
    return channels


def test_one_that_stays_without_a_connection_is_replaced(opened: list[FakeChannel]) -> None:
    async def main() -> None:
        channel = BrokerChannel("b:1", ())
        for _ in range(2):
            first = channel.unary_unary("Ask")
            first.state = FAILING
            for _ in range(3):
                assert channel.unary_unary("Ask") is first
                await asyncio.sleep(0.6)
            await asyncio.sleep(0.6)
            assert channel.unary_unary("Ask") is not first
            await asyncio.sleep(0)
            assert first.is_closed
        assert len(opened) == 3
        await channel.close()
        assert all(one.is_closed for one in opened)

    run(main())


def test_one_that_connects_again_in_time_stays(opened: list[FakeChannel]) -> None:
    async def main() -> None:
        channel = BrokerChannel("b:1", ())
        first = channel.unary_unary("Ask")
        for state in (FAILING, READY, FAILING, CONNECTING, FAILING):
            first.state = state
            assert channel.unary_unary("Ask") is first
            await asyncio.sleep(1.5)
        assert len(opened) == 1

    run(main())
