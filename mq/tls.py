"""PEM files into contexts of TLS 1.2 and up, for every port that has TLS.

IllegalConfig names the file that is wrong and what is wrong with it: OpenSSL's errors do not say
which of its files they mean. The files are read once; nothing here opens a connection.
"""

from __future__ import annotations

import ssl

from mq.errors import IllegalConfig


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """A context that shows this certificate, and asks the other side for none."""
    for what, path in (("certificate", cert), ("key", key)):
        read_file(what, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_own(context, cert, key)
    return context


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


def _has_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def load_authority(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise IllegalConfig(
            f"TLS certificate authority {ca!r} holds no certificate in PEM: {error}"
        ) from error
