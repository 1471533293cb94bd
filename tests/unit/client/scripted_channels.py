"""Channels that pass the requests of a client to the scripted broker set of the address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mq.client.cluster.channels import Channels, method_of
from mq.client.cluster.connection import Connection


class ScriptedSet(Protocol):
    """One broker set."""

    addresses: tuple[str, ...]

    async def answer(self, address: str, method: str, request: Any, timeout_s: float) -> Any: ...

    def open(self, address: str) -> Any: ...


class ScriptedChannels(Channels):
    def __init__(self, sets: Sequence[ScriptedSet]) -> None:
        super().__init__()
        self._sets = {address: one for one in sets for address in one.addresses}

    async def ask(
        self, address: str, request: Any, timeout_s: float, *, raw_response: bool = False
    ) -> Any:
        assert not raw_response
        method = method_of(type(request))[0].removeprefix("/mq.v1.")
        return await self._sets[address].answer(address, method, request, timeout_s)

    def stream(self, address: str, *_: Any, **__: Any) -> Any:
        return self._sets[address].open(address)


def connected(connection: Connection, sets: Sequence[ScriptedSet]) -> None:
    """Replaces the channels of a connection that was not used yet."""
    connection.channels = ScriptedChannels(sets)
