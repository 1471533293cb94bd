"""The command line at a prompt: Ctrl-C at any moment, and the tab key, with a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import DEADLINE_S, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

_MQ = (sys.executable, "-m", "mq")
_INTERRUPTED = 130


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if name[:3] != "MQ_"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield {**kept, "MQ_SERVER": broker.address}


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_MQ, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_at_any_moment_prints_no_traceback(environment: dict[str, str]) -> None:
    for step in range(12):
        with start(environment, "consume", "nothing", "--follow", "--group", "g") as command:
            # Until then Python prints a traceback itself: no line of ours has run.
            poll(lambda: has_begun(command.pid), "the program begins")
            time.sleep(step * 0.06)
            command.send_signal(signal.SIGINT)
            _, errors = command.communicate(timeout=DEADLINE_S)
        assert "Traceback" not in errors
        assert "Exception ignored" not in errors
        assert command.returncode in (_INTERRUPTED, -signal.SIGINT)


def has_begun(pid: int) -> bool:
    """The first thing that the program does is to catch SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_ctrl_c_ends_produce_with_what_was_stored(environment: dict[str, str]) -> None:
    with start(environment, "produce", "interrupted", "--json") as command:
        assert command.stdin is not None
        assert command.stdout is not None
        command.stdin.write("one\n")
        command.stdin.flush()
        assert json.loads(command.stdout.readline())["status"] == "SEND_OK"
        command.stdin.write("two\n" * 100)
        command.stdin.flush()
        assert command.stdout.readline()
        command.send_signal(signal.SIGINT)
        # Not `communicate`: it leaves out what was read ahead of the lines above.
        rest = command.stdout.read()
        assert command.stderr is not None
        errors = command.stderr.read()
    assert (command.returncode, errors) == (_INTERRUPTED, "")
    listed = mq(environment, "topic", "describe", "interrupted", "--json")
    stored = sum(one["end"] for one in json.loads(listed)["queues"])
    # What is stored was reported, and the reverse.
    assert stored == 2 + len(rest.splitlines())


@pytest.mark.parametrize("producers", ["1", "2"])
def test_ctrl_c_ends_a_bench_with_what_was_measured(
    environment: dict[str, str], producers: str
) -> None:
    topic = f"bench-{producers}"
    flags = ("--topic", topic, "--seconds", "600", "--producers", producers, "--json")
    with start(environment, "bench", "produce", *flags) as command:
        # Each process sends one message to warm up.
        poll(lambda: ends(environment, topic) > int(producers), "the bench sends")
        command.send_signal(signal.SIGINT)
        out, _ = command.communicate(timeout=DEADLINE_S)
    assert command.returncode == _INTERRUPTED
    document = json.loads(out)
    assert document["is_interrupted"] is True
    assert document["messages"] == ends(environment, topic) - int(producers)


def ends(environment: dict[str, str], topic: str) -> int:
    listed = json.loads(mq(environment, "topic", "list", "--json"))
    return sum(one["messages"] for one in listed if one["topic"] == topic)


def mq(environment: dict[str, str], *arguments: str, **more: str) -> str:
    done = subprocess.run(
        [*_MQ, *arguments],
        env={**environment, **more},
        check=True,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    return done.stdout


def completed(environment: dict[str, str], line: str, **more: str) -> list[str]:
    """What bash would offer at the end of the line."""
    words = line.split(" ")
    asked = {"_MQ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    # As a shell runs it: by its name, through the script of the entry point.
    script = "import sys; sys.argv = ['mq']; from mq.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, **asked, **more},
        check=False,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return sorted(found.partition(",")[2] for found in done.stdout.splitlines() if found)


def test_the_tab_key_offers_commands_flags_topics_and_groups(environment: dict[str, str]) -> None:
    mq(environment, "produce", "tab-orders", "one")
    mq(environment, "produce", "tab-invoices", "one")
    mq(environment, "consume", "tab-orders", "--group", "tab-billing", "--count", "1")
    assert completed(environment, "mq to") == ["top", "topic"]
    assert completed(environment, "mq topic describe tab-") == ["tab-invoices", "tab-orders"]
    assert completed(environment, "mq consume tab-o") == ["tab-orders"]
    assert completed(environment, "mq group reset tab-b") == ["tab-billing"]
    assert completed(environment, "mq group reset x --topic tab-i") == ["tab-invoices"]
    assert completed(environment, "mq topic create tab-") == []
    assert "--watch" in completed(environment, "mq topic list --w")


def test_a_tab_without_a_broker_offers_nothing_and_says_nothing(
    environment: dict[str, str],
) -> None:
    away = {"MQ_SERVER": "127.0.0.1:1"}
    assert completed(environment, "mq topic describe o", **away) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(environment: dict[str, str], shell: str) -> None:
    assert "_MQ_COMPLETE" in mq(environment, "completion", shell)
