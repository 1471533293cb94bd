"""How a command connects: a flag beats a variable, a variable beats the profile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mq.cli import commands as program
from mq.cli import profiles
from mq.cli.main import Later
from mq.cli.options import Brokers, with_brokers
from mq.config import CLIENT_VARIABLES

SECRET = "mqk_abcdefghijkl_" + "s" * 43


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("MQ_SERVER", "MQ_PROFILE", *CLIENT_VARIABLES.values()):
        monkeypatch.delenv(variable, raising=False)


def chosen(*arguments: str, **environ: str) -> tuple[str, dict[str, Any]]:
    found: list[Brokers] = []

    @click.command()
    @with_brokers()
    def show(brokers: Brokers) -> None:
        found.append(brokers)
        click.echo(repr(brokers))

    result = CliRunner(env=environ).invoke(show, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "sss" not in result.output
    return found[0].servers, dict(found[0].security)


def test_without_anything_it_is_the_broker_of_this_machine() -> None:
    assert chosen() == ("127.0.0.1:8081", {})


def test_each_flag_beats_its_variable_and_that_the_profile(tmp_path: Path) -> None:
    names = ("ca", "namespace", "api_key_file")
    profiles.save("p", server="p:1", ca="/p", namespace="p", api_key_file="/p")
    stored = {name: "/p" if name != "namespace" else "p" for name in names}
    environ = {CLIENT_VARIABLES[name]: "e" for name in names}
    assert chosen("--profile", "p") == ("p:1", stored)
    assert chosen(MQ_PROFILE="p", MQ_SERVER="e:1", **environ) == ("e:1", dict.fromkeys(names, "e"))
    flags = itertools.chain(*((f"--{name.replace('_', '-')}", "f") for name in names))
    given = chosen(*flags, "--server", "f:1", MQ_PROFILE="p", MQ_SERVER="e:1", **environ)
    assert given == ("f:1", dict.fromkeys(names, "f"))
    assert tmp_path in profiles.path().parents


def test_a_key_comes_from_one_source_however_it_is_given() -> None:
    profiles.save("p", api_key=SECRET, cert="/c", key="/k")
    assert chosen("--profile", "p")[1] == {"api_key": SECRET, "cert": "/c", "key": "/k"}
    given = chosen("--profile", "p", "--api-key-file", "f", "--cert", "d", "--key", "l")[1]
    assert given == {"api_key_file": "f", "cert": "d", "key": "l"}
    assert chosen(MQ_PROFILE="p", MQ_API_KEY="mqk_e")[1]["api_key"] == "mqk_e"
    assert chosen("--cert-key", "k", "--cert", "c")[1] == {"cert": "c", "key": "k"}


def test_tls_is_switched_on_and_off() -> None:
    profiles.save("p", tls=True, ca="/ca", cert="/c", key="/k", namespace="n")
    assert chosen("--tls")[1] == {"tls": True}
    assert chosen(MQ_TLS="yes")[1] == {"tls": True}
    assert chosen("--no-tls", "--profile", "p")[1] == {"namespace": "n"}
    assert chosen(MQ_TLS="0", MQ_PROFILE="p")[1] == {"namespace": "n"}
    with pytest.raises(Exception, match="MQ_TLS is 'perhaps': use yes or no"):
        chosen(MQ_TLS="perhaps")


def test_the_key_of_the_default_profile_is_shown_to_its_own_brokers_alone() -> None:
    profiles.save("p", server="p:1", api_key=SECRET)
    profiles.set_default("p")
    assert chosen() == ("p:1", {"api_key": SECRET})
    assert chosen("--server", "p:1") == ("p:1", {"api_key": SECRET})
    assert chosen("--server", "other:1") == ("other:1", {})
    assert chosen(MQ_SERVER="other:1") == ("other:1", {})
    named = chosen("--server", "other:1", "--profile", "p")
    assert named == ("other:1", {"api_key": SECRET}), "as it was asked for"


def test_a_secret_is_no_flag() -> None:
    @click.command()
    @with_brokers()
    def show(brokers: Brokers) -> None: ...

    result = CliRunner().invoke(show, ["--api-key", SECRET])
    assert result.exit_code == 2


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(group, Later):
        group = group.load()
    if not isinstance(group, click.Group):
        yield " ".join(path), group
        return
    for name, one in group.commands.items():
        yield from commands(one, (*path, name))


def all_commands() -> dict[str, click.Command]:
    return {
        name: one
        for later in program.COMMANDS
        for name, one in commands(later, (later.name or "",))
    }


def test_every_command_that_asks_brokers_takes_all_flags_of_a_connection_once() -> None:
    found = {name: one for name, one in all_commands().items() if "--server" in flags_of(one)}
    assert len(found) > 30
    for name, one in found.items():
        flags = flags_of(one)
        assert len(flags) == len(set(flags)), name
        wanted = {"--tls", "--ca", "--cert", "--cert-key", "--api-key-file", "--namespace"}
        assert wanted | {"--profile"} <= set(flags), name


def flags_of(command: click.Command) -> list[str]:
    return [flag for one in command.params for flag in one.opts]
