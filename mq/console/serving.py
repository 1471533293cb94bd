"""Runs a console until it is told to stop: checks where it may listen, binds, serves.

By default it listens on 127.0.0.1. A console that other machines reach needs brokers that ask who
comes, or somebody who insists.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator

import uvicorn

from mq.console.app import make_app
from mq.console.callers import REQUIRED, Callers
from mq.console.settings import ConsoleSettings
from mq.errors import IllegalConfig, MqError, PortUnavailable

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 1.0
_STOP_S = 2
_CONNECTIONS_MAX, _BACKLOG = 1_000, 512
_URL_BYTES_MAX = 64 << 10


def run(
    settings: ConsoleSettings, *, started: Callable[[str], None], ends_with_stdin: bool = False
) -> None:
    """Until SIGTERM or SIGINT; with `ends_with_stdin`, also until whoever holds the other end of
    stdin is gone. `started` gets the address.
    """
    asyncio.run(_run(settings, started, ends_with_stdin=ends_with_stdin))


async def _run(
    settings: ConsoleSettings, started: Callable[[str], None], *, ends_with_stdin: bool
) -> None:
    listener = bind(settings.host, settings.port)
    with contextlib.closing(listener):
        config = uvicorn.Config(
            make_app(settings),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_STOP_S,
            h11_max_incomplete_event_size=_URL_BYTES_MAX,
        )
        server = _Server(config)
        server.stop_on_signals()
        # The loop knows a task weakly: this name keeps it.
        watch = await _on_end_of_stdin(server.stop) if ends_with_stdin else None
        if not settings.is_loopback:
            await _until_brokers_ask(settings, server)
        if server.should_exit:
            return
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        started(settings.public_url or f"http://{name}:{port}")
        await server.serve(sockets=[listener])
        if watch is not None:
            watch.cancel()


class _Server(uvicorn.Server):
    """With signals that end it, and no others: uvicorn would raise them again afterwards."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def stop_on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """PortUnavailable with the reason."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # From now on browsers wait for an answer instead of being refused.
        made.listen(_BACKLOG)
    except OSError as error:
        raise PortUnavailable(
            f"the console cannot listen on {host}:{port}: {error.strerror or error}. Choose "
            "another port: --port of mq console, --console-port of mq server"
        ) from error
    return made


async def _until_brokers_ask(settings: ConsoleSettings, server: uvicorn.Server) -> None:
    """Waits for a broker. IllegalConfig if everybody who reaches the console could do all."""
    if settings.is_open:
        return
    callers = Callers(settings)
    is_told = False
    while not server.should_exit:
        try:
            mode = await callers.auth_mode()
        except MqError as error:
            if not error.retryable:
                raise
            if not is_told:
                log.warning("the console waits for a broker: %s", error)
            is_told = True
            await asyncio.sleep(_ASK_AGAIN_S)
            continue
        if mode != REQUIRED:
            raise IllegalConfig(
                f"--host {settings.host} lets people on other machines in, who could read and "
                f"delete everything: auth.mode of the brokers is {mode}. Let callers be known with "
                "auth.mode = required (docs/SECURITY.md), or say that this is meant with --open"
            )
        return


async def _on_end_of_stdin(stop: Callable[[], None]) -> asyncio.Task[bytes]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    task = asyncio.create_task(reader.read())
    task.add_done_callback(lambda _: stop())
    return task
