"""How a client proves itself to brokers, and how brokers prove themselves: TLS, the API key, the
namespace.

`Security` has the constructor arguments, checked. `Credentials` reads the files and makes channels
and metadata of them, as one generation: files that change are read again, at most every few
seconds, and the last good generation counts while one of them is half written. A secret is in no
repr, log line or error text.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from mq import tls
from mq.errors import IllegalConfig

log = logging.getLogger(__name__)

# The least time between two looks at the files.
LOOK_S = 5.0

_AUTHORIZATION, _NAMESPACE = "authorization", "mq-namespace"

FilePath = str | Path
ChannelOptions = Sequence[tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class Security:
    """The constructor arguments of all clients about security. Raises IllegalConfig if they
    contradict each other.
    """

    tls: bool = False
    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None
    api_key: str | Callable[[], str] | None = field(default=None, repr=False)
    api_key_file: FilePath | None = None
    namespace: str = ""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise IllegalConfig(f"{given} is given without {missing}: give both cert and key")
        if self.api_key is not None and self.api_key_file is not None:
            raise IllegalConfig("api_key and api_key_file are two keys: give one")
        if isinstance(self.api_key, str):
            checked_key(self.api_key, "api_key")
        if not _is_header(self.namespace):
            raise IllegalConfig(f"namespace {self.namespace[:200]!r} is no name")

    @property
    def is_tls(self) -> bool:
        return self.tls or self.ca is not None or self.cert is not None


def checked_key(text: str, origin: str) -> str:
    """The key, without space around it. IllegalConfig names its origin, never the key."""
    # gRPC would refuse it with a text that has the key in it.
    key = text.strip()
    if not key or not _is_header(key):
        raise IllegalConfig(f"{origin} holds no API key: one is a word like mqk_<id>_<secret>")
    return key


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def read_key_file(path: FilePath) -> str:
    """The key in a file. Raises IllegalConfig."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise IllegalConfig(f"API key file {str(path)!r} cannot be read: {reason}") from None
    return checked_key(text, f"API key file {str(path)!r}")


class Credentials:
    """Those of one client, on its event loop. `generation` grows when something of them changes."""

    def __init__(self, security: Security | None = None) -> None:
        """Raises IllegalConfig for a file that is missing or wrong."""
        self._security = security or Security()
        self.is_tls = self._security.is_tls
        self.has_certificate = self._security.cert is not None
        self.generation = 0
        # For each call; None: there is nothing to say.
        self.metadata: grpc.aio.Metadata | None = None
        security = self._security
        self._tls_files = [one for one in (security.ca, security.cert, security.key) if one]
        self._key_files = [one for one in (security.api_key_file,) if one]
        self._next_look_s = 0.0
        self._tls_seen = _signatures(self._tls_files)
        self._key_seen = _signatures(self._key_files)
        self._trusted = self._read_tls() if self.is_tls else None
        self._key = self._read_key()
        self._use_key()

    def open(self, address: str, options: ChannelOptions) -> grpc.aio.Channel:
        if self._trusted is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self._trusted, options=options)

    def renew(self) -> bool:
        """Looks for changes, if that was not done a moment ago. Returns whether channels must be
        opened anew.
        """
        if not (self._tls_files or self._key_files) or time.monotonic() < self._next_look_s:
            return False
        self._next_look_s = time.monotonic() + LOOK_S
        self._renew_key()
        return self._renew_tls()

    def is_replaced(self, metadata: grpc.aio.Metadata | None) -> bool:
        """A broker does not accept the key in this metadata. Returns whether there is another one
        by now.
        """
        self._renew_key(is_refused=True)
        return self.metadata is not metadata

    def _renew_tls(self) -> bool:
        seen = _signatures(self._tls_files)
        if seen == self._tls_seen:
            return False
        try:
            trusted = self._read_tls()
        except IllegalConfig as error:
            log.warning("the files of TLS have changed, the former ones stay in use: %s", error)
            return False
        if _signatures(self._tls_files) != seen:
            return False  # still being written
        self._trusted, self._tls_seen = trusted, seen
        self.generation += 1
        log.info("the files of TLS have changed: connections are opened anew")
        return True

    def _read_tls(self) -> grpc.ChannelCredentials:
        ca, cert, key = self._security.ca, self._security.cert, self._security.key
        # gRPC says of a wrong file only that there is no connection.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority = certificate = own_key = None
        if ca is not None:
            authority = tls.read_file("certificate authority", str(ca))
            tls.load_authority(context, str(ca))
        if cert is not None and key is not None:
            certificate = tls.read_file("certificate", str(cert))
            own_key = tls.read_file("key", str(key))
            tls.load_own(context, str(cert), str(key))
        return grpc.ssl_channel_credentials(authority, own_key, certificate)

    def _renew_key(self, *, is_refused: bool = False) -> None:
        seen = _signatures(self._key_files)
        # A function is asked for another key only when its last one was refused.
        if seen == self._key_seen and not (is_refused and callable(self._security.api_key)):
            return
        try:
            key = self._read_key()
        except IllegalConfig as error:
            log.warning("the API key has changed, the former one stays in use: %s", error)
            return
        self._key_seen = seen
        if key != self._key:
            self._key = key
            self.generation += 1
            self._use_key()

    def _read_key(self) -> str:
        given, file = self._security.api_key, self._security.api_key_file
        if file is not None:
            return read_key_file(file)
        if callable(given):
            return checked_key(given(), "what api_key returns")
        return checked_key(given, "api_key") if given is not None else ""

    def _use_key(self) -> None:
        pairs = []
        if self._key:
            pairs.append((_AUTHORIZATION, f"Bearer {self._key}"))
        if self._security.namespace:
            pairs.append((_NAMESPACE, self._security.namespace))
        self.metadata = grpc.aio.Metadata(*pairs) if pairs else None


def _signatures(paths: Sequence[FilePath]) -> list[tuple[int, int, int] | None]:
    """What changes when one of the files is written, or replaced; None for one that is missing."""
    return [_signature(path) for path in paths]


def _signature(path: FilePath) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
