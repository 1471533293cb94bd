"""The `mq` program as an operator meets it: its commands, flags, help, errors and exit codes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

import mq.__main__
from mq import config
from mq.cli import main as cli
from mq.cli import ports
from mq.config import Config
from mq.errors import DiskFull, IllegalConfig, LogDamaged
from mq.sections import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No options from outside; and `mq server` configures logging, which others want unchanged."""
    for variable in [name for name in os.environ if name.startswith("MQ_")]:
        monkeypatch.delenv(variable)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


class Server:
    """Stands for `mq.server.run`."""

    def __init__(self, action: Callable[[], None] = lambda: None) -> None:
        self.started: list[Config] = []
        self._action = action

    def __call__(self, configuration: Config) -> None:
        self.started.append(configuration)
        self._action()


def run(
    *arguments: str, server: Server | None = None, environ: dict[str, str] | None = None
) -> Result:
    # A group of its own: registering with `main` would reach into other tests.
    group = cli._Group(
        "mq", commands=dict(cli.main.commands), context_settings=cli.main.context_settings
    )
    group.add_command(cli.server_command(server or Server()))
    runner = CliRunner(env=environ)
    return runner.invoke(group, arguments, prog_name="mq", terminal_width=80)


def raising(error: BaseException) -> Server:
    def action() -> None:
        raise error

    return Server(action)


# The port of the metrics.


