"""Channels to brokers that are simulated: what a client asks goes to the broker set of a test that
has the address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mq.client.cluster.connection import Channels, Connection


class Side(Protocol):
    """One broker set."""

    addresses: tuple[str, ...]

    async def answer(self, address: str, method: str, request: Any, timeout_s: float) -> Any: ...

    def open(self, address: str) -> Any: ...


class SideChannels(Channels):
    def __init__(self, sides: Sequence[Side]) -> None:
        super().__init__()
        self._sides = {address: side for side in sides for address in side.addresses}

    async def ask(
        self,
        address: str,
        service: str,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        raw_response: bool = False,
    ) -> Any:
        assert not raw_response
        return await self._sides[address].answer(address, f"{service}/{method}", request, timeout_s)

    def stream(self, address: str, *_: Any, **__: Any) -> Any:
        return self._sides[address].open(address)


def connected(connection: Connection, sides: Sequence[Side]) -> None:
    """Before it is used first."""
    connection.channels = SideChannels(sides)
