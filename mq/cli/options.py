"""Options that the commands share: which brokers, how long to wait, the form of the output; places
in time; filters.

A connection is tried before the client library is loaded, so that a wrong address is
told at once and in plain words.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from mq.cli.connection import DEFAULT_SERVER, choose, take_flags, with_connection
from mq.config import SERVER_VARIABLE, check_variables
from mq.errors import Unreachable

if TYPE_CHECKING:
    from mq.client import Admin
    from mq.client.messages import Sql

TIMEOUT_S = 5.0
_CONNECT_S = 2.0

_AGO = re.compile(r"-([0-9]{1,9})([smhd])")
_AGO_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

SECONDS = click.FloatRange(0, min_open=True)

Place = Literal["earliest", "latest"] | int
Command = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Brokers:
    """The options about brokers."""

    servers: str
    timeout_s: float
    as_json: bool
    # The arguments of clients about it: `Producer(brokers.servers, **brokers.security)`.
    security: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    # Broker sets that did not answer: what was shown is without what they have.
    missing: set[str] = dataclasses.field(default_factory=set)

    def note_missing(self, answer: object) -> None:
        """Sets that did not answer are named at the end of the command, which then fails although
        it shows the rest.
        """
        self.missing.update(getattr(answer, "missing_sets", ()))

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        self.check()
        # Here, so that help and errors of usage do not wait for gRPC.
        from mq.client import Admin  # noqa: PLC0415

        with Admin(self.servers, timeout_s=self.timeout_s, **self.security) as admin:
            yield admin

    def check(self) -> None:
        """Raises Unreachable unless something listens at one of the addresses."""
        troubles = []
        for server in self.servers.split(","):
            trouble = trouble_at(server)
            if not trouble:
                return
            troubles.append(f"{server} ({trouble})")
        raise Unreachable(
            f"no broker answers at {', '.join(troubles)}. Start one with `mq server`, "
            f"or name another with --server HOST:PORT or {SERVER_VARIABLE}"
        )


def trouble_at(server: str) -> str:
    """The reason why no connection can be made; empty if something listens."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S):
            return ""
    except socket.gaierror:
        return "no such host"
    except TimeoutError:
        return f"no connection within {_CONNECT_S:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def with_brokers(
    timeout_help: str = "Seconds to wait for an answer.",
    *json_flags: str,
    taken: Collection[str] = (),
) -> Callable[[Command], Command]:
    """Adds --server, the flags of `with_connection`, --timeout and --json; the command gets them as
    Brokers, its first argument.

    Without a help, --timeout is left to the command. `taken`: flags of a connection that the
    command has for something else.
    """
    with_json = click.option(
        "--json", *json_flags, "as_json", is_flag=True, help="Print JSON, for jq."
    )
    with_timeout = click.option(
        "--timeout",
        "timeout_s",
        metavar="SECONDS",
        type=SECONDS,
        default=TIMEOUT_S,
        show_default=True,
        help=timeout_help,
    )
    with_server = click.option(
        "--server",
        metavar="HOST:PORT,...",
        callback=lambda _context, _option, value: value if value is None else _servers(value),
        help=f"One or more brokers; also {SERVER_VARIABLE}.  [default: {DEFAULT_SERVER}]",
    )

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def called(
            *args: Any,
            server: str | None,
            as_json: bool,
            timeout_s: float = TIMEOUT_S,
            **others: Any,
        ) -> Any:
            check_variables(os.environ)
            chosen = choose({"server": server, **take_flags(others)}, os.environ)
            brokers = Brokers(_servers(chosen.servers), timeout_s, as_json, chosen.security)
            result = command(brokers, *args, **others)
            _tell_missing(brokers.missing)
            return result

        made: Command = with_json(called)
        made = with_connection(taken)(with_timeout(made) if timeout_help else made)
        return with_server(made)

    return add


def _tell_missing(missing: Collection[str]) -> None:
    if missing:
        sets = ", ".join(sorted(missing))
        noun = "broker set" if len(missing) == 1 else "broker sets"
        text = f"{noun} {sets} did not answer: what is there is not shown"
        click.echo(f"error: {Unreachable.code.value}: {text}", err=True)
        raise click.exceptions.Exit(1)


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    for server in servers:
        host, _, port = server.rpartition(":")
        is_url = host.startswith(("http:", "https:"))
        if not host or is_url or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
            raise click.BadParameter(f"{server!r} is not like {DEFAULT_SERVER}")
    if not servers:
        raise click.BadParameter("it is empty: give one or more of HOST:PORT")
    return ",".join(servers)


class PlaceInTime(click.ParamType[Place]):
    """earliest, latest, or a time; the result is as the client library wants it.

    A time without a zone is in UTC, as all times that the commands print.
    """

    name = "place"

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        if value in ("earliest", "latest") or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        if re.fullmatch(r"[0-9]{1,15}", value):
            return int(value)
        if match := _AGO.fullmatch(value):
            return max(0, self._now_ms() - int(match[1]) * _AGO_UNITS_MS[match[2]])
        try:
            moment = dt.datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no place in time: use earliest, latest, 2026-07-12T09:53:20 (UTC, "
                "or with a zone such as +02:00), milliseconds since 1970, or -10m (s, m, h, d ago)",
                param,
                ctx,
            )
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return max(0, round(moment.timestamp() * 1000))


class Moment(PlaceInTime):
    """A time, also one to come; milliseconds since 1970."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = super().convert(value, param, ctx)
        if isinstance(found, str):
            self.fail(f"{value!r} is no time such as 2026-07-12T09:53:20", param, ctx)
        return found


class Duration(click.ParamType[float]):
    """Such as 500ms, 30s, 5m, 2h, 1d; seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no duration: use 500ms, 30s, 5m, 2h or 1d", param, ctx)
        return float(match[1]) * _DURATION_UNITS_S[match[2]]


PLACE_METAVAR = "earliest|latest|TIME"
TIME_HELP = "TIME is like 2026-07-12T09:53:20 (UTC), in milliseconds, or -10m ago."


def filter_of(tags: str | None, sql: str | None) -> str | Sql | None:
    """The filter of --tags or --sql, as the client library wants it."""
    if tags is not None and sql is not None:
        raise click.UsageError("--tags and --sql are two filters: give one")
    if sql is None:
        return tags
    from mq.client.messages import Sql  # noqa: PLC0415

    return Sql(sql)


def with_filters(command: Command) -> Command:
    with_sql = click.option(
        "--sql", metavar="CONDITION", help="Only messages whose properties make it true (SQL92)."
    )
    with_tags = click.option(
        "--tags", metavar="'A || B'", help="Only messages with one of these tags."
    )
    return with_tags(with_sql(command))


def confirm(question: str, *, is_sure: bool) -> None:
    """Returns if the answer is yes, or at once with --yes; ends the command otherwise."""
    if is_sure:
        return
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo("\nerror: not confirmed, nothing was done: give --yes", err=True)
        raise click.exceptions.Exit(1) from None


def with_set(text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Adds --set, which the command gets as `broker_set`: empty when it was not given."""
    # Also None would be a default.
    default: dict[str, Any] = {"required": True} if required else {"default": ""}
    return click.option("--set", "broker_set", metavar="SET", help=text, **default)


# Of a list that is read as a whole; the command gets None when it was not given.
with_count = click.option(
    "--count", metavar="N", type=click.IntRange(1), help="Show so many at most, the first ones."
)

with_yes = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
