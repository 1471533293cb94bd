"""The list of commands of the `mq` program: complete, quick to show, and all of one kind."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from mq.cli.commands import COMMANDS
from mq.cli.main import Later, main

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for later in COMMANDS:
        yield from with_children(str(later.name), later)


def with_children(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    command = command.load() if isinstance(command, Later) else command
    yield name, command
    if isinstance(command, click.Group):
        for child, under in command.commands.items():
            yield from with_children(f"{name} {child}", under)


def test_every_command_is_where_the_list_says_and_is_called_so() -> None:
    for later in COMMANDS:
        command = later.load()
        assert command.name == later.name
        assert command.get_short_help_str(60) == later.short_help


@pytest.mark.parametrize(("name", "command"), list(all_commands()), ids=lambda one: str(one)[:30])
def test_every_help_fits_80_columns_of_ascii(name: str, command: click.Command) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(command, ["--help"], prog_name=f"mq {name}")
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_every_command_can_print_json() -> None:
    missing = [
        name
        for name, command in all_commands()
        if not isinstance(command, click.Group)
        and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert missing == ["completion"]  # a script for a shell


def test_every_list_takes_a_count() -> None:
    missing = [
        name
        for name, command in all_commands()
        if name.endswith(" list") and not any("--count" in one.opts for one in command.params)
    ]
    assert missing == []


def test_help_of_a_command_does_not_load_grpc() -> None:
    # Those of an extra start Java, against which it is nothing.
    script = (
        "import sys, mq.cli.commands as commands\n"
        "for one in commands.COMMANDS: type(one) is commands.Later and one.load()\n"
        "sys.exit(', '.join({'grpc', 'numpy'} & set(sys.modules)) or 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr


def test_the_help_of_the_program_loads_no_command() -> None:
    script = (
        "import contextlib, sys, mq.__main__\n"
        "sys.argv = ['mq', '--help']\n"
        "with contextlib.suppress(SystemExit): mq.__main__.main()\n"
        "loaded = {name for name in sys.modules if name.startswith(('mq.cli.', 'rich'))}\n"
        "sys.exit(', '.join(sorted(loaded - {'mq.cli.main', 'mq.cli.commands'})))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.stderr.strip() == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    places = [result.stdout.index(f"\n  {later.name} ") for later in COMMANDS]
    assert places == sorted(places)


def test_a_name_that_is_no_command_is_a_usage_error() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mq", "produc"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 2
    assert "No such command 'produc'" in result.stderr


class _Interrupts:
    def __set_name__(self, _owner: type, _name: str) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_in_the_body_of_a_class_is_an_interrupt_and_other_errors_are_not() -> None:
    def define() -> None:
        type("Interrupted", (), {"field": _Interrupts()})

    def fail() -> None:
        raise RuntimeError("ours")

    group = type(main)("mq", commands=[click.command("a")(define), click.command("b")(fail)])
    result = CliRunner().invoke(group, ["a"])
    assert (result.exit_code, result.output) == (130, "")
    with pytest.raises(RuntimeError, match="ours"):
        CliRunner().invoke(group, ["b"], catch_exceptions=False)
