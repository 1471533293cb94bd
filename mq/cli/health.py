"""`mq health`: whether one broker is up, by the standard health service of gRPC.

For health checks of containers and the like, every few seconds: it loads no more than it needs and
asks one broker one question. `mq cluster health` looks at all of them.
"""

from __future__ import annotations

import click

from mq.cli.options import Brokers, with_brokers
from mq.errors import Unreachable


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
    import grpc  # noqa: PLC0415
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    reasons = []
    for server in brokers.servers.split(","):
        with grpc.insecure_channel(server) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=brokers.timeout_s
                )
            except grpc.RpcError as error:
                reasons.append(f"{server} ({error.code().name})")
            else:
                return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    raise Unreachable(
        f"no broker answers at {', '.join(reasons)}: is it frozen, or something else?"
    )
