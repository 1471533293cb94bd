"""Connections of clients, against their limit: counted about once a second, for the metrics and for
a line in the log. A connection beyond the limit is closed as soon as it is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mq.logging import RateLimit, get_logger
from mq.rpc.context import Listener

log = get_logger(__name__)

_PERIOD_S = 1.0
# Share of the time that counting may take; it grows with the connections.
_COUNTING_RATIO = 0.01
_LINE_S = 60.0


class ClientConnections:
    def __init__(self, limit: int, listeners: Sequence[Listener]) -> None:
        """`limit` is for each listener; more may be added to `listeners`."""
        self.limit = limit
        self._listeners = listeners
        # Of the listener with the most.
        self.count = 0
        self._lines = RateLimit(1, _LINE_S)

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            counts = [await one.connections() for one in self._listeners]
            self.count = max(counts, default=0)
            if self.count >= self.limit and self._lines.admit():
                log.warning(
                    "connections are refused",
                    connections=self.count,
                    limit=self.limit,
                    advice="see broker.connections_max and the limit on open files",
                )
            await asyncio.sleep(max(_PERIOD_S, (loop.time() - began_s) / _COUNTING_RATIO))
