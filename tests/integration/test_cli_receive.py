"""`mq receive` and `mq bench receive` against a real broker."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.topics import committed, create_topic, send
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 90


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def mq(server: str, *arguments: str, code: int = 0) -> str:
    done = run_mq(*arguments, environment={**os.environ, "MQ_SERVER": server}, timeout=TIMEOUT_S)
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout if code == 0 else done.stderr).decode()


def test_a_printed_message_is_acknowledged_unless_no_ack_is_given(server: str) -> None:
    create_topic(server, "t", 1)
    send(server, "t", 0, [b"a", b"b", b"c"])
    assert mq(server, "receive", "t", "--group", "g", "--count", "2") == "a\nb\n"
    assert committed(server, "g", "t") == {0: 2}
    (line,) = mq(server, "receive", "t", "--group", "g", "--no-ack", "--max", "1", "--json").split(
        "\n"
    )[:-1]
    assert json.loads(line)["body"] == "c"
    assert mq(server, "receive", "t", "--group", "g", "--timeout", "0.2") == ""
    assert committed(server, "g", "t") == {0: 2}


def test_an_illegal_time_is_refused(server: str) -> None:
    told = mq(server, "receive", "t", "--group", "h", "--invisible", "1s", code=1)
    assert "10 s to 12 h" in told


def test_bench_receive_says_what_it_measured(server: str) -> None:
    asked = ("--topic", "b", "--queues", "2", "--messages", "3000", "--size", "100")
    found = json.loads(mq(server, "bench", "receive", "--consumers", "5", *asked, "--json"))
    assert found["bench"] == "receive"
    assert found["messages"] >= 3000
    assert found["consumers"] == 5
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["messages_per_s"] > 0
    assert found["vs_produce"] > 0
