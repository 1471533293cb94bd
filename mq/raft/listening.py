"""Addresses of nodes, and the socket on which others are waited for."""

from __future__ import annotations

import asyncio
import socket
import ssl

from mq.errors import IllegalConfig, PortUnavailable
from mq.raft.tls import explain

# How a TLS connection begins.
_TLS_HANDSHAKE = b"\x16"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[IPv6]:port"."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise IllegalConfig(f"{address!r} is no address: use host:port, with a port up to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
            # Not SO_REUSEPORT, with which two nodes could share a port without noticing.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen()
        except BaseException:
            sock.close()
            raise
    except (OSError, ValueError) as error:
        raise PortUnavailable(
            f"cannot listen on {address} for other nodes: {reason_of(error)}; stop the process "
            "that has the port, or set another address"
        ) from error
    return sock


async def opens_tls(sock: socket.socket) -> bool:
    """Waits for the first byte and leaves it where it is."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    # Nothing: already closed, which is for TLS to find out.
    return sock.recv(1, socket.MSG_PEEK) in {b"", _TLS_HANDSHAKE}


def reason_of(error: Exception) -> str:
    """Why a connection did not come about, for people."""
    if isinstance(error, ssl.SSLError):
        return explain(error)
    return str(error) or type(error).__name__
