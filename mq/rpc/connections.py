"""Connections of clients, against their limit: counted about once a second, for the metrics and for
a line in the log. A connection beyond the limit is closed as soon as it is accepted.

They are also counted by language and version, as far as clients say them. What a client says has
no end of variants: few of them have a count of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from mq.logging import RateLimit, get_logger
from mq.rpc.clients import software
from mq.rpc.context import Listener

log = get_logger(__name__)

_PERIOD_S = 1.0
# Share of the time that counting may take; it grows with the connections.
_COUNTING_RATIO = 0.01
_LINE_S = 60.0
# Peers that are looked at in one turn of the loop.
_PEERS: Final = 200
# Languages and versions with a count of their own: the most frequent ones.
_KINDS_MAX: Final = 50
_OTHER: Final = ("other", "")


class ClientConnections:
    def __init__(self, limit: int, listeners: Sequence[Listener]) -> None:
        """`limit` is for each listener; more may be added to `listeners`."""
        self.limit = limit
        self._listeners = listeners
        # Of the listener with the most.
        self.count = 0
        # By language and version of the client; both are empty if it does not say them.
        self.kinds: dict[tuple[str, str], int] = {}
        self._lines = RateLimit(1, _LINE_S)

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            counts = [await one.connections() for one in self._listeners]
            self.count = max(counts, default=0)
            self.kinds = _bounded(await self._count_kinds())
            if self.count >= self.limit and self._lines.admit():
                log.warning(
                    "connections are refused",
                    connections=self.count,
                    limit=self.limit,
                    advice="see broker.connections_max and the limit on open files",
                )
            await asyncio.sleep(max(_PERIOD_S, (loop.time() - began_s) / _COUNTING_RATIO))

    async def _count_kinds(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for listener in self._listeners:
            after = 0
            while peers := listener.peers(after, _PEERS):
                after = peers[-1].number
                for one in peers:
                    if one.request is not None:  # else it has just connected
                        _, *kind = software(one.request)
                        found[kind[0], kind[1]] += 1
                await asyncio.sleep(0)
        return found


def _bounded(kinds: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    shown = dict(kinds.most_common(_KINDS_MAX))
    if rest := kinds.total() - sum(shown.values()):
        shown[_OTHER] = shown.get(_OTHER, 0) + rest
    return shown
