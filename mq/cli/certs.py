"""`mq certs dev`: certificates for development, and the options that use them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.errors import IllegalConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.cli.certs_issue import Issued

# Of a broker alone, and of the nodes of `mq dev-cluster`.
_HOSTS = ("localhost", "127.0.0.1", "::1", "node-0", "n0", "n1", "n2")
_COLUMNS = 80


@click.group(short_help="Make certificates for development.")
def certs() -> None:
    """Certificates for TLS."""


@certs.command(short_help="Make a development authority and its certificates.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--host",
    "hosts",
    metavar="NAMES",
    multiple=True,
    help="More names of brokers and nodes, with commas: hosts, IP addresses, node ids.",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    help="A certificate for a client of this name, which may be a URI.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=365,
    show_default=True,
    help="How long certificates are valid; the authority is for ten years.",
)
@click.option("--force", is_flag=True, help="Replace the authority: its certificates end with it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the files and their names.")
def dev(
    directory: Path,
    hosts: Sequence[str],
    clients: Sequence[str],
    days: int,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Make an authority in DIR, a certificate for brokers, and some for clients.

    The certificate for brokers is for localhost, its addresses, the names of
    nodes on this machine, and each --host. Another run renews all certificates
    in DIR, or with --client those of the named clients alone; the authority
    stays. Brokers that use the files load them by themselves.

    For development: the key of the authority lies beside the rest.
    """
    # Here, so that help does not wait for cryptography.
    from mq.cli.certs_issue import Authority, general_name  # noqa: PLC0415

    names = [*_HOSTS, *(one for each in hosts for one in each.split(",") if one)]
    for name in (*names, *clients):
        general_name(name)
    issued: list[Issued] = []
    try:
        authority, is_new = Authority.open(directory, replaces=force)
        is_for_all = is_new or not clients or not authority.has_server
        if is_for_all or hosts:
            issued.append(authority.server(names, days))
        renewed = authority.clients() if is_for_all else []
        issued += [authority.client(one, days) for one in dict.fromkeys([*renewed, *clients])]
    except OSError as error:
        raise IllegalConfig(f"certificates cannot be written to {directory}: {error}") from error
    if as_json:
        output.write_json(
            {
                "authority": {"cert": authority.cert, "is_new": is_new},
                "certificates": [
                    one._asdict() | {"not_after": one.not_after.isoformat()} for one in issued
                ],
            }
        )
        return
    state = "made" if is_new else "as it was"
    click.echo(f"{authority.cert}  authority, until {authority.not_after:%Y-%m-%d} ({state})")
    for one in issued:
        click.echo(f"{one.cert}  until {one.not_after:%Y-%m-%d}, for")
        for line in _wrapped([f"{name}," for name in one.names], "    "):
            click.echo(line.rstrip(","))
    _advise(authority.cert, directory, issued)


def _advise(ca: str, directory: Path, issued: Sequence[Issued]) -> None:
    cert, key = str(directory / "server.pem"), str(directory / "server.key")
    click.echo("\nA broker with TLS for clients, and options for the nodes of a set:")
    _print_command(
        ["mq server --broker-tls required", *_flags("broker-tls-", cert=cert, key=key, ca=ca)]
    )
    _print_command(_flags("raft-tls-", cert=cert, key=key, ca=ca))
    click.echo("A client:")
    _print_command(["mq topic list", *_flags(ca=ca)])
    own = [one for one in issued if one.cert != cert]
    if own:
        click.echo("With a certificate, for brokers with --broker-tls-clients required:")
    for one in own:
        _print_command(["mq topic list", *_flags(ca=ca, cert=one.cert, key=one.key)])


def _flags(prefix: str = "", **paths: str) -> list[str]:
    return [f"--{prefix}{part} {shlex.quote(path)}" for part, path in paths.items()]


def _print_command(parts: Sequence[str]) -> None:
    lines = _wrapped(parts, "    ", continued=" \\")
    click.echo("\n".join([lines[0][2:], *lines[1:]]))


def _wrapped(parts: Sequence[str], indent: str, continued: str = "") -> list[str]:
    """Parts in as few lines as fit the columns; one that is longer has a line of its own."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 1 + len(continued) <= _COLUMNS:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return [line + (continued if at < len(lines) - 1 else "") for at, line in enumerate(lines)]
