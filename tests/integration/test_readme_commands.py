"""The README's commands for a newcomer, typed: against a real broker, in an own directory."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.readme import ADDRESS, DEADLINE_S, block, environment, section, shell
from tests.support.topics import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("newcomer")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The address of a broker on ./data."""
    with BrokerProcess(folder / "data") as broker:
        yield broker.address


def test_the_quick_start_sends_and_receives(server: str, folder: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", section("### Python"), re.DOTALL)[0]
    assert ADDRESS in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, server)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    sent, received = done.stdout.splitlines()
    assert re.fullmatch(r"SEND_OK set-0:\d+", sent)
    assert received == "b'order 7 is paid' paid ('order-7',)"


def test_the_commands_do_what_their_comments_say(server: str, folder: Path) -> None:
    export, *commands = block(section("## The command line")).splitlines()
    assert export == "export PATH=$PWD/.venv/bin:$PATH"
    commands = [one for one in commands if one]
    assert len(commands) >= 14
    printed = {one: shell(one, folder, MQ_SERVER=server) for one in commands}

    def of(start: str) -> str:
        (found,) = [text for one, text in printed.items() if one.startswith(start)]
        return found

    assert "SEND_OK" in of("mq produce orders")
    # One is from the quick start, when that test ran before this one.
    assert set(of("mq consume orders  ").splitlines()) == {"order 7 is paid"}
    assert of("mq consume orders --group shipping") == "order 7 is paid\n"
    assert of("mq consume orders --group audit") == "order 7 is paid\n"
    assert "SEND_OK" in of("mq consume orders --jsonl")
    assert "SEND_OK" in of("mq produce reminders")
    assert of("mq receive reminders") == "pay order 7\n"
    assert "16 queues" in of("mq topic create")
    assert {"orders", "copies", "invoices"} <= set(of("mq topic list").split())
    assert "audit" in of("mq topic describe")
    assert "clustering" in of("mq group describe")
    assert "Nothing was changed" in of("mq group reset")
    assert "order-7" in of("mq message query")
    assert server in of("mq cluster status")
    assert "p99" in of("mq bench latency")
    assert "Deleted topic invoices" in of("mq topic delete")


def test_the_files_of_a_running_broker_can_be_looked_at(server: str, folder: Path) -> None:
    shell("mq produce looked-at hello", folder, MQ_SERVER=server)
    for command in block(section("## The command line"), 1).splitlines():
        assert shell(command, folder).strip()


def test_a_cluster_comes_up_and_a_message_goes_through_it(folder: Path) -> None:
    command = shlex.split(block(section("## Three nodes")))
    # The ports of the README may be taken here.
    command += ["--port", "0"]
    out = folder / "dev-cluster.out"
    with out.open("w") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=file, stderr=subprocess.STDOUT
        )
    try:
        eventually(lambda: re.search(r"MQ_SERVER=\S+", out.read_text()), out.read_text())
        found = re.search(r"MQ_SERVER=(\S+)", out.read_text())
        assert found is not None
        assert found[1].count(",") == 2
        shell("mq produce greetings hello", folder, MQ_SERVER=found[1])
        assert shell("mq consume greetings", folder, MQ_SERVER=found[1]) == "hello\n"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
    assert process.returncode == 0, out.read_text()


def test_the_flags_of_a_node_on_a_machine_of_its_own_are_legal(folder: Path) -> None:
    command = block(section("## Three nodes"), 1)
    assert command.startswith("mq server ")
    # What a node would be started with, without starting it.
    effective = tomllib.loads(shell(command.replace("mq server", "mq config"), folder))
    assert effective["raft"]["members"].count(",") == 2
    assert effective["broker"]["advertised"] == "10.0.0.1:8081"


def test_the_configuration_file_is_one(server: str, folder: Path) -> None:
    text = section("## Configuration")
    file, start = block(text).split("\n\n")
    assert start == "mq server --config mq.toml"
    (folder / "mq.toml").write_text(file, encoding="utf-8")
    effective = tomllib.loads(shell(start.replace("mq server", "mq config"), folder))
    assert effective["store"]["segment_bytes"] == "256MiB"
    assert effective["retention"]["hours"] == 24
    found = re.search(r"`(mq cluster set [^`]*)`", text)
    assert found is not None
    assert "48" in shell(found[1], folder, MQ_SERVER=server)
