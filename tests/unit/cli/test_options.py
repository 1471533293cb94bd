"""Options that the commands share: addresses, places in time, errors."""

from __future__ import annotations

import socket
import sys
import time
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from mq.cli import connection
from mq.cli import main as cli
from mq.cli.options import Brokers, PlaceInTime, confirm, filter_of, with_brokers
from mq.client.messages import Sql
from mq.config import BrokerConfig
from mq.errors import Unreachable

NOW_MS = 1_783_850_000_123  # 2026-07-12 09:53:20.123 UTC


@click.command()
@with_brokers()
def show(brokers: Brokers) -> None:
    click.echo(repr((brokers.servers, brokers.timeout_s, brokers.as_json)))


def shown(*arguments: str, environ: dict[str, str | None] | None = None) -> str:
    runner = CliRunner(env={"MQ_SERVER": None, **(environ or {})})
    result = runner.invoke(show, arguments)
    return result.stdout.strip() if result.exit_code == 0 else f"{result.exit_code} {result.stderr}"


# Which brokers.


def test_without_options_it_is_the_broker_that_a_plain_server_starts() -> None:
    assert shown() == "('127.0.0.1:8081', 5.0, False)"


def test_a_flag_wins_over_the_variable() -> None:
    environ: dict[str, str | None] = {"MQ_SERVER": "a:1"}
    assert shown(environ=environ) == "('a:1', 5.0, False)"
    flags = ("--server", "b:2, [::1]:3", "--timeout", "0.5", "--json")
    assert shown(*flags, environ=environ) == "('b:2,[::1]:3', 0.5, True)"


@pytest.mark.parametrize("server", ["localhost", "localhost:", ":8081", "a:99999", "a:b", ",", ""])
def test_an_address_without_host_and_port_is_a_usage_error(server: str) -> None:
    assert shown("--server", server).startswith("2 ")


def test_a_variable_with_a_slip_in_its_name_is_refused_by_client_commands_too() -> None:
    group = cli._Group("mq", commands={"show": show})
    result = CliRunner(env={"MQ_SEVER": "far:1"}).invoke(group, ["show"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "error: ILLEGAL_CONFIG: unknown variable MQ_SEVER, did you mean MQ_SERVER?"
    )
    assert shown("--help", environ={"MQ_SEVER": "far:1"}).startswith("Usage:")


def test_options_of_a_server_and_variables_of_kubernetes_do_not_disturb_client_commands() -> None:
    environ = {"MQ_STORE_FLUSH": "async", "MQ_SERVICE_HOST": "10.0.0.1", "MQ_SERVER": "a:1"}
    assert shown(environ=dict(environ)) == "('a:1', 5.0, False)"


def refuse(address: tuple[str, int], timeout: float) -> None:
    errors: dict[str, OSError] = {
        "refused": ConnectionRefusedError(111, "Connection refused"),
        "nowhere": socket.gaierror(-2, "Name or service not known"),
        "::1": TimeoutError("timed out"),
    }
    assert timeout > 0
    raise errors[address[0]]


def test_without_an_answer_the_error_has_every_address_and_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Unreachable) as caught:
        Brokers("refused:1,nowhere:2,[::1]:3", 5.0, as_json=False).check()
    text = str(caught.value)
    for part in ("refused:1 (connection refused)", "nowhere:2 (no such host)"):
        assert part in text
    assert "[::1]:3 (no connection within 2 s)" in text
    assert "`mq server`" in text
    assert "--server" in text


def test_one_address_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if address != ("here", 2):
            refuse(("refused", 1), timeout)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    Brokers("refused:1,here:2", 5.0, as_json=False).check()


def test_a_command_without_an_answer_ends_with_one_line_and_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_: refuse(("refused", 1), 1.0))

    @click.command()
    @with_brokers()
    def ask(brokers: Brokers) -> None:
        with brokers.admin():
            raise AssertionError

    result = CliRunner().invoke(cli._Group("mq", commands={"ask": ask}), ["ask"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: UNREACHABLE: no broker answers at 127.0.0.1:8081 (")
    assert result.stderr.count("\n") == 1


# Places in time.


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (str(NOW_MS), NOW_MS),
        ("0", 0),
        ("2026-07-12T09:53:20.123", NOW_MS),
        ("2026-07-12 09:53:20.123", NOW_MS),
        ("2026-07-12T11:53:20.123+02:00", NOW_MS),
        ("2026-07-12T09:53:20.123Z", NOW_MS),
        ("2026-07-12", NOW_MS - (9 * 3600 + 53 * 60 + 20) * 1000 - 123),
        ("-10m", NOW_MS - 600_000),
        ("-2h", NOW_MS - 7_200_000),
        ("-1d", NOW_MS - 86_400_000),
        ("-30s", NOW_MS - 30_000),
        ("-999999999d", 0),
        ("1960-01-01", 0),
    ],
)
def test_a_place_in_time_is_read(text: str, place: object) -> None:
    assert PlaceInTime(lambda: NOW_MS).convert(text, None, None) == place


def test_a_time_without_a_zone_is_in_utc_wherever_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert PlaceInTime().convert("2026-07-12T09:53:20.123", None, None) == NOW_MS
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["yesterday", "", "10m", "-10", "-10y", "2026-13-01", "first"])
def test_an_illegal_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="use earliest, latest, 2026-"):
        PlaceInTime(lambda: NOW_MS).convert(text, None, None)


# Filters and questions.


def test_tags_or_sql_but_not_both() -> None:
    assert filter_of(None, None) is None
    assert filter_of("a || b", None) == "a || b"
    assert filter_of(None, "x > 1") == Sql("x > 1")
    with pytest.raises(click.UsageError):
        filter_of("a", "x > 1")


def test_yes_skips_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(click, "confirm", ask)
    confirm("Really?", is_sure=True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(click.Abort):
        confirm("Really?", is_sure=False)


def test_the_default_is_where_a_plain_server_listens() -> None:
    assert f"{BrokerConfig().host}:{BrokerConfig().port}" == connection.DEFAULT_SERVER