@pytest.fixture
def taken_metrics_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The default one, which another broker has."""
    port = Config().metrics.port
    monkeypatch.setattr(ports, "is_free", lambda _host, asked: asked != port)
    return port


def test_a_second_broker_on_a_port_of_its_own_serves_its_metrics_elsewhere(
    taken_metrics_port: int,
) -> None:
    server = Server()
    result = run("server", "--port", "9000", server=server)
    assert (result.exit_code, server.started[0].metrics.port) == (0, 0)
    assert "the metrics port is taken" in result.output
    assert str(taken_metrics_port) in result.output


@pytest.mark.parametrize(
    "arguments", [(), ("--port", "9000", "--metrics-port", "5557"), ("--metrics-enabled", "no")]
)
def test_a_metrics_port_that_was_asked_for_stays(
    taken_metrics_port: int, arguments: tuple[str, ...]
) -> None:
    server = Server()
    result = run("server", *arguments, server=server)
    assert server.started[0].metrics.port == taken_metrics_port
    assert "the metrics port" not in result.output


# Configuration.


def test_config_prints_toml_that_server_reads_back(tmp_path: Path) -> None:
    printed = run("config", "--store-segment-bytes", "64MiB", "--data", "d\u00e4ta")
    assert printed.exit_code == 0
    file = tmp_path / "mq.toml"
    file.write_text(printed.stdout, encoding="utf-8")
    server = Server()
    assert run("server", "--config", str(file), server=server).exit_code == 0
    (effective,) = server.started
    assert effective.store.segment_bytes == 64 * MIB
    assert effective.node.data == "d\u00e4ta"
    assert config.to_toml(effective) == printed.stdout


def test_config_as_json_has_plain_numbers() -> None:
    printed = json.loads(run("config", "--json").stdout)
    assert printed["store"]["segment_bytes"] == 1 << 30
    assert printed["retention"]["check_ms"] == 10_000
    assert list(printed) == [
        "node",
        "broker",
        "auth",
        "transactions",
        "metrics",
        "console",
        "store",
        "raft",
        "retention",
        "log",
    ]


def test_config_shows_file_environment_and_flags_together(tmp_path: Path) -> None:
    file = tmp_path / "mq.toml"
    file.write_text("[node]\ncluster = 'f'\nbroker_set = 'f'\nnode = 'f'\n")
    environ = {"MQ_CONFIG": str(file), "MQ_NODE_BROKER_SET": "e", "MQ_NODE_ID": "e"}
    printed = json.loads(run("config", "--json", "--node-node", "g", environ=environ).stdout)
    assert printed["node"] == {"cluster": "f", "broker_set": "e", "id": "g", "data": "data"}


def test_server_starts_with_the_defaults() -> None:
    server = Server()
    result = run("server", server=server)
    assert (result.exit_code, result.output) == (0, "")
    assert server.started == [Config()]


@pytest.mark.parametrize("flag", ["--data", "--node-data"])
def test_server_takes_the_data_directory_by_both_flags(flag: str) -> None:
    server = Server()
    run("server", flag, "/var/mq", server=server)
    assert server.started[0].node.data == "/var/mq"


def test_server_takes_every_option_as_a_flag() -> None:
    for option in config.options():
        server = Server()
        result = run("server", option.flag, str(option.default), server=server)
        assert result.exit_code == 0, result.output
        assert server.started == [Config()]


def test_server_configures_logging_before_it_runs() -> None:
    levels: list[int] = []
    server = Server(lambda: levels.append(logging.getLogger().level))
    run("server", "--log-level", "error", server=server)
    assert levels == [logging.ERROR]


# Errors.


@pytest.mark.parametrize("command", ["server", "config"])
def test_an_illegal_flag_is_one_line_and_exit_code_2(command: str) -> None:
    server = Server()
    result = run(command, "--store-flush", "never", server=server)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: ILLEGAL_CONFIG: flag --store-flush: 'never' is not legal: use one of sync, async\n"
    )
    assert server.started == []


def test_an_unknown_variable_ends_the_command() -> None:
    result = run("config", environ={"MQ_STORE_FLUSHH": "sync"})
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: ILLEGAL_CONFIG: unknown variable MQ_STORE_FLUSHH, did you mean MQ_STORE_FLUSH?"
    )


def test_a_server_beside_a_kubernetes_service_called_mq_starts_and_says_what_it_ignores() -> None:
    server = Server()
    result = run("server", server=server, environ={"MQ_PORT": "tcp://10.96.0.17:8081"})
    assert result.exit_code == 0
    assert len(server.started) == 1
    assert "variables of a Kubernetes Service are ignored" in result.output
    assert "MQ_PORT" in result.output


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (DiskFull("no\nroom"), 1, "error: DISK_FULL: no room\n"),
        (IllegalConfig("what"), 2, "error: ILLEGAL_CONFIG: what\n"),
        (
            LogDamaged("a.log", 7, "crc differs", "Restore it."),
            1,
            "error: LOG_DAMAGED: a.log is damaged at byte 7: crc differs. Restore it.\n",
        ),
    ],
)
def test_an_error_of_ours_is_one_line_with_its_code(
    error: Exception, exit_code: int, line: str
) -> None:
    result = run("server", server=raising(error))
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", line)


def test_an_error_that_is_not_ours_is_not_hidden() -> None:
    result = run("server", server=raising(ZeroDivisionError()))
    assert isinstance(result.exception, ZeroDivisionError)


def test_ctrl_c_prints_nothing() -> None:
    result = run("server", server=raising(KeyboardInterrupt()))
    assert (result.exit_code, result.output) == (130, "")


def test_an_unknown_flag_is_a_usage_error() -> None:
    result = run("server", "--store-flus", "sync")
    assert result.exit_code == 2
    assert "--store-flush" in result.stderr


# Help.


@pytest.mark.parametrize("command", ["server", "config"])
def test_help_shows_every_option_with_its_description_and_default(command: str) -> None:
    text = run(command, "--help").stdout
    words = " ".join(text.split())
    for option in config.options():
        assert f"{', '.join(option.flags)} {option.metavar}" in text
        assert option.description in words
        assert f"[default: {option.text(option.default)}]" in text
    for section in Config.__struct_fields__:
        assert f"Options [{section}]:\n" in text
    assert "--config FILE" in text


@pytest.mark.parametrize("arguments", [("--help",), ("server", "--help"), ("config", "-h")])
def test_help_fits_80_columns_of_ascii(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stdout.isascii()
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout
    assert "  config  Print the effective configuration.\n" in text
    assert "  server  Run a node until it is told to stop.\n" in text


# The program.


def test_the_program_runs_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    module = ModuleType("mq.server")
    module.run = server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mq.server", module)
    monkeypatch.setattr(cli.main, "commands", dict(cli.main.commands))
    monkeypatch.setattr(sys, "argv", ["mq", "server", "--data", "here"])
    with pytest.raises(SystemExit) as ended:
        mq.__main__.main()
    assert ended.value.code == 0
    assert server.started[0].node.data == "here"


def test_a_command_can_be_registered_with_main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.main, "commands", dict(cli.main.commands))

    @click.command()
    def dump() -> None:
        raise DiskFull("no room")

    cli.main.add_command(dump)
    result = CliRunner().invoke(cli.main, ["dump"])
    assert (result.exit_code, result.stderr) == (1, "error: DISK_FULL: no room\n")


def test_python_m_mq_prints_the_version() -> None:
    result = program("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("mq 0.")
    assert result.stderr == ""


def test_help_starts_without_the_broker_and_structlog() -> None:
    script = (
        "import sys, mq.__main__\n"
        "loaded = {'mq.server', 'mq.store', 'numpy', 'structlog'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(loaded)) or 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mq", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
