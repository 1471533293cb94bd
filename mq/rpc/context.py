"""A call as its handler sees it, whichever transport it came by.

`mq.http2.calls.Call` is one as it is; `mq.rpc.grpcio` adapts gRPC's own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from mq.broker.security.gate import Principal
from mq.http2.server import Peer
from mq.http2.status import Status


class Context(Protocol):
    """One task reads and one writes at a time. A handler that raises `CallAborted` ends the call
    with its status.
    """

    # Set before the handler runs. Calls of a connection with the same metadata may share it.
    caller: Principal

    def peer(self) -> str:
        """Address of the client."""

    def header(self, name: str, /) -> str | None:
        """A field of the request's metadata; the first one, if there are several."""

    def certificate_names(self) -> Sequence[str]:
        """URI and DNS names that the client's verified certificate is made for; none without."""

    def is_encrypted(self) -> bool:
        """Whether the client is connected by TLS."""

    def time_remaining(self) -> float | None:
        """Seconds that the client still waits; None: for ever."""

    def add_done_callback(self, callback: Callable[[], None], /) -> None:
        """It is called when the call has ended, and its answer is not in memory any longer."""

    async def read(self, take: Callable[[bytes], bool] | None = None, /) -> bytes | None:
        """The next request of a stream; None: there are no more. A transport may offer `take` a
        request that comes while this waits: if it returns True, the request is done with, without a
        turn of the task that reads. It must not raise.
        """

    async def write(self, message: bytes, /) -> None:
        """Returns when the client has room for more: a transport may have some of this message in
        hand, but nothing of those before it. CallEnded.
        """

    async def write_parts(self, parts: Sequence[bytes | memoryview], /) -> None:
        """As `write`, of a message in parts."""

    def try_write(self, message: bytes, /) -> bool:
        """As `write`, without waiting. Returns False and writes nothing if the client has no room
        now, or the transport has to wait for every message.
        """

    def reply(self, message: bytes, /) -> None:
        """The answer of a unary call. Without effect if the call has ended."""

    def finish(
        self, code: Status, text: str = "", metadata: Sequence[tuple[str, str | bytes]] = (), /
    ) -> None:
        """Ends the call. Without effect if it has ended."""


UnaryServe: TypeAlias = Callable[[bytes, Context], Coroutine[Any, Any, bytes] | bytes | None]


class UnaryHandler(NamedTuple):
    """`serve` returns the answer; or a coroutine for it, which runs as a task; or None, and answers
    later by `Context.reply` or `Context.finish`.
    """

    serve: UnaryServe


class StreamHandler(NamedTuple):
    """Runs as a task; the call ends when it returns."""

    serve: Callable[[Context], Coroutine[Any, Any, None]]


# By path, such as /mq.v1.ProducerService/Send.
Handlers: TypeAlias = Mapping[str, UnaryHandler | StreamHandler]


class Listener(Protocol):
    """A transport that serves handlers. `bind`, then `start`; `stop` ends everything."""

    def bind(self, host: str, port: int) -> int:
        """Returns the port. OSError. Clients are served from `start` on."""

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those in flight have so long to end."""

    async def connections(self) -> int:
        """How many clients are connected."""

    def peers(self, after: int, count: int) -> Sequence[Peer] | None:
        """So many connections with a higher number, in their order; None: the transport does not
        tell one from another.
        """
