"""`mq cluster add-set` and `remove-set`: which broker sets belong to the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.options import Brokers, confirm, trouble_at, with_brokers, with_yes
from mq.cli.tables import Column, counted, print_table
from mq.errors import Unreachable

if TYPE_CHECKING:
    from mq.wire.v1.cluster_pb2 import RouteResponse


@click.command("add-set", short_help="Add a broker set to the cluster.")
@click.argument("address", metavar="HOST:PORT")
@with_brokers()
def add_set(brokers: Brokers, address: str) -> None:
    """Add the broker set of the broker at HOST:PORT to the cluster.

    Its nodes run already, with the same node.cluster and a node.broker_set
    of their own. All sets are told of each other, and know it again after
    everything has stopped. Topics get queues there by `mq topic extend`.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{address!r} is not like 127.0.0.1:8081", param_hint="HOST:PORT")
    trouble = trouble_at(address)
    if trouble:
        raise Unreachable(f"no broker answers at {address} ({trouble})")
    with brokers.admin() as admin:
        found = admin.add_broker_set(address)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    print_table(output.console(), _columns(found))
    sets = counted(len(found.broker_sets), "broker set")
    click.echo(f"Cluster {found.cluster} has {sets}, and each knows all of them.")


@click.command("remove-set")
@click.argument("name", metavar="SET")
@click.option(
    "--force", is_flag=True, help="Also when it has topics, or is gone and does not answer."
)
@with_yes
@with_brokers()
def remove_set(brokers: Brokers, name: str, *, force: bool, is_sure: bool) -> None:
    """Remove a broker set from the cluster.

    It and the other sets forget each other. Nothing is deleted
    there. Move its topics away first: `mq topic extend`, `mq topic drain`,
    `mq topic delete --set`.
    """
    confirm(f"Remove broker set {name} from the cluster?", is_sure=is_sure)
    with brokers.admin() as admin:
        admin.remove_broker_set(name, force=force)
    if brokers.as_json:
        output.write_json({"broker_set": name, "is_removed": True})
    else:
        click.echo(f"Removed broker set {name}: the others have forgotten it.")


COMMANDS = (add_set, remove_set)


def _columns(found: RouteResponse) -> list[Column]:
    sets = found.broker_sets
    addresses = [", ".join(node.address or "?" for node in each.nodes) for each in sets]
    return [
        Column("broker set", [each.name for each in sets], "left"),
        Column("leader", [each.leader_id or "none" for each in sets], "left"),
        Column("nodes", addresses, "left", is_flexible=True),
    ]
