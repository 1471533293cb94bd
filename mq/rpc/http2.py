"""Handlers on our own transport: `broker.transport = "mq"`."""

from __future__ import annotations

from mq.http2.calls import Streaming, Unary
from mq.http2.limits import Limits
from mq.http2.server import Http2Server, Peer
from mq.rpc.context import Handlers, UnaryHandler
from mq.rpc.tls import ListenerTls


class Http2Listener:
    """Made on a running loop."""

    def __init__(
        self,
        handlers: Handlers,
        request_bytes_max: int,
        connections_max: int,
        tls: ListenerTls | None = None,
    ) -> None:
        served: dict[bytes, Unary | Streaming] = {}
        for path, handler in handlers.items():
            if isinstance(handler, UnaryHandler):
                served[path.encode()] = Unary(handler.serve)
            else:
                served[path.encode()] = Streaming(handler.serve)
        limits = Limits(message_bytes_max=request_bytes_max)
        self._server = Http2Server(
            served,
            limits,
            connections_max,
            tls.context if tls is not None else None,
            takes_plaintext=tls is not None and not tls.is_required,
        )

    def bind(self, host: str, port: int) -> int:
        return self._server.bind(host, port)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def connections(self) -> int:
        return self._server.connection_count

    def peers(self, after: int, count: int) -> list[Peer]:
        return self._server.peers(after, count)
