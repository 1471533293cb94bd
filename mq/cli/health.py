"""`mq health`: whether one broker is up, by the standard health service of gRPC.

For health checks of containers and the like, every few seconds: it loads no more than it needs and
asks one broker one question. `mq cluster health` looks at all of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mq import tls
from mq.cli.options import Brokers, with_brokers
from mq.errors import IllegalConfig, Unreachable

if TYPE_CHECKING:
    import grpc


@click.command(short_help="Say whether one broker is up.")
@with_brokers()
@click.pass_context
def health(context: click.Context, brokers: Brokers) -> None:
    """Say whether one broker is up: it knows a leader and has applied the log.

    Ends with 0 if it is and with 1 if not. Of several brokers the first is
    asked that listens.
    """
    brokers.check()
    status = _status(brokers)
    is_healthy = status == "SERVING"
    if brokers.as_json:
        # Here, as everything that costs time to import.
        from mq.cli import output  # noqa: PLC0415

        output.write_json({"is_healthy": is_healthy, "status": status})
    else:
        click.echo(status.lower().replace("_", " "))
    context.exit(0 if is_healthy else 1)


def _status(brokers: Brokers) -> str:
    """The status of the first broker that answers. Raises Unreachable if none does."""
    # Before gRPC is imported, or it writes lines of its own to stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import grpc  # noqa: PLC0415
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    credentials = _credentials(brokers.security)
    connect = grpc.insecure_channel
    if credentials is not None:
        connect = functools.partial(grpc.secure_channel, credentials=credentials)
    reasons = []
    for server in brokers.servers.split(","):
        with connect(server) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=brokers.timeout_s
                )
            except grpc.RpcError as error:
                reasons.append(f"{server} ({_reason(error)})")
            else:
                return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    doubt = ", or does it want TLS (--tls, --ca)" if credentials is None else ""
    raise Unreachable(
        f"no broker answers at {', '.join(reasons)}: is it frozen, or something else{doubt}?"
    )


def _credentials(security: Mapping[str, Any]) -> grpc.ChannelCredentials | None:
    """As those of clients, whose code would take longer to import; None: without TLS."""
    import grpc  # noqa: PLC0415

    parts = [security.get(name) for name in ("ca", "key", "cert")]
    if (parts[1] is None) != (parts[2] is None):
        raise IllegalConfig("--cert and --key belong together: give both")
    if not security.get("tls") and not any(parts):
        return None
    authority, key, cert = (tls.read_file("file", one) if one else None for one in parts)
    return grpc.ssl_channel_credentials(authority, key, cert)


def _reason(error: grpc.RpcError) -> str:
    from mq.client.cluster.errors import reason_of  # noqa: PLC0415

    return reason_of(error.code(), error.details() or "")
