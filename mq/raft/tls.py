"""TLS between nodes: each side shows a certificate and checks the other's against one authority.

The dialing side also checks that the certificate is made for the host or IP address it dialed. The
files are read once; nothing here opens a connection.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from mq.errors import IllegalConfig

# What OpenSSL says to bytes that are no TLS record.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)


class TlsContexts(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext


def load(cert: str, key: str, ca: str) -> TlsContexts:
    """Contexts for both directions, from PEM files. IllegalConfig names the file that is wrong."""
    for what, path in (("certificate", cert), ("key", key), ("certificate authority", ca)):
        _check_readable(what, path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = True
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        _load_own(context, cert, key)
        _load_authority(context, ca)
    return TlsContexts(server, client)


def _check_readable(what: str, path: str) -> None:
    # OpenSSL's errors do not say which of its files they mean.
    try:
        with open(path, "rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise IllegalConfig(
            f"TLS {what} {path!r} cannot be read: {reason}; name a PEM file that this user may read"
        ) from error


def _load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
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


def _load_authority(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise IllegalConfig(
            f"TLS certificate authority {ca!r} holds no certificate in PEM: {error}"
        ) from error


def explain(error: ssl.SSLError) -> str:
    """Why a handshake failed, for people."""
    # Those that do not come from OpenSSL itself lack these.
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLCertVerificationError):
        detail = getattr(error, "verify_message", None) or error
        return f"its TLS certificate is not accepted: {detail}"
    if reason in _NOT_TLS:
        return f"it does not speak TLS ({reason}): configure TLS on both nodes or on none"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no TLS certificate: nodes need one each of the same authority"
    return f"no TLS with it: {reason or error}"
