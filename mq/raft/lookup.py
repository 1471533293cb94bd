"""Host names of peers, looked up on daemon threads of their own, one a name at most.

The system's lookup cannot be cancelled, and takes a minute where no DNS server answers. It must not
use up the workers of the event loop, which read old messages and write checkpoints, and the end of
the process must not wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import threading


class Lookup:
    """On one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """IP addresses of a host, at least one; nothing is remembered. Raises OSError.

        A caller that gives up does not end the lookup: the next one gets its answer.
        """
        if _is_address(host):
            return [host]
        answer = self._under_way.get(host)
        if answer is None:
            loop = asyncio.get_running_loop()
            answer = self._under_way[host] = loop.create_future()
            answer.add_done_callback(functools.partial(self._end, host))
            thread = threading.Thread(
                target=_look_up, args=(loop, answer, host), name="mq-lookup", daemon=True
            )
            thread.start()
        return await asyncio.shield(answer)

    def _end(self, host: str, answer: asyncio.Future[list[str]]) -> None:
        del self._under_way[host]
        # Retrieve the exception so that asyncio does not warn: the caller may have gone.
        if not answer.cancelled():
            answer.exception()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[list[str]], host: str) -> None:
    found: list[str] | OSError
    try:
        results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys(str(address[0]) for *_, address in results))
    except UnicodeError:  # a label that is too long, or empty
        found = OSError(f"{host} is no host name")
    except OSError as error:
        found = error

    def tell() -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        return  # the loop is closed: the node has stopped
