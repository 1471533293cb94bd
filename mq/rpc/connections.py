"""Connections of clients, against their limit.

gRPC closes a connection beyond the limit as soon as it is accepted, without a word: this counts the
connections of the kernel, about once a second, for the metrics and for a line in the log.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from mq.logging import RateLimit, get_logger

log = get_logger(__name__)

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_PERIOD_S = 1.0
# Share of the time that counting may take; it grows with the connections.
_COUNTING_RATIO = 0.01
_LINE_S = 60.0


class ClientConnections:
    def __init__(self, limit: int) -> None:
        """`limit` is for each listener."""
        self.limit = limit
        self.ports: list[int] = []
        # Of the listener with the most; 0 where the kernel does not tell.
        self.count = 0
        self._lines = RateLimit(1, _LINE_S)

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            counts = await asyncio.to_thread(established, self.ports)
            self.count = max(counts, default=0)
            if self.count >= self.limit and self._lines.admit():
                log.warning(
                    "connections are refused",
                    connections=self.count,
                    limit=self.limit,
                    advice="see broker.connections_max and the limit on open files",
                )
            await asyncio.sleep(max(_PERIOD_S, (loop.time() - began_s) / _COUNTING_RATIO))


def established(ports: Sequence[int], tables: Sequence[Path] = _TABLES) -> list[int]:
    """Established connections to each of these local ports, as far as the system can tell."""
    contents = [table.read_bytes() for table in tables if table.exists()]
    found = []
    for port in ports:
        # "  12: 0100007F:1F91 0100007F:D2A4 01 ...": local and remote address, state.
        row = re.compile(rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 01 " % port, re.MULTILINE)
        found.append(sum(len(row.findall(content)) for content in contents))
    return found
