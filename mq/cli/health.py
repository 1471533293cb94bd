"""`mq health`: whether one broker is up, by the standard health service of gRPC.

For health checks of containers and the like, every few seconds: it loads no more than it needs and
asks one broker one question. `mq cluster health` looks at all of them.
"""

from __future__ import annotations

import functools
from typing import IO

import click

from mq.cli.options import Brokers, with_brokers
from mq.errors import Unreachable


@click.command(short_help="Say whether one broker is up.")
@with_brokers()
@click.option(
    "--ca",
    metavar="FILE",
    type=click.File("rb"),
    help="Connect with TLS; the broker's certificate comes from this authority.",
)
@click.pass_context
def health(context: click.Context, brokers: Brokers, ca: IO[bytes] | None) -> None:
    """Say whether one broker is up: it knows a leader and has applied the log.

    Ends with 0 if it is and with 1 if not. Of several brokers the first is
    asked that listens.
    """
    brokers.check()
    status = _status(brokers, ca.read() if ca is not None else None)
    is_healthy = status == "SERVING"
    if brokers.as_json:
        # Here, as everything that costs time to import.
        from mq.cli import output  # noqa: PLC0415

        output.write_json({"is_healthy": is_healthy, "status": status})
    else:
        click.echo(status.lower().replace("_", " "))
    context.exit(0 if is_healthy else 1)


def _status(brokers: Brokers, ca: bytes | None) -> str:
    """The status of the first broker that answers. Raises Unreachable if none does."""
    import grpc  # noqa: PLC0415
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    connect = grpc.insecure_channel
    if ca is not None:
        connect = functools.partial(
            grpc.secure_channel, credentials=grpc.ssl_channel_credentials(ca)
        )
    reasons = []
    for server in brokers.servers.split(","):
        with connect(server) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=brokers.timeout_s
                )
            except grpc.RpcError as error:
                reasons.append(f"{server} ({error.code().name})")
            else:
                return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    doubt = "does it want TLS (--ca)" if ca is None else "is its certificate another authority's"
    raise Unreachable(
        f"no broker answers at {', '.join(reasons)}: is it frozen, or something else, or {doubt}?"
    )
