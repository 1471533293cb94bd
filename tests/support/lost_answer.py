"""A relay in front of a broker that loses one answer.

    with LostAnswer(b"its body", broker.address) as relay:
        client = Client(relay.address)

When the bytes come from the broker for the first time they go no further: the connection breaks for
the client, and stays as it is for the broker, which does not notice. Everything else passes, before
and after.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 1 << 16


class LostAnswer:
    def __init__(
        self, lost: bytes, address: str, on_lost: Callable[[], object] = lambda: None
    ) -> None:
        """`on_lost` is called before the client can see that its connection has broken."""
        # Empty: nothing is lost.
        self.lost = lost
        self._on_lost = on_lost
        self._broker_address = address
        self.is_lost = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._sockets):
            _close(one)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            host, _, port = self._broker_address.rpartition(":")
            try:
                broker = socket.create_connection((host, int(port)))
            except OSError:
                _close(client)
                continue
            self._sockets += [client, broker]
            is_broken = threading.Event()
            self._start(self._pass_requests, client, broker, is_broken)
            self._start(self._pass_answers, broker, client, is_broken)

    def _pass_requests(
        self, client: socket.socket, broker: socket.socket, is_broken: threading.Event
    ) -> None:
        try:
            while data := client.recv(_READ_BYTES):
                broker.sendall(data)
        finally:
            if not is_broken.is_set():
                _close(broker)

    def _pass_answers(
        self, broker: socket.socket, client: socket.socket, is_broken: threading.Event
    ) -> None:
        tail = b""
        try:
            while data := broker.recv(_READ_BYTES):
                tail = tail[-len(self.lost) :] + data
                if self.lost and self.lost in tail and not self.is_lost.is_set():
                    self.is_lost.set()
                    is_broken.set()
                    self._on_lost()
                    return
                client.sendall(data)
        finally:
            _close(client)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            # A side of it has gone.
            with contextlib.suppress(OSError):
                work(*arguments)

        threading.Thread(target=run, daemon=True).start()


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Wakes a thread that reads from it.
        one.shutdown(socket.SHUT_RDWR)
    one.close()
