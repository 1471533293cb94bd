"""The `mq` program: puts the command line and the server together; `python -m mq` is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq.admin import cli
from mq.admin.dump import dump

if TYPE_CHECKING:
    from mq.config import Config


def main() -> None:
    # Every command that lives outside of mq.admin.cli is registered here.
    cli.main.add_command(cli.server_command(_run_server))
    cli.main.add_command(dump)
    cli.main(prog_name="mq")


def _run_server(config: Config) -> None:
    # Here, so that `mq --help` and the small commands do not load the broker.
    from mq.server import run  # noqa: PLC0415

    run(config)


if __name__ == "__main__":
    main()
