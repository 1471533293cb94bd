"""Connections to a broker that do nothing: `idle_connections.py HOST PORT COUNT`.

Each is a connection of HTTP/2 in good order: it has shaken hands, and answers a PING. Prints how
many are open, once, when each is open or was refused; keeps them until it is killed, and ends with
an error when the broker closes one.
"""

from __future__ import annotations

import asyncio
import os
import sys

from mq.http2 import frames
from tests.support.http2_frames import frame, settings, settings_ack

# At once: a listener's queue of connections is short.
_OPENING_MAX = 64


class IdleConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.is_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(frames.PREFACE + settings())

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        while len(self._received) >= frames.HEAD_BYTES:
            size = int.from_bytes(self._received[:3])
            end = frames.HEAD_BYTES + size
            if len(self._received) < end:
                return
            kind, flags = self._received[3:5]
            payload = bytes(self._received[frames.HEAD_BYTES : end])
            del self._received[:end]
            if flags & frames.ACK:
                continue
            if kind == frames.SETTINGS:
                self._transport.write(settings_ack())
                if not self.is_up.done():
                    self.is_up.set_result(None)
            elif kind == frames.PING:
                self._transport.write(frame(frames.PING, frames.ACK, 0, payload))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_up.done():
            self.is_up.set_exception(ConnectionError(f"refused: {error}"))
            return
        sys.stderr.write(f"the broker has closed a connection: {error}\n")
        os._exit(1)


async def keep(host: str, port: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(_OPENING_MAX)

    async def connect() -> bool:
        async with free:
            try:
                _, connection = await loop.create_connection(IdleConnection, host, port)
                await connection.is_up
            except OSError:
                return False
            return True

    opened = await asyncio.gather(*(connect() for _ in range(count)))
    print(sum(opened), flush=True)  # noqa: T201 - the starter reads it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(keep(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
