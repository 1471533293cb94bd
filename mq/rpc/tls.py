"""TLS to clients and to other brokers, from `broker.tls` and its files.

Brokers connect to each other as clients do, to the same ports: what one requires of its clients it
offers to other brokers, so that `broker.tls` has to be the same on all brokers of a cluster.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple

import grpc

from mq import tls
from mq.config import BrokerConfig
from mq.errors import IllegalConfig
from mq.logging import get_logger

log = get_logger(__name__)

ChannelOptions = Sequence[tuple[str, int]]
# Opens a channel to another broker.
Connect = Callable[[str, ChannelOptions], grpc.aio.Channel]


class ServerTls(NamedTuple):
    """The certificate that clients are shown, for either transport."""

    context: ssl.SSLContext
    credentials: grpc.ServerCredentials


def plain_channel(address: str, options: ChannelOptions) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=options)


def from_config(config: BrokerConfig) -> tuple[ServerTls | None, Connect]:
    """IllegalConfig names the option or the file that is wrong."""
    if config.tls == "off":
        if config.tls_cert:
            log.warning("clients connect without TLS: broker.tls is off", cert=config.tls_cert)
        return None, plain_channel
    if not config.tls_cert or not config.tls_key:
        raise IllegalConfig(
            "broker.tls is required, and needs broker.tls_cert and broker.tls_key: give both"
        )
    context = tls.server_context(config.tls_cert, config.tls_key)
    context.set_alpn_protocols(["h2"])
    key = tls.read_file("key", config.tls_key)
    certificate = tls.read_file("certificate", config.tls_cert)
    authority = None
    if config.tls_ca:
        authority = tls.read_file("certificate authority", config.tls_ca)
        tls.load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config.tls_ca)
    trusted = grpc.ssl_channel_credentials(authority)

    def connect(address: str, options: ChannelOptions) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, trusted, options=options)

    return ServerTls(context, grpc.ssl_server_credentials([(key, certificate)])), connect
