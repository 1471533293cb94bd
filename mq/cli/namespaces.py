"""`mq namespace`: names of topics and groups that belong together, apart from those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.access import day, in_sets, read_access
from mq.cli.options import Brokers, confirm, with_brokers, with_count, with_set, with_yes
from mq.cli.quotas import limits_text
from mq.cli.tables import Column, counted, cut_note, print_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.access.views import AccessView
    from mq.wire.v1.security_pb2 import AccessNamespace

_with_name = click.argument("name", metavar="NAMESPACE")


@click.group(short_help="List, create, delete namespaces.")
def namespace() -> None:
    """Namespaces: topics and groups of one team, apart from those of others.

    A user in a namespace sees its topics and groups alone, by their short
    names: mq user alter USER --namespace NAMESPACE.
    """


@namespace.command()
@_with_name
@with_brokers()
def create(brokers: Brokers, name: str) -> None:
    """Create a namespace."""
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        made = admin.create_namespace(name)
    if brokers.as_json:
        output.write_json(output.plain(made))
    else:
        click.echo(f"Created namespace {name}{where}.")


@namespace.command("list")
@with_count
@with_set("As this broker set has them.")
@with_brokers()
def list_namespaces(brokers: Brokers, broker_set: str, count: int | None) -> None:
    """List the namespaces, and the users in them."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin, broker_set)
    found = view.state.namespaces
    if brokers.as_json:
        output.write_json(
            [output.plain(one) | {"users": _users(view, one)} for one in found[:count]]
        )
    elif not found:
        click.echo("No namespaces: all names stand as they are. mq namespace create NAME")
    else:
        print_pages(output.console(), found[:count], lambda page: _columns(view, page))
        click.echo(counted(len(found), "namespace") + cut_note(len(found), count))


@namespace.command()
@_with_name
@with_yes
@with_brokers()
def delete(brokers: Brokers, name: str, *, is_sure: bool) -> None:
    """Delete a namespace that no user is in, and its quota.

    Topics and groups in it stay.
    """
    confirm(f"Delete namespace {name} and its quota?", is_sure=is_sure)
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        admin.delete_namespace(name)
    if brokers.as_json:
        output.write_json({"namespace": name, "is_deleted": True})
    else:
        click.echo(f"Deleted namespace {name}{where}.")


# -- what is printed -------------------------------------------------------------------------------


def _users(view: AccessView, found: AccessNamespace) -> list[str]:
    return [one.name for one in view.state.users if found.name in one.namespaces]


def _columns(view: AccessView, namespaces: Sequence[AccessNamespace]) -> list[Column]:
    quotas = [view.quotas(f"namespace:{each.name}") for each in namespaces]
    limits = [limits_text(each[0]) if each else "-" for each in quotas]
    users = [", ".join(_users(view, each)) or "-" for each in namespaces]
    return [
        Column("namespace", [each.name for each in namespaces], "left", is_flexible=True),
        Column("users", users, "left", is_flexible=True),
        Column("at most", limits, "left", is_flexible=True),
        Column("created (UTC)", [day(each.created_at_ms)[:10] for each in namespaces], "left"),
    ]
