"""The `mq` command: the group, `mq config`, and how errors end a command.

The flags of a configuration follow from `mq.config.options()`; values go to `mq.config.load` as
text, so that a flag's error reads like that of a file or a variable. This module does not know the
server: `mq.__main__` hands in what runs it, and registers commands with `main.add_command`, those
that are to be imported only when they are used as `Later`.
"""

from __future__ import annotations

import importlib
import itertools
import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mq import config as configuration
from mq import extras
from mq.errors import IllegalConfig, MqError, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mq.config import Config, Option

_HARD_SPACE = "\N{NO-BREAK SPACE}"  # keeps a default on one line until the help is wrapped
_NO_IDENTITY = "Say who you are: mq login, or a key by --api-key-file or MQ_API_KEY_FILE."
_INTERRUPTED = 130  # what a shell reports for a process that SIGINT ended


class Later(click.Command):
    """Stands for a command in the list of all, and becomes it when it is used."""

    def __init__(self, name: str, home: str, short_help: str) -> None:
        """`home` is where it lives: "mq.cli.topics:topic"."""
        super().__init__(name, short_help=short_help)
        self._home = home

    def load(self) -> click.Command:
        module, _, attribute = self._home.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - a slip in our own list
        return command


class _Group(click.Group):
    """Ends an MqError and a missing extra as a line on stderr, and Ctrl-C silently."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """As they were registered: those that a newcomer needs come first."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Later) else command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MqError as error:
            text = " ".join(str(error).split())
            click.echo(f"error: {error.code.value}: {text}", err=True)
            if isinstance(error, Unauthenticated):
                click.echo(_NO_IDENTITY, err=True)
            raise click.exceptions.Exit(2 if isinstance(error, IllegalConfig) else 1) from error
        except ModuleNotFoundError as error:
            text = extras.explained(f"mq {ctx.invoked_subcommand}", error)
            click.echo(f"error: {text}", err=True)
            raise click.exceptions.Exit(2) from error
        except KeyboardInterrupt as interrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from interrupt
        except RuntimeError as error:
            # What Python 3.11 makes of an interrupt in the body of a class, as in an import.
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            raise click.exceptions.Exit(_INTERRUPTED) from error


class _ConfigOption(click.Option):
    """A flag that follows from a configuration option. Its default is the configuration's."""

    def __init__(self, option: Option) -> None:
        super().__init__(
            [*option.flags, _parameter(option)],
            metavar=option.metavar,
            help=f"{option.description}  [default:{_HARD_SPACE}{option.text(option.default)}]",
        )
        self.section = option.section


class _ConfigCommand(click.Command):
    """A command that takes every configuration flag; its help lists them by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        def section(parameter: click.Parameter) -> str:
            return parameter.section if isinstance(parameter, _ConfigOption) else ""

        # Stable: those that are no configuration come first, sections stay as declared.
        parameters = sorted(self.get_params(ctx), key=lambda each: section(each) != "")
        for title, members in itertools.groupby(parameters, key=section):
            records = [each.get_help_record(ctx) for each in members]
            with formatter.section(f"Options [{title}]" if title else "Options"):
                formatter.write_dl([record for record in records if record], col_max=34)
        formatter.buffer[:] = [text.replace(_HARD_SPACE, " ") for text in formatter.buffer]


_FIRST_STEPS = """\b
First steps, in two terminals:
  mq server                        a broker on ./data
  mq produce greetings hello       one message
  mq consume greetings --follow    prints it, and what comes after it
"""


@click.group(
    cls=_Group, epilog=_FIRST_STEPS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="mq", message="mq %(version)s")
def main() -> None:
    """A Raft-replicated message broker: one CommitLog, light queues, gRPC."""


def server_command(run: Callable[[Config], None]) -> click.Command:
    """The `mq server` command, which loads the configuration, starts logging and calls `run`."""

    def server(config: str | None, **flags: str | None) -> None:
        effective = _load(config, flags)
        given = configuration.given(config, os.environ, _named(flags))
        # Here, so that commands that log nothing do not wait for structlog.
        from mq import logging  # noqa: PLC0415

        logging.configure(effective.log.level, effective.log.format)
        if ignored := configuration.of_kubernetes(os.environ):
            logging.get_logger(__name__).info(
                "variables of a Kubernetes Service are ignored", variables=", ".join(ignored)
            )
        run(_beside_another(effective, given))

    return _ConfigCommand(
        "server",
        callback=server,
        params=_config_parameters(),
        short_help="Run a node until it is told to stop.",
        help="Run a node until it is told to stop (SIGINT or SIGTERM).\n\n" + _SOURCES,
    )


def _config_command() -> click.Command:
    def config(*, config: str | None, as_json: bool, **flags: str | None) -> None:
        effective = _load(config, flags)
        if as_json:
            text = msgspec.json.format(msgspec.json.encode(effective), indent=2).decode()
            click.echo(text)
        else:
            click.echo(configuration.to_toml(effective), nl=False)

    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON: plain numbers.")
    return _ConfigCommand(
        "config",
        callback=config,
        params=[as_json, *_config_parameters()],
        short_help="Print the effective configuration.",
        help="Print the effective configuration as a commented TOML file, which\n"
        "`mq server --config` reads back.\n\n" + _SOURCES,
    )


_SOURCES = (
    "Each option is also a key of the configuration file (--store-flush is `flush` under "
    "[store]) and a variable (MQ_STORE_FLUSH). A flag wins over a variable, a variable over "
    "the file. SIZE is in bytes or like 64MiB; DURATION in milliseconds or like 10s."
)


def _config_parameters() -> list[click.Parameter]:
    file = click.Option(
        ["--config"],
        metavar="FILE",
        help=f"TOML file to read; {configuration.FILE_VARIABLE} names it too.",
    )
    return [file, *(_ConfigOption(option) for option in configuration.options())]


def _parameter(option: Option) -> str:
    return f"{option.section}_{option.key}"


def _load(file: str | None, flags: dict[str, str | None]) -> Config:
    return configuration.load(file, os.environ, _named(flags))


def _named(flags: dict[str, str | None]) -> dict[str, str | None]:
    return {option.name: flags[_parameter(option)] for option in configuration.options()}


def _beside_another(config: Config, given: Collection[str]) -> Config:
    """A broker that was given a port of its own, beside one that has the default port of the
    metrics: any free port will do for them, unless one was asked for.
    """
    metrics = config.metrics
    if metrics.enabled == "no" or "broker.port" not in given or "metrics.port" in given:
        return config
    # Here, as in `server_command`.
    from mq import logging  # noqa: PLC0415
    from mq.cli.ports import is_free  # noqa: PLC0415

    if is_free(metrics.host, metrics.port):
        return config
    logging.get_logger(__name__).warning(
        "the metrics port is taken: another free one is used, which --metrics-port can name",
        taken=metrics.port,
    )
    return msgspec.structs.replace(config, metrics=msgspec.structs.replace(metrics, port=0))


main.add_command(_config_command())
