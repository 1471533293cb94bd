"""`mq cluster clients`: who is connected to which node, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mq.cli import output
from mq.cli.nodes import checked_set, look, with_set
from mq.cli.options import Brokers, with_brokers
from mq.cli.tables import Column, counted, print_pages, stored_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mq.cli.nodes import Seen
    from mq.client import Admin
    from mq.wire.v1.admin_pb2 import ClientInfo, ListClientsResponse

_PAGE = 500


class _Row(NamedTuple):
    node: str
    client: ClientInfo


@click.command()
@with_set
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="At most so many of each node.",
)
@with_brokers()
def clients(brokers: Brokers, broker_set: str, count: int) -> None:
    """List the connections of every node: language, user, streams, groups."""
    rows: list[_Row] = []
    notes: list[str] = []
    with brokers.admin() as admin:
        route = admin.route()
        checked_set(route, broker_set)
        for node in look(admin, route, broker_set):
            place = node.node_id if len(route.broker_sets) == 1 else node.place
            if node.trouble:
                notes.append(f"{place}: {node.trouble}")
                continue
            found = list(_pages(admin, node, count))
            rows += [_Row(place, each) for page in found for each in page.clients]
            shown = sum(len(page.clients) for page in found)
            if found[0].is_count_only:
                total = counted(found[0].connections, "connection")
                notes.append(f"{place}: {total}; its transport, grpcio, does not list them")
            elif shown < found[0].connections:
                notes.append(f"{place}: {shown:,} of {found[0].connections:,} are shown")
    if brokers.as_json:
        output.write_json([_document(each) for each in rows])
        return
    if rows:
        print_pages(output.console(), rows, _columns)
    for note in notes:
        click.echo(note)
    click.echo(counted(len(rows), "connection"))


def _pages(admin: Admin, node: Seen, count: int) -> Iterator[ListClientsResponse]:
    page = ""
    while True:
        found = admin.list_clients(node.address, min(count, _PAGE), page=page)
        yield found
        count -= len(found.clients)
        page = found.next_page
        if not page or count <= 0:
            return


def _document(row: _Row) -> dict[str, Any]:
    return {"node": row.node, **output.plain(row.client)}


def _columns(rows: Sequence[_Row]) -> list[Column]:
    found = [each.client for each in rows]
    software = [
        output.printable(f"{each.language} {each.version}".strip() or each.user_agent) or "-"
        for each in found
    ]
    doing = [
        ", ".join(
            f"{output.printable(one.method.partition('/')[2])}" + f" x{one.count}" * (one.count > 1)
            for one in each.in_flight
        )
        or "-"
        for each in found
    ]
    since = [stored_at(each.connected_at_ms) for each in found]
    times = [moment.partition(" ")[2].partition(".")[0] for moment in since]
    return [
        Column("node", [each.node for each in rows], "left"),
        Column("address", [output.printable(each.address) for each in found], "left"),
        Column("client", software, "left", is_flexible=True),
        Column("user", [output.printable(each.user) or "-" for each in found], "left", rank=1),
        Column(
            "since (UTC)", since, "left", rank=4, compact=Column("since", times, "left", rank=4)
        ),
        Column("calls", [f"{each.calls:,}" for each in found], rank=3),
        Column("in flight", doing, "left", is_flexible=True),
        Column("groups", [", ".join(each.groups) or "-" for each in found], "left", rank=2),
    ]
