"""The Python programs that users copy: those in examples/python, docs/CLIENT.md, docs/ARROW.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.topics import committed, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
ADDRESS = "127.0.0.1:8081"
DEADLINE_S = 60

RECEIVED = re.compile(r"received queue (\d+) offset (\d+) tag example: (.*)")

# What the programs of each page print, in their order.
CLIENT_DOC = [
    "SEND_OK False\n1000\n10000 SEND_OK\n1\n",
    "100\n100 0 b'payment 0'\n[]\n",
    "[(b'1', 1), (b'3', 1), (b'two', 2)]\n",
    "(3, [b'a', b'b', b'c'])\n",
    "0 b'21.5'\n",
    "SEND_OK 10\n",
    # The groups of those before it follow.
    "[0, 0, 0, 0]\n",
]
ARROW_DOC = ["100 ['keys', 'body']\n100\n", "100 delivery_attempt\n", "3 orders\n"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]


def run(server: str, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(name, *arguments),
        env={**os.environ, "MQ_SERVER": server},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_there_is_a_test_for_every_example() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    # The order service has a test of its own.
    names.remove("order_service.py")
    assert names == {
        "send.py",
        "consume.py",
        "ordered.py",
        "broadcast.py",
        "exactly_once.py",
        "request_reply.py",
        "arrow_pandas.py",
        "arrow_polars.py",
        "arrow_duckdb.py",
    }


def consume_until_interrupted(server: str, topic: str, count: int) -> list[tuple[str, ...]]:
    """The output of the example. It is interrupted when this many are committed."""
    process = subprocess.Popen(
        command("consume.py", topic),
        env={**os.environ, "MQ_SERVER": server},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            eventually(
                lambda: sum(committed(server, "example-python", topic).values()) >= count,
                f"{count} messages are not committed",
            )
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    lines = [RECEIVED.fullmatch(line) for line in output.splitlines()]
    assert all(lines), output
    return [match.groups() for match in lines if match]


def test_the_consume_example_prints_each_sent_message_once_over_two_runs(server: str) -> None:
    sent = []
    for texts in (["first order", "zweiter: ü"], ["third"]):
        done = run(server, "send.py", "orders", *texts)
        assert (done.returncode, done.stderr) == (0, "")
        places = re.findall(r"sent set-0:\d+ queue (\d+) offset (\d+)\n", done.stdout)
        new = [(*place, text) for place, text in zip(places, texts, strict=True)]
        sent += new
        assert sorted(consume_until_interrupted(server, "orders", len(sent))) == sorted(new)


def test_an_error_is_printed_with_its_code(server: str) -> None:
    for name in ("send.py", "consume.py"):
        done = run(server, name, "not/a/topic", "text")
        assert done.returncode == 1
        assert done.stderr.startswith("ILLEGAL_TOPIC: topic 'not/a/topic' is not legal")


def test_steps_of_an_order_come_in_their_order_though_one_fails_at_first(server: str) -> None:
    done = run(server, "ordered.py", "steps")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ConnectionError: the bank does not answer\n") == 3
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 9
    for order in ("order-1", "order-2", "order-3"):
        steps = [step for name, step in lines if name == order]
        assert steps == ["created", "paid", "shipped"]


def test_both_caches_hear_of_every_key(server: str) -> None:
    done = run(server, "broadcast.py", "changes", "a", "b", "c")
    assert (done.returncode, done.stderr) == (0, "")
    expected = [f"{name} drops {key}" for name in ("left", "right") for key in "abc"]
    assert sorted(done.stdout.splitlines()) == expected


def test_every_payment_is_booked_once_though_the_bookkeeper_fails(server: str) -> None:
    done = run(server, "exactly_once.py", "paid-orders")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "200 payments, 200 of them booked, 0 of them twice\n"
    assert "ConnectionError: the ledger does not answer\n" in done.stderr


def test_replies_and_errors_come_to_the_requester(server: str) -> None:
    done = run(server, "request_reply.py", "prices", "tea", "beer", "coffee")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "tea 3.20",
        "beer REQUEST_FAILED KeyError: 'beer'",
        "coffee 4.50",
        "no replier is left: REQUEST_TIMEOUT",
    ]


@pytest.mark.parametrize(
    ("library", "lines"),
    [
        ("pandas", ["3 rows sent", "ann paid 30", "bob paid 12"]),
        ("polars", ["4 rows sent", "cellar 12.25", "roof 22.5"]),
        (
            "duckdb",
            [
                "9 rows sent",
                "user-0: 3 messages, 90 in all",
                "user-1: 3 messages, 120 in all",
                "user-2: 3 messages, 150 in all",
            ],
        ),
    ],
)
def test_data_frames_go_to_a_topic_and_come_back(
    server: str, library: str, lines: list[str]
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    done = run(server, f"arrow_{library}.py", f"frames-{library}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == lines


@pytest.mark.parametrize(("page", "shown"), [("CLIENT.md", CLIENT_DOC), ("ARROW.md", ARROW_DOC)])
def test_every_program_in_a_page_does_what_the_page_says(
    server: str, page: str, shown: list[str]
) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == len(shown)
    for program, expected in zip(programs, shown, strict=True):
        assert ADDRESS in program
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, server)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), program
        assert done.stdout.startswith(expected), program
