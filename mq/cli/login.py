"""`mq login`, `mq logout` and `mq whoami`: who the brokers take this program for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.access import day
from mq.cli.options import Brokers, with_brokers

if TYPE_CHECKING:
    from mq.wire.v1.security_pb2 import WhoAmIResponse


@click.command(short_help="Say who the brokers take you for.")
@with_brokers()
def whoami(brokers: Brokers) -> None:
    """Show as which user the brokers know you, and by what."""
    with brokers.admin() as admin:
        known = admin.who_am_i()
        sets = [one.name for one in admin.route().broker_sets]
    brokers.note_missing(known)
    if brokers.as_json:
        output.write_json({name: output.plain(one) for name, one in known.items()})
        return
    # The same user with the same credential: all else would be said by each set alike.
    distinct: dict[bytes, list[str]] = {}
    for name, one in known.items():
        distinct.setdefault(one.SerializeToString(deterministic=True), []).append(name)
    for names in distinct.values():
        fields = _fields(known[names[0]])
        if len(distinct) > 1:
            fields.insert(0, ("in set", ", ".join(names)))
        output.print_fields(output.console(), fields)
    unknown = [one for one in sets if one not in known and one not in known.missing_sets]
    if unknown:
        click.echo(f"warning: {', '.join(unknown)} knows no such user: mq user sync", err=True)


def _fields(known: WhoAmIResponse) -> list[tuple[str, str]]:
    everything = ": everybody may do everything" if known.auth_mode == "off" else ""
    return [
        ("user", known.user or f"nobody{everything}"),
        ("roles", ", ".join(known.roles) or "none"),
        ("namespaces", ", ".join(known.namespaces) or "none: names stand as they are"),
        ("known by", output.printable(known.credential) or "nothing: no key was presented"),
        ("until", f"{day(known.expires_at_ms)} UTC" if known.expires_at_ms else "without an end"),
        ("from", output.printable(known.address) or "-"),
        ("auth.mode", known.auth_mode or "off"),
    ]
