"""TLS between nodes: each side shows a certificate and checks the other's against one authority.

The dialing side also checks that the certificate is made for the host or IP address it dialed;
`handshake` checks that it may speak for the node that the other side says it is. Nothing here opens
a connection.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from mq.tls import load_authority, load_own, read_file

# Reasons of OpenSSL for bytes that are no TLS record.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)


class TlsContexts(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext


def load(cert: str, key: str, ca: str) -> TlsContexts:
    """Contexts for both directions, from PEM files. IllegalConfig names the file that is wrong."""
    for what, path in (("certificate", cert), ("key", key), ("certificate authority", ca)):
        read_file(what, path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = True
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        load_own(context, cert, key)
        load_authority(context, ca)
    return TlsContexts(server, client)


def explain(error: ssl.SSLError) -> str:
    """The reason of a failed handshake, for an operator."""
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
