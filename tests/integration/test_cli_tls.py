"""The command line by TLS: flags, variables and profiles, and what it says without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Files

SECRET = "mqk_abcdefghijkl_" + "s" * 43


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Authority(tmp_path_factory.mktemp("authority")).files()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[BrokerProcess]:
    flags = ["--broker-tls", "required", *(x for one in files.flags("broker").items() for x in one)]
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *flags) as process:
        yield process


def mq(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mq", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environ},
    )


def done(*arguments: str, **environ: str) -> str:
    result = mq(*arguments, **environ)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_commands_of_every_kind_connect_by_tls(broker: BrokerProcess, files: Files) -> None:
    environ = {"MQ_SERVER": broker.address, "MQ_CA": files.ca}
    done("topic", "create", "orders", "--queues", "2", **environ)
    done("produce", "orders", "first", "--key", "k", **environ)
    assert "first" in done("consume", "orders", **environ)
    assert "first" in done(
        "consume", "orders", "--group", "g", "--from", "earliest", "--count", "1", **environ
    )
    assert "first" in done(
        "receive", "orders", "--group", "r", "--from", "earliest", "--count", "1", **environ
    )
    assert "orders" in done("topic", "list", **environ)
    assert "first" in done("message", "query", "--topic", "orders", "--key", "k", **environ)
    assert "serving" in done("health", **environ)
    latency = done("bench", "latency", "--messages", "20", "--json", **environ)
    assert json.loads(latency)
    produced = done("bench", "produce", "--messages", "2000", "--producers", "2", **environ)
    assert "2,000" in produced or "2000" in produced


def test_flags_of_a_connection_come_with_each_command(broker: BrokerProcess, files: Files) -> None:
    flags = ("--server", broker.address, "--tls", "--ca", files.ca)
    own = ("--cert", files.cert, "--cert-key", files.key)
    done("produce", "flagged", "x", "--key", "of-the-message", *flags, *own)
    assert "of-the-message" in done("consume", "flagged", "--jsonl", *flags)
    assert json.loads(done("health", "--json", *flags, "--cert", files.cert, "--key", files.key))
    told = mq("topic", "list", *flags, "--cert", files.cert)
    assert told.returncode == 2
    assert "cert is given without key: give both cert and key" in told.stderr


def test_a_profile_says_how_to_connect(broker: BrokerProcess, files: Files, tmp_path: Path) -> None:
    profiles = tmp_path / "mq" / "profiles.toml"
    profiles.parent.mkdir()
    profiles.write_text(
        f'default = "here"\n[here]\nserver = "{broker.address}"\nca = "{files.ca}"\n'
        f'api_key = "{SECRET}"\n'
    )
    profiles.chmod(0o600)
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    done("produce", "profiled", "x", **environ)
    assert "x" in done("consume", "profiled", "--profile", "here", **environ)
    profiles.chmod(0o644)
    told = mq("topic", "list", **environ)
    assert told.returncode == 2
    assert told.stderr.rstrip().endswith(f"chmod 600 {profiles}")
    assert "sss" not in told.stderr + told.stdout


@pytest.mark.parametrize(
    "command", [["topic", "list"], ["produce", "t", "x"], ["consume", "t"], ["bench", "latency"]]
)
def test_without_tls_a_command_says_at_once_what_is_missing(
    broker: BrokerProcess, command: list[str]
) -> None:
    told = mq(*command, "--server", broker.address)
    assert told.returncode == 1
    assert "speaks TLS: use tls=True, or --tls" in told.stderr
    assert told.stderr.count("\n") == 1


def test_a_command_without_an_identity_says_so_without_its_key(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--auth-mode", "required") as locked:
        for arguments in (["topic", "list"], ["produce", "t", "x"], ["consume", "t"]):
            told = mq(*arguments, "--server", locked.address, MQ_API_KEY=SECRET)
            assert told.returncode == 1
            assert told.stderr.startswith("error: UNAUTHENTICATED: "), told.stderr
            assert "sss" not in told.stderr + told.stdout
        assert "serving" in done("health", "--server", locked.address)
        assert "sss" not in locked.output()
