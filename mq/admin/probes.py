"""Probes of Kubernetes and its kin, on the port of the metrics: a GET without an identity.

`/livez` answers 200 while the loop of the broker turns: a process that fails it is worth a restart.
`/readyz` answers 200 while clients and the other nodes can count on this node: it knows a leader,
has applied what is committed, and votes. Both answer 503 otherwise, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# Probes have time-outs of their own; this one frees the thread.
_ANSWER_S = 30.0


class Probes:
    def __init__(self, loop: asyncio.AbstractEventLoop, is_ready: Callable[[], bool]) -> None:
        """`is_ready` is called on the loop."""
        self._loop = loop
        self._is_ready = is_ready

    def before(self, application: WSGIApplication) -> WSGIApplication:
        """An application that answers the probes, and leaves other paths to `application`."""

        def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if path not in ("/livez", "/readyz"):
                return application(environ, start)
            trouble = self._trouble(path)
            status = "503 Service Unavailable" if trouble else "200 OK"
            start(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{trouble or 'ok'}\n".encode()]

        return answer

    def _trouble(self, path: str) -> str:
        async def ask() -> bool:
            return self._is_ready()

        if self._loop.is_closed():
            return "the node is stopping"
        try:
            is_ready = asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_ANSWER_S)
        except TimeoutError:
            return f"the loop of the broker has not turned for {_ANSWER_S:g} s"
        if path == "/livez" or is_ready:
            return ""
        return "it knows no leader, has not applied what is committed, or does not vote yet"
