"""The settings of a console. None of them changes while it runs: no page can name a broker."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from mq.errors import IllegalConfig

DEFAULT_PORT = 8080


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """`security`: the arguments of clients about TLS and the namespace. It holds no API key: users
    bring their own.
    """

    servers: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    # Serve other machines although brokers do not identify their callers.
    is_open: bool = False
    # As browsers see it, behind a proxy: https://mq.example.com
    public_url: str = ""
    timeout_s: float = 5.0
    sample_s: float = 5.0

    def __post_init__(self) -> None:
        if "api_key" in self.security or "api_key_file" in self.security:
            raise IllegalConfig("a console has no key of its own: users sign in with theirs")
        if self.public_url:
            parts = urlsplit(self.public_url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
                raise IllegalConfig(
                    f"public URL {self.public_url!r} is not like https://mq.example.com"
                )

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def origin(self) -> str:
        """The only origin of forms, if a public URL says it; empty: that of the Host header."""
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}" if self.public_url else ""

    @property
    def is_https(self) -> bool:
        return self.public_url.startswith("https:")


def is_loopback(host: str) -> bool:
    """A name that cannot be resolved is not: binding to it fails later, with its reason."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
