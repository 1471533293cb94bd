"""PEM files into contexts of TLS 1.2 and up, for every port that has TLS.

`Certificates` holds the newest good generation of a certificate, its key and its authority: the
three are read together, become contexts together, and are replaced together. Files that do not
belong together, or are half written, change nothing.

IllegalConfig names the file that is wrong and what is wrong with it: OpenSSL's errors do not say
which of its files they mean. Nothing here opens a connection, logs, or waits.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from mq.errors import IllegalConfig

T = TypeVar("T")


class Files(NamedTuple):
    """Paths; an empty one is none."""

    cert: str
    key: str
    ca: str = ""


class Pem(NamedTuple):
    """The contents of the files, read together."""

    cert: bytes
    key: bytes
    ca: bytes | None


class Leaf(NamedTuple):
    """Facts of a certificate that contexts do not tell."""

    not_after_s: int
    # It may be shown by a client, too, not by servers only.
    is_for_clients: bool


class Generation(NamedTuple, Generic[T]):
    """Files that were read together, and what was built of them."""

    number: int
    pem: Pem
    leaf: Leaf
    built: T


class Certificates(Generic[T]):
    """The newest good generation of its files; new connections use `current`.

    `refresh` may be called by a thread: the others see one generation or the next.
    """

    def __init__(self, listener: str, files: Files, build: Callable[[Files, Pem, Leaf], T]) -> None:
        """IllegalConfig: the files cannot be used. `listener` is for people; so is the error of
        `build`, which loads the files again that it is given.
        """
        self.listener = listener
        self.files = files
        self._build = build
        self._signature = self._sign()
        # Of what was refused last, so that it is told once.
        self._refused = ""
        self.generation = self._load(self._read(), number=1)

    @property
    def current(self) -> T:
        return self.generation.built

    def refresh(self, *, is_asked: bool = False) -> bool:
        """Returns True if there is a new generation. IllegalConfig: there are new files that cannot
        be used, once for the same content; they are tried again each time. Files that look the same
        from outside are read only if `is_asked`.
        """
        signature = self._sign()
        if signature == self._signature and not self._refused and not is_asked:
            return False
        digest = ""
        try:
            pem = self._read()
            if pem == self.generation.pem:
                self._refused = ""
            else:
                digest = _digest(pem)
                self.generation = self._load(pem, self.generation.number + 1)
        except IllegalConfig as error:
            refused = f"{digest} {error}"
            is_known, self._refused = self._refused == refused, refused
            if is_known and not is_asked:
                return False
            raise
        self._signature = signature
        self._refused = ""
        return bool(digest)

    def _load(self, pem: Pem, number: int) -> Generation[T]:
        leaf = read_leaf(self.files.cert, pem.cert)
        built = self._build(self.files, pem, leaf)
        # OpenSSL takes certificates and keys from files alone.
        if self._read() != pem:
            raise IllegalConfig(f"TLS certificate {self.files.cert!r} or its key is being written")
        return Generation(number, pem, leaf, built)

    def _read(self) -> Pem:
        cert, key, ca = self.files
        return Pem(
            read_file("certificate", cert),
            read_file("key", key),
            read_file("certificate authority", ca) if ca else None,
        )

    def _sign(self) -> tuple[object, ...]:
        """The state of the files, as `stat` shows it."""
        return tuple(_sign(path) for path in self.files if path)


def _sign(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _digest(pem: Pem) -> str:
    return hashlib.sha256(b"\0".join(each or b"" for each in pem)).hexdigest()


def read_leaf(path: str, cert: bytes) -> Leaf:
    """Of the first certificate of the file."""
    # Here: only ports with TLS wait for it.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID as Usage  # noqa: PLC0415

    try:
        found = x509.load_pem_x509_certificate(cert)
        usages = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        usages = None
    except ValueError as error:
        raise IllegalConfig(
            f"TLS certificate {path!r} holds no certificate that can be read: {error}"
        ) from error
    is_for_clients = usages is None or bool(
        {Usage.CLIENT_AUTH, Usage.ANY_EXTENDED_KEY_USAGE} & {*usages}
    )
    return Leaf(int(found.not_valid_after_utc.timestamp()), is_for_clients)


def server_context(files: Files, clients: str = "no") -> ssl.SSLContext:
    """A context that shows this certificate. `clients`: whether the other side may or has to show
    one of the authority, as in `broker.tls_clients`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_own(context, files.cert, files.key)
    if clients != "no":
        is_required = clients == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        load_authority(context, files.ca)
        # A session that is resumed does not show its certificate again, which may have expired.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def names_of(encrypted: ssl.SSLObject | ssl.SSLSocket | None) -> Sequence[tuple[str, str]]:
    """Kinds and names, such as ("DNS", "n0"), that the verified certificate of the other side is
    made for; none if it shows none.
    """
    shown: dict[str, Any] | None = encrypted.getpeercert() if encrypted is not None else None
    return shown.get("subjectAltName", ()) if shown else ()


def read_file(what: str, path: str) -> bytes:
    """The content of the file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise IllegalConfig(
            f"TLS {what} {path!r} cannot be read: {reason}; name a PEM file that this user may read"
        ) from error


def load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
    def refuse_password() -> str:
        # Otherwise OpenSSL asks for it on the terminal, and a service waits for ever.
        raise IllegalConfig(f"TLS key {key!r} is encrypted: store it without a password")

    try:
        context.load_cert_chain(cert, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"TLS key {key!r} does not belong to the certificate {cert!r}: name its key"
        elif not _has_certificate(cert):
            reason = f"TLS certificate {cert!r} holds no certificate that OpenSSL takes: {error}"
        else:
            reason = f"TLS key {key!r} holds no private key in PEM for {cert!r}: {error}"
        raise IllegalConfig(reason) from error
    except OSError as error:
        raise IllegalConfig(f"TLS key {key!r} or {cert!r} cannot be read: {error}") from error


def _has_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        return False
    return True


def load_authority(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:  # among them ssl.SSLError
        raise IllegalConfig(
            f"TLS certificate authority {ca!r} holds no certificate in PEM: {error}"
        ) from error
