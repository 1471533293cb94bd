"""`mq console`: the web console, a client of the brokers like any other command.

It takes no API key, not even from the profile: users sign in with their own.
"""

from __future__ import annotations

import logging
import sys

import click

from mq.cli import output
from mq.cli.options import Brokers, with_brokers

_KEYS = ("api_key", "api_key_file")


@click.command(short_help="Serve the web console.")
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Listen here.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="And on this port; 0: any that is free.",
)
@click.option(
    "--public-url",
    metavar="URL",
    default="",
    help="As browsers see it behind a proxy: https://mq.example.com",
)
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="Serve other machines although brokers ask nobody who they are.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when stdin does.")
@with_brokers("Seconds to wait for a broker.")
def console(
    brokers: Brokers, host: str, port: int, public_url: str, *, is_open: bool, with_parent: bool
) -> None:
    """Serve the web console, until Ctrl-C.

    It shows the cluster of --server and acts as the user who signs in; brokers
    without auth.mode ask for no login. It needs no broker to start.
    """
    from mq.console.serving import run  # noqa: PLC0415 # an extra, and slow to load
    from mq.console.settings import ConsoleSettings  # noqa: PLC0415

    security = {name: value for name, value in brokers.security.items() if name not in _KEYS}
    settings = ConsoleSettings(
        brokers.servers,
        security,
        host,
        port,
        is_open=is_open,
        public_url=public_url.rstrip("/"),
        timeout_s=brokers.timeout_s,
    )
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )

    def started(address: str) -> None:
        if brokers.as_json:
            output.write_json({"address": address, "servers": brokers.servers})
            sys.stdout.flush()
        else:
            click.echo(f"Console of {brokers.servers}: {address}")

    run(settings, started=started, ends_with_stdin=with_parent)
