"""The `mq` program: puts the command line and the server together; `python -m mq` is the same.

Nothing is imported here but what takes no time, so that Ctrl-C in the first moments, too, ends the
program without a traceback.
"""

from __future__ import annotations

import signal
import sys

# As that of typing, whose import alone would take a tenth of a start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mq.config import Config


def main() -> None:
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        # Nothing has begun that would have to be ended in order.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # As Ctrl-C, also in a background job, which ignores SIGINT: what a command has printed is
    # committed, and the processes that it has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Imports take a moment, in which Ctrl-C has to be silent already, and may lack an extra.
    try:
        from mq.cli import main as cli  # noqa: PLC0415
        from mq.cli.commands import COMMANDS  # noqa: PLC0415
    except ModuleNotFoundError as error:
        from mq import extras  # noqa: PLC0415

        sys.exit(f"error: {extras.explained('the command line', error)}")
    others = list(cli.main.commands.values())
    cli.main.commands.clear()
    for command in (cli.server_command(_run_server), *COMMANDS, *others):
        cli.main.add_command(command)
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main(prog_name="mq")


def _run_server(config: Config) -> None:
    # Here, so that `mq --help` and the small commands do not load the broker.
    from mq.server import run  # noqa: PLC0415

    run(config)


if __name__ == "__main__":
    main()
